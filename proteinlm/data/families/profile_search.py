"""Search for families of sequences without a family in flat files and tables, with the profile HMMs of Pfam.

1. `choose`: write the distinct sequences of each bucket (spill.py) that are to be searched.
2. `search_piece`: search pieces of them with every profile and its own gathering cutoffs, and write the hits to a file.
3. `add_found`: add the hits to the families when the bucket is reduced.

The hits of a sequence depend only on this sequence and the profiles, not on buckets, pieces or processes. Profiles are
read one after another, since Pfam-A.hmm is large. A piece whose file of hits exists is not searched again.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from proteinlm.data.families.ids import FAMILY, united
from proteinlm.data.sources.files import SourceFile
from proteinlm.data.sources.locations import expand
from proteinlm.data.sources.spill import distinct, read_bucket, sequences_of
from proteinlm.errors import InputError
from proteinlm.output.files import whole_file

LONGEST = 100_000
"""Maximum length in residues: HMMER refuses longer sequences. The longest known protein has 45,000 residues."""
PIECE_RESIDUES = 1 << 20
"""Number of residues in a piece. Each profile is read once for each piece."""
# Files of profiles up to this size are kept in memory.
_CACHED_BYTES = 16 << 20


@dataclass(frozen=True)
class ProfileFile:
    """A file of profiles.

    Attributes:
        path: name of the file.
        bytes: size of the file in bytes.
        md5: MD5 of the file in hexadecimal.
        profiles: number of profiles.
    """

    path: str
    bytes: int
    md5: str
    profiles: int


class Chosen(NamedTuple):
    """Sequences of a bucket to be searched: number of sequences and residues, and sequences too long for it."""

    bucket: int
    number: int
    residues: int
    too_long: int


class Piece(NamedTuple):
    """A part of the chosen sequences of a bucket: those from `start` to below `stop`."""

    bucket: int
    start: int
    stop: int


def _pyhmmer() -> Any:
    try:
        import pyhmmer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            "--pfam-hmm searches with pyhmmer, which is not installed: pip install 'proteinlm[pfam]'."
        ) from error
    return pyhmmer


def read_profiles(paths: Iterable[str], work: Path) -> list[ProfileFile]:
    """Check files of profiles and decompress them into the scratch folder, where all processes read them.

    Raises:
        InputError: pyhmmer is missing; a file cannot be read or has no profile; a profile is not one of proteins, has
            no Pfam id, or has no gathering cutoffs.
    """
    _pyhmmer()
    folder = work / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, path in enumerate(sorted(expand([*paths]))):
        source = SourceFile(path)
        copy = folder / f"{number:03d}.hmm"
        with whole_file(copy, "wb") as handle:
            for chunk in source.text():
                handle.write(chunk)
        profiles = 0
        for hmm in _profiles(copy, path):
            _check(hmm, path)
            profiles += 1
        if not profiles:
            raise InputError(f"{path} has no profile: give a file such as Pfam-A.hmm.")
        files.append(ProfileFile(path, source.size, source.md5, profiles))
    return files


def _profiles(file: Path, name: str) -> Iterator[Any]:
    """Yield the profiles of a decompressed file; `name` is the name of the file for messages."""
    try:
        with _pyhmmer().plan7.HMMFile(file) as profiles:
            yield from profiles
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{name} is not a file of HMMER profiles, or is damaged ({error}).") from error


def _check(hmm: Any, path: str) -> None:
    if not hmm.alphabet.is_amino():
        raise InputError(f"{path}: profile {_text(hmm.name)} is not a profile of proteins.")
    if _family(hmm) is None:
        raise InputError(f"{path}: profile {_text(hmm.name)} has no Pfam id in its ACC line, such as ACC   PF00001.1.")
    if not hmm.cutoffs.gathering_available():
        raise InputError(
            f"{path}: profile {_text(hmm.name)} has no gathering cutoffs (GA line), which define the members of a "
            "family: use Pfam-A.hmm as published by Pfam."
        )


def _text(name: Any) -> str:
    # pyhmmer returns bytes up to version 0.11, and text since then.
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)


def _family(hmm: Any) -> bytes | None:
    match = FAMILY.fullmatch(_text(hmm.accession or "").encode())
    return match[1] if match else None


@functools.lru_cache(8)
def _cached_profiles(file: Path) -> list[Any]:
    return list(_profiles(file, str(file)))


def search(files: Sequence[Path], sequences: Sequence[bytes]) -> list[bytes]:
    """Return the families of each sequence: sorted Pfam ids joined by `;`; empty without a family.

    As defined by Pfam, a sequence has a family if the sequence and at least one of its domains reach the two gathering
    cutoffs of the profile. Clans are not resolved: of two overlapping families, both are returned.

    Args:
        files: decompressed files of profiles.
        sequences: canonical letters, at most LONGEST in each sequence.
    """
    pyhmmer = _pyhmmer()
    amino = pyhmmer.easel.Alphabet.amino()
    # The name of a sequence is its index. pyhmmer returns it as bytes or text, depending on the version.
    block = pyhmmer.easel.DigitalSequenceBlock(
        amino,
        [
            pyhmmer.easel.TextSequence(name=f"{index}".encode(), sequence=sequence.decode()).digitize(amino)
            for index, sequence in enumerate(sequences)
        ],
    )
    pipeline = pyhmmer.plan7.Pipeline(amino, bit_cutoffs="gathering")
    families: dict[int, set[bytes]] = {}
    for file in files:
        small = file.stat().st_size <= _CACHED_BYTES
        for hmm in _cached_profiles(file) if small else _profiles(file, str(file)):
            family = _family(hmm)
            for hit in pipeline.search_hmm(hmm, block):
                if family and hit.included and any(domain.included for domain in hit.domains):
                    families.setdefault(int(hit.name), set()).add(family)
            pipeline.clear()
    return [b";".join(sorted(families.get(index, ()))) for index in range(len(sequences))]


def _folder(work: Path, bucket: int) -> Path:
    return work / "hmm" / f"{bucket:05d}"


def choose(bucket: int, work: Path, everything: bool) -> Chosen:
    """Write the distinct sequences of a bucket without a family in any copy; with `everything`, all of them."""
    columns = read_bucket(work, bucket)
    order, starts = distinct(columns.digests)
    known = np.fromiter(map(bool, columns.families), bool, len(order))[order]
    selected = np.ones(len(starts), bool) if everything or not len(starts) else ~np.logical_or.reduceat(known, starts)
    rows = order[starts[selected]]
    short = rows[columns.lengths[rows] <= LONGEST]
    lengths = columns.lengths[short].astype(np.int64)
    folder = _folder(work, bucket)
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / "letters", "wb") as handle:
        handle.writelines(sequences_of(columns, short))
    np.save(folder / "digests.npy", columns.digests[short])
    np.save(folder / "ends.npy", np.cumsum(lengths))
    return Chosen(bucket, len(short), int(lengths.sum()), len(rows) - len(short))


def pieces(chosen: Chosen) -> Iterator[Piece]:
    """Divide the chosen sequences of a bucket into equal pieces."""
    number = min(-(-chosen.residues // PIECE_RESIDUES), chosen.number)
    for part in range(number):
        yield Piece(chosen.bucket, chosen.number * part // number, chosen.number * (part + 1) // number)


def _piece_path(piece: Piece, work: Path) -> Path:
    return _folder(work, piece.bucket) / f"found-{piece.start:09d}-{piece.stop:09d}"


def search_piece(piece: Piece, work: Path) -> int:
    """Search a piece, write the hits to a file, and return the number of sequences with a family."""
    path = _piece_path(piece, work)
    if path.exists():
        return path.read_bytes().count(b"\n")
    folder = path.parent
    digests = np.load(folder / "digests.npy")[piece.start : piece.stop]
    ends = np.concatenate(([0], np.load(folder / "ends.npy")))[piece.start : piece.stop + 1]
    with open(folder / "letters", "rb") as handle:
        handle.seek(int(ends[0]))
        sequences = [handle.read(size) for size in np.diff(ends).tolist()]
    families = search(sorted((work / "profiles").glob("*.hmm")), sequences)
    lines = [
        b"%s\t%s\n" % (d.tobytes().hex().encode(), text) for d, text in zip(digests, families, strict=True) if text
    ]
    with whole_file(path, "wb") as handle:
        handle.writelines(lines)
    return len(lines)


@dataclass(frozen=True)
class Searched:
    """Result of a search: number of distinct sequences searched, with a family found, and too long to search."""

    searched: int = 0
    found: int = 0
    too_long: int = 0


def search_buckets(
    work: Path,
    num_buckets: int,
    everything: bool,
    submit: Callable[..., Iterator[Any]],
    advance: Callable[[int, int, int], None] = lambda done, total, residues: None,
) -> Searched:
    """Choose and search in all buckets.

    Args:
        work: scratch folder.
        num_buckets: number of buckets.
        everything: as in `choose`.
        submit: calls a function with each of many tasks and yields the results in their order.
        advance: is told how many sequences are searched, of how many, and how many have a family.
    """
    chosen = list(submit(functools.partial(choose, work=work, everything=everything), range(num_buckets)))
    total = sum(one.number for one in chosen)
    done = found = 0
    tasks = ((piece, piece) for one in chosen for piece in pieces(one))
    advance(0, total, 0)
    for piece, number in submit(functools.partial(search_piece, work=work), tasks, keyed=True):
        done += piece.stop - piece.start
        found += number
        advance(done, total, found)
    return Searched(total, found, sum(one.too_long for one in chosen))


def add_found(work: Path, bucket: int, digests: np.ndarray, families: list[bytes]) -> None:
    """Add the families found by a search to those of the distinct sequences of a bucket.

    Args:
        work: scratch folder.
        bucket: number of the bucket.
        digests: uint8 [n, 16].
        families: Pfam ids of each sequence, joined by `;`; changed in place.
    """
    lines = [line for path in sorted(_folder(work, bucket).glob("found-*")) for line in path.read_bytes().splitlines()]
    if not lines:
        return
    hits = dict(line.split(b"\t") for line in lines)
    for index, digest in enumerate(digests):
        found = hits.get(digest.tobytes().hex().encode())
        if found:
            families[index] = united([families[index], found])
