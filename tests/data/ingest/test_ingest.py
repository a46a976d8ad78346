import contextlib
import errno
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from rich.console import Console
from subprocesses import children, killed_at_the_end
from sweeps import sweep

from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.dataset.shard_plan import plan_shards
from proteinlm.data.ingest import steps
from proteinlm.data.ingest.ingest import SAMPLE, IngestConfig, ingest
from proteinlm.data.ingest.source_counts import SourceCounts
from proteinlm.data.sources.crc64 import crc64
from proteinlm.data.sources.uniprot import read_records
from proteinlm.data.splits.rules import SPLITS, SplitsConfig
from proteinlm.errors import InputError

HELD = SplitsConfig(0.1, 0.2, ("PF00001",))


def proteins(number, seed=0, longest=60):
    source = random.Random(seed)
    return ["".join(source.choices("ACDEFGHIKLMNPQRSTVWY", k=source.randint(1, longest))) for _ in range(number)]


def write_fasta(path, records):
    text = "".join(f">{name}\n{sequence}\n" for name, sequence in records)
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())
    return path


def flat_entry(accession, sequence, families=(), status="Unreviewed"):
    lines = "".join(f"DR   Pfam; {family}; x; 1.\n" for family in families)
    checksum = f"{int(crc64([sequence.encode()])[0]):016X}"
    return (
        f"ID   X_Y   {status};   {len(sequence)} AA.\nAC   {accession};\nOX   NCBI_TaxID=7;\n{lines}"
        f"SQ   SEQUENCE   {len(sequence)} AA;  1 MW;  {checksum} CRC64;\n     {sequence}\n//\n"
    )


@pytest.fixture
def sources(tmp_path):
    """Three files with copies among them, rejects, and a table."""
    some = proteins(300)
    names = [f"P{i:05d}" for i in range(len(some))]
    first = write_fasta(tmp_path / "a.fasta.gz", [*zip(names[:200], some[:200], strict=True), ("BAD", "A1")])
    second = write_fasta(tmp_path / "b.fasta", [(f"Q{i:05d}", s) for i, s in enumerate(some[100:300])] + [("", "A")])
    third = tmp_path / "c.dat"
    third.write_text(
        "".join(flat_entry(f"R{i:05d}", s, ["PF00001"] * (i % 7 == 0)) for i, s in enumerate(some[50:150]))
    )
    table = tmp_path / "pfam.tsv"
    table.write_text("accession\tpfam\nP00001\tPF00001;PF00002\nQ00003\tPF00003\nZ9\tPF00009\nnonsense\n")
    return [first, second, third], table


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def small(table=None, **fields):
    given = {"block_bytes": 700, "bucket_bytes": 3000, "shards": 3, "workers": 1, **fields}
    return IngestConfig(HELD, () if table is None else (table,), **given)


def test_copies_become_one_record_on_one_side(sources, tmp_path):
    files, table = sources
    summary = ingest(files, tmp_path / "out", small(table))
    dataset = ProteinDataset.open(tmp_path / "out")
    frame = dataset.manifest().to_pandas()
    whole = [record for file in files for record in read_records(file)]
    assert (summary.records, summary.taken) == (502, 500)
    assert frame["copies"].sum() == len(whole) == 500
    assert frame["digest"].is_unique
    assert sum(dataset.counts.values()) == len({record.sequence for record in whole}) == len(frame)
    by_name = {name: row for _, row in frame.iterrows() for name in row["accessions"]}
    # R00000 has PF00001 in the flat file; its copy P00050 in the FASTA knows no family.
    assert by_name["R00000"]["split"] == by_name["P00050"]["split"] == "ood"
    assert by_name["R00000"]["accession"] == "P00050"
    assert by_name["P00001"]["families"].tolist() == ["PF00001", "PF00002"]
    assert by_name["P00001"]["split"] == "ood"
    # Q00003 is a copy of P00103, and R00053 too.
    assert by_name["P00103"]["families"].tolist() == ["PF00003"]
    assert by_name["P00103"]["copies"] == 3
    assert np.isnan(by_name["P00103"]["taxon"])
    assert len({by_name[name]["digest"] for name in ("P00103", "Q00003", "R00053")}) == 1


def test_the_summary_and_provenance_say_what_happened(sources, tmp_path):
    files, table = sources
    summary = ingest(files, tmp_path / "out", small(table))
    assert dict(summary.rejected) == {"letter outside the alphabet": 1, "no accession": 1}
    assert summary.unknown == (1, ("Z9",))
    assert summary.malformed[0] == 1
    assert summary.malformed[1][0].text == "nonsense"
    assert set(summary.seconds) == {"families", "map", "reduce", "write"}
    rows = [line.split("\t") for line in (tmp_path / "out" / "rejects.tsv").read_text().splitlines()]
    assert rows[0] == ["source", "record", "accession", "reason", "detail"]
    assert [row[:4] for row in rows[1:]] == [
        [str(files[0]), "201", "BAD", "letter outside the alphabet"], [str(files[1]), "201", "", "no accession"],
    ]  # fmt: skip
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert [(s["path"], s["bytes"], s["records"], s["format"]) for s in provenance["sources"]] == [
        (str(file), file.stat().st_size, number, kind)
        for file, number, kind in zip(files, (201, 201, 100), ("fasta", "fasta", "flat"), strict=True)
    ]
    assert provenance["splits"] == {"valid": 0.1, "test": 0.2, "held_out": ["PF00001"]}
    assert provenance["held_out_sequences"]["PF00001"] == summary.statistics["ood"].count
    assert provenance["records"]["rejected"] == dict(summary.rejected)
    console = Console(record=True, width=150, file=open(os.devnull, "w"))  # noqa: SIM115 (closed below)
    summary.print(console)
    console.file.close()
    text = console.export_text()
    for part in ("502 records: 500 taken", "Z9", "nonsense", "rejected, no accession: 1", "median"):
        assert part in text


@pytest.mark.parametrize(
    "fields",
    sweep(
        [
            {"workers": 2},
            {"block_bytes": 1 << 20},
            {"bucket_bytes": 1 << 30},
            {"bucket_bytes": 300, "block_bytes": 100},
        ],
        [{"workers": 2}],
    ),
    ids=str,
)
def test_the_same_files_byte_for_byte(sources, tmp_path, fields):
    files, table = sources
    ingest(files, tmp_path / "one", small(table))
    ingest(files[::-1], tmp_path / "other", small(table, **fields))
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


@pytest.mark.slow
def test_other_shards_hold_the_same_records_in_the_same_order(sources, tmp_path):
    files, table = sources
    for shards in (1, 2, 7, 1000):
        ingest(files, tmp_path / str(shards), small(table, shards=shards))
    one = ProteinDataset.open(tmp_path / "1")
    for shards in (2, 7, 1000):
        other = ProteinDataset.open(tmp_path / str(shards))
        assert other.fingerprint == one.fingerprint
        assert other.manifest() == one.manifest()
        for split in SPLITS:
            rows = range(one.counts[split])
            assert other.sequences(split, rows) == one.sequences(split, rows)
            source = tfds.builder_from_directory(str(other.path)).as_data_source(split)
            assert [bytes(row["sequence"]) for row in source] == one.sequences(split, rows)


def test_records_spread_over_files_otherwise_are_the_same_dataset(sources, tmp_path):
    files, _ = sources
    ingest(files[:2], tmp_path / "two", small())
    records = [(r.accession, r.sequence.decode()) for file in files[:2] for r in read_records(file)]
    random.Random(1).shuffle(records)
    ingest([write_fasta(tmp_path / "all.fasta", records)], tmp_path / "one", small())
    two, one = contents(tmp_path / "two"), contents(tmp_path / "one")
    differ = {name for name in two if two[name] != one[name]}
    assert two.keys() == one.keys()
    assert differ == {"provenance.json", "rejects.tsv", "datasheet.md", "datasheet.html"}


@pytest.mark.parametrize("shards", [1, 3, 10, 11, 50])
def test_shards_are_equal_and_hold_everything_in_order(shards):
    counts = [0, 4, 0, 0, 6, 1, 0]
    plan = plan_shards("train", counts, shards)
    rows = [(bucket, row) for shard in plan for bucket, start, stop in shard.pieces for row in range(start, stop)]
    assert rows == [(bucket, row) for bucket, number in enumerate(counts) for row in range(number)]
    assert len(plan) == min(shards, 11)
    assert max(shard.length for shard in plan) - min(shard.length for shard in plan) <= 1
    assert plan_shards("ood", [0, 0], shards) == []


def test_one_sequence_alone_and_empty_splits(tmp_path):
    path = write_fasta(tmp_path / "x.fasta", [("P1", "MKV")])
    summary = ingest([path], tmp_path / "out", IngestConfig(SplitsConfig(0, 0), workers=1))
    dataset = ProteinDataset.open(tmp_path / "out")
    assert dataset.counts == {"train": 1, "valid": 0, "test": 0, "ood": 0}
    assert dataset.lengths("ood").tolist() == []
    assert dataset.digests("ood").shape == (0, 16)
    assert dataset.residue_counts("ood").sum() == 0
    assert "no sequence has 20 of 20 held-out families" in summary.warnings[0]
    assert "ood is empty" in summary.warnings[0]
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    assert list(builder.info.splits) == ["train"]
    row = builder.as_data_source("train")[0]
    assert (row["sequence"], list(row["families"])) == (b"MKV", [])


def test_the_sample(tmp_path):
    summary = ingest(
        [SAMPLE / "proteins.fasta.gz"],
        tmp_path / "out",
        IngestConfig(SplitsConfig(0.05, 0.1), (SAMPLE / "pfam.tsv.gz",), workers=1),
    )
    assert (summary.records, summary.taken, summary.unknown[0]) == (4509, 4509, 0)
    assert {split: s.count for split, s in summary.statistics.items()} == {
        "train": 3342, "valid": 221, "test": 438, "ood": 124,
    }  # fmt: skip


def test_real_entries_end_to_end(shared_data, tmp_path):
    path = shared_data / "flatfile" / "entries.dat.gz"
    ingest([path], tmp_path / "out", IngestConfig(HELD, workers=1))
    dataset = ProteinDataset.open(tmp_path / "out")
    sequences = {r.accession: r.sequence for r in read_records(path)}
    families = {r.accession: set(r.families) for r in read_records(path)}
    frame = dataset.manifest().to_pandas()
    stored = [s for split in SPLITS for s in dataset.sequences(split, range(dataset.counts[split]))]
    assert {name for names in frame["accessions"] for name in names} == set(sequences)
    for row, letters in zip(frame.itertuples(), stored, strict=True):
        assert {sequences[name] for name in row.accessions} == {letters}
        assert set(row.families) == set.union(*(families[name] for name in row.accessions))
        assert row.split == "ood" if "PF00001" in row.families else row.split != "ood"


class TestRefusals:
    def check(self, tmp_path, message, given, config=None, output=None):
        output = output or tmp_path / "out"
        before = set(tmp_path.iterdir())
        with pytest.raises(InputError, match=message):
            ingest(given, output, config or small())
        assert set(tmp_path.iterdir()) == before

    def test_no_sources(self, tmp_path):
        self.check(tmp_path, "at least one file", [])

    def test_a_missing_source(self, tmp_path):
        self.check(tmp_path, "absent cannot be read", [tmp_path / "absent"])

    def test_the_same_file_twice(self, tmp_path):
        path = write_fasta(tmp_path / "x.fasta", [("P1", "MKV")])
        self.check(tmp_path, "is named twice", [path, path])
        os.symlink(path, tmp_path / "link")
        self.check(tmp_path, "are the same file", [path, tmp_path / "link"])

    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_truncated_source_after_a_good_one(self, tmp_path, workers):
        good = write_fasta(tmp_path / "a.fasta", [(f"P{i}", s) for i, s in enumerate(proteins(300))])
        bad = write_fasta(tmp_path / "b.fasta.gz", [(f"Q{i}", s) for i, s in enumerate(proteins(300))])
        bad.write_bytes(bad.read_bytes()[:-20])
        self.check(tmp_path, r"b\.fasta\.gz is cut short", [good, bad], small(workers=workers))

    def test_nothing_usable(self, tmp_path):
        path = write_fasta(tmp_path / "x.fasta", [("P1", "M1"), ("P2", "")])
        self.check(tmp_path, r"none of the 2 records can be used; the first is record 1 .* letter outside", [path])

    def test_a_bad_table(self, tmp_path):
        path = write_fasta(tmp_path / "x.fasta", [("P1", "MKV")])
        self.check(tmp_path, "has no usable row", [path], small(path))

    def test_a_source_whose_name_is_not_utf_8(self, tmp_path):
        path = tmp_path / os.fsdecode(b"caf\xe9.fasta")
        write_fasta(path, [("P1", "MKV")])
        self.check(tmp_path, "is not UTF-8: rename the file", [path])

    @pytest.mark.parametrize("fields", [{"name": "My-Data"}, {"shards": -1}, {"workers": -2}])
    def test_settings(self, fields):
        with pytest.raises(InputError, match=str(next(iter(fields.values())))):
            IngestConfig(**fields)


def test_families_of_names_that_are_not_ascii(tmp_path):
    """Both files have the same bytes, and the dataset the same text for them; nothing that a terminal would obey."""
    path = tmp_path / "x.fasta"
    path.write_bytes("".join(f">N\u00e9{i}\nMKV{'A' * i}\n" for i in range(3)).encode() + b">R\x1b[31m\nMKVD\n")
    table = tmp_path / "pfam.tsv"
    table.write_bytes("".join(f"N\u00e9{i}\tPF0000{i}\n" for i in range(3)).encode() + b"R\x1b[31m\tPF00009\n")
    summary = ingest([path], tmp_path / "out", small(table))
    assert summary.with_families == 4
    assert summary.unknown[0] == 0
    names = ProteinDataset.open(tmp_path / "out").manifest()["accession"].to_pylist()
    assert sorted(names) == [r"N\xc3\xa90", r"N\xc3\xa91", r"N\xc3\xa92", r"R\x1b[31m"]


def test_without_anything_to_train_on_there_is_a_warning(tmp_path):
    path = write_fasta(tmp_path / "x.fasta", [("P1", "MKV"), ("P2", "MKVL")])
    summary = ingest([path], tmp_path / "out", IngestConfig(SplitsConfig(0.5, 0.5), workers=1))
    assert any("train is empty: lower --valid" in warning for warning in summary.warnings)


def test_thousands_of_small_files_take_time_in_proportion(tmp_path, monkeypatch):
    """The account of what is read is taken when it is saved, not at each end of a file."""
    taken, state = [], SourceCounts.state
    monkeypatch.setattr(SourceCounts, "state", lambda self: taken.append(1) or state(self))
    paths = [write_fasta(tmp_path / f"{i}.fasta", [(f"P{i}", "MKV" + "A" * i)]) for i in range(200)]
    ingest(paths, tmp_path / "out", small())
    assert len(taken) <= 3
    rows = [line for line in (tmp_path / "out" / "datasheet.md").read_text().splitlines() if ".fasta" in line]
    assert len(rows) == 50
    assert "and 150 more, in provenance.json" in (tmp_path / "out" / "datasheet.md").read_text()


@pytest.mark.parametrize("stage", ["spill", "_write_examples", "write_shard", "write_manifest"])
def test_a_full_disk_ends_in_one_sentence_and_leaves_nothing(sources, tmp_path, monkeypatch, stage):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(steps.record_buckets if stage == "spill" else steps, stage, full)
    (tmp_path / "place").mkdir()
    with pytest.raises(InputError, match=r"the disk of .*out is full"):
        ingest(sources[0], tmp_path / "place" / "out", small())
    assert list((tmp_path / "place").iterdir()) == []


@pytest.mark.parametrize("kilobytes", sweep([300, 2500, 3500, 3900], [2500]))
def test_a_disk_that_is_really_full(tmp_path, kilobytes):
    """On a small file system of its own: in the middle of spilling, reducing, and writing ArrayRecord files."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(tmp_path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs the program mount: apt-get install mount")
    if done.returncode:
        pytest.skip("needs a small file system, which root alone can mount: sudo make test")
    try:
        config = IngestConfig(families=(SAMPLE / "pfam.tsv.gz",), workers=1)
        with pytest.raises(InputError, match=r"the disk of .*out is full"):
            ingest([SAMPLE / "proteins.fasta.gz"], tmp_path / "out", config)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


SLOW_INGEST = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from proteinlm.data.ingest.ingest import IngestConfig, ingest
    from proteinlm.data.ingest import local

    if __name__ == "__main__":
        reduce = local.reduce_buckets
        def slow(run, submit):
            counts = reduce(run, submit)
            print("reduced", flush=True)
            time.sleep(60)
            return counts
        local.reduce_buckets = slow
        ingest([Path(sys.argv[1])], Path(sys.argv[2]), IngestConfig(workers=int(sys.argv[3])))
""")


@contextlib.contextmanager
def slow_ingest(tmp_path, workers=1):
    """An ingest in another process that stops after reducing; whatever happens, nothing of it is left running."""
    (tmp_path / "slow.py").write_text(SLOW_INGEST)
    path = write_fasta(tmp_path / "x.fasta", [(f"P{i}", s) for i, s in enumerate(proteins(50))])
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "slow.py"), str(path), str(tmp_path / "out"), str(workers)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with killed_at_the_end(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "reduced\n", process.communicate()[1]
        yield path, process


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    with slow_ingest(tmp_path, 2) as (_, process):
        # As a terminal does it: to every process of the group.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.count("Traceback") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"slow.py", "x.fasta"}


def test_two_ingests_into_one_folder_and_one_after_a_kill(tmp_path):
    with slow_ingest(tmp_path, 2) as (path, process):
        with pytest.raises(InputError, match="another ingest is writing"):
            ingest([path], tmp_path / "out", small())
        workers = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
    assert (tmp_path / ".out.partial").is_dir()
    assert not (tmp_path / "out").exists()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "processes outlive the one that started them"
        time.sleep(0.05)
    ingest([path], tmp_path / "out", small())
    assert sum(ProteinDataset.open(tmp_path / "out").counts.values()) == 50
    assert {p.name for p in tmp_path.iterdir()} == {"slow.py", "x.fasta", "out"}
