"""A table of the kinds of heads, with a row for each layer and head, and counts for the claims of the paper."""

import numpy as np
import pandas as pd

from proteinlm import alphabet
from proteinlm.analysis.heads.kinds import KINDS, PATTERNS, REACH, HeadPatterns, kinds_of

NO_WEIGHTS = "none"
"""The kind of a head whose weights are all 0 in every protein."""

_SPECIAL = {alphabet.BOS: "<bos>", alphabet.EOS: "<eos>"}


def head_table(patterns: HeadPatterns) -> pd.DataFrame:
    """Return a table with a row for each layer and head; statistics are means over the proteins (kinds.py).

    The diagonal statistic is computed from the mean excess at each offset, since offsets are comparable between
    proteins.

    Columns:
        layer, head: counted from 0.
        kind: the kind by the mean statistics.
        agreement: share of the proteins whose own statistics give the same kind.
        diagonal, vertical, block, evenness: the statistics, 0 to 1.
        offset: offset of the diagonal in residues; -1 is the residue before. Offset, position and letter are given for
            heads of all kinds, if attention exceeds even attention there.
        position: the most frequent position of the most attended token: a residue counted from 1, or <bos>, <eos>.
        position_share: share of the proteins with this position.
        letter: the amino acid or special token that receives most of the attention above even (the vertical statistic).
        letter_share: its share of that attention.
        special: share of attention to special tokens.
    """
    means = {name: _mean(getattr(patterns, name)) for name in ("diagonal", "vertical", "block", "evenness", "special")}
    offsets = _mean(patterns.offset_excess)
    # Offsets are comparable between proteins. Averaging them first removes what is due to chance.
    means["diagonal"] = np.maximum(offsets, 0).sum(-1)
    statistics = ("diagonal", "vertical", "block", "evenness")
    kinds = kinds_of(*(means[name] for name in statistics))
    alone = kinds_of(*(getattr(patterns, name) for name in statistics))
    rows = []
    for layer, head in np.ndindex(*kinds.shape):
        by_protein = alone[:, layer, head]
        unknown = kinds[layer, head] < 0
        rows.append(
            {
                "layer": layer,
                "head": head,
                "kind": NO_WEIGHTS if unknown else KINDS[kinds[layer, head]],
                "agreement": float((by_protein == kinds[layer, head]).mean()),
                **{name: float(means[name][layer, head]) for name in statistics},
                "offset": int(np.argmax(offsets[layer, head])) - REACH if (offsets[layer, head] > 0).any() else None,
                **_positions(patterns, layer, head),
                "special": float(means["special"][layer, head]),
            }
        )
    return pd.DataFrame(rows).astype({"offset": "Int64"})


def _mean(values):
    """Return the mean over the proteins with a value."""
    known = ~np.isnan(values)
    number = known.sum(0)
    return np.where(number > 0, np.where(known, values, 0).sum(0) / np.maximum(number, 1), np.nan)


def _positions(patterns, layer, head):
    """Return the position and the letter that a head attends to most beyond even attention."""
    tops: dict[str, int] = {}
    letters: dict[str, float] = {}
    for protein, columns in zip(patterns.proteins, patterns.column_excess, strict=True):
        excess = columns[layer, head]
        if np.isnan(excess).any():
            continue
        top = position_name(protein, int(np.argmax(excess)))
        tops[top] = tops.get(top, 0) + 1
        for index in np.flatnonzero(excess > 0):
            letter = letter_name(protein, int(index))
            letters[letter] = letters.get(letter, 0.0) + float(excess[index])
    if not tops or not letters:
        return {"position": None, "position_share": np.nan, "letter": None, "letter_share": np.nan}
    # Of equal counts the first is taken; proteins are in the caller's order.
    position, letter = max(tops, key=lambda key: tops[key]), max(letters, key=lambda key: letters[key])
    return {
        "position": position,
        "position_share": tops[position] / sum(tops.values()),
        "letter": letter,
        "letter_share": letters[letter] / sum(letters.values()),
    }


def position_name(protein, index: int) -> str:
    """Return the number of a token among the residues, counted from 1, or <bos>, <eos>."""
    token = int(protein.tokens[index])
    return _SPECIAL.get(token) or str(index - protein.residues.start + 1)


def letter_name(protein, index: int) -> str:
    """Return the amino acid of a token, or <bos>, <eos>."""
    token = int(protein.tokens[index])
    return _SPECIAL.get(token) or alphabet.RESIDUES[token - alphabet.FIRST_RESIDUE]


def vertical_positions(patterns: HeadPatterns, protein: int, layer: int, head: int, *, number: int = 3) -> list[dict]:
    """Return the tokens of one protein that a head attends to most beyond even attention, the largest excess first.

    Args:
        patterns: the statistics.
        protein: index of the protein in `patterns.proteins`.
        layer: counted from 0.
        head: counted from 0.
        number: largest number of tokens; tokens without an excess are left out.

    Returns:
        dicts with "position" (from 1, or <bos>, <eos>), "letter" and "excess", the mean attention beyond even.
    """
    excess = patterns.column_excess[protein][layer, head]
    order = np.argsort(-excess, kind="stable")[:number]
    return [
        {
            "position": position_name(patterns.proteins[protein], int(index)),
            "letter": letter_name(patterns.proteins[protein], int(index)),
            "excess": float(excess[index]),
        }
        for index in order
        if excess[index] > 0
    ]


def claims(table: pd.DataFrame) -> dict:
    """Count the heads of each kind, to test the paper's "many heads are diagonal, some vertical" (appendix C.4).

    Returns:
        A dictionary for JSON: "num_heads", "counts" of each kind, "shares", "by_layer" (the counts of each layer),
        "passing" (the number of heads above each pattern's threshold, whatever their kind), "offsets" (the number of
        diagonal heads with each offset), "sentence".
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


def clearest_heads(
    table: pd.DataFrame, *, layers: list[int], heads: list[int], number: int
) -> list[tuple[int, int, str]]:
    """Choose heads to show in detail: the clearest head of each pattern, then the next clearest heads.

    The clearness of a head is the largest ratio of its statistics to their thresholds. The first are the clearest
    diagonal, vertical and block heads, if there are such heads in `layers` and `heads`. The rest are the next clearest
    of any kind, so that heads are shown even where none has a pattern.

    Args:
        table: from `head_table`.
        layers: the layers to choose from.
        heads: the heads to choose from.
        number: the largest number of heads to choose.

    Returns:
        (layer, head, kind) in the order of the choice.
    """
    candidates = [row for row in table.to_dict("records") if row["layer"] in layers and row["head"] in heads]

    def clearness(row):
        # A head without weights has NaN and is the least clear.
        return max(row[name] / PATTERNS[name] if row[name] == row[name] else -1.0 for name in PATTERNS)

    by_pattern = [[row for row in candidates if row["kind"] == name] for name in PATTERNS]
    chosen = [max(rows, key=clearness) for rows in by_pattern if rows]
    rest = sorted((row for row in candidates if row not in chosen), key=clearness, reverse=True)
    return [(int(row["layer"]), int(row["head"]), str(row["kind"])) for row in [*chosen, *rest][:number]]
