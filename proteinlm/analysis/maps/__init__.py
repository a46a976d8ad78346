"""Attention maps of one protein, as figures and as an interactive page."""
