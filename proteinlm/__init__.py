"""Protein language models with linear attention: ingest, train, evaluate, analyze."""

__version__ = "0.1.0"
