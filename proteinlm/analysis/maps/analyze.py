"""Analysis of the attention in one protein: figures, their arrays, a summary, and an interactive page."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proteinlm.analysis.maps.figures import attention_figure, heads_figure, lines_figure
from proteinlm.analysis.maps.interactive import check_size, interactive_map
from proteinlm.analysis.maps.measure import choose_heads, measure_protein
from proteinlm.inference.probing import ProteinProbe, check_heads, check_layers
from proteinlm.output.figures import save_figure
from proteinlm.output.saving import rounded, save_arrays

SHOWN_LAYERS, SHOWN_HEADS = 4, 8
"""Numbers of layers and heads in the figure by default, as in the paper."""


def analyze_protein(
    probe: ProteinProbe,
    output: str | os.PathLike = ".",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> dict:
    """Draw the attention of a model in one protein (Performer paper, figures 10 to 12).

    Writes three figures into OUTPUT, each as .png and .pdf: attention (layers x heads), heads (up to three heads large,
    with the letters of the residues) and lines (the first 25 residues of these heads as lines between two columns).
    attention.npz holds their arrays:

    - attention: float32 [layers, heads, query residue, key residue]; residues (one letter each); layers, heads (their
      numbers); causal; cell (residues along a side of a cell: 1, or more for a protein of more than 1024 residues,
      whose maps are means over cells);
    - row_sums [layers, heads, residue]: over all tokens, special ones included;
    - detail [N, query, key], detail_layers, detail_heads: the heads drawn large; lines [N, 25, 25].

    Special tokens are removed and the weights are not renormalised: a row sums to the attention that the residue gives
    to residues.

    Args:
        probe: a model and a protein (`probe_protein`).
        output: the folder of the files; created if missing. Files of the same names are replaced.
        layers, heads: the ones to draw, counted from 0; None means the first 4 layers and 8 heads, as in the paper.
            The heads drawn large are chosen among them (None: among all) by `measure.choose_heads`.

    Returns:
        A summary for JSON: the protein, the heads drawn and how they were chosen, the sums of rows and why they differ
        from 1, and the attention that stays on residues.

    Raises:
        InputError: the model has no such layer or head.
    """
    protein, causal = probe.protein, probe.model.causal
    candidates = check_layers(probe.model, layers), check_heads(probe.model, heads)
    layers = candidates[0][:SHOWN_LAYERS] if layers is None else candidates[0]
    heads = candidates[1][:SHOWN_HEADS] if heads is None else candidates[1]
    choice = choose_heads(probe, *candidates)
    maps = measure_protein(probe, layers=layers, heads=heads, chosen=choice.heads)
    arrays = save_arrays(Path(output) / "attention", maps.arrays())
    title: dict[str, Any] = {"name": protein.name, "causal": causal}
    detail = {**title, "labels": choice.labels, "note": maps.detail_sums.sentence()}
    figures = {
        "attention": attention_figure(
            maps.maps, layers=layers, heads=heads, num_residues=len(protein.letters), note=maps.sums.sentence(), **title
        ),
        "heads": heads_figure(maps.detail, protein.letters, **detail),
        "lines": lines_figure(maps.lines, protein.letters[: maps.lines.shape[-1]], **detail),
    }
    files = [path for kind, (figure, _) in figures.items() for path in save_figure(figure, Path(output) / kind)]
    return {
        "protein": protein.name,
        "num_residues": len(protein.letters),
        "layers": layers,
        "heads": heads,
        "causal": causal,
        "cell": maps.cell,
        "attention_on_residues": rounded(maps.on_residues),
        "row_sums": maps.sums.to_dict(),
        "heads_in_detail": choice.to_list(),
        "heads_chosen": choice.how,
        "files": [*map(str, files), arrays],
    }


def analyze_interactive(
    probe: ProteinProbe,
    output: str | os.PathLike = ".",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Path:
    """Write OUTPUT/attention.html, the interactive map of a protein's residues, and return its path.

    Args:
        probe: a model and a protein (`probe_protein`).
        output: the folder of the page; created if missing.
        layers, heads: the ones that a reader can pick, counted from 0; None means all.

    Raises:
        InputError: the model has no such layer or head.
        TooLargeError: the arrays are too large for a page. This is checked before the model runs.
    """
    protein, causal = probe.protein, probe.model.causal
    layers, heads = check_layers(probe.model, layers), check_heads(probe.model, heads)
    check_size(len(layers), len(heads), len(protein.letters), name=protein.name, causal=causal)
    maps = probe.maps(layers=layers, heads=heads)[:, 0, :, protein.residues, protein.residues]
    path = Path(output) / "attention.html"
    return interactive_map(maps, protein.letters, path, name=protein.name, causal=causal, layers=layers, heads=heads)
