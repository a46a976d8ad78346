"""Rules that assign a sequence to train, valid, test or ood, and that unite copies of a sequence.

All functions are pure, so that the result does not depend on the order of records, on shards or on workers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proteinlm.data.families.ids import PAPER_HELD_OUT_FAMILIES, check_families, united
from proteinlm.data.sources.accessions import protein_of
from proteinlm.errors import InputError, check_range

SPLITS = ("train", "valid", "test", "ood")
TRAIN, VALID, TEST, OOD, NEAR = range(5)
LISTED = (*SPLITS, "near")
"""Splits in a manifest. A `near` sequence is in no split, since it is similar to one of valid, test or ood."""
_DIGESTS = 1 << 64


@dataclass(frozen=True)
class SplitsConfig:
    """Settings of the splits; the help of `proteinlm ingest` shows the descriptions of the fields.

    Attributes:
        valid: fraction, from 0 to 1, of the sequences without a held-out family that is put into valid. The Performer
            paper has 0.00097 in valid and 0.0097 in test.
        test: fraction, from 0 to 1, of the sequences without a held-out family that is put into test.
        held_out: families whose proteins are ood. On the command line: `paper` (the 20 of the Performer paper), `none`,
            PF ids separated by commas, or a file with one PF id a line (the rest of a line after # is a comment).
        identity: splits by distance: no sequence of train has this identity (above 0 to 1) or more to a sequence of
            another split. At 0.3 MMseqs2 overlooks some 0.3 % of the pairs. Needs MMseqs2 (apt-get install mmseqs2, or
            conda).
        manifest: splits of a published dataset, from its manifest.parquet: each sequence gets the split that the
            manifest has for its digest; the other options of this group are not used. A sequence that the manifest does
            not list gets no split: it is left out, counted, and listed in unmatched.tsv, as are sequences that only the
            manifest has.
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
                f"the sum of valid ({self.valid}) and test ({self.test}) is more than 1: lower one of them."
            )
        object.__setattr__(self, "held_out", check_families(self.held_out, "held-out families"))


def _bounds(config: SplitsConfig) -> tuple[int, int]:
    """Return two bounds: sequences with a digest below the first are test, those below the second are valid."""
    test = round(config.test * _DIGESTS)
    return test, min(test + round(config.valid * _DIGESTS), _DIGESTS)


def split_of(value: bytes, families: Iterable[str], config: SplitsConfig) -> str:
    """Return the split of a sequence from its digest and the families of all its copies.

    The split is ood if a family is held out. Otherwise the first 8 bytes of the digest, as a number x in [0, 1),
    decide: test for x < `config.test`, valid for x < `config.test` + `config.valid`, train for larger x.
    """
    if not set(families).isdisjoint(config.held_out):
        return SPLITS[OOD]
    number = int.from_bytes(value[:8], "big")
    test, valid = _bounds(config)
    return SPLITS[TEST if number < test else VALID if number < valid else TRAIN]


def split_codes(numbers: np.ndarray, held_out: np.ndarray, config: SplitsConfig) -> np.ndarray:
    """Return the splits of n sequences by the rule of `split_of`, as indices of SPLITS, int8 [n].

    Args:
        numbers: uint64 [n], the first 8 bytes of the digests, big endian.
        held_out: bool [n], whether the sequence has a held-out family.
        config: options of the splits.
    """
    test, valid = _bounds(config)
    codes = np.full(len(numbers), TRAIN, np.int8)
    codes[_below(numbers, valid)] = VALID
    codes[_below(numbers, test)] = TEST
    codes[held_out] = OOD
    return codes


def _below(numbers: np.ndarray, bound: int) -> np.ndarray:
    # 2^64 does not fit into a uint64.
    return numbers < np.uint64(bound) if bound < _DIGESTS else np.ones(len(numbers), bool)


def precedence(accession: bytes, reviewed: bool, taxon: int) -> tuple:
    """Return the sort key of a copy. Among copies of a sequence, the one with the smallest key is canonical.

    The order is: reviewed before unreviewed, proteins before isoforms (P12345-2), shorter before longer accessions,
    then alphabetical.
    """
    return not reviewed, protein_of(accession) is not None, len(accession), accession, taxon


class Merged(NamedTuple):
    """Copies of one sequence, united to one record.

    Attributes:
        canonical: index of the canonical copy.
        families: families of all copies, sorted, joined by `;`.
        accessions: accessions of all copies, sorted, each once.
    """

    canonical: int
    families: bytes
    accessions: list[bytes]


def merge(
    accessions: Sequence[bytes], families: Sequence[bytes], reviewed: Sequence[bool], taxa: Sequence[int]
) -> Merged:
    """Unite copies of one sequence to one record. The result does not depend on their order.

    Args:
        accessions: accession of each copy.
        families: families of each copy, sorted, joined by `;`.
        reviewed: whether each copy is from Swiss-Prot.
        taxa: taxonomy id of each copy; without a taxon, a number below all ids.
    """
    first = min(range(len(accessions)), key=lambda i: precedence(accessions[i], reviewed[i], taxa[i]))
    texts = set(families)
    return Merged(first, texts.pop() if len(texts) == 1 else united(texts), sorted(set(accessions)))
