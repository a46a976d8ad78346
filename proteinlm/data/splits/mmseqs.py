"""MMseqs2 as a program beside this one: databases, clusters, searches; row numbers in, row numbers out.

Sequences are known by their row in the FASTA files that a database was made of, whatever their names are: the keys
of MMseqs2's own tables. Steinegger and Söding (2017), Nature Biotechnology 35:1026; clustering: Steinegger and Söding
(2018), Nature Communications 9:2542.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

from proteinlm.errors import InputError

COVERAGE = 0.8
"""An alignment counts if it covers this share of one of its two sequences at least, so that fragments are found."""
SENSITIVITY = 7.5
"""The highest that MMseqs2 names."""
SHORTEST = 30
"""Residues. MMseqs2 asks for two words on one diagonal, each six residues spread over eleven, which short sequences
often have not: of pairs that were aligned all against all, it overlooked some at 0.5 up to 22 residues, none above."""
UNGAPPED = 15
"""Score without gaps on one diagonal that makes a candidate: MMseqs2's default."""
_CANDIDATES = 10_000
# Ends everything in its process group when its standard input ends, which it does when the process that holds the
# other end is gone, even if that was killed.
_GUARD = 'exec 3<&0; (read _ <&3; kill -KILL 0) & "$@" </dev/null 3<&-; code=$?; kill $!; exit $code'
_LONGEST = 65_535
# E-values depend on how many sequences are searched, identity and coverage do not: these decide alone.
_E_VALUE = 1e30

_ALIGNMENT = (
    "query", "target", "bits", "identity", "e_value", "qstart", "qend", "qlen", "tstart", "tend", "tlen",
)  # fmt: skip


class Hits(NamedTuple):
    """Alignments that cover enough, one a row.

    Attributes:
        queries, targets: int64 [n], rows of the database.
        permille: int16 [n], identical columns per thousand columns of the alignment, gaps included
            (--seq-id-mode 0), cut off, so up to one too low.
    """

    queries: np.ndarray
    targets: np.ndarray
    permille: np.ndarray


def find_mmseqs() -> Path:
    """Return the program.

    Raises:
        InputError: it is not on PATH.
    """
    found = shutil.which("mmseqs")
    if found is None:
        raise InputError(
            "splits by identity need MMseqs2, and there is no program mmseqs on PATH: install Debian's package "
            "(apt-get install mmseqs2) or conda's (conda install -c conda-forge -c bioconda mmseqs2)."
        )
    # Its runs have another working folder.
    return Path(found).absolute()


class Mmseqs:
    """Runs of MMseqs2 in a scratch folder.

    Args:
        work: the folder, absolute; made, the caller removes it.
        threads: that MMseqs2 uses; the results do not depend on it.
        longest: residues of the longest sequence.

    Attributes:
        version: as the program states it.
    """

    def __init__(self, work: Path, threads: int, longest: int):
        self._program, self._work = find_mmseqs(), work
        self._threads: tuple = ("--threads", threads, "-v", 1)
        # Beyond its default MMseqs2 would cut sequences short.
        self._length: tuple = ("--max-seq-len", max(_LONGEST, longest + 1))
        self._number = 0
        work.mkdir()
        self.version = self._run("version").strip()

    def database(self, folder: Path, fasta: Sequence[str]) -> Path:
        """Make a database of FASTA files; rows are numbered through all of them, in order.

        Args:
            folder: that holds the files.
            fasta: their names.
        """
        made = self._new("sequences")
        # Not shuffled, keys are the rows.
        paths = (folder / name for name in fasta)
        self._run("createdb", *paths, made, "--dbtype", 1, "--shuffle", 0, "-v", 1)
        return made

    def clusters(self, database: Path, number: int, identity: float) -> np.ndarray:
        """Cluster `number` sequences; return for each the row of its representative, int64 [number].

        MMseqs2's cascaded clustering: members align with at least `identity` to their representative, or to that of a
        cluster that was merged with theirs, over `COVERAGE` of the member.
        """
        made, table = self._new("clusters"), self._new("table")
        scratch = self._new("scratch")
        self._run(
            "cluster", database, made, scratch, "--min-seq-id", identity, "-c", COVERAGE, "--cov-mode", 1,
            *self._length, *self._threads,
        )  # fmt: skip
        self._run("prefixid", made, table, "--tsv", 1, *self._threads)
        found = np.arange(number)
        for representatives, members in _read(table, ("representative", "member"), pa.int64()):
            found[members] = representatives
        shutil.rmtree(scratch)
        table.unlink()
        return found

    def search(
        self, database: Path, queries: np.ndarray, targets: np.ndarray, ungapped: int = UNGAPPED
    ) -> Iterator[Hits]:
        """Yield all alignments of queries with targets, in batches of no particular order; a pair may come twice.

        MMseqs2 keeps the best candidates of each query and aligns those. A query whose list of candidates is full
        is searched again with a list ten times as long, until no list is full or a list holds all targets: what the
        list's length could lose is not lost.

        Args:
            database: of `database`.
            queries, targets: rows of it, int64, each with at least `SHORTEST` residues.
            ungapped: a pair is aligned if a diagonal without gaps scores that much (BLOSUM62).
        """
        limit = _CANDIDATES
        while len(queries) and len(targets):
            left, right = self._subset(database, queries), self._subset(database, targets)
            candidates = self._new("candidates")
            # No composition is corrected for and nothing is masked: an alignment of repeats is an alignment.
            self._run(
                "prefilter", left, right, candidates, "-s", SENSITIVITY, "--max-seqs", limit, "--mask", 0,
                "--min-ungapped-score", ungapped, "--comp-bias-corr", 0, *self._length, *self._threads,
            )  # fmt: skip
            yield from self._alignments(left, right, candidates)
            queries = self._full(left, right, candidates, limit) if limit < len(targets) else queries[:0]
            self._drop(left, right, candidates)
            limit *= 10

    def _alignments(self, left: Path, right: Path, candidates: Path) -> Iterator[Hits]:
        made, table = self._new("alignments"), self._new("table")
        self._run(
            "align", left, right, candidates, made, "--alignment-mode", 3, "--seq-id-mode", 0, "-e", _E_VALUE,
            "--comp-bias-corr", 0, *self._length, *self._threads,
        )  # fmt: skip
        self._run("prefixid", made, table, "--tsv", 1, *self._threads)
        for query, target, _, identity, _, *places in _read(table, _ALIGNMENT, pa.float64()):
            first, last, length, t_first, t_last, t_length = places
            covered = np.maximum((last - first + 1) / length, (t_last - t_first + 1) / t_length)
            enough = covered >= COVERAGE
            permille = np.rint(1000 * identity[enough]).astype(np.int16)
            yield Hits(query[enough].astype(np.int64), target[enough].astype(np.int64), permille)
        self._drop(made)
        table.unlink()

    def _full(self, left: Path, right: Path, candidates: Path, limit: int) -> np.ndarray:
        """Return the queries with `limit` candidates, in order."""
        made, table = self._new("counts"), self._new("table")
        self._run("result2stats", left, right, candidates, made, "--stat", "linecount", *self._threads)
        self._run("prefixid", made, table, "--tsv", 1, *self._threads)
        found = [keys[counts >= limit] for keys, counts in _read(table, ("query", "count"), pa.int64())]
        self._drop(made)
        table.unlink()
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def _subset(self, database: Path, rows: np.ndarray) -> Path:
        """Make a database of some rows of another; they keep their numbers."""
        made = self._new("subset")
        keys = made.with_name(f"{made.name}_keys")
        keys.write_text("".join(f"{row}\n" for row in rows.tolist()))
        self._run("createsubdb", keys, database, made, "--subdb-mode", 1, "-v", 1)
        keys.unlink()
        return made

    def _new(self, kind: str) -> Path:
        self._number += 1
        return self._work / f"{self._number}_{kind}"

    def _drop(self, *databases: Path) -> None:
        # A database is several files: parts, index, type, names.
        for database in databases:
            for path in self._work.glob(f"{database.name}*"):
                path.unlink()

    def _run(self, *arguments: object) -> str:
        # MMseqs2's scripts do not quote paths, so there is none with a space: each is relative to the working folder.
        command = [os.fspath(self._program), *(self._name(argument) for argument in arguments)]
        # `mmseqs cluster` is a shell script that starts others: a process group of its own, so that all end together.
        with subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", *command], cwd=self._work, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            try:
                said = process.stdout.read() if process.stdout else ""
                process.wait()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if process.returncode:
            last = " ".join(said.strip().splitlines()[-3:]) or "no message"
            # With a cause in the system, what the ingest has finished is kept.
            raise InputError(
                f"mmseqs {arguments[0]} ended with exit code {process.returncode} ({last}): make room on the disk "
                "and in memory, or install another version of MMseqs2."
            ) from OSError(last)
        return said

    def _name(self, argument: object) -> str:
        return os.path.relpath(argument, self._work) if isinstance(argument, Path) else str(argument)


def _read(table: Path, names: tuple[str, ...], kind: pa.DataType) -> Iterator[list[np.ndarray]]:
    """Yield the columns of a table of numbers, separated by tabs, in batches."""
    # An empty file has no columns at all, which the reader refuses.
    if not table.stat().st_size:
        return
    reader = csv.open_csv(
        table,
        csv.ReadOptions(column_names=list(names), block_size=16 << 20),
        csv.ParseOptions(delimiter="\t"),
        csv.ConvertOptions(column_types=dict.fromkeys(names, kind)),
    )
    with reader:
        for batch in reader:
            yield [column.to_numpy() for column in batch.columns]
