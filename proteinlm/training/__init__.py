"""`proteinlm train` and `proteinlm plan`: the loop, the compiled step, the optimizer, resuming."""
