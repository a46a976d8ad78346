"""The kinds of heads as a table, a row for each layer and head, and what the paper says of them, counted."""

import numpy as np
import pandas as pd

from proteinlm import alphabet
from proteinlm.analysis.heads.kinds import KINDS, PATTERNS, REACH, HeadPatterns, kinds_of

NO_WEIGHTS = "none"
"""The kind of a head whose weights are all 0 in every protein."""

_SPECIAL = {alphabet.BOS: "<bos>", alphabet.EOS: "<eos>"}


def head_table(patterns: HeadPatterns) -> pd.DataFrame:
    """Return a row for each layer and head; statistics are means over the proteins (head_kinds.py).

    The diagonal's is taken of the mean excess of each offset: offsets mean the same in every protein.

    Columns:
        layer, head: counted from 0.
        kind: by the means.
        agreement: share of the proteins that give the same kind, each alone.
        diagonal, vertical, block, evenness: the statistics, 0 to 1.
        offset: the diagonal's, in residues; -1 is the residue before. Given for every head with more attention
            there than even, whatever its kind, as are the next ones.
        position: where the most attended token stands in most proteins: a residue counted from 1, or <bos>, <eos>.
        position_share: share of the proteins in which it does.
        letter: the amino acid or special token that the attention above even (the vertical statistic) falls on most.
        letter_share: share of that attention which falls on it.
        special: share of attention that goes to special tokens.
    """
    means = {name: _mean(getattr(patterns, name)) for name in ("diagonal", "vertical", "block", "evenness", "special")}
    offsets = _mean(patterns.offset_excess)
    # An offset means the same in every protein: averaged first, chance leaves nothing.
    means["diagonal"] = np.maximum(offsets, 0).sum(-1)
    statistics = ("diagonal", "vertical", "block", "evenness")
    kinds = kinds_of(*(means[name] for name in statistics))
    alone = kinds_of(*(getattr(patterns, name) for name in statistics))
    rows = []
    for layer, head in np.ndindex(*kinds.shape):
        here = alone[:, layer, head]
        unknown = kinds[layer, head] < 0
        rows.append(
            {
                "layer": layer,
                "head": head,
                "kind": NO_WEIGHTS if unknown else KINDS[kinds[layer, head]],
                "agreement": float((here == kinds[layer, head]).mean()),
                **{name: float(means[name][layer, head]) for name in statistics},
                "offset": int(np.argmax(offsets[layer, head])) - REACH if (offsets[layer, head] > 0).any() else None,
                **_positions(patterns, layer, head),
                "special": float(means["special"][layer, head]),
            }
        )
    return pd.DataFrame(rows).astype({"offset": "Int64"})


def _mean(values):
    """Return the mean over proteins of what is known."""
    known = ~np.isnan(values)
    number = known.sum(0)
    return np.where(number > 0, np.where(known, values, 0).sum(0) / np.maximum(number, 1), np.nan)


def _positions(patterns, layer, head):
    """Return where, and at which letters, a head attends more than evenly."""
    tops: dict[str, int] = {}
    letters: dict[str, float] = {}
    for protein, columns in zip(patterns.proteins, patterns.column_excess, strict=True):
        excess = columns[layer, head]
        if np.isnan(excess).any():
            continue
        top = position_name(protein, int(np.argmax(excess)))
        tops[top] = tops.get(top, 0) + 1
        for place in np.flatnonzero(excess > 0):
            letter = letter_name(protein, int(place))
            letters[letter] = letters.get(letter, 0.0) + float(excess[place])
    if not tops or not letters:
        return {"position": None, "position_share": np.nan, "letter": None, "letter_share": np.nan}
    # Of equals the first met: proteins come in the caller's order.
    position, letter = max(tops, key=lambda key: tops[key]), max(letters, key=lambda key: letters[key])
    return {
        "position": position,
        "position_share": tops[position] / sum(tops.values()),
        "letter": letter,
        "letter_share": letters[letter] / sum(letters.values()),
    }


def position_name(protein, place: int) -> str:
    """Return a token's number among the residues, counted from 1, or <bos>, <eos>."""
    token = int(protein.tokens[place])
    return _SPECIAL.get(token) or str(place - protein.residues.start + 1)


def letter_name(protein, place: int) -> str:
    """Return a token's amino acid, or <bos>, <eos>."""
    token = int(protein.tokens[place])
    return _SPECIAL.get(token) or alphabet.RESIDUES[token - alphabet.FIRST_RESIDUE]


def vertical_positions(patterns: HeadPatterns, protein: int, layer: int, head: int, *, number: int = 3) -> list[dict]:
    """Return the tokens that a head of one protein attends to most beyond even, best first.

    Args:
        protein: its place in `patterns.proteins`.
        number: tokens at most; those with an excess are listed alone.

    Returns:
        dicts with "position" (from 1, or <bos>, <eos>), "letter" and "excess", the mean attention beyond even.
    """
    excess = patterns.column_excess[protein][layer, head]
    whose = patterns.proteins[protein]
    order = np.argsort(-excess, kind="stable")[:number]
    return [
        {
            "position": position_name(whose, int(place)),
            "letter": letter_name(whose, int(place)),
            "excess": float(excess[place]),
        }
        for place in order
        if excess[place] > 0
    ]


def claims(table: pd.DataFrame) -> dict:
    """Answer the paper's "many heads are diagonal, some vertical" (appendix C.4) by counts.

    Returns:
        For JSON: "num_heads", "counts" of each kind, "shares", "by_layer" (for each layer the counts), "passing" (how
        many heads pass each pattern's threshold, whichever is their kind), "offsets" (how many diagonal heads have
        which offset), "sentence".
    """
    rows = table.to_dict("records")
    kinds = [*KINDS, *([NO_WEIGHTS] if any(row["kind"] == NO_WEIGHTS for row in rows) else [])]

    def count(kind, layer=None):
        return sum(row["kind"] == kind and layer in (None, row["layer"]) for row in rows)

    counts = {kind: count(kind) for kind in kinds}
    layers = sorted({int(row["layer"]) for row in rows})
    by_layer = [{"layer": layer, **{kind: count(kind, layer) for kind in kinds}} for layer in layers]
    offsets = [int(row["offset"]) for row in rows if row["kind"] == "diagonal"]
    number = len(table)
    parts = ", ".join(f"{counts[kind]} {kind}" for kind in kinds[1:])
    return {
        "num_heads": number,
        "counts": counts,
        "shares": {kind: round(counts[kind] / number, 4) for kind in kinds},
        "passing": {name: sum(row[name] >= least for row in rows) for name, least in PATTERNS.items()},
        "by_layer": by_layer,
        "offsets": {str(offset): offsets.count(offset) for offset in sorted(set(offsets))},
        "sentence": f"Of {number} heads {counts['diagonal']} are diagonal, {parts}.",
    }


def telling_heads(
    table: pd.DataFrame, *, layers: list[int], heads: list[int], number: int
) -> list[tuple[int, int, str]]:
    """Choose heads to show in detail: the clearest of each pattern, then the next clearest.

    Clear is a statistic relative to its pattern's threshold. The first are the clearest diagonal head, the clearest
    vertical one and the clearest block, where there are such heads among those given; the rest of the number are the
    next clearest of all, so that there is something to see where no head has a pattern.

    Returns:
        (layer, head, kind), in the order of the choice; fewer than `number` if fewer are given.
    """
    given = [row for row in table.to_dict("records") if row["layer"] in layers and row["head"] in heads]

    def clear(row):
        # NaN, of a head without weights, is the least clear.
        return max(row[name] / PATTERNS[name] if row[name] == row[name] else -1.0 for name in PATTERNS)

    best = [[row for row in given if row["kind"] == name] for name in PATTERNS]
    chosen = [max(rows, key=clear) for rows in best if rows]
    rest = sorted((row for row in given if row not in chosen), key=clear, reverse=True)
    return [(int(row["layer"]), int(row["head"]), str(row["kind"])) for row in [*chosen, *rest][:number]]
