"""Families by search: distinct sequences that no flat file and no table has a family for, against Pfam's profiles.

choose    of each bucket (spill.py) the distinct sequences to be searched
search    pieces of them against every profile, with the profile's own gathering cutoffs; what is found is a file
add       when the bucket is reduced

What is found in a sequence depends on that sequence and the profile alone, so neither buckets, pieces nor processes
change it. Profiles are read one after another, not held: Pfam-A.hmm is larger than a process should be. A piece that
is found in the scratch folder is not searched again.
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
"""Residues; HMMER refuses longer sequences. The longest known protein has 45,000."""
PIECE_RESIDUES = 1 << 20
"""Residues that are searched at a time: a profile is read once for so many."""
_HELD_BYTES = 16 << 20


@dataclass(frozen=True)
class ProfileFile:
    """A file of profiles.

    Attributes:
        path, bytes, md5: of the file.
        profiles: how many it has.
    """

    path: str
    bytes: int
    md5: str
    profiles: int


class Chosen(NamedTuple):
    """What is to be searched in one bucket: sequences, residues, and how many sequences are too long for it."""

    bucket: int
    number: int
    residues: int
    too_long: int


class Piece(NamedTuple):
    """Sequences start ... stop of those that were chosen in a bucket."""

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
    """Check files of profiles and unpack them into the scratch folder, for all processes to read.

    Raises:
        InputError: pyhmmer is missing; a file cannot be read or holds no profile; a profile is not one of proteins,
            is no Pfam family, or has no gathering cutoffs.
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
            raise InputError(f"{path} holds no profile: name a file such as Pfam-A.hmm.")
        files.append(ProfileFile(path, source.size, source.md5, profiles))
    return files


def _profiles(file: Path, name: str) -> Iterator[Any]:
    """Yield the profiles of an unpacked file; `name` is what the user calls it."""
    try:
        with _pyhmmer().plan7.HMMFile(file) as profiles:
            yield from profiles
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{name} is not a file of HMMER's profiles, or is damaged ({error}).") from error


def _check(hmm: Any, path: str) -> None:
    if not hmm.alphabet.is_amino():
        raise InputError(f"{path}: profile {_text(hmm.name)} is not one of proteins.")
    if _family(hmm) is None:
        raise InputError(
            f"{path}: profile {_text(hmm.name)} has no Pfam id in its ACC line; one reads ACC   PF00001.1."
        )
    if not hmm.cutoffs.gathering_available():
        raise InputError(
            f"{path}: profile {_text(hmm.name)} has no gathering cutoffs (GA line), and without them nobody knows "
            "what belongs to the family: use Pfam-A.hmm as Pfam publishes it."
        )


def _text(name: Any) -> str:
    # Versions of pyhmmer differ: bytes up to 0.11, text since.
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)


def _family(hmm: Any) -> bytes | None:
    match = FAMILY.fullmatch(_text(hmm.accession or "").encode())
    return match[1] if match else None


@functools.lru_cache(8)
def _held_profiles(file: Path) -> list[Any]:
    return list(_profiles(file, str(file)))


def search(files: Sequence[Path], sequences: Sequence[bytes]) -> list[bytes]:
    """Return the families of each sequence: PF ids joined by `;`, sorted; empty for none.

    A sequence has a family if it as a whole and one of its domains reach the profile's two gathering cutoffs, which
    is Pfam's own definition. Clans are not resolved: of two overlapping families both are told.

    Args:
        files: unpacked files of profiles.
        sequences: canonical letters, at most LONGEST of them.
    """
    pyhmmer = _pyhmmer()
    amino = pyhmmer.easel.Alphabet.amino()
    # Names are numbers of places; which type they have differs between versions, and is asked back as it was given.
    block = pyhmmer.easel.DigitalSequenceBlock(
        amino,
        [
            pyhmmer.easel.TextSequence(name=f"{place}".encode(), sequence=sequence.decode()).digitize(amino)
            for place, sequence in enumerate(sequences)
        ],
    )
    pipeline = pyhmmer.plan7.Pipeline(amino, bit_cutoffs="gathering")
    found: dict[int, set[bytes]] = {}
    for file in files:
        small = file.stat().st_size <= _HELD_BYTES
        for hmm in _held_profiles(file) if small else _profiles(file, str(file)):
            family = _family(hmm)
            for hit in pipeline.search_hmm(hmm, block):
                if family and hit.included and any(domain.included for domain in hit.domains):
                    found.setdefault(int(hit.name), set()).add(family)
            pipeline.clear()
    return [b";".join(sorted(found.get(place, ()))) for place in range(len(sequences))]


def _folder(work: Path, bucket: int) -> Path:
    return work / "hmm" / f"{bucket:05d}"


def choose(bucket: int, work: Path, everything: bool) -> Chosen:
    """Write the distinct sequences of a bucket that none of their copies has a family for; or all, if `everything`."""
    columns = read_bucket(work, bucket)
    order, starts = distinct(columns.digests)
    known = np.fromiter(map(bool, columns.families), bool, len(order))[order]
    wanted = np.ones(len(starts), bool) if everything or not len(starts) else ~np.logical_or.reduceat(known, starts)
    rows = order[starts[wanted]]
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
    """Yield equal parts of what was chosen in a bucket."""
    number = min(-(-chosen.residues // PIECE_RESIDUES), chosen.number)
    for part in range(number):
        yield Piece(chosen.bucket, chosen.number * part // number, chosen.number * (part + 1) // number)


def _piece_path(piece: Piece, work: Path) -> Path:
    return _folder(work, piece.bucket) / f"found-{piece.start:09d}-{piece.stop:09d}"


def search_piece(piece: Piece, work: Path) -> int:
    """Search a piece, write what is found beside its bucket, and return how many sequences have a family."""
    path = _piece_path(piece, work)
    if path.exists():
        return path.read_bytes().count(b"\n")
    folder = path.parent
    digests = np.load(folder / "digests.npy")[piece.start : piece.stop]
    ends = np.concatenate(([0], np.load(folder / "ends.npy")))[piece.start : piece.stop + 1]
    with open(folder / "letters", "rb") as handle:
        handle.seek(int(ends[0]))
        sequences = [handle.read(size) for size in np.diff(ends).tolist()]
    found = search(sorted((work / "profiles").glob("*.hmm")), sequences)
    lines = [b"%s\t%s\n" % (d.tobytes().hex().encode(), text) for d, text in zip(digests, found, strict=True) if text]
    with whole_file(path, "wb") as handle:
        handle.writelines(lines)
    return len(lines)


@dataclass(frozen=True)
class Searched:
    """What a search did: distinct sequences searched, those in which a family was found, those too long for it."""

    searched: int = 0
    found: int = 0
    too_long: int = 0


def search_buckets(
    num_buckets: int,
    everything: bool,
    submit: Callable[..., Iterator[Any]],
    advance: Callable[[int, int, int], None] = lambda done, total, residues: None,
) -> Searched:
    """Choose and search in all buckets.

    Args:
        num_buckets: of the run.
        everything: as in `choose`.
        submit: runs `choose` ("choose", given a bucket and `everything`) and `search_piece` ("search") for many tasks.
        advance: is told how many sequences are searched, of how many, and how many have a family.
    """
    chosen = list(submit("choose", ((bucket, everything) for bucket in range(num_buckets))))
    total = sum(one.number for one in chosen)
    done = found = 0
    tasks = ((piece, piece) for one in chosen for piece in pieces(one))
    advance(0, total, 0)
    for piece, number in submit("search", tasks, keyed=True):
        done += piece.stop - piece.start
        found += number
        advance(done, total, found)
    return Searched(total, found, sum(one.too_long for one in chosen))


def add_found(work: Path, bucket: int, digests: np.ndarray, families: list[bytes]) -> None:
    """Add what a search has found to the families of a bucket's distinct sequences.

    Args:
        digests: uint8 [n, 16].
        families: n texts, changed in place.
    """
    lines = [line for path in sorted(_folder(work, bucket).glob("found-*")) for line in path.read_bytes().splitlines()]
    if not lines:
        return
    found = dict(line.split(b"\t") for line in lines)
    for place, digest in enumerate(digests):
        more = found.get(digest.tobytes().hex().encode())
        if more:
            families[place] = united([families[place], more])
