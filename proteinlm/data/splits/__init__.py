"""Splits of a dataset: by held-out families and digest, by sequence identity, or from a published manifest."""
