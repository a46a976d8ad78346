"""Running MMseqs2 as a subprocess: databases, clusters and searches.

Sequences are identified by row: their number in the FASTA files of a database, which is also their key in the tables of
MMseqs2. Steinegger and Söding (2017), Nature Biotechnology 35:1026; clustering: Steinegger and Söding (2018), Nature
Communications 9:2542.
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
"""Minimum fraction of one of the two sequences that an alignment must cover to count; so fragments are found."""
SENSITIVITY = 7.5
"""The highest value of -s that MMseqs2 documents."""
SHORTEST = 30
"""Minimum length in residues for a reliable search. MMseqs2 needs two matching words on one diagonal, each of six
residues spread over eleven, which short sequences often lack. Compared with alignments of all pairs, it missed some
pairs with an identity of 0.5 up to a length of 22 residues, and none above."""
UNGAPPED = 15
"""Minimum score without gaps on one diagonal of a candidate: the default of MMseqs2."""
_CANDIDATES = 10_000
# A shell script that runs a command and kills its process group when standard input closes, which happens when the
# parent process ends, even if the parent was killed.
_GUARD = 'exec 3<&0; (read _ <&3; kill -KILL 0) & "$@" </dev/null 3<&-; code=$?; kill $!; exit $code'
_LONGEST = 65_535
# No limit in practice: E-values depend on the number of sequences. Identity and coverage alone decide.
_E_VALUE = 1e30

_ALIGNMENT = (
    "query", "target", "bits", "identity", "e_value", "qstart", "qend", "qlen", "tstart", "tend", "tlen",
)  # fmt: skip


class Hits(NamedTuple):
    """Alignments with sufficient coverage.

    Attributes:
        queries, targets: int64 [n], rows of the database.
        permille: int16 [n], identical columns per thousand columns of the alignment, including gaps (--seq-id-mode 0),
            truncated (up to 1 too low).
    """

    queries: np.ndarray
    targets: np.ndarray
    permille: np.ndarray


def find_mmseqs() -> Path:
    """Return the path of the program mmseqs.

    Raises:
        InputError: the program is not on PATH.
    """
    program = shutil.which("mmseqs")
    if program is None:
        raise InputError(
            "splits by identity need MMseqs2, and there is no program mmseqs on PATH: install Debian's package "
            "(apt-get install mmseqs2) or conda's (conda install -c conda-forge -c bioconda mmseqs2)."
        )
    # Absolute, since the program runs in another working folder.
    return Path(program).absolute()


class Mmseqs:
    """Runs of MMseqs2 in a scratch folder.

    Args:
        work: absolute path of the scratch folder, which is created here and removed by the caller.
        threads: number of threads; the results do not depend on it.
        longest: length of the longest sequence in residues.

    Attributes:
        version: version that the program reports.

    Raises:
        InputError: MMseqs2 is missing. The methods raise it if MMseqs2 fails.
    """

    def __init__(self, work: Path, threads: int, longest: int):
        self._program, self._work = find_mmseqs(), work
        self._threads: tuple = ("--threads", threads, "-v", 1)
        # MMseqs2 truncates sequences that are longer than this.
        self._length: tuple = ("--max-seq-len", max(_LONGEST, longest + 1))
        self._number = 0
        work.mkdir()
        self.version = self._run("version").strip()

    def database(self, folder: Path, fasta: Sequence[str]) -> Path:
        """Create a database from FASTA files and return its path. Rows are numbered through all files, in order.

        Args:
            folder: folder of the files.
            fasta: names of the files.
        """
        database = self._new("sequences")
        # Without --shuffle 0, keys would not be rows.
        paths = (folder / name for name in fasta)
        self._run("createdb", *paths, database, "--dbtype", 1, "--shuffle", 0, "-v", 1)
        return database

    def clusters(self, database: Path, number: int, identity: float) -> np.ndarray:
        """Cluster the `number` sequences of a database; return for each the row of its representative, int64 [number].

        This is the cascaded clustering of MMseqs2: a member has at least `identity` to its representative, or to the
        representative of a cluster that was merged with its own, in an alignment over `COVERAGE` of the member.
        """
        clusters, table = self._new("clusters"), self._new("table")
        scratch = self._new("scratch")
        self._run(
            "cluster", database, clusters, scratch, "--min-seq-id", identity, "-c", COVERAGE, "--cov-mode", 1,
            *self._length, *self._threads,
        )  # fmt: skip
        self._run("prefixid", clusters, table, "--tsv", 1, *self._threads)
        representative_of = np.arange(number)
        for representatives, members in _read(table, ("representative", "member"), pa.int64()):
            representative_of[members] = representatives
        shutil.rmtree(scratch)
        table.unlink()
        return representative_of

    def search(
        self, database: Path, queries: np.ndarray, targets: np.ndarray, ungapped: int = UNGAPPED
    ) -> Iterator[Hits]:
        """Yield all alignments of queries with targets, in batches in no particular order; a pair may occur twice.

        MMseqs2 keeps a list of the best candidates of each query and aligns these. If the list of a query is full, the
        query is searched again with a list ten times as long, until no list is full or the list holds all targets. So
        the length of the list excludes no alignment.

        Args:
            database: path returned by `database`.
            queries, targets: rows of the database, int64, of sequences with at least `SHORTEST` residues.
            ungapped: minimum score (BLOSUM62) on one diagonal without gaps for a pair to be aligned.
        """
        limit = _CANDIDATES
        while len(queries) and len(targets):
            left, right = self._subset(database, queries), self._subset(database, targets)
            candidates = self._new("candidates")
            # No correction for composition and no masking: alignments of repeats count as well.
            self._run(
                "prefilter", left, right, candidates, "-s", SENSITIVITY, "--max-seqs", limit, "--mask", 0,
                "--min-ungapped-score", ungapped, "--comp-bias-corr", 0, *self._length, *self._threads,
            )  # fmt: skip
            yield from self._alignments(left, right, candidates)
            queries = self._full(left, right, candidates, limit) if limit < len(targets) else queries[:0]
            self._drop(left, right, candidates)
            limit *= 10

    def _alignments(self, left: Path, right: Path, candidates: Path) -> Iterator[Hits]:
        alignments, table = self._new("alignments"), self._new("table")
        self._run(
            "align", left, right, candidates, alignments, "--alignment-mode", 3, "--seq-id-mode", 0, "-e", _E_VALUE,
            "--comp-bias-corr", 0, *self._length, *self._threads,
        )  # fmt: skip
        self._run("prefixid", alignments, table, "--tsv", 1, *self._threads)
        for query, target, _, identity, _, *extents in _read(table, _ALIGNMENT, pa.float64()):
            first, last, length, t_first, t_last, t_length = extents
            covered = np.maximum((last - first + 1) / length, (t_last - t_first + 1) / t_length)
            enough = covered >= COVERAGE
            permille = np.rint(1000 * identity[enough]).astype(np.int16)
            yield Hits(query[enough].astype(np.int64), target[enough].astype(np.int64), permille)
        self._drop(alignments)
        table.unlink()

    def _full(self, left: Path, right: Path, candidates: Path, limit: int) -> np.ndarray:
        """Return the queries with a full list of `limit` candidates, in order."""
        counts, table = self._new("counts"), self._new("table")
        self._run("result2stats", left, right, candidates, counts, "--stat", "linecount", *self._threads)
        self._run("prefixid", counts, table, "--tsv", 1, *self._threads)
        full = [keys[lengths >= limit] for keys, lengths in _read(table, ("query", "count"), pa.int64())]
        self._drop(counts)
        table.unlink()
        return np.sort(np.concatenate(full)) if full else np.empty(0, np.int64)

    def _subset(self, database: Path, rows: np.ndarray) -> Path:
        """Create a database of some rows of another one; they keep their row numbers."""
        subset = self._new("subset")
        keys = subset.with_name(f"{subset.name}_keys")
        keys.write_text("".join(f"{row}\n" for row in rows.tolist()))
        self._run("createsubdb", keys, database, subset, "--subdb-mode", 1, "-v", 1)
        keys.unlink()
        return subset

    def _new(self, kind: str) -> Path:
        self._number += 1
        return self._work / f"{self._number}_{kind}"

    def _drop(self, *databases: Path) -> None:
        # A database is several files: data, index, type, names.
        for database in databases:
            for path in self._work.glob(f"{database.name}*"):
                path.unlink()

    def _run(self, *arguments: object) -> str:
        # The scripts of MMseqs2 do not quote paths. Paths relative to the working folder have no spaces.
        command = [os.fspath(self._program), *(self._name(argument) for argument in arguments)]
        # `mmseqs cluster` is a shell script that starts other programs. A process group of its own ends them all.
        with subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", *command], cwd=self._work, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output = process.stdout.read() if process.stdout else ""
                process.wait()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if process.returncode:
            last = " ".join(output.strip().splitlines()[-3:]) or "no message"
            # An OSError as the cause means that the unfinished ingest is kept.
            raise InputError(
                f"mmseqs {arguments[0]} ended with exit code {process.returncode} ({last}): free disk space and "
                "memory, or install another version of MMseqs2."
            ) from OSError(last)
        return output

    def _name(self, argument: object) -> str:
        return os.path.relpath(argument, self._work) if isinstance(argument, Path) else str(argument)


def _read(table: Path, names: tuple[str, ...], kind: pa.DataType) -> Iterator[list[np.ndarray]]:
    """Read a table of numbers separated by tabs; yield batches of its columns."""
    # The reader refuses an empty file, since it has no columns.
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
