"""Records -> train, valid, test or ood, by pure functions: order, shards and workers change nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proteinlm.data.families.ids import PAPER_HELD_OUT_FAMILIES, check_families, united
from proteinlm.data.sources.names import protein_of
from proteinlm.errors import InputError, check_range

SPLITS = ("train", "valid", "test", "ood")
TRAIN, VALID, TEST, OOD, NEAR = range(5)
LISTED = (*SPLITS, "near")
"""What a manifest may say: a split, or `near` for sequences that are in no split since they are like evaluated ones."""
_WHOLE = 1 << 64


@dataclass(frozen=True)
class SplitsConfig:
    """How records are split.

    Attributes:
        valid: fraction of the sequences outside the held-out families that is put into valid.
        test: the same for test. The paper has 0.00097 and 0.0097 of Jan 2019's TrEMBL.
        held_out: Pfam ids; a protein with one of them is ood.
        identity: splits by distance (split_identity.py): no sequence of train is this identical, or more, to one
            of another split; None splits by digest alone.
        manifest: of a published dataset, whose splits are taken over (published.py); the rest is then not used.
    """

    valid: float = 0.001
    test: float = 0.01
    held_out: tuple[str, ...] = PAPER_HELD_OUT_FAMILIES
    identity: float | None = None
    manifest: Path | None = None

    def __post_init__(self):
        if self.identity is not None:
            check_range("identity (0.5 means 50 %)", self.identity, above=0, at_most=1)
        if self.identity is not None and self.manifest is not None:
            raise InputError(
                f"identity ({self.identity}) computes new splits and {self.manifest} has splits: give one of the two."
            )
        for name in ("valid", "test"):
            check_range(name, getattr(self, name), at_least=0, at_most=1)
        if self.valid + self.test > 1:
            raise InputError(
                f"valid ({self.valid}) and test ({self.test}) are more than 1 together: lower one of them."
            )
        object.__setattr__(self, "held_out", check_families(self.held_out, "held-out families"))


def _bounds(config: SplitsConfig) -> tuple[int, int]:
    """Return the ends of test and of valid: digests below the first are test, below the second valid."""
    test = round(config.test * _WHOLE)
    return test, min(test + round(config.valid * _WHOLE), _WHOLE)


def split_of(value: bytes, families: Iterable[str], config: SplitsConfig) -> str:
    """Return the split of a sequence, given its digest and the families of all its copies.

    ood if a family is held out; else test below `config.test`, valid in the next `config.valid`, train above.
    """
    if not set(families).isdisjoint(config.held_out):
        return SPLITS[OOD]
    number = int.from_bytes(value[:8], "big")
    test, valid = _bounds(config)
    return SPLITS[TEST if number < test else VALID if number < valid else TRAIN]


def split_codes(numbers: np.ndarray, held_out: np.ndarray, config: SplitsConfig) -> np.ndarray:
    """Return `split_of` for many: indices into SPLITS, int8 [n].

    Args:
        numbers: uint64 [n], the first 8 bytes of the digests, big endian.
        held_out: bool [n], whether a family is on the held-out list.
    """
    test, valid = _bounds(config)
    codes = np.full(len(numbers), TRAIN, np.int8)
    codes[_below(numbers, valid)] = VALID
    codes[_below(numbers, test)] = TEST
    codes[held_out] = OOD
    return codes


def _below(numbers: np.ndarray, bound: int) -> np.ndarray:
    # 2^64 itself is no uint64.
    return numbers < np.uint64(bound) if bound < _WHOLE else np.ones(len(numbers), bool)


def precedence(accession: bytes, reviewed: bool, taxon: int) -> tuple:
    """Return what the canonical one of several copies is smallest by.

    Reviewed before unreviewed, proteins before isoforms (P12345-2), shorter accessions before longer ones,
    then alphabetically.
    """
    return not reviewed, protein_of(accession) is not None, len(accession), accession, taxon


class Merged(NamedTuple):
    """Copies of one sequence as one record.

    Attributes:
        place: of the canonical one among the copies.
        families: of all copies, sorted, joined by `;`.
        accessions: of all copies, sorted, each once.
    """

    place: int
    families: bytes
    accessions: list[bytes]


def merge(
    accessions: Sequence[bytes], families: Sequence[bytes], reviewed: Sequence[bool], taxa: Sequence[int]
) -> Merged:
    """Unite records of one sequence; the result does not depend on their order.

    Args:
        accessions: of each copy.
        families: of each, sorted, joined by `;`.
        reviewed: whether it is Swiss-Prot's.
        taxa: of each, a number below all others for none.
    """
    first = min(range(len(accessions)), key=lambda i: precedence(accessions[i], reviewed[i], taxa[i]))
    texts = set(families)
    return Merged(first, texts.pop() if len(texts) == 1 else united(texts), sorted(set(accessions)))
