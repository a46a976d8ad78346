"""Pfam families of records: tables of families, their lookup by accession, and search with profiles."""
