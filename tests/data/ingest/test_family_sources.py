"""Tables and profiles through the whole ingest: what the dataset then has, and what it says of where it is from."""

import hashlib
import json

import pytest
from profiles import profile, written

from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.ingest.family_sources import FAMILY_REJECTS
from proteinlm.data.ingest.ingest import SAMPLE, IngestConfig, ingest
from proteinlm.data.sources.crc64 import crc64
from proteinlm.data.sources.uniprot import read_records
from proteinlm.data.splits.rules import SplitsConfig

HELD = SplitsConfig(0.1, 0.2, ("PF00014",))


@pytest.fixture(scope="module")
def proteins(tmp_path_factory):
    """A FASTA file of sixty real proteins, P00974 (PF00014) and a copy of it among them."""
    sample = list(read_records(SAMPLE / "proteins.fasta.gz"))
    bpti = next(r for r in sample if r.accession == "P00974")
    chosen = [*sample[:58], bpti, bpti._replace(accession="COPY")]
    path = tmp_path_factory.mktemp("run") / "proteins.fasta"
    path.write_text("".join(f">{r.accession}\n{r.sequence.decode()}\n" for r in chosen))
    return path, chosen


def manifest(folder):
    frame = ProteinDataset.open(folder).manifest().to_pandas()
    return {name: row for _, row in frame.iterrows() for name in row["accessions"]}


def provenance(folder):
    return json.loads((folder / "provenance.json").read_text())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tables_of_three_formats(proteins, tmp_path):
    path, chosen = proteins
    crcs = [f"{crc:016X}" for crc in crc64([r.sequence for r in chosen]).tolist()]
    other = f"{int(crcs[1], 16) ^ 1:016X}"
    names = [r.accession for r in chosen]
    texts = {
        "a.tsv": f"{names[0]}\tPF00001\nUNKNOWN\tPF00003\nnonsense\n",
        "b.tsv": "uniprot_acc\tseq_version\tcrc64\tmd5\tpfamA_acc\tseq_start\tseq_end\n"
        f"{names[0]}\t1\t{crcs[0]}\tm\tPF00002\t1\t9\n{names[1]}\t1\t{other}\tm\tPF00014\t1\t9\n",
        "c.tsv": f"{names[2]}\tIPR000001\tx\tPF00051\t1\t9\n{names[2]}\tIPR000001\tx\tSM00130\t1\t9\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    tables = [tmp_path / name for name in texts]
    config = IngestConfig(HELD, tuple(tables), workers=1)
    summary = ingest([path], tmp_path / "out", config)
    rows = manifest(tmp_path / "out")
    assert [rows[name]["families"].tolist() for name in names[:3]] == [["PF00001", "PF00002"], [], ["PF00051"]]
    # The table's PF00014, held out, is of another version of the sequence.
    assert rows[names[1]]["split"] != "ood"
    said = provenance(tmp_path / "out")
    assert said["family_tables"] == [
        {"path": str(tmp_path / name), "bytes": len(text), "md5": hashlib.md5(text.encode()).hexdigest(),
         "format": kind, "rows": number, "malformed": bad}
        for (name, text), kind, number, bad in zip(
            texts.items(), ("two columns", "Pfam-A.regions", "protein2ipr"), (3, 2, 2), (1, 0, 0), strict=True)
    ]  # fmt: skip
    assert said["family_rows"] == {"read": 7, "malformed": 1, "unknown_accession": 1}
    assert said["records_with_families"] == {"DR lines": 0, **{str(table): 1 for table in tables}}
    assert said["records_with_another_crc64"] == summary.mismatched == 1
    assert "family_search" not in said
    lines = (tmp_path / "out" / FAMILY_REJECTS).read_text().splitlines()
    assert lines == ["source\taccession\tcrc64_of_table\tcrc64_of_sequence", f"{path}\t{names[1]}\t{other}\t{crcs[1]}"]
    ingest([path], tmp_path / "two", IngestConfig(HELD, tuple(tables[::-1]), workers=2, block_bytes=500))
    assert contents(tmp_path / "two") == contents(tmp_path / "out")


def test_sequences_without_a_family_are_searched_before_splits_are_decided(proteins, tmp_path):
    path, chosen = proteins
    made = profile(chosen[-1].sequence[35:93].decode(), "K", "PF00014.1")
    (tmp_path / "x.hmm").write_bytes(written(made))
    (tmp_path / "t.tsv").write_text("".join(f"{r.accession}\tPF09999\n" for r in chosen[:20]))
    fields = {"splits": HELD, "families": (tmp_path / "t.tsv",), "profiles": (tmp_path / "x.hmm",)}
    summary = ingest([path], tmp_path / "one", IngestConfig(**fields, workers=1))
    rows = manifest(tmp_path / "one")
    assert rows["P00974"]["split"] == rows["COPY"]["split"] == "ood"
    assert rows["P00974"]["families"].tolist() == ["PF00014"]
    assert summary.searched is not None
    distinct, known = ({r.sequence for r in some} for some in (chosen, chosen[:20]))
    assert summary.searched.searched == len(distinct) - len(known)
    assert "search" in summary.seconds
    said = provenance(tmp_path / "one")
    assert said["family_search"] == {
        "sequences": "those without a family", "cutoffs": "gathering", "searched": summary.searched.searched,
        "found": summary.searched.found, "too_long": 0,
    }  # fmt: skip
    assert (said["family_profiles"][0]["profiles"], said["sequences_with_families"]) == (1, 20 + summary.searched.found)
    ingest([path], tmp_path / "two", IngestConfig(**fields, workers=2, bucket_bytes=5000))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    everything = ingest([path], tmp_path / "all", IngestConfig(**fields, search_all=True, workers=1))
    assert everything.searched is not None
    assert everything.searched.searched == len(distinct)
    assert rows.keys() == manifest(tmp_path / "all").keys()
