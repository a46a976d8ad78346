"""Analysis of the attention of a model: maps, kinds of heads, amino acids, windows, and contacts."""
