"""Attention within and across the proteins of a concatenated window."""
