"""`proteinlm evaluate`: accuracy and perplexity of whole splits, breakdowns, calibration, Table 2."""
