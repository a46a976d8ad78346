"""Analysis of the kinds of attention heads over many proteins: a figure, its arrays, a table and a summary."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from proteinlm.analysis.heads.figures import kinds_figure
from proteinlm.analysis.heads.kinds import (
    DIFFUSE_EVENNESS,
    KINDS,
    PATTERNS,
    REACH,
    SEGMENTS,
    SHORTEST,
    measure_patterns,
)
from proteinlm.analysis.heads.table import NO_WEIGHTS, claims, head_table
from proteinlm.inference.proteins import clipped
from proteinlm.models.transformer import ProteinLM
from proteinlm.output.figures import save_figure
from proteinlm.output.saving import save_arrays, save_summary, save_table


def analyze_head_kinds(
    model: ProteinLM,
    sequences: Sequence[bytes],
    output: str | os.PathLike = ".",
    *,
    batch_size: int = 8,
) -> dict:
    """Determine which heads are diagonal, vertical, block, scattered or diffuse over proteins (kinds.py).

    Writes OUTPUT/head_kinds.png and .pdf (the kinds over layers x heads), head_kinds.csv (`table.head_table`: one row
    for each layer and head), head_kinds.npz (the statistics in each protein) and head_kinds.json with the summary.
    Proteins that are too long for the model are clipped, as single sequences are in training, and counted.

    Args:
        model: a causal or bidirectional model.
        sequences: proteins in ASCII letters; those of fewer than 32 residues are left out and counted.
        output: the folder of the files; created if missing. Files of the same names are replaced.
        batch_size: number of proteins in a batch; the result does not depend on it beyond rounding.

    Returns:
        The summary, as written: `table.claims`, the numbers of proteins, the thresholds.

    Raises:
        InputError: no sequence is long enough, or a letter is outside the alphabet.
    """
    clipped_sequences, num_clipped = clipped(model, sequences)
    patterns = measure_patterns(model, clipped_sequences, batch_size=batch_size)
    table = head_table(patterns)
    number = len(patterns.proteins)
    stem = Path(output) / "head_kinds"
    statistics = ("diagonal", "vertical", "block", "evenness", "special", "offset_excess")
    save_arrays(
        stem,
        {
            **{statistic: getattr(patterns, statistic) for statistic in statistics},
            "offsets": np.arange(-REACH, REACH + 1),
            "num_residues": np.array([len(protein.letters) for protein in patterns.proteins]),
        },
    )
    save_table(stem, table)
    shape = (model.config.num_layers, model.config.num_heads)
    figure, _ = kinds_figure(
        table["kind"].to_numpy(str).reshape(shape),
        np.array([_strength(row) for _, row in table.iterrows()]).reshape(shape),
        np.array([_detail(row) for _, row in table.iterrows()]).reshape(shape),
        title=(
            f"Kinds of heads over {number:,} protein{'' if number == 1 else 's'}\n"
            "(beside D: its offset in residues; beside V: the position or amino acid most attended to)"
        ),
    )
    summary = {
        **claims(table),
        "num_sequences": number,
        "num_clipped": num_clipped,
        "num_too_short": len(sequences) - number,
        "shortest": SHORTEST,
        "thresholds": {**PATTERNS, "diffuse_evenness": DIFFUSE_EVENNESS, "reach": REACH, "segments": SEGMENTS},
        "kinds": [*KINDS, NO_WEIGHTS],
        "causal": model.causal,
        "files": [*map(str, save_figure(figure, stem)), *(f"{stem}{suffix}" for suffix in (".csv", ".npz", ".json"))],
    }
    save_summary(stem, summary)
    return summary


def _strength(row):
    return row[row["kind"]] if row["kind"] in PATTERNS else row["evenness"]


def _detail(row):
    """Return the text beside a head's kind: the offset of a diagonal, the position or letter of a vertical head."""
    if row["kind"] == "diagonal":
        return f"{row['offset']:+d}" if row["offset"] else "0"
    if row["kind"] == "vertical":
        # The position where it is the same in most proteins, otherwise the letter.
        return str(row["position"] if row["position_share"] > 0.5 else row["letter"])
    return ""
