"""Breakdowns of an evaluation: ways to divide the counted residues of a split into groups, and their registry.

A breakdown by tokens assigns every residue to a group, on the device, in the same pass as the scores. A breakdown by
sequences assigns every protein to a group, from columns of the dataset's manifest. To add one, write a class below and
list it in `BREAKDOWNS`, or call `register_breakdown` from another package. The choices of --by, the table, the arrays
and the figure follow from the registry.

`proteinlm evaluate --help` imports this module, so NumPy and JAX are imported inside the methods that need them.
"""

import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from proteinlm.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from jax import Array

CONFIDENCE_BINS = 20
"""Number of bins of the probability of the first choice: [0, 0.05), ..., [0.95, 1]."""

_IDENTITY_STEP = 50
"""Width of a bin of identities, in thousandths."""


class Group(NamedTuple):
    """One part of a split.

    Attributes:
        label: a residue, a family or several joined by +, a range such as 9-16.
        low: first value of a range; NaN for a group that is not a range.
        high: last value of a range; NaN likewise.
    """

    label: str
    low: float = math.nan
    high: float = math.nan


class TokenFacts(NamedTuple):
    """The properties of tokens by which they can be grouped.

    Attributes:
        targets: int32 [B, L], the tokens to predict.
        positions: int32 [B, L], index of each token in its protein (in its window, if rows are windows), from 0.
        confidence: float32 [B, L], the probability of the model's first choice.
    """

    targets: "Array"
    positions: "Array"
    confidence: "Array"


class _Breakdown:
    """Attributes and methods of both kinds of breakdowns.

    Attributes:
        name: word for --by and in the names of files (letters, digits and underscores).
        description: property of a token or sequence that decides its group, for --help and the documentation.
        axis_label: label of the figure's horizontal axis.
        most_drawn: number of groups in the figure, those with most tokens; None draws all groups in `order`.
    """

    name: str
    description: str
    axis_label: str
    most_drawn: int | None = None

    def order(self, group: Group) -> float:
        """Return the sort key of a group on the figure's axis: groups that are no ranges first, then ranges."""
        return -1.0 if math.isnan(group.low) else group.low


class TokenBreakdown(_Breakdown, ABC):
    """A breakdown in which a protein has tokens in many groups."""

    @abstractmethod
    def groups(self, length: int) -> list[Group]:
        """Return the groups; `length` is the number of tokens of the longest row of any batch."""

    @abstractmethod
    def assign(self, tokens: TokenFacts, length: int) -> "Array":
        """Return the index of each token's group, int32 [B, L], in the order of `groups(length)`.

        It runs inside jax.jit. Entries of tokens that do not count may have any value.
        """


class SequenceBreakdown(_Breakdown, ABC):
    """A breakdown in which all counted tokens of a protein are in one group.

    Attributes:
        columns: columns that `assign` reads: of the manifest, or identity.
    """

    columns: tuple[str, ...]

    @abstractmethod
    def assign(self, facts: "pa.Table") -> "tuple[np.ndarray, list[Group]]":
        """Return the index of each sequence's group, int [N], and the groups.

        Args:
            facts: one row a sequence, from `sequences.sequence_facts`.
        """


Breakdown = TokenBreakdown | SequenceBreakdown


class ByResidue(TokenBreakdown):
    """Accuracy and perplexity by the residue to predict."""

    name = "residue"
    description = "the residue to predict, 25 letters"
    axis_label = "Residue"

    def groups(self, length: int) -> list[Group]:
        """Return one group a letter, in the order of alphabet.RESIDUES."""
        from proteinlm import alphabet

        return [Group(letter) for letter in alphabet.RESIDUES]

    def assign(self, tokens: TokenFacts, length: int) -> "Array":
        """Return the index of the target in alphabet.RESIDUES."""
        from proteinlm import alphabet

        return tokens.targets - alphabet.FIRST_RESIDUE

    def order(self, group: Group) -> float:
        """Return the index of the letter in the alphabet."""
        from proteinlm import alphabet

        return alphabet.RESIDUES.index(group.label)


class ByPosition(TokenBreakdown):
    """Accuracy and perplexity by the position of the residue in its sequence or window."""

    name = "position"
    description = "position in the sequence (concat: in the window), from 1"
    axis_label = "Position (residues from the beginning of the sequence or window)"

    def groups(self, length: int) -> list[Group]:
        """Return ranges of positions up to `length`."""
        return _ranges(range_ends(length))

    def assign(self, tokens: TokenFacts, length: int) -> "Array":
        """Return the index of the range that holds the position."""
        import jax.numpy as jnp

        ends = jnp.asarray(range_ends(length), jnp.int32)
        bins = jnp.searchsorted(ends, tokens.positions + 1).astype(jnp.int32)
        return jnp.broadcast_to(bins, tokens.targets.shape)


class ByFamily(SequenceBreakdown):
    """Accuracy and perplexity by families. The set of a protein's families is one group, so each protein is in one."""

    name = "family"
    description = "the set of a protein's Pfam families, such as PF00181+PF03947, or none"
    axis_label = "Pfam families of the protein"
    columns = ("families",)
    most_drawn = 30

    def assign(self, facts: "pa.Table") -> "tuple[np.ndarray, list[Group]]":
        """Return one group a set of families, in alphabetical order."""
        import numpy as np

        names = ["+".join(sorted(families)) or "none" for families in facts["families"].to_pylist()]
        labels, groups = np.unique(np.array(names, object).astype(str), return_inverse=True)
        return groups, [Group(str(label)) for label in labels]


class ByLength(SequenceBreakdown):
    """Accuracy and perplexity by the length of the whole sequence, cropped or not."""

    name = "length"
    description = "number of residues of the whole sequence, cropped or not"
    axis_label = "Length of the sequence (residues; ranges without a sequence left out)"
    columns = ("length",)

    def assign(self, facts: "pa.Table") -> "tuple[np.ndarray, list[Group]]":
        """Return ranges of lengths, up to the longest sequence."""
        import numpy as np

        lengths = facts["length"].to_numpy()
        ends = range_ends(int(lengths.max(initial=1)))
        return np.searchsorted(ends, lengths), _ranges(ends)


class ByIdentity(SequenceBreakdown):
    """Accuracy and perplexity by identity to the nearest sequence of train."""

    name = "identity"
    description = "identity to the nearest sequence of train, in steps of 0.05; needs ingest --split-identity"
    axis_label = "Identity to the nearest sequence of train"
    columns = ("identity",)

    def assign(self, facts: "pa.Table") -> "tuple[np.ndarray, list[Group]]":
        """Return ranges of 0.05, after the group of sequences that have no alignment with train.

        Raises:
            InputError: the dataset has no identities.
        """
        import numpy as np

        if "identity" not in facts.column_names:
            raise InputError(
                "the breakdown by identity needs the identity of each sequence to its nearest one of train. A dataset "
                "has it for valid, test and ood if it was made with proteinlm ingest --split-identity: leave identity "
                "out of --by, or make such a dataset."
            )
        # Stored as float32, so rounded to thousandths; -1 stands for null, a sequence without an alignment.
        shares = facts["identity"].fill_null(-1).to_numpy().astype(np.float64)
        thousandths = np.round(1000 * shares).astype(int)
        groups = np.where(thousandths < 0, 0, 1 + np.minimum(thousandths, 999) // _IDENTITY_STEP)
        ranges = [(low / 1000, (low + _IDENTITY_STEP) / 1000) for low in range(0, 1000, _IDENTITY_STEP)]
        return groups, [Group("no alignment"), *(Group(f"{low:.2f}-{high:.2f}", low, high) for low, high in ranges)]


class ByConfidence(TokenBreakdown):
    """Accuracy by the probability of the first choice: the bins of the calibration, not a choice of --by."""

    name = "confidence"
    description = "the probability of the first choice, in 20 equal bins"
    axis_label = "Probability of the first choice"

    def groups(self, length: int = 0) -> list[Group]:
        """Return CONFIDENCE_BINS ranges of equal width."""
        ends = [index / CONFIDENCE_BINS for index in range(CONFIDENCE_BINS + 1)]
        return [Group(f"{low:.2f}-{high:.2f}", low, high) for low, high in itertools.pairwise(ends)]

    def assign(self, tokens: TokenFacts, length: int = 0) -> "Array":
        """Return the index of the bin that holds the confidence."""
        import jax.numpy as jnp

        bins = jnp.floor(tokens.confidence * CONFIDENCE_BINS).astype(jnp.int32)
        return jnp.minimum(bins, CONFIDENCE_BINS - 1)


BY_CONFIDENCE = ByConfidence()

BREAKDOWNS: dict[str, Breakdown] = {
    breakdown.name: breakdown for breakdown in (ByResidue(), ByPosition(), ByFamily(), ByLength(), ByIdentity())
}
"""The registry, by name."""


def register_breakdown(breakdown: Breakdown) -> None:
    """Add a breakdown to the choices of --by.

    Args:
        breakdown: an instance of a subclass of TokenBreakdown or SequenceBreakdown.

    Raises:
        ValueError: the name is taken, or cannot be part of a file's name.
    """
    if not re.fullmatch(r"\w+", breakdown.name):
        raise ValueError(f"{breakdown.name!r} cannot name a breakdown: use letters, digits and underscores")
    if breakdown.name in (*BREAKDOWNS, BY_CONFIDENCE.name):
        raise ValueError(f"there is a breakdown by {breakdown.name!r} already")
    BREAKDOWNS[breakdown.name] = breakdown


def find_breakdowns(names: Sequence[str]) -> list[Breakdown]:
    """Return the breakdowns of these names, each once.

    Raises:
        InputError: there is no breakdown of a name.
    """
    for name in names:
        if name not in BREAKDOWNS:
            raise InputError(f"there is no breakdown by {name!r}; there are {', '.join(BREAKDOWNS)}.")
    return [BREAKDOWNS[name] for name in dict.fromkeys(names)]


def range_ends(limit: int) -> list[int]:
    """Return the ends of ranges of positions or lengths, from 1 to `limit` or beyond: 8, 16, 32, 64, 96, 128, 192, ...

    Ranges are narrow where the context is short and every residue adds to it; from 64 on there are two a doubling.
    """
    ends = [8, 16, 32, 64]
    while ends[-1] < limit:
        ends += [ends[-1] * 3 // 2, ends[-1] * 2]
    return ends[: sum(end < limit for end in ends) + 1]


def _ranges(ends: Sequence[int]) -> list[Group]:
    starts = [1, *(end + 1 for end in ends[:-1])]
    return [Group(f"{start}-{end}", float(start), float(end)) for start, end in zip(starts, ends, strict=True)]
