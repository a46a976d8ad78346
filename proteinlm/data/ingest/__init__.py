"""`proteinlm ingest`: from files of sequences to a dataset, on this machine or on Apache Beam."""
