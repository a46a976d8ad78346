"""Attention compared with the contacts of a protein structure."""
