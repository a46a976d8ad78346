"""Pfam families of proteins: family tables, lookup of accessions in them, and search with profile HMMs."""
