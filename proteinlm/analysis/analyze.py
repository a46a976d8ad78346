"""What `proteinlm analyze` does: from a model and proteins to figures, their arrays, and a summary."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proteinlm.analysis import attention_maps, plots, similarity
from proteinlm.analysis.blosum import closest_pairs, compare, normalised_blosum
from proteinlm.analysis.proteins import BPT1_BOVIN, capacity, read_protein
from proteinlm.data.alphabet import STANDARD_RESIDUES, canonical
from proteinlm.errors import InputError
from proteinlm.figures import save_figure, style
from proteinlm.files import whole_file
from proteinlm.models.transformer import ProteinLM

SHOWN_LAYERS, SHOWN_HEADS = 4, 8
PAPER_PAIRS = ("DE", "FY")


def analyze_protein(
    model: ProteinLM,
    sequence: bytes = BPT1_BOVIN,
    output: str | os.PathLike = ".",
    *,
    name: str = "BPT1_BOVIN (P00974)",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> dict:
    """Draw what a model attends to in one protein.

    Writes OUTPUT/attention.png and .pdf, and attention.npz with the arrays behind them: attention (float32
    [layers, heads, query residue, key residue]), residues (one letter each), layers, heads (their numbers),
    causal. Special tokens are cut away and the weights not renormalised: a row sums to what the residue gives
    to residues.

    Args:
        model: a causal or bidirectional model.
        sequence: the protein in ASCII letters.
        output: a folder; made if missing, files of the same names are replaced.
        name: how the figure calls the protein.
        layers, heads: which to draw, counted from 0; None means the first 4 layers and 8 heads, as in the
            paper.

    Returns:
        A summary for JSON: the protein, what was drawn, and how much attention stayed on residues.

    Raises:
        InputError: a letter outside the alphabet, a protein longer than the model reads, no such layer or
            head.
    """
    protein = read_protein(model, sequence, name=name)
    layers = list(range(min(SHOWN_LAYERS, model.config.num_layers))) if layers is None else list(layers)
    heads = list(range(min(SHOWN_HEADS, model.config.num_heads))) if heads is None else list(heads)
    maps = attention_maps.attention_maps(model, protein.tokens[None], layers=layers, heads=heads)
    maps = np.ascontiguousarray(maps[:, 0, :, protein.residues, protein.residues])
    stem = Path(output) / "attention"
    with whole_file(stem.with_suffix(".npz"), "wb") as handle:
        np.savez_compressed(
            handle, attention=maps, residues=np.array(list(protein.letters)), layers=np.array(layers),
            heads=np.array(heads), causal=np.array(model.causal),
        )  # fmt: skip
    figure, _ = plots.attention_figure(maps, name=name, causal=model.causal, layers=layers, heads=heads)
    with style():
        png, pdf = save_figure(figure, stem)
    return {
        "protein": name,
        "num_residues": len(protein.letters),
        "layers": layers,
        "heads": heads,
        "causal": model.causal,
        "attention_on_residues": _rounded(maps.sum(-1).mean(-1)),
        "files": [str(png), str(pdf), str(stem.with_suffix(".npz"))],
    }


def analyze_similarity(
    model: ProteinLM,
    sequences: Sequence[bytes],
    output: str | os.PathLike = ".",
    *,
    blosum: str = "BLOSUM62",
    batch_size: int = 8,
    permutations: int = 9999,
    seed: int = 0,
) -> dict:
    """Compare which amino acids a model attends to alike with which replace each other in evolution.

    Writes OUTPUT/similarity.png and .pdf, similarity.npz with every array behind them, and similarity.json
    with the summary. The similarity drawn is that of Vig et al. (`similarity.head_similarity`); the direct
    enrichment of attention between amino acids is compared as well, and saved. Proteins longer than the model
    reads are clipped, as single sequences are in training, and counted.

    Args:
        model: a causal or bidirectional model.
        sequences: proteins in ASCII letters (the paper takes 800); their number is reported.
        output: a folder; made if missing, files of the same names are replaced.
        blosum: BLOSUM45, 50, 62, 80 or 90.
        batch_size: proteins read together; the result does not depend on it beyond rounding.
        permutations: of the amino acids' names, for the p-values.
        seed: of the permutations.

    Returns:
        The summary, as written to similarity.json.

    Raises:
        InputError: no sequences, a letter outside the alphabet, an unknown matrix, or attention that never
            leaves its own position.
    """
    reference = normalised_blosum(blosum)
    limit = capacity(model)
    whole = [_canonical(sequence, index) for index, sequence in enumerate(sequences)]
    sums = similarity.amino_acid_attention(model, [letters[:limit] for letters in whole], batch_size=batch_size)
    by_head = similarity.head_similarity(sums)
    enrichment = similarity.pair_enrichment(sums)
    profiles = similarity.head_profiles(sums)
    agreement = compare(by_head, reference, permutations=permutations, seed=seed)
    pair_agreement = compare(enrichment, reference, permutations=permutations, seed=seed)
    ranked = closest_pairs(by_head, reference, number=len(STANDARD_RESIDUES) ** 2)
    stem = Path(output) / "similarity"
    arrays: dict[str, Any] = {
        "residues": np.array(list(STANDARD_RESIDUES)),
        "similarity": by_head,
        "blosum": reference,
        "head_profiles": profiles,
        "pair_enrichment": enrichment,
        "mean_attention": similarity.mean_attention(sums),
        "pair_sums": sums.pair_sums,
        "pair_counts": sums.pair_counts,
        "pair_even": sums.pair_even,
        "self_sums": sums.self_sums,
        "special_sums": sums.special_sums,
    }
    with whole_file(stem.with_suffix(".npz"), "wb") as handle:
        np.savez_compressed(handle, **arrays)
    heads_used = int((~np.isnan(profiles).all(-1)).sum())
    summary = {
        "num_sequences": sums.num_sequences,
        "num_residues": sums.num_residues,
        "num_clipped": sum(len(letters) > limit for letters in whole),
        "num_heads": int(profiles.shape[0] * profiles.shape[1]),
        "num_heads_used": heads_used,
        "similarity": "Pearson correlation, across heads, of the share of attention that amino acids receive",
        "blosum": blosum.upper(),
        "blosum_normalisation": "B(a,b) / sqrt(B(a,a) B(b,b))",
        "agreement": agreement.to_dict(),
        "pair_enrichment_agreement": pair_agreement.to_dict(),
        "closest_pairs": ranked[:10],
        "paper_pairs": [entry for entry in ranked if entry["pair"] in PAPER_PAIRS],
        "num_pairs_ranked": len(ranked),
        "seed": seed,
    }
    figure, _ = plots.similarity_figure(
        reference, by_head,
        reference_label=f"normalised {blosum.upper()} score",
        similarity_label=f"attention similarity (Pearson r over {heads_used} heads)",
        title=_title(sums.num_sequences, blosum.upper(), agreement),
    )  # fmt: skip
    with style():
        png, pdf = save_figure(figure, stem)
    summary["files"] = [str(png), str(pdf), *(str(stem.with_suffix(end)) for end in (".npz", ".json"))]
    with whole_file(stem.with_suffix(".json")) as handle:
        json.dump(summary, handle, indent=2, allow_nan=False)
        handle.write("\n")
    return summary


def _canonical(sequence, index):
    try:
        return canonical(sequence)
    except InputError as error:
        raise InputError(f"sequence {index + 1}: {error}.") from error


def _title(number, blosum, agreement):
    subject = f"Attention to amino acids in {number:,} protein{'' if number == 1 else 's'} and {blosum}"
    if math.isnan(agreement.pearson):
        return f"{subject}: one of the two does not vary"
    p = agreement.pearson_p
    floor = 1 / (agreement.num_permutations + 1)
    # A permutation test cannot tell smaller p-values than one in the number of its draws.
    p_text = f"p ≤ {floor:.2g}" if p <= floor else f"p = {p:.2g}"
    return (
        f"{subject}: r = {agreement.pearson:.2f}".replace("-", "−")
        + f" ({agreement.num_pairs} pairs, {p_text} by permutation)"
    )


def _rounded(values):
    return [[round(float(value), 4) for value in row] for row in values]
