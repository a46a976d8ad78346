"""The packaged proteins, as the tests read them."""

import functools
import tempfile
from pathlib import Path


@functools.cache
def sample_records():
    """The packaged proteins as (accession, sequence, families) in file order."""
    from proteinlm.data.families.table_join import join_tables
    from proteinlm.data.families.table_lookup import FamilyTables
    from proteinlm.data.sources.uniprot import read_records

    sample = Path(__file__).parents[2] / "proteinlm" / "data" / "sample"
    records = list(read_records(sample / "proteins.fasta.gz"))
    with tempfile.TemporaryDirectory() as folder:
        join_tables([sample / "pfam.tsv.gz"], Path(folder) / "families")
        families = FamilyTables(Path(folder) / "families").add(records).families
    return [
        (record.accession, record.sequence.decode(), text.decode())
        for record, text in zip(records, families, strict=True)
    ]
