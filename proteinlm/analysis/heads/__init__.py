"""Kinds of attention heads: diagonal, vertical, block, scattered, diffuse."""
