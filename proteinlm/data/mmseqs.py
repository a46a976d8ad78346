"""MMseqs2 as a program beside this one: databases, clusters, searches; rows in, rows out.

Sequences are known by their row in one FASTA file, whose order the caller keeps. Steinegger and Söding (2017),
Nature Biotechnology 35:1026; linclust: Steinegger and Söding (2018), Nature Communications 9:2542.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

from proteinlm.errors import InputError

COVERAGE = 0.8
"""An alignment counts if it covers this share of the shorter sequence, so that fragments are found."""
SENSITIVITY = 7.5
E_VALUE = 0.1
"""Of a search; with more, pairs of short sequences that are alike by chance would count."""
SHORTEST = 14
"""Residues; MMseqs2 finds nothing shorter, since it asks for two words of six residues, spaced, on one diagonal."""
_LIMIT = 1000

_COLUMNS = ("query", "target", "fident", "qstart", "qend", "qlen", "tstart", "tend", "tlen")


class Hits(NamedTuple):
    """Alignments that cover enough, one a row.

    Attributes:
        queries, targets: int64 [n], rows of the FASTA file.
        permille: int64 [n], identical columns per thousand columns of the alignment, gaps included, rounded.
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
            "splits by identity need MMseqs2, and there is no program mmseqs on PATH: install it with "
            "apt-get install mmseqs2, conda install -c bioconda mmseqs2 or brew install mmseqs2."
        )
    return Path(found)


class Mmseqs:
    """Runs of MMseqs2 in a scratch folder.

    Args:
        work: the folder; made, the caller removes it.
        threads: that MMseqs2 uses; the results do not depend on it.

    Attributes:
        version: as the program states it.
    """

    def __init__(self, work: Path, threads: int):
        self._program, self._work, self._threads = find_mmseqs(), work, threads
        self._number = 0
        work.mkdir()
        self.version = self._run("version").strip()

    def database(self, fasta: Path) -> Path:
        """Make a database of a FASTA file whose names are 0, 1, 2, ... in order."""
        made = self._new("sequences")
        # Not shuffled, keys are the rows.
        self._run("createdb", fasta, made, "--dbtype", "1", "--shuffle", "0", "-v", "1")
        return made

    def subset(self, database: Path, rows: np.ndarray) -> Path:
        """Make a database of some rows of another; they keep their names."""
        made = self._new("subset")
        keys = made.with_suffix(".keys")
        keys.write_text("".join(f"{row}\n" for row in rows.tolist()))
        self._run("createsubdb", keys, database, made, "--subdb-mode", "1", "-v", "1")
        return made

    def clusters(self, database: Path, number: int, identity: float) -> np.ndarray:
        """Cluster `number` sequences with linclust; return for each the row of its representative, int64 [number].

        Members align to their representative with at least `identity`, over `COVERAGE` of the member. Sequences
        below `SHORTEST` are alone.
        """
        made, table = self._new("clusters"), self._new("clusters").with_suffix(".tsv")
        self._run(
            "linclust", database, made, self._scratch(), "--min-seq-id", identity, "-c", COVERAGE, "--cov-mode", "1",
            "--threads", self._threads, "-v", "1",
        )  # fmt: skip
        self._run("createtsv", database, database, made, table, "--threads", self._threads, "-v", "1")
        found = np.arange(number)
        for rows in _read(table, ("representative", "member"), pa.int64()):
            found[rows[1]] = rows[0]
        return found

    def search(self, database: Path, queries: np.ndarray, targets: np.ndarray) -> Iterator[Hits]:
        """Yield alignments of queries with targets in batches of no particular order; a pair may come twice.

        A query with so many alignments that the program's list of candidates may have been full is searched again
        with a list ten times as long.

        Args:
            database: of `database`.
            queries, targets: rows of it, int64, each with at least `SHORTEST` residues.
        """
        limit = _LIMIT
        while len(queries) and len(targets):
            numbers = np.zeros(int(queries.max()) + 1, np.int64)
            for hits, every in self._search(database, queries, targets, limit):
                np.add.at(numbers, every, 1)
                yield hits
            if limit >= len(targets):
                return
            queries = queries[numbers[queries] >= limit // 2]
            limit *= 10

    def _search(self, database: Path, queries, targets, limit: int) -> Iterator[tuple[Hits, np.ndarray]]:
        """Yield alignments that cover enough, and the queries of all alignments, int64."""
        left, right = self.subset(database, queries), self.subset(database, targets)
        made, table = self._new("alignments"), self._new("alignments").with_suffix(".tsv")
        scratch = self._scratch()
        self._run(
            "search", left, right, made, scratch, "-s", SENSITIVITY, "-e", E_VALUE, "--max-seqs", limit,
            "--alignment-mode", "3", "--threads", self._threads, "-v", "1",
        )  # fmt: skip
        shutil.rmtree(scratch)
        output = ("--format-output", ",".join(_COLUMNS))
        self._run("convertalis", left, right, made, table, *output, "--threads", self._threads, "-v", "1")
        for columns in _read(table, _COLUMNS, pa.float64()):
            query, target, identity, *places = columns
            first, last, length, t_first, t_last, t_length = places
            covered = np.maximum((last - first + 1) / length, (t_last - t_first + 1) / t_length)
            enough = covered >= COVERAGE
            yield (
                Hits(
                    query[enough].astype(np.int64),
                    target[enough].astype(np.int64),
                    np.rint(1000 * identity[enough]).astype(np.int64),
                ),
                query.astype(np.int64),
            )
        table.unlink()

    def _new(self, kind: str) -> Path:
        self._number += 1
        return self._work / f"{self._number}_{kind}"

    def _scratch(self) -> Path:
        # A folder of its own each time: MMseqs2 would take up what an earlier run has left.
        folder = self._new("scratch")
        folder.mkdir()
        return folder

    def _run(self, *arguments: object) -> str:
        command = [os.fspath(self._program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        if done.returncode:
            said = " ".join((done.stdout + done.stderr).strip().splitlines()[-3:]) or "no message"
            raise InputError(
                f"mmseqs {arguments[0]} ended with exit code {done.returncode} ({said}): "
                "make room on the disk and in memory, or install another version of MMseqs2."
            )
        return done.stdout


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
