import dataclasses
import errno
import gzip
import importlib.util
import json
import os
import pickle
import random
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from backports import zstd
from profiles import profile, written
from rich.console import Console
from sample import sample_records

from proteinlm.cli.ingest_options import parse_ingest
from proteinlm.data.dataset.dataset import MANIFEST, PROVENANCE, REJECTS, ProteinDataset
from proteinlm.data.ingest import steps
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.family_sources import FAMILY_REJECTS
from proteinlm.data.ingest.ingest import ingest
from proteinlm.data.sources.crc64 import crc64
from proteinlm.data.splits.rules import SPLITS, SplitsConfig
from proteinlm.errors import InputError

IN_MEMORY = "--runner=FnApiRunner --direct_running_mode=in_memory"
TWO_PROCESSES = "--runner=FnApiRunner --direct_running_mode=multi_processing --direct_num_workers=2"

needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None, reason="needs Apache Beam: pip install -e '.[beam]'"
)


def checksum(sequence):
    return f"{int(crc64([sequence.encode()])[0]):016X}"


def flat_entry(accession, sequence, families, checksum):
    lines = "".join(f"DR   Pfam; {family}; x; 1.\n" for family in families)
    return (
        f"ID   X_Y   Reviewed;   {len(sequence)} AA.\nAC   {accession}; Q99999;\nOX   NCBI_TaxID=9606;\n{lines}"
        f"SQ   SEQUENCE   {len(sequence)} AA;  1 MW;  {checksum} CRC64;\n     {sequence}\n//\n"
    )


def make_sources(folder, number, seed=0):
    """Write `number` records, copies and rejects among them, as FASTA, flat file and zstd, and three tables."""
    source = random.Random(seed)
    real = sample_records()
    sequences, families = [], []
    for _ in range(number * 7 // 10):
        _, letters, some = source.choice(real)
        # Of a real protein of some families a stretch, of which there will be one or several.
        start = source.randrange(max(1, len(letters) - 30))
        sequences.append(letters[start : start + source.randint(30, 300)])
        families.append([family for family in some.split(";") if family and source.random() < 0.7])
    fasta, flat, isoforms = [], [], []
    two = ["accession\tpfam", "no table row", "ZZZZ1\tPF00001"]
    regions = ["uniprot_acc\tseq_version\tcrc64\tmd5\tpfamA_acc\tseq_start\tseq_end"]
    entries = ["ZZZZ2\tIPR000001\tKringle\tPF00051\t3\t80"]
    for place in range(number):
        which = place if place < len(sequences) else source.randrange(len(sequences))
        letters, some, name = sequences[which], families[which], f"A{place:06d}"
        kind = source.random()
        if kind < 0.4:
            wrong = "1" if source.random() < 0.01 else ""
            reviewed = source.choice(["sp", "tr"])
            fasta.append(f">{reviewed}|{name}|N OS=x OX={source.randint(1, 99)} PE=1\n{letters}{wrong}\n")
            if some and source.random() < 0.5:
                two.append(f"{name}\t{';'.join(some)}")
        elif kind < 0.8:
            said = "0" * 16 if source.random() < 0.01 else checksum(letters)
            flat.append(flat_entry(name, letters, some[:1], said))
            stale = "00000000000000AB" if source.random() < 0.1 else checksum(letters)
            regions += [f"{name}\t1\t{stale}\tx\t{family}\t1\t9" for family in some]
        else:
            isoforms.append(f">{name}-{source.randint(2, 4)}\n{letters}\n")
            entries += [f"{name}\tIPR000001\tX\t{family}\t1\t9" for family in some]
    texts = ("".join(part).encode() for part in (fasta, flat, isoforms))
    packed = dict(zip(("a.fasta.gz", "b.dat", "c ü.fasta.zst"), texts, strict=True))
    packed["a.fasta.gz"] = gzip.compress(packed["a.fasta.gz"], mtime=0)
    packed["c ü.fasta.zst"] = zstd.compress(packed["c ü.fasta.zst"])
    for name, content in packed.items():
        (folder / name).write_bytes(content)
    tables = {"two.tsv": two, "regions.tsv": regions, "entries.tsv": entries}
    for name, rows in tables.items():
        (folder / name).write_text("\n".join(rows) + "\n")
    return [folder / name for name in packed], tuple(os.fspath(folder / name) for name in tables)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def with_beam(config, args=IN_MEMORY):
    return dataclasses.replace(config, engine="beam", beam_args=args, workers=0)


def told(summary):
    """Return a summary without what differs between two runs."""
    statistics = {split: s.to_json() for split, s in summary.statistics.items()}
    return {**vars(summary), "statistics": statistics, "seconds": None, "output": None}


def assert_same(sources, folder, config, args=IN_MEMORY):
    """Ingest by both engines, compare what they write and tell, and return the summary."""
    local = ingest(sources, folder / "local", config)
    other = ingest(sources, folder / "beam", with_beam(config, args))
    assert contents(folder / "beam") == contents(folder / "local")
    assert told(other) == told(local)
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []
    return local


SMALL = IngestConfig(SplitsConfig(0.1, 0.2, ("PF00001",)), shards=3, block_bytes=5000, bucket_bytes=20000, workers=1)


@pytest.fixture
def few(tmp_path):
    return make_sources(tmp_path, 300)


@needs_beam
@pytest.mark.slow
def test_both_engines_write_the_same_20_000_records(tmp_path):
    sources, tables = make_sources(tmp_path, 20_000)
    config = IngestConfig(
        SplitsConfig(0.05, 0.1), tables, shards=4, block_bytes=1 << 18, bucket_bytes=1 << 20, workers=2
    )
    summary = assert_same(sources, tmp_path, config)
    assert summary.records == 20_000
    assert 100 < summary.records - summary.taken < 400
    assert 4000 < summary.taken - summary.sequences < 8000
    assert summary.mismatched > 100
    # ZZZZ1, ZZZZ2, and those of records that were rejected.
    assert 2 < summary.unknown[0] < 400
    assert len(summary.unknown[1]) == 5
    assert summary.malformed[0] == 1
    assert all(summary.statistics[split].count for split in SPLITS)
    provenance = json.loads((tmp_path / "beam" / PROVENANCE).read_bytes())
    assert set(provenance["records_with_families"]) == {"DR lines", *tables}
    assert min(provenance["records_with_families"].values()) > 100
    written = contents(tmp_path / "beam")
    assert {REJECTS, FAMILY_REJECTS, MANIFEST} <= set(written)
    assert len([name for name in written if ".array_record-" in name]) == 16


@pytest.mark.slow
@needs_beam
def test_without_tables(few, tmp_path):
    sources, _ = few
    summary = assert_same(sources, tmp_path, SMALL)
    assert summary.records == 300
    assert len(ProteinDataset.open(tmp_path / "beam").manifest()) == summary.sequences


@pytest.mark.slow
@needs_beam
def test_one_bucket_and_one_block(few, tmp_path):
    sources, tables = few
    assert_same(sources, tmp_path, IngestConfig(families=tables, workers=1))


@pytest.mark.slow
@needs_beam
def test_more_buckets_than_records(few, tmp_path):
    (tmp_path / "x.fasta").write_text(">P1\nMKV\n>P2\nMKVA\n")
    assert_same([tmp_path / "x.fasta"], tmp_path, dataclasses.replace(SMALL, bucket_bytes=1))


@needs_beam
@pytest.mark.slow
def test_steps_travel_to_other_processes(few, tmp_path):
    sources, tables = few
    assert_same(sources, tmp_path, dataclasses.replace(SMALL, families=tables), TWO_PROCESSES)


@pytest.mark.slow
@needs_beam
def test_relative_names_and_patterns(few, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_same(["*.fasta.*", "b.dat"], tmp_path, dataclasses.replace(SMALL, families=("two.tsv",)))
    assert '"a.fasta.gz"' in (tmp_path / "beam" / PROVENANCE).read_text()


@pytest.mark.slow
@needs_beam
def test_search_with_profiles(tmp_path):
    made = profile(sample_records()[0][1][:200], "x", "PF00042.1", (10.0, 10.0))
    sources, tables = make_sources(tmp_path, 300)
    (tmp_path / "one.hmm").write_bytes(written(made))
    (tmp_path / "d.fasta").write_text(f">D1\n{sample_records()[0][1]}\n")
    config = dataclasses.replace(SMALL, families=tables[:1], profiles=(os.fspath(tmp_path / "one.hmm"),))
    summary = assert_same([*sources, tmp_path / "d.fasta"], tmp_path, config)
    assert summary.searched is not None
    assert summary.searched.found >= 1


@needs_beam
class TestNothingIsHalfThere:
    def same_error(self, sources, tmp_path, config=SMALL):
        """Return the message of an error that both engines tell."""
        messages = []
        for name, one in (("local", config), ("beam", with_beam(config))):
            with pytest.raises(InputError) as caught:
                ingest(sources, tmp_path / name, one, console=Console(quiet=True))
            messages.append(str(caught.value))
            assert not (tmp_path / name).exists()
            assert not (tmp_path / f".{name}.partial").exists()
        assert messages[0] == messages[1]
        return messages[0]

    def test_a_truncated_source(self, few, tmp_path):
        sources, _ = few
        sources[0].write_bytes(sources[0].read_bytes()[:-100])
        assert "cut short" in self.same_error(sources, tmp_path)

    def test_no_record_is_of_use(self, tmp_path):
        (tmp_path / "x.fasta").write_text(">P1\nMK1\n>P2\nMK2\n")
        assert "none of the 2 records can be used" in self.same_error([tmp_path / "x.fasta"], tmp_path)

    def test_a_table_of_no_use(self, few, tmp_path):
        (tmp_path / "bad.tsv").write_text("nothing\n")
        config = dataclasses.replace(SMALL, families=(os.fspath(tmp_path / "bad.tsv"),))
        assert "bad.tsv has no usable row" in self.same_error(few[0], tmp_path, config)

    def test_a_worker_without_room(self, few, tmp_path, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(steps, "write_shard", full)
        with pytest.raises(InputError, match="No space left on device"):
            ingest(few[0], tmp_path / "out", with_beam(SMALL))
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / ".out.partial").exists()

    def test_a_job_that_fails_elsewhere(self, few, tmp_path, monkeypatch):
        job = SimpleNamespace(wait_until_finish=lambda: "FAILED")
        monkeypatch.setattr("apache_beam.Pipeline.run", lambda *_: job)
        with pytest.raises(InputError, match="the Beam job ended as FAILED"):
            ingest(few[0], tmp_path / "out", with_beam(SMALL))
        assert not (tmp_path / ".out.partial").exists()

    def test_an_interrupt_cancels_the_job(self, few, tmp_path, monkeypatch):
        def interrupted():
            raise KeyboardInterrupt

        cancelled = []
        job = SimpleNamespace(wait_until_finish=interrupted, cancel=lambda: cancelled.append(True))
        monkeypatch.setattr("apache_beam.Pipeline.run", lambda *_: job)
        with pytest.raises(KeyboardInterrupt):
            ingest(few[0], tmp_path / "out", with_beam(SMALL))
        assert cancelled
        assert not (tmp_path / ".out.partial").exists()

    def test_what_a_dead_job_has_left_is_removed(self, few, tmp_path):
        (tmp_path / ".out.partial" / "beam-1" / "dataset").mkdir(parents=True)
        (tmp_path / ".out.partial" / "beam-1" / "dataset" / "x").write_text("x")
        ingest(few[0], tmp_path / "out", with_beam(SMALL))
        assert "x" not in contents(tmp_path / "out")

    def test_an_unfinished_ingest_of_the_local_engine_is_kept(self, few, tmp_path):
        marker = tmp_path / ".out.partial" / "scratch" / "marker.json"
        marker.parent.mkdir(parents=True)
        marker.write_text(json.dumps({"inputs": {}, "state": {"reduced": 3}}))
        with pytest.raises(InputError, match=r"unfinished ingest of the local engine: finish it with --engine local"):
            ingest(few[0], tmp_path / "out", with_beam(SMALL))
        assert marker.exists()


@needs_beam
def test_a_step_done_twice_changes_nothing(few, tmp_path):
    from proteinlm.data.ingest.beam_steps import NOTES, Job, PlanFiles, Reduce, WriteFile
    from proteinlm.data.sources.record_buckets import columns, packed
    from proteinlm.data.sources.uniprot import read_records

    work, folder = tmp_path / "work", tmp_path / "folder"
    folder.mkdir()
    for kind in NOTES:
        (work / kind).mkdir(parents=True)
    job = Job(work, folder, SMALL, 1, 0, ())
    records = list(read_records(few[0][0]))
    chunks = [chunk for _, chunk in packed(*columns(records, [b""] * len(records)), 1)]
    written = []
    for turn in (chunks, chunks[::-1]):
        assert list(Reduce(job).process((0, turn))) == [0]
        for task in PlanFiles(job).process([0]):
            assert list(WriteFile(job).process(task)) == []
        written.append(contents(folder))
    assert written[0] == written[1]
    assert len(written[0]) == 1 + 3 * 3
    assert list((work / "attempts").iterdir()) == []
    with pytest.raises(RuntimeError, match=r"buckets \[0\] were not reduced"):
        list(PlanFiles(job).process([]))


@needs_beam
def test_accounts_do_not_depend_on_the_order_of_what_arrives(tmp_path):
    from proteinlm.data.families.table_lookup import Mismatch
    from proteinlm.data.ingest.beam_steps import ACCOUNTS, NOTES, Account, Job
    from proteinlm.data.sources.uniprot import Reject

    for kind in NOTES:
        (tmp_path / kind).mkdir()
    job = Job(tmp_path, tmp_path, SMALL, 1, 1, ())
    rejects = [Reject(place, "X", "r", "d") for place in range(3)]
    mismatches = [Mismatch("X", 1, place, place) for place in range(3)]
    parts = [(n, "flat", steps.MapResult(3, 2, rejects[: n + 1], Counter(), [])) for n in range(3)]
    parts += [(1, "", steps.MapResult(0, 0, [], Counter(), [one])) for one in mismatches]
    for seed in range(5):
        random.Random(seed).shuffle(parts)
        list(Account(job).process(((7, 0), map(pickle.dumps, parts))))
        (path,) = (tmp_path / ACCOUNTS).iterdir()
        assert pickle.loads(path.read_bytes()) == [
            ("flat", steps.MapResult(3, 2, rejects[: n + 1], Counter(), mismatches if n == 1 else [])) for n in range(3)
        ]


@needs_beam
class TestOptions:
    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ({"beam_args": "--region=x"}, "names no runner"),
            ({"beam_args": "--runner=Nope"}, "Unexpected pipeline runner: Nope"),
            ({"beam_args": "--runner"}, "cannot be read"),
            ({"beam_args": "--runner='x"}, "cannot be read .No closing quotation"),
            ({"workers": 3}, "--workers is for the local engine"),
        ],
    )
    def test_refused(self, few, tmp_path, fields, sentence):
        with pytest.raises(InputError, match=sentence):
            ingest(few[0], tmp_path / "out", dataclasses.replace(with_beam(SMALL), **fields))
        assert not (tmp_path / ".out.partial").exists()

    def test_a_url_is_no_output(self, few, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError, match="is a URL; the dataset needs a folder"):
            ingest(few[0], "gs://bucket/out", with_beam(SMALL))
        assert not (tmp_path / "gs:").exists()

    def test_splits_that_it_does_not_know(self, few, tmp_path):
        @dataclasses.dataclass(frozen=True)
        class More(SplitsConfig):
            identity: float | None = None

        ingest(few[0], tmp_path / "out", with_beam(dataclasses.replace(SMALL, splits=More(0.1, 0.1))))
        with pytest.raises(InputError, match="does not support splits by identity: use --engine local"):
            ingest(few[0], tmp_path / "no", with_beam(dataclasses.replace(SMALL, splits=More(0.1, 0.1, (), 0.5))))


def test_arguments_of_beam_need_its_engine():
    with pytest.raises(InputError, match="--beam-args needs --engine beam"):
        IngestConfig(beam_args=IN_MEMORY)


@pytest.mark.parametrize("given", [["--beam-args", IN_MEMORY], [f"--beam-args={IN_MEMORY}"]])
def test_arguments_of_beam_begin_as_options_do(given):
    parsed = parse_ingest(["x.fasta", "--output", "out", "--engine", "beam", *given, "--shards", "2"])
    assert vars(parsed.engine) == {"engine": "beam", "beam_args": IN_MEMORY, "workers": 0, "shards": 2}


def test_without_beam_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    for name in ("proteinlm.data.ingest.beam", "proteinlm.data.ingest.beam_steps"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InputError, match=r"needs Apache Beam: pip install 'proteinlm\[beam\]'"):
        ingest([tmp_path / "x.fasta"], tmp_path / "out", with_beam(SMALL))
