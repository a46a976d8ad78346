"""Analysis of amino-acid similarity in attention: a figure beside BLOSUM, its arrays, tables and a summary."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from proteinlm.alphabet import STANDARD_RESIDUES
from proteinlm.analysis.amino_acids import similarity
from proteinlm.analysis.amino_acids.blosum import Agreement, closest_pairs, compare, normalised_blosum
from proteinlm.analysis.amino_acids.clustering import clustered_order
from proteinlm.analysis.amino_acids.figures import similarity_figure
from proteinlm.analysis.amino_acids.table import agreement_by_head, agreement_by_layer
from proteinlm.errors import InputError
from proteinlm.inference.proteins import clipped
from proteinlm.models.transformer import ProteinLM
from proteinlm.output.figures import save_figure
from proteinlm.output.saving import save_arrays, save_summary, save_table

PAPER_PAIRS = ("DE", "FY")
"""Pairs of amino acids that the Performer paper names as similar."""

TABLE_PERMUTATIONS = 999
"""Largest number of permutations for each layer and each head: the many rows of a table need no finer p-values."""

ORDERS = ("classes", "clustered")
FEW_PROTEINS = 20
"""With fewer proteins, a similarity depends strongly on the choice of proteins."""


def analyze_similarity(
    model: ProteinLM,
    sequences: Sequence[bytes],
    output: str | os.PathLike = ".",
    *,
    blosum: str = "BLOSUM62",
    order: str = "classes",
    batch_size: int = 8,
    permutations: int = 9999,
    seed: int = 0,
) -> dict:
    """Compare the similarity of amino acids in a model's attention with their substitution scores in evolution.

    Writes OUTPUT/similarity.png and .pdf, similarity.npz with all arrays, similarity_by_layer.csv and
    similarity_by_head.csv (table.py), and similarity.json with the summary. The figure shows the similarity of Vig et
    al. (`similarity.head_similarity`). The direct enrichment of attention between amino acids is compared and saved as
    well. Proteins that are too long for the model are clipped, as single sequences are in training, and counted.

    Args:
        model: a causal or bidirectional model.
        sequences: proteins in ASCII letters (800 in the paper); their number is reported.
        output: the folder of the files; created if missing. Files of the same names are replaced.
        blosum: BLOSUM45, 50, 62, 80 or 90.
        order: order of the amino acids in both matrices of the figure: "classes", or "clustered" by the similarity.
        batch_size: number of proteins in a batch; the result does not depend on it beyond rounding.
        permutations: number of permutations of the amino acids for the p-values; at most 999 for each layer and head.
        seed: seed of the permutations.

    Returns:
        The summary, as written to similarity.json.

    Raises:
        InputError: there is no sequence, a letter is outside the alphabet, the matrix or order is unknown, or no
            residue attends to another residue.
    """
    reference = normalised_blosum(blosum)
    if order not in ORDERS:
        raise InputError(f"there is no order {order!r} of amino acids; choose one of {', '.join(ORDERS)}.")
    clipped_sequences, num_clipped = clipped(model, sequences)
    sums = similarity.amino_acid_attention(model, clipped_sequences, batch_size=batch_size)
    by_head = similarity.head_similarity(sums)
    enrichment = similarity.pair_enrichment(sums)
    profiles = similarity.head_profiles(sums)
    chance: dict[str, int] = {"permutations": permutations, "seed": seed}
    agreement = compare(by_head, reference, **chance)
    clustered = clustered_order(by_head)
    stem = Path(output) / "similarity"
    arrays: dict[str, Any] = {
        "residues": np.array(list(STANDARD_RESIDUES)),
        "similarity": by_head,
        "blosum": reference,
        "clustered_order": np.array(clustered),
        "head_profiles": profiles,
        "pair_enrichment": enrichment,
        "mean_attention": similarity.mean_attention(sums),
        "pair_sums": sums.pair_sums,
        "pair_counts": sums.pair_counts,
        "pair_even": sums.pair_even,
        "self_sums": sums.self_sums,
        "special_sums": sums.special_sums,
    }
    save_arrays(stem, arrays)
    chance["permutations"] = min(permutations, TABLE_PERMUTATIONS)
    layers, heads = agreement_by_layer(sums, reference, **chance), agreement_by_head(sums, reference, **chance)
    tables = [save_table(stem.with_name("similarity_by_layer"), layers)]
    tables.append(save_table(stem.with_name("similarity_by_head"), heads))
    heads_used = int((~np.isnan(profiles).all(-1)).sum())
    figure, _ = similarity_figure(
        reference, by_head,
        reference_label=f"normalised {blosum.upper()} score",
        similarity_label=f"attention similarity (Pearson r over {heads_used} heads)",
        title=_title(sums.num_sequences, blosum.upper(), agreement),
        order=clustered if order == "clustered" else None,
    )  # fmt: skip
    summary = {
        "num_sequences": sums.num_sequences,
        "num_residues": sums.num_residues,
        "num_clipped": num_clipped,
        "num_heads": int(profiles.shape[0] * profiles.shape[1]),
        "num_heads_used": heads_used,
        "similarity": "Pearson correlation, across heads, of the share of attention that amino acids receive",
        "blosum": blosum.upper(),
        "blosum_normalisation": "B(a,b) / sqrt(B(a,a) B(b,b))",
        "agreement": agreement.to_dict(),
        "pair_enrichment_agreement": compare(enrichment, reference, permutations=permutations, seed=seed).to_dict(),
        **_pairs(by_head, reference),
        "order": order,
        "clustered_order": "".join(STANDARD_RESIDUES[index] for index in clustered),
        "best_layer": _best(layers, "similarity", "layer"),
        "best_head": _best(heads, "enrichment", "layer", "head"),
        "seed": seed,
        "files": [*map(str, save_figure(figure, stem)), f"{stem}.npz", f"{stem}.json", *tables],
    }
    save_summary(stem, summary)
    return summary


def _pairs(by_head, reference) -> dict:
    """Return the closest pairs by the model's similarity, and how it ranks the pairs of BLOSUM and of the paper."""
    ranked = closest_pairs(by_head, reference, number=len(STANDARD_RESIDUES) ** 2)
    blosum_pairs = sorted(ranked, key=lambda entry: (entry["blosum_rank"], entry["pair"]))[:10]
    return {
        "closest_pairs": ranked[:10],
        "paper_pairs": [entry for entry in ranked if entry["pair"] in PAPER_PAIRS],
        "blosum_pairs": blosum_pairs,
        "num_pairs_ranked": len(ranked),
    }


def _best(table: pd.DataFrame, name: str, *keys: str) -> dict | None:
    """Return the main columns of the row with the largest correlation; None if no row has a correlation."""
    known = [row for row in table.to_dict("records") if not math.isnan(row[f"{name}_pearson"])]
    if not known:
        return None
    best = max(known, key=lambda row: row[f"{name}_pearson"])
    return {**{key: best[key] for key in keys}, **{key: best[f"{name}_{key}"] for key in ("pearson", "pearson_p", "q")}}


def _title(number: int, blosum: str, agreement: Agreement) -> str:
    subject = f"Attention to amino acids in {number:,} protein{'' if number == 1 else 's'} and {blosum}"
    if math.isnan(agreement.pearson):
        return f"{subject}: one of the two does not vary"
    p = agreement.pearson_p
    floor = 1 / (agreement.num_permutations + 1)
    # The smallest p-value of a permutation test is one in the number of its draws.
    p_text = f"p ≤ {floor:.2g}" if p <= floor else f"p = {p:.2g}"
    return (
        f"{subject}: r = {agreement.pearson:.2f}".replace("-", "−")
        + f" ({agreement.num_pairs} pairs, {p_text} by permutation)"
        + ("; few proteins, so that chance is large" if number < FEW_PROTEINS else "")
    )
