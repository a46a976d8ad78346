"""From files of sequences to records: locations, compression, FASTA and UniProtKB flat files, releases."""
