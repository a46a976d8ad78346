"""Measurements of the attention in one protein: the heads to show in detail, attention maps, and sums of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from proteinlm.analysis.heads.kinds import PATTERNS, SHORTEST, HeadPatterns, protein_patterns
from proteinlm.analysis.heads.table import clearest_heads, head_table, vertical_positions
from proteinlm.analysis.maps.row_sums import RowSums, measure_row_sums, summarise
from proteinlm.inference.probing import ProteinProbe
from proteinlm.inference.proteins import Protein

DRAWN = 1024
"""Largest number of cells along a side of a map, more than a figure has dots. Longer proteins are averaged over
cells."""

DETAILED = 3
"""Largest number of heads shown in detail: one for each pattern."""

FIRST = 25
"""Number of residues drawn as lines (Performer paper, figure 12)."""

ALL_GIVEN = "all that were given"


@dataclass(frozen=True)
class Choice:
    """The heads to show in detail.

    Attributes:
        heads: (layer, head) pairs, in the order of the figures.
        labels: the text above each head in a figure.
        how: the rule by which they were chosen.
    """

    heads: Sequence[tuple[int, int]]
    labels: Sequence[str]
    how: str

    def to_list(self) -> list[dict]:
        """Return the heads for JSON."""
        return [
            {"layer": layer, "head": head, "label": label}
            for (layer, head), label in zip(self.heads, self.labels, strict=True)
        ]


def choose_heads(probe: ProteinProbe, layers: Sequence[int], heads: Sequence[int]) -> Choice:
    """Choose the heads to show in detail, from the given layers and heads.

    All heads are chosen if they are DETAILED or fewer. Otherwise `table.clearest_heads` chooses the clearest diagonal,
    vertical and block head of this protein, then the next clearest. In a protein of fewer than SHORTEST residues kinds
    cannot be measured, and the first heads are chosen.
    """
    pairs = [(layer, head) for layer in layers for head in heads]
    few = len(pairs) <= DETAILED
    if len(probe.protein.letters) < SHORTEST:
        chosen = pairs[:DETAILED]
        too_short = f"a protein of fewer than {SHORTEST} residues has no kinds of heads"
        how = ALL_GIVEN if few else f"the first {DETAILED} of {len(pairs)}: {too_short}"
        return Choice(chosen, [f"layer {layer}, head {head}" for layer, head in chosen], how)
    patterns = protein_patterns(probe)
    table = head_table(patterns)
    if few:
        chosen, how = pairs, ALL_GIVEN
    else:
        clearest = clearest_heads(table, layers=list(layers), heads=list(heads), number=DETAILED)
        chosen = [(layer, head) for layer, head, _ in clearest]
        how = (
            f"of {len(pairs)} heads the clearest diagonal, vertical and block head of this protein, where there are "
            f"such, then the next clearest, {DETAILED} in all (statistic over threshold)"
        )
    return Choice(chosen, [_label(patterns, table, layer, head) for layer, head in chosen], how)


def _label(patterns: HeadPatterns, table, layer: int, head: int) -> str:
    row = table[(table["layer"] == layer) & (table["head"] == head)].iloc[0]
    kind, share = row["kind"], f"{row[row['kind']]:.2f}" if row["kind"] in PATTERNS else ""
    label = f"layer {layer}, head {head}: {kind}"
    if kind == "diagonal":
        return f"{label} {share}, offset {row['offset']:+d}".replace("-", "−").replace("+0", "0")
    if kind == "vertical":
        tops = vertical_positions(patterns, 0, layer, head, number=2)
        targets = " ".join(top["letter"] + (top["position"] if top["position"].isdigit() else "") for top in tops)
        return f"{label} {share}, to {targets}"
    return f"{label} {share}" if share else f"{label}, evenness {row['evenness']:.2f}"


@dataclass(frozen=True)
class ProteinMaps:
    """The arrays of the figures of one protein. C is the number of cells along a side of a map.

    Attributes:
        protein: the protein.
        causal: whether the model is causal.
        layers: the layers drawn together.
        heads: the heads drawn together.
        chosen: (layer, head) pairs of the heads in detail.
        cell: number of residues along a side of a cell; 1 unless the protein has more than DRAWN residues.
        maps: float32 [layers, H, C, C], attention weights among residues, or their means over cells.
        detail: float32 [N, C, C], the same for the heads in detail.
        lines: float32 [N, T, T], the weights among the first T residues.
        row_sums: float32 [layers, H, residue], sums over all tokens.
        sums: a summary of the row sums.
        detail_sums: a summary of the row sums of the heads in detail.
        on_residues: float32 [layers, H], the mean attention of a residue to residues.
    """

    protein: Protein
    causal: bool
    layers: Sequence[int]
    heads: Sequence[int]
    chosen: Sequence[tuple[int, int]]
    cell: int
    maps: Float32[np.ndarray, "layers H C C"]
    detail: Float32[np.ndarray, "N C C"]
    lines: Float32[np.ndarray, "N T T"]
    row_sums: Float32[np.ndarray, "layers H L"]
    sums: RowSums
    detail_sums: RowSums
    on_residues: Float32[np.ndarray, "layers H"]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to save beside the figures, by name."""
        return {
            "attention": self.maps,
            "residues": np.array(list(self.protein.letters)),
            "layers": np.array(self.layers),
            "heads": np.array(self.heads),
            "causal": np.array(self.causal),
            "cell": np.array(self.cell),
            "row_sums": self.row_sums,
            "detail": self.detail,
            "detail_layers": np.array([layer for layer, _ in self.chosen]),
            "detail_heads": np.array([head for _, head in self.chosen]),
            "lines": self.lines,
        }


def measure_protein(
    probe: ProteinProbe, *, layers: Sequence[int], heads: Sequence[int], chosen: Sequence[tuple[int, int]]
) -> ProteinMaps:
    """Measure the arrays of a protein's figures, in memory linear in its length beyond DRAWN residues."""
    protein, residues = probe.protein, probe.protein.residues
    cell = -(-len(protein.letters) // DRAWN)
    is_residue = np.zeros(probe.tokens.shape, bool)
    is_residue[:, residues] = True
    sums = measure_row_sums(probe)[:, 0, :, residues]
    on_residues = measure_row_sums(probe, over=is_residue)[:, 0, :, residues].mean(-1)
    drawn = np.ix_(layers, heads)
    attention = probe.model.config.attention
    return ProteinMaps(
        protein=protein,
        causal=probe.model.causal,
        layers=layers,
        heads=heads,
        chosen=chosen,
        cell=cell,
        maps=probe.pooled(layers=layers, heads=heads, cell=cell),
        detail=np.concatenate([probe.pooled(layers=[layer], heads=[head], cell=cell)[0] for layer, head in chosen]),
        lines=np.stack([_first(probe, layer, head) for layer, head in chosen]),
        row_sums=sums[drawn],
        sums=summarise(sums[drawn], attention),
        detail_sums=summarise(sums[tuple(np.array(chosen).T)], attention),
        on_residues=on_residues[drawn],
    )


def _first(probe, layer, head):
    """Return the weights among the first residues, which are all in the first block of columns."""
    start = probe.protein.residues.start
    cut = slice(start, start + min(FIRST, len(probe.protein.letters)))
    _, columns = next(probe.columns(layer, heads=[head]))
    return columns[0, 0, cut, cut]
