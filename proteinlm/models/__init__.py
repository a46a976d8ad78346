"""Models: transformer.py, positions.py and one file an attention mechanism."""
