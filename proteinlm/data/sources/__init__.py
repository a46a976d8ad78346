"""Reading protein records from files: locations, compression, FASTA, UniProtKB flat files, UniProt releases."""
