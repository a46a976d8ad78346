"""What `proteinlm analyze` does: from a model and proteins to figures, their arrays, and a summary."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from proteinlm.alphabet import STANDARD_RESIDUES
from proteinlm.analysis.amino_acids import similarity
from proteinlm.analysis.amino_acids.blosum import Agreement, closest_pairs, compare, normalised_blosum
from proteinlm.analysis.amino_acids.clustering import clustered_order
from proteinlm.analysis.amino_acids.figures import similarity_figure
from proteinlm.analysis.amino_acids.table import agreement_by_head, agreement_by_layer
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
from proteinlm.analysis.maps.figures import attention_figure, heads_figure, lines_figure
from proteinlm.analysis.maps.measure import choose_heads, measure_protein
from proteinlm.errors import InputError
from proteinlm.inference.probing import check_heads, check_layers
from proteinlm.inference.proteins import BPT1_BOVIN, clipped, read_protein, refuse_fewer
from proteinlm.models.transformer import ProteinLM
from proteinlm.output.figures import save_figure
from proteinlm.output.saving import save_arrays, save_summary, save_table

SHOWN_LAYERS, SHOWN_HEADS = 4, 8
PAPER_PAIRS = ("DE", "FY")
TABLE_PERMUTATIONS = 999
"""Of each layer and each head at most: many rows of a table need no finer p-values."""

ORDERS = ("classes", "clustered")
FEW_PROTEINS = 20
"""Below, a similarity depends much on which proteins they are."""


def analyze_protein(
    model: ProteinLM,
    sequence: bytes = BPT1_BOVIN,
    output: str | os.PathLike = ".",
    *,
    name: str = "BPT1_BOVIN (P00974)",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> dict:
    """Draw what a model attends to in one protein (Performer paper, figures 10 to 12).

    Writes into OUTPUT, each as .png and .pdf: attention (layers x heads), heads (up to three heads large, with the
    residues' letters) and lines (the first 25 residues of these heads as lines between two columns). attention.npz has
    the arrays behind them:

    - attention: float32 [layers, heads, query residue, key residue]; residues (one letter each); layers, heads (their
      numbers); causal; cell (residues on a side of a cell: 1, or more for a protein of more than 1024 residues, whose
      maps are means over cells);
    - row_sums [layers, heads, residue]: over all tokens, special ones included;
    - detail [N, query, key], detail_layers, detail_heads: of the heads drawn large; lines [N, 25, 25].

    Special tokens are cut away and the weights not renormalised: a row sums to what the residue gives to residues.

    Args:
        model: a causal or bidirectional model.
        sequence: the protein in ASCII letters.
        output: a folder; made if missing, files of the same names are replaced.
        name: how the figures call the protein.
        layers, heads: which to draw, counted from 0; None means the first 4 layers and 8 heads, as in the
            paper. The heads drawn large are chosen among them (None: among all) by `protein_maps.choose_heads`.

    Returns:
        A summary for JSON: the protein, what was drawn and how it was chosen, what rows sum to and why, how much
        attention stayed on residues.

    Raises:
        InputError: a letter outside the alphabet, a protein longer than the model reads, no such layer or
            head.
    """
    protein = read_protein(model, sequence, name=name)
    candidates = check_layers(model, layers), check_heads(model, heads)
    layers = candidates[0][:SHOWN_LAYERS] if layers is None else candidates[0]
    heads = candidates[1][:SHOWN_HEADS] if heads is None else candidates[1]
    choice = choose_heads(model, protein, *candidates)
    measured = measure_protein(model, protein, layers=layers, heads=heads, chosen=choice.heads)
    stem = Path(output) / "attention"
    save_arrays(stem, measured.arrays())
    about: dict[str, Any] = {"name": name, "causal": model.causal}
    large = {**about, "labels": choice.labels, "note": measured.detail_sums.sentence()}
    drawn = {
        "attention": attention_figure(
            measured.maps, layers=layers, heads=heads, num_residues=len(protein.letters),
            note=measured.sums.sentence(), **about,
        ),
        "heads": heads_figure(measured.detail, protein.letters, **large),
        "lines": lines_figure(measured.lines, protein.letters[: measured.lines.shape[-1]], **large),
    }  # fmt: skip
    files = [path for kind, (figure, _) in drawn.items() for path in _save(figure, Path(output) / kind)]
    return {
        "protein": name,
        "num_residues": len(protein.letters),
        "layers": layers,
        "heads": heads,
        "causal": model.causal,
        "cell": measured.cell,
        "attention_on_residues": _rounded(measured.on_residues),
        "row_sums": measured.sums.to_dict(),
        "heads_in_detail": choice.to_list(),
        "heads_chosen": choice.how,
        "files": [*files, str(stem.with_suffix(".npz"))],
    }


def analyze_head_kinds(
    model: ProteinLM,
    sequences: Sequence[bytes],
    output: str | os.PathLike = ".",
    *,
    batch_size: int = 8,
    asked: int | None = None,
) -> dict:
    """Tell which heads are diagonal, vertical, block, scattered or diffuse over proteins (head_kinds.py).

    Writes OUTPUT/head_kinds.png and .pdf (the kinds over layers x heads), head_kinds.csv (`head_table.head_table`: one
    row for each layer and head), head_kinds.npz (the statistics in each protein) and head_kinds.json with the summary.
    Proteins longer than the model reads are clipped, as single sequences are in training, and counted.

    Args:
        model: a causal or bidirectional model.
        sequences: proteins in ASCII letters; those of fewer than 32 residues are left out and counted.
        output: a folder; made if missing, files of the same names are replaced.
        batch_size: proteins read together; the result does not depend on it beyond rounding.
        asked: how many sequences there should be; None for as many as there are.

    Returns:
        The summary, as written: `head_table.claims`, the numbers of proteins, the thresholds.

    Raises:
        InputError: fewer sequences than asked, none long enough, or a letter outside the alphabet.
    """
    refuse_fewer(sequences, asked)
    read, num_clipped = clipped(model, sequences)
    patterns = measure_patterns(model, read, batch_size=batch_size)
    table = head_table(patterns)
    number = len(patterns.proteins)
    found = claims(table)
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
        **found,
        "num_sequences": number,
        "num_clipped": num_clipped,
        "num_too_short": len(sequences) - number,
        "shortest": SHORTEST,
        "thresholds": {**PATTERNS, "diffuse_evenness": DIFFUSE_EVENNESS, "reach": REACH, "segments": SEGMENTS},
        "kinds": [*KINDS, NO_WEIGHTS],
        "causal": model.causal,
        "files": [*_save(figure, stem), *(str(stem.with_suffix(end)) for end in (".csv", ".npz", ".json"))],
    }
    save_summary(stem, summary)
    return summary


def _strength(row):
    return row[row["kind"]] if row["kind"] in PATTERNS else row["evenness"]


def _detail(row):
    """Return what the figure writes of a head beside its kind."""
    if row["kind"] == "diagonal":
        return f"{row['offset']:+d}" if row["offset"] else "0"
    if row["kind"] == "vertical":
        # A place, where it is the same in most proteins; else the letter.
        return str(row["position"] if row["position_share"] > 0.5 else row["letter"])
    return ""


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
    asked: int | None = None,
) -> dict:
    """Compare which amino acids a model attends to alike with which replace each other in evolution.

    Writes OUTPUT/similarity.png and .pdf, similarity.npz with every array behind them, similarity_by_layer.csv and
    similarity_by_head.csv (similarity_table.py), and similarity.json with the summary. The similarity drawn is that of
    Vig et al. (`similarity.head_similarity`); the direct enrichment of attention between amino acids is compared as
    well, and saved. Proteins longer than the model reads are clipped, as single sequences are in training, and
    counted.

    Args:
        model: a causal or bidirectional model.
        sequences: proteins in ASCII letters (the paper takes 800); their number is reported.
        output: a folder; made if missing, files of the same names are replaced.
        blosum: BLOSUM45, 50, 62, 80 or 90.
        order: of the amino acids in the figure: "classes", or "clustered" by the model's similarity, in both matrices.
        batch_size: proteins read together; the result does not depend on it beyond rounding.
        permutations: of the amino acids' names, for the p-values; of each layer and head 999 at most.
        seed: of the permutations.
        asked: how many sequences there should be; None for as many as there are.

    Returns:
        The summary, as written to similarity.json.

    Raises:
        InputError: no sequences or fewer than asked, a letter outside the alphabet, an unknown matrix or order, or
            attention that never leaves its own position.
    """
    reference = normalised_blosum(blosum)
    if order not in ORDERS:
        raise InputError(f"there is no order {order!r} of amino acids; choose one of {', '.join(ORDERS)}.")
    refuse_fewer(sequences, asked)
    read, num_clipped = clipped(model, sequences)
    sums = similarity.amino_acid_attention(model, read, batch_size=batch_size)
    by_head = similarity.head_similarity(sums)
    enrichment = similarity.pair_enrichment(sums)
    profiles = similarity.head_profiles(sums)
    chance: dict[str, int] = {"permutations": permutations, "seed": seed}
    agreement = compare(by_head, reference, **chance)
    places = clustered_order(by_head)
    stem = Path(output) / "similarity"
    arrays: dict[str, Any] = {
        "residues": np.array(list(STANDARD_RESIDUES)),
        "similarity": by_head,
        "blosum": reference,
        "clustered_order": np.array(places),
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
        order=places if order == "clustered" else None,
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
        "clustered_order": "".join(STANDARD_RESIDUES[place] for place in places),
        "best_layer": _best(layers, "similarity", "layer"),
        "best_head": _best(heads, "enrichment", "layer", "head"),
        "seed": seed,
        "files": [*_save(figure, stem), *(str(stem.with_suffix(end)) for end in (".npz", ".json")), *tables],
    }
    save_summary(stem, summary)
    return summary


def _pairs(by_head, reference) -> dict:
    """Say which pairs are closest, and where those are that evolution, or the paper, has closest."""
    ranked = closest_pairs(by_head, reference, number=len(STANDARD_RESIDUES) ** 2)
    evolved = sorted(ranked, key=lambda entry: (entry["blosum_rank"], entry["pair"]))[:10]
    return {
        "closest_pairs": ranked[:10],
        "paper_pairs": [entry for entry in ranked if entry["pair"] in PAPER_PAIRS],
        "blosum_pairs": evolved,
        "num_pairs_ranked": len(ranked),
    }


def _best(table: pd.DataFrame, name: str, *keys: str) -> dict | None:
    """Return the row with the largest correlation, in brief; None where there is none."""
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
    # A permutation test cannot tell smaller p-values than one in the number of its draws.
    p_text = f"p ≤ {floor:.2g}" if p <= floor else f"p = {p:.2g}"
    return (
        f"{subject}: r = {agreement.pearson:.2f}".replace("-", "−")
        + f" ({agreement.num_pairs} pairs, {p_text} by permutation)"
        + ("; few proteins, so that chance is large" if number < FEW_PROTEINS else "")
    )


def _rounded(values):
    return [[round(float(value), 4) for value in row] for row in values]


def _save(figure: Figure, stem: Path) -> list[str]:
    return [str(path) for path in save_figure(figure, stem)]
