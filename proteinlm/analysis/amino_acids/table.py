"""Agreement of amino-acid similarity with a substitution matrix: one table by layer and one by head."""

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import false_discovery_control

from proteinlm.analysis.amino_acids.blosum import compare
from proteinlm.analysis.amino_acids.similarity import (
    AminoAcidAttention,
    head_profiles,
    head_similarity,
    pair_enrichment,
)
from proteinlm.errors import InputError


def agreement_by_layer(
    attention: AminoAcidAttention, reference: Float[np.ndarray, "a b"], *, permutations: int = 999, seed: int = 0
) -> pd.DataFrame:
    """Compare each layer with a substitution matrix; the table has a row for each layer.

    Columns:
        layer: counted from 0.
        num_heads_used: number of heads that attend to other residues.
        similarity_pearson, _pearson_p, _spearman, _spearman_p: agreement of `head_similarity` over the layer's heads.
            It needs three heads, and is coarse with few; NaN where it is not defined.
        enrichment_pearson, ...: agreement of the layer's `pair_enrichment`.
        num_pairs: number of pairs of amino acids that occur, for the enrichment.
        similarity_q, enrichment_q: the Pearson p-values corrected for the number of layers (Benjamini-Hochberg).
    """
    used = (~np.isnan(head_profiles(attention)).all(-1)).sum(-1)
    options = {"permutations": permutations, "seed": seed}
    rows = []
    for layer, number in enumerate(used):
        similar = _agreement(lambda layer=layer: head_similarity(attention, layer=layer), reference, options)
        enriched = _agreement(lambda layer=layer: pair_enrichment(attention, layer=layer), reference, options)
        rows.append(
            {
                "layer": layer, "num_heads_used": int(number), **_named("similarity", similar),
                **_named("enrichment", enriched), "num_pairs": enriched["num_pairs"],
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    for name in ("similarity", "enrichment"):
        table[f"{name}_q"] = corrected(table[f"{name}_pearson_p"].to_numpy())
    return table


def agreement_by_head(
    attention: AminoAcidAttention, reference: Float[np.ndarray, "a b"], *, permutations: int = 999, seed: int = 0
) -> pd.DataFrame:
    """Compare the pair enrichment of each head with a substitution matrix; the table has a row for each head.

    The similarity of Vig et al. is a correlation over heads, which a single head does not have.

    Columns:
        layer, head: counted from 0.
        enrichment_pearson, _pearson_p, _spearman, _spearman_p: NaN for a head that attends to no other residue.
        num_pairs: number of pairs of amino acids that occur.
        enrichment_q: the Pearson p-values corrected for the number of heads (Benjamini-Hochberg).
    """
    layers, heads = attention.self_sums.shape
    options = {"permutations": permutations, "seed": seed}
    rows = []
    for layer, head in np.ndindex(layers, heads):
        enriched = _agreement(
            lambda layer=layer, head=head: pair_enrichment(attention, layer=layer, head=head), reference, options
        )
        rows.append(
            {"layer": layer, "head": head, **_named("enrichment", enriched), "num_pairs": enriched["num_pairs"]}
        )
    table = pd.DataFrame(rows)
    table["enrichment_q"] = corrected(table["enrichment_pearson_p"].to_numpy())
    return table


_NUMBERS = ("pearson", "pearson_p", "spearman", "spearman_p")


def _agreement(similarity, reference, options) -> dict:
    """Return the fields of an Agreement; NaN and 0 pairs if there is nothing to compare."""
    try:
        agreement = compare(similarity(), reference, **options)
    except InputError:
        return {**dict.fromkeys(_NUMBERS, float("nan")), "num_pairs": 0}
    return {**{name: getattr(agreement, name) for name in _NUMBERS}, "num_pairs": agreement.num_pairs}


def _named(prefix, agreement):
    return {f"{prefix}_{name}": agreement[name] for name in _NUMBERS}


def corrected(p_values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return Benjamini and Hochberg's q-values; NaN stays NaN and is not counted as a test."""
    known = ~np.isnan(p_values)
    result = np.full(len(p_values), np.nan)
    if known.any():
        result[known] = false_discovery_control(p_values[known])
    return result
