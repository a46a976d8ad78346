import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from proteinlm.data.splits import mmseqs
from proteinlm.data.splits.mmseqs import COVERAGE, Mmseqs, find_mmseqs
from proteinlm.errors import InputError
from tests.conftest import sample_records

needs_mmseqs = pytest.mark.skipif(shutil.which("mmseqs") is None, reason="needs MMseqs2: apt-get install mmseqs2")


def relatives(number, seed=0, length=80, changes=10):
    """Sequences that differ from a common ancestor."""
    source = random.Random(seed)
    letters = "ACDEFGHIKLMNPQRSTVWY"
    ancestor = source.choices(letters, k=length)
    made = []
    for _ in range(number):
        child = ancestor.copy()
        for place in source.sample(range(length), changes):
            child[place] = source.choice(letters)
        made.append("".join(child))
    return made


def database(folder, sequences, threads=1, files=1):
    """Sequences in some FASTA files, all of the same name, since rows are what counts."""
    names = []
    for index in range(files):
        part = sequences[index * len(sequences) // files : (index + 1) * len(sequences) // files]
        names.append(f"{index}.fasta")
        (folder / names[-1]).write_text("".join(f">name\n{sequence}\n" for sequence in part))
    program = Mmseqs(folder / "work", threads, max(map(len, sequences)))
    return program, program.database(folder, names)


def pairs(program, made, queries, targets):
    found = {}
    for hits in program.search(made, np.array(queries), np.array(targets)):
        for query, target, permille in zip(hits.queries, hits.targets, hits.permille, strict=True):
            found[int(query), int(target)] = int(permille)
    return found


def test_without_the_program_there_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"no program mmseqs on PATH.*apt-get install mmseqs2.*conda install"):
        find_mmseqs()


def test_a_program_of_a_relative_path_is_found_from_any_folder(monkeypatch, tmp_path):
    stand_in(tmp_path, monkeypatch, "echo 1.2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"bin{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert Mmseqs(tmp_path / "work", 1, 100).version == "1.2"


@needs_mmseqs
def test_rows_are_numbered_through_all_files(tmp_path):
    sequences = relatives(3, 1) + relatives(4, 2) + relatives(2, 3)
    program, made = database(tmp_path, sequences, files=4)
    clusters = program.clusters(made, 9, 0.5)
    assert len(set(clusters[:3])) == len(set(clusters[3:7])) == len(set(clusters[7:])) == 1
    assert len(set(clusters)) == 3
    assert set(pairs(program, made, [0, 5], [1, 2, 3, 4, 6, 8])) == {(0, 1), (0, 2), (5, 3), (5, 4), (5, 6)}


@needs_mmseqs
def test_fragments_count_whichever_side_they_are_on(tmp_path):
    whole = relatives(1, 1, length=300)[0]
    sequences = [whole, whole[100:140], relatives(1, 2, length=300)[0]]
    program, made = database(tmp_path, sequences)
    assert pairs(program, made, [0], [1, 2]) == {(0, 1): 1000}
    assert pairs(program, made, [1], [0, 2]) == {(1, 0): 1000}


@needs_mmseqs
def test_a_full_list_of_candidates_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(mmseqs, "_CANDIDATES", 6)
    sequences = relatives(60)
    program, made = database(tmp_path, sequences)
    assert set(pairs(program, made, range(3), range(3, 60))) == {(q, t) for q in range(3) for t in range(3, 60)}


@needs_mmseqs
def test_a_search_is_what_the_program_finds_by_its_own_workflow(tmp_path):
    """easy-search with names instead of keys, another path through the program; and threads change nothing."""
    sequences = [letters for _, letters, _ in sample_records()[:120]]
    queries, targets = list(range(0, 120, 4)), [i for i in range(120) if i % 4]
    for name, rows in (("q", queries), ("t", targets)):
        (tmp_path / f"{name}.fasta").write_text("".join(f">{i}\n{sequences[i]}\n" for i in rows))
    columns = "query,target,fident,qstart,qend,qlen,tstart,tend,tlen"
    subprocess.run(
        ["mmseqs", "easy-search", "q.fasta", "t.fasta", "found.tsv", "scratch", "-s", "7.5", "--max-seqs", "1000000",
         "-e", "inf", "--mask", "0", "--comp-bias-corr", "0", "--alignment-mode", "3", "--format-output",
         columns, "-v", "1"],
        cwd=tmp_path, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wanted = {}
    for line in (tmp_path / "found.tsv").read_text().splitlines():
        query, target, identity, *places = line.split("\t")
        first, last, length, t_first, t_last, t_length = map(int, places)
        if max((last - first + 1) / length, (t_last - t_first + 1) / t_length) >= COVERAGE:
            wanted[int(query), int(target)] = round(1000 * float(identity))
    program, made = database(tmp_path, sequences, threads=2, files=3)
    assert len(wanted) > 40
    assert pairs(program, made, queries, targets) == wanted


@needs_mmseqs
def test_paths_may_have_spaces_and_other_letters(tmp_path):
    folder = tmp_path / "a b" / "ü'$x"
    folder.mkdir(parents=True)
    program, made = database(folder, relatives(3, 1) + relatives(2, 2), files=2)
    clusters = program.clusters(made, 5, 0.5)
    assert len(set(clusters[:3])) == len(set(clusters[3:])) == 1
    assert set(pairs(program, made, [0, 4], [1, 2, 3])) == {(0, 1), (0, 2), (4, 3)}


@needs_mmseqs
def test_a_higher_score_leaves_weak_candidates_out(tmp_path):
    sequences = relatives(2, 1, length=200, changes=20) + relatives(1, 2, length=60)
    sequences.append("".join(a if i % 3 else "G" for i, a in enumerate(sequences[2][:40])))
    program, made = database(tmp_path, sequences)
    rows = (np.array([0, 2]), np.array([1, 3]))
    all_pairs = {pair for hits in program.search(made, *rows) for pair in zip(hits.queries, hits.targets, strict=True)}
    strong = {
        pair for hits in program.search(made, *rows, 150) for pair in zip(hits.queries, hits.targets, strict=True)
    }
    assert all_pairs == {(0, 1), (2, 3)}
    assert strong == {(0, 1)}


@needs_mmseqs
def test_no_hits_and_nobody_to_search(tmp_path):
    sequences = [relatives(1, seed)[0] for seed in range(4)]
    program, made = database(tmp_path, sequences)
    assert pairs(program, made, [0, 1], [2, 3]) == {}
    assert list(program.search(made, np.empty(0, np.int64), np.array([1]))) == []
    assert list(program.search(made, np.array([1]), np.empty(0, np.int64))) == []


def stand_in(folder, monkeypatch, script):
    """A program of that name on PATH."""
    path = folder / "bin" / "mmseqs"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")


def test_a_program_that_fails_is_quoted(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, 'test "$1" = version || { echo "Can not write: No space left"; exit 3; }')
    program = Mmseqs(tmp_path / "work", 1, 100)
    with pytest.raises(InputError, match=r"mmseqs createdb ended with exit code 3 \(Can not write: No space left\)"):
        program.database(tmp_path, ["x.fasta"])


SLEEPER = """
    test "$1" = version && exit
    sleep 60 &
    echo $! > {folder}/child
    wait
"""


def wait_for_child(folder):
    while not (folder / "child").is_file() or not (folder / "child").read_text():
        time.sleep(0.01)
    return Path("/proc") / (folder / "child").read_text().strip()


def ends(process):
    deadline = time.monotonic() + 10
    # A zombie that nobody has waited for is over too.
    while process.exists() and (process / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_program_and_what_it_has_started_end_with_an_interrupt(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, SLEEPER.format(folder=tmp_path))
    program = Mmseqs(tmp_path / "work", 1, 100)

    def interrupt():
        wait_for_child(tmp_path)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        program.database(tmp_path, ["x.fasta"])
    ends(wait_for_child(tmp_path))


def test_the_program_ends_when_the_process_that_started_it_is_killed(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, SLEEPER.format(folder=tmp_path))
    code = (
        "import sys; from pathlib import Path; from proteinlm.data.splits.mmseqs import Mmseqs; "
        "Mmseqs(Path(sys.argv[1]) / 'work', 1, 100).database(Path(sys.argv[1]), ['x.fasta'])"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as process:
        child = wait_for_child(tmp_path)
        assert child.exists()
        process.kill()
    ends(child)
