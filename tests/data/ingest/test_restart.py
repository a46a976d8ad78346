"""Ingests that are killed and started again: byte for byte the dataset of one that was not, and little done twice."""

import gzip
import io
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from profiles import profile, written
from subprocesses import PROGRAMS

from proteinlm.data.families import profile_search
from proteinlm.data.ingest import progress, steps
from proteinlm.data.ingest.ingest import SAMPLE, IngestConfig, ingest
from proteinlm.data.sources.locations import Location
from proteinlm.data.splits.rules import SplitsConfig
from proteinlm.errors import InputError


def write_sources(place):
    """Three files, two of them with records that are rejected, and two tables."""
    source = random.Random(5)
    letters = "ACDEFGHIKLMNPQRSTVWY"
    some = ["".join(source.choices(letters, k=source.randint(5, 60))) for _ in range(240)]
    for name, start in (("a.fasta", 0), ("b.fasta", 80), ("c.fasta", 140)):
        records = "".join(f">{name[0].upper()}{i:05d}\n{s}\n" for i, s in enumerate(some[start : start + 100]))
        (place / name).write_text(records + (">BAD\nA1\n" if name != "a.fasta" else ""))
    (place / "families.tsv").write_text("A00003\tPF00001\nB00005\tPF00002\nZ\tPF00003\n")


@pytest.mark.slow
def test_killed_at_any_file_operation(tmp_path):
    """By one process, killed at every so many of its file operations; then again and again, until it is done."""
    write_sources(tmp_path)
    command = [sys.executable, str(PROGRAMS / "ingest_killer.py"), str(tmp_path), "37"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    whole, runs = report["whole"], report["runs"]
    for run in runs:
        assert run["killed"], run
        assert run["same"], run
        if run["finished"]:
            continue
        assert run["clean"], run
        assert run["again"]["reduce_bucket"] == whole["reduce_bucket"] - run["reduced"], run
        assert run["again"]["map_block"] < whole["map_block"] or not run["sources"], run
        assert run["again"]["map_block"] == 0 or run["sources"] < 3, run
        # The manifest is the first of the files that are written.
        assert run["again"]["write_shard"] == whole["write_shard"] - max(run["written"] - 1, 0), run
    # Every phase was met.
    assert {run["sources"] for run in runs} == {0, 1, 2, 3}
    assert any(0 < run["reduced"] < whole["reduce_bucket"] for run in runs)
    assert any(run["written"] for run in runs)
    assert report["same"]
    assert 3 <= report["deaths"] < 100


POOLED = textwrap.dedent("""
    import sys
    from pathlib import Path
    from proteinlm.data.ingest import progress
    from proteinlm.data.ingest.ingest import SAMPLE, IngestConfig, ingest

    if __name__ == "__main__":
        progress.SAVE_SECONDS, progress.sync_file_system = 0.0, lambda folder: None
        config = IngestConfig(families=(SAMPLE / "pfam.tsv.gz",), workers=2, block_bytes=50_000, bucket_bytes=100_000)
        ingest(sorted(Path(sys.argv[1]).glob("*.fasta")), Path(sys.argv[1]) / "out", config)
""")


def halves_of_the_sample(place):
    from proteinlm.data.sources.uniprot import read_records

    records = list(read_records(SAMPLE / "proteins.fasta.gz"))
    for name, part in (("a.fasta", records[:2000]), ("b.fasta", records[2000:])):
        (place / name).write_text("".join(f">{r.accession}\n{r.sequence.decode()}\n" for r in part))


@pytest.mark.slow
def test_killed_with_processes(tmp_path):
    """When some of the buckets are reduced; the next one starts at once, while processes may still be ending."""
    halves_of_the_sample(tmp_path)
    (tmp_path / "pooled.py").write_text(POOLED)
    config = IngestConfig(families=(SAMPLE / "pfam.tsv.gz",), workers=1, bucket_bytes=100_000)
    ingest(sorted(tmp_path.glob("*.fasta")), tmp_path / "whole", config)
    told = []
    for wanted in (["intake"], ["reduced"], ["written"], None):
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "pooled.py"), str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        while wanted and process.poll() is None and not set(wanted) <= state_of(tmp_path).keys():
            time.sleep(0.001)
        if wanted:
            process.kill()
        told.append(process.communicate(timeout=60)[1])
    assert process.returncode == 0, told
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert "continuing an interrupted ingest: 2 of 2 sources were read" in told[-1]


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nothing_that_is_finished(tmp_path, monkeypatch):
    """As by a system that is out of memory; the same command continues, with one process this time."""
    halves_of_the_sample(tmp_path)
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "sync_file_system", lambda folder: None)
    fields = {"families": (SAMPLE / "pfam.tsv.gz",), "bucket_bytes": 50_000}
    sources = sorted(tmp_path.glob("*.fasta"))

    def kill():
        while "reduced" not in state_of(tmp_path):
            time.sleep(0.001)
        multiprocessing.active_children()[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(InputError, match=r"fewer workers.*kept in .*\.out\.partial: run the same command again"):
        ingest(sources, tmp_path / "out", IngestConfig(**fields, workers=2))
    killer.join()
    summary = ingest(sources, tmp_path / "out", IngestConfig(**fields, workers=1))
    assert "2 of 2 sources were read" in summary.resumed
    ingest(sources, tmp_path / "whole", IngestConfig(**fields, workers=1))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_pieces_that_were_searched_are_not_searched_again(tmp_path, stopped, monkeypatch):
    made = profile((tmp_path / "b.fasta").read_text().split()[1], "K", "PF00014.1", (10.0, 10.0))
    (tmp_path / "x.hmm").write_bytes(written(made))
    profiles = (tmp_path / "x.hmm",)
    again(tmp_path, profiles=profiles)
    (tmp_path / "out").rename(tmp_path / "whole")
    calls = []
    search = profile_search.search

    def counted(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise Stop
        return search(*arguments)

    monkeypatch.setattr(profile_search, "search", counted)
    with monkeypatch.context() as patch:
        patch.setattr("proteinlm.data.ingest.ingest._may_be_temporary", lambda error: True)
        with pytest.raises(Stop):
            again(tmp_path, profiles=profiles)
    summary = again(tmp_path, profiles=profiles)
    assert len(calls) == 4 + 8 - 3
    assert summary.searched is not None
    assert summary.searched.found >= 1
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    # Once all are searched and a bucket is reduced, nothing of the search is done again.
    (tmp_path / "out").rename(tmp_path / "first")
    stopped(profiles=profiles)
    del calls[:]
    assert again(tmp_path, profiles=profiles).searched == summary.searched
    assert calls == []


def state_of(place):
    try:
        return json.loads((place / ".out.partial" / progress.MARKER).read_text())["state"]
    except FileNotFoundError:
        return {}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Stop(BaseException):
    """As a kill would, this leaves everything as it is."""


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Three sources, and a function that runs an ingest until a stage's call number so and so."""
    write_sources(tmp_path)
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "sync_file_system", lambda folder: None)

    def run(stage="reduce_bucket", number=3, **fields):
        calls = 0
        step = getattr(steps, stage)

        def counted(*arguments, **settings):
            nonlocal calls
            calls += 1
            if calls == number:
                raise Stop
            return step(*arguments, **settings)

        with monkeypatch.context() as patch:
            patch.setattr(steps, stage, counted)
            patch.setattr("proteinlm.data.ingest.ingest._may_be_temporary", lambda error: True)
            patch.setattr("proteinlm.data.ingest.ingest.anything_finished", lambda path: True)
            with pytest.raises(Stop):
                again(tmp_path, **fields)

    return run


def test_an_ingest_that_cannot_begin_leaves_an_unfinished_one_alone(tmp_path, stopped):
    stopped()
    with pytest.raises(InputError, match="absent"):
        again(tmp_path, families=(tmp_path / "absent*",))
    assert "2 of 8 buckets" in again(tmp_path).resumed


def again(place, names="*.fasta", output="out", **fields):
    given = {"splits": SplitsConfig(0.1, 0.2, ("PF00001",)), "families": (place / "families.tsv",), "shards": 2}
    config = IngestConfig(workers=1, block_bytes=500, bucket_bytes=2000, **(given | fields))
    return ingest(sorted(place.glob(names)), place / output, config)


def test_what_is_finished_is_told(tmp_path, stopped, capsys):
    stopped()
    summary = again(tmp_path)
    assert "3 of 3 sources were read, 2 of 8 buckets sorted, 0 files written" in summary.resumed
    assert summary.resumed in capsys.readouterr().err
    assert (summary.records, summary.taken, dict(summary.rejected)) == (302, 300, {"letter outside the alphabet": 2})
    assert summary.unknown == (1, ("Z",))
    assert not (tmp_path / ".out.partial").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda place: {"shards": 3}, r"shards \(2, now 3\)"),
        (lambda place: {"splits": SplitsConfig(0.1, 0.3, ("PF00001",))}, r"test \(0.2, now 0.3\)"),
        (lambda place: {"names": "[ab].fasta"}, "source .*c.fasta"),
        (lambda place: os.utime(place / "b.fasta", (1, 1)), "source .*b.fasta"),
        (lambda place: (place / "families.tsv").write_text("A00003\tPF00001\n"), "table .*families.tsv"),
    ],
)
def test_other_sources_and_options_are_refused(tmp_path, stopped, change, words):
    """Hours of work are never thrown away for a slip of the fingers."""
    stopped()
    before = state_of(tmp_path)
    changed = change(tmp_path)
    with pytest.raises(InputError, match=rf"\.out\.partial is an unfinished ingest that differs in {words}.*remove"):
        again(tmp_path, **(changed if isinstance(changed, dict) else {}))
    assert state_of(tmp_path) == before


def test_where_nothing_is_finished_it_begins_anew(tmp_path, stopped, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SAVE_SECONDS", 1000.0)
    stopped()
    assert state_of(tmp_path) == {}
    again(tmp_path, shards=3)
    assert "differs in shards (2, now 3); it had finished nothing and is removed" in capsys.readouterr().err


def test_a_damaged_marker_is_none(tmp_path, stopped, capsys):
    stopped()
    (tmp_path / ".out.partial" / progress.MARKER).write_text("{")
    assert again(tmp_path).resumed == ""
    assert capsys.readouterr().err == ""


def test_a_full_disk_keeps_what_is_finished(tmp_path, stopped, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "sync_file_system", lambda folder: None)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(steps, "write_shard", full)
        with pytest.raises(InputError, match=r"the disk of .* is full.*kept in .*\.out\.partial: run the same"):
            again(tmp_path)
    assert "8 of 8 buckets" in again(tmp_path).resumed


def test_a_read_error_in_the_third_file_keeps_the_first_two(tmp_path, stopped, monkeypatch):
    opened = Location.open

    class Broken(io.BytesIO):
        def read(self, *_):
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Location, "open", lambda self: Broken() if self.name.endswith("c.fasta") else opened(self))
        with pytest.raises(InputError, match=r"c\.fasta cannot be read beyond byte 0 .*run the same command again"):
            again(tmp_path)
    assert "2 of 3 sources were read" in again(tmp_path).resumed


def test_a_source_that_is_damaged_leaves_nothing(tmp_path, stopped):
    """It will be another file when it is mended, and the dataset another one."""
    (tmp_path / "c.fasta").write_bytes(gzip.compress((tmp_path / "c.fasta").read_bytes())[:-9])
    with pytest.raises(InputError, match=r"c\.fasta is cut short.*download it again\.$"):
        again(tmp_path)
    assert not (tmp_path / ".out.partial").exists()


def test_scratch_of_a_finished_ingest_is_removed(tmp_path, monkeypatch):
    write_sources(tmp_path)
    again(tmp_path)
    (tmp_path / ".out.partial" / "scratch").mkdir(parents=True)
    with pytest.raises(InputError, match="is not empty"):
        again(tmp_path)
    assert not (tmp_path / ".out.partial").exists()
    (tmp_path / ".out.partial" / "dataset").mkdir(parents=True)
    with pytest.raises(InputError, match="is not empty"):
        again(tmp_path)
    assert (tmp_path / ".out.partial" / "dataset").exists()


@pytest.mark.slow
def test_a_dataset_that_was_removed_is_made_anew(tmp_path, stopped):
    """Also when its ingest was killed while its scratch files were removed, so that all seems to be finished."""
    stopped("write_shard", 7)
    shutil.rmtree(tmp_path / ".out.partial" / "dataset")
    assert again(tmp_path).resumed == ""
    again(tmp_path, output="other")
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


def test_processes_that_still_end_are_waited_for(tmp_path):
    from proteinlm.data.ingest.workers import wait_for_processes

    code = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_SH); print(1, flush=True)"
    held = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(0.5)", str(tmp_path / "processes.lock")], stdout=subprocess.PIPE
    )
    assert held.stdout is not None
    held.stdout.readline()
    wait_for_processes(tmp_path)
    assert held.wait(5) == 0
    held.stdout.close()
