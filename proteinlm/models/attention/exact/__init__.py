"""Exact attention in blocks of queries and keys, inside sorted buckets, and with a key-value cache."""
