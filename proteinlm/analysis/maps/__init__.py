"""Attention maps of one protein: measured, drawn, and as an interactive page."""
