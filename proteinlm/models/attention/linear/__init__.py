"""Linear attention for any feature map: the chunked algorithm, its state, packed rows, and sequence parallelism."""
