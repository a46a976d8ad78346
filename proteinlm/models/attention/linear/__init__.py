"""Linear attention for any feature map: the scan over chunks, its state, rows of several proteins, split rows."""
