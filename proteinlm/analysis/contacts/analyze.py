"""Analysis of attention against the contacts of a structure: figures, their arrays, and a summary."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proteinlm.analysis.contacts import figures as contact_figures
from proteinlm.analysis.contacts import measure as contacts
from proteinlm.analysis.contacts.structures import Alignment, Chain, align_chain
from proteinlm.errors import InputError
from proteinlm.inference.probing import probe_protein
from proteinlm.models.transformer import ProteinLM
from proteinlm.output.figures import save_figure
from proteinlm.output.saving import rounded, save_arrays, save_summary


@dataclass(frozen=True)
class _Judged:
    """A structure and the attention at its n judged pairs of residues.

    Attributes:
        name: the protein's name in figures and messages.
        letters: the residues that the model reads, one letter each.
        chain: the chain of the structure.
        alignment: the chain aligned to the protein.
        pairs: the judged pairs.
        raw: float32 [layers * H, n], symmetrised attention.
        corrected: float32 [layers * H, n], the same after average product correction.
        mean: float32 [n], the corrected mean over all heads.
        closed_gaps: gaps in the residue numbers that no known sequence fills. The residues on either side are
            neighbours in `letters`.
    """

    name: str
    letters: str
    chain: Chain
    alignment: Alignment
    pairs: contacts.Pairs
    raw: np.ndarray
    corrected: np.ndarray
    mean: np.ndarray
    closed_gaps: tuple[tuple[int, int], ...]


def analyze_structure(
    model: ProteinLM,
    chain: Chain,
    output: str | os.PathLike = ".",
    *,
    name: str | None = None,
    sequence: bytes | None = None,
    training: Sequence[Chain] = (),
) -> dict:
    """Measure how well a model's attention predicts the contacts of a structure.

    Writes OUTPUT/contacts.png and .pdf (the map), contact_precision.png and .pdf (tables), contacts.npz with all arrays
    and contacts.json with the summary. The map shows the regression if there is one, and otherwise the best head.

    Args:
        model: a causal or bidirectional model.
        chain: the chain of the structure, from `structures.read_chain`.
        output: the folder of the files; created if missing. Files of the same names are replaced.
        name: the protein's name in the figures, beside those of the file and the chain; None means these alone.
        sequence: the protein that the model reads and that the structure is aligned to; None means the sequence that
            the file states for the chain, or, without one, the residues that have coordinates.
        training: chains of other structures. The best head is chosen, and logistic regression fitted, on them. Without
            them there is no regression, and the best head is chosen on the judged protein itself, which overestimates
            its precision; the summary and the figure say so.

    Returns:
        The summary, as written to contacts.json. Its "warnings" are sentences on differences between structure and
        protein, which a caller should show. contacts.png shows them too, except those on training structures.

    Raises:
        InputError: the chain does not fit the protein (see structures.py), the protein is too long for the model, a
            training structure has the same sequence, or scikit-learn is needed and not installed.
    """
    if training:
        contacts.require_regression()
    judged = _judge(model, chain, name, sequence)
    others = [_judge(model, other, None, None) for other in training]
    for other in others:
        if other.letters == judged.letters:
            raise InputError(
                f"the training structure {other.name} has the same sequence as the structure to judge: use others."
            )
    layers, heads = model.config.num_layers, model.config.num_heads
    by_head = {
        kind: np.stack([contacts.precisions(scores, judged.pairs) for scores in getattr(judged, kind)])
        for kind in ("raw", "corrected")
    }
    chosen_on = others or [judged]
    # The mean precision at L over the training structures, each with the same weight.
    ranking = np.mean([[_long_range(scores, j) for scores in j.corrected] for j in chosen_on], 0)
    best = int(np.argmax(np.nan_to_num(ranking, nan=-1)))
    where = f"training structures ({len(others)})" if others else "this protein"
    best_label = f"best head (layer {best // heads}, head {best % heads})"
    table = {
        "chance": contacts.chance(judged.pairs),
        "mean of all heads": contacts.precisions(judged.mean, judged.pairs),
        f"{best_label}, no APC": by_head["raw"][best],
        best_label: by_head["corrected"][best],
    }
    shown, predictor = (
        judged.corrected[best],
        f"layer {best // heads}, head {best % heads} (best of {layers * heads} on {where})",
    )
    arrays: dict[str, Any] = {}
    if others:
        coefficients, intercept = contacts.fit_heads([j.corrected for j in others], [j.pairs.contacts for j in others])
        shown, predictor = coefficients @ judged.corrected, f"logistic regression over {layers * heads} heads"
        table["logistic regression"] = contacts.precisions(shown, judged.pairs)
        arrays = {"coefficients": coefficients.reshape(layers, heads), "intercept": np.array(intercept)}
    # The L pairs with the highest scores; equal scores are in the order of positions.
    top = np.argsort(-shown, kind="stable")[: judged.pairs.num_resolved]
    predicted = np.stack([judged.pairs.first[top], judged.pairs.second[top]], 1)
    shape = (layers, heads, len(contacts.RANGES), len(contacts.CUTS))
    arrays |= {
        "residues": np.array(list(judged.letters)),
        "places": judged.alignment.coordinates,
        "contacts": contacts.contact_map(judged.alignment.coordinates),
        "first": judged.pairs.first,
        "second": judged.pairs.second,
        "attention": judged.raw.reshape(layers, heads, -1),
        "attention_apc": judged.corrected.reshape(layers, heads, -1),
        "shown_scores": shown,
        "predicted": predicted,
        "precision": by_head["raw"].reshape(shape),
        "precision_apc": by_head["corrected"].reshape(shape),
        "predictors": np.array(list(table)),
        "predictor_precision": np.stack(list(table.values())),
    }
    stem = Path(output) / "contacts"
    save_arrays(stem, arrays)
    warnings = _warnings(judged)
    figure, _ = contact_figures.contact_figure(
        arrays["contacts"], judged.alignment.resolved, predicted, name=judged.name, predictor=predictor, notes=warnings
    )
    files = save_figure(figure, stem)
    long_range = by_head["corrected"][:, 0, 0].reshape(layers, heads)
    figure, _ = contact_figures.precision_figure(
        table, long_range, name=judged.name,
        note=f"best head chosen on {where}; L = {judged.pairs.num_resolved} resolved residues",
    )  # fmt: skip
    files += save_figure(figure, stem.with_name("contact_precision"))
    summary = {
        **_described(judged),
        "warnings": warnings + [f"{other.name}: {text}" for other in others for text in _gap_warnings(other)],
        "causal": model.causal,
        "training_structures": [other.name for other in others],
        "best_head": {"layer": best // heads, "head": best % heads, "chosen_on": where},
        "precision": {label: _by_name(values) for label, values in table.items()},
        "precision_of_heads_long_range_L": rounded(long_range),
        "heads_used_by_regression": int((arrays["coefficients"] != 0).sum()) if others else None,
        "files": [str(file) for file in (*files, stem.with_suffix(".npz"), stem.with_suffix(".json"))],
    }
    save_summary(stem, summary)
    return summary


def _judge(model, chain, name, sequence):
    """Measure the attention at the judged pairs of a chain, one layer after another."""
    where = f"{Path(chain.path).name}, chain {chain.label}"
    name = where if name is None else f"{name} ({where})"
    letters = (chain.sequence or chain.letters).encode() if sequence is None else sequence
    probe = probe_protein(model, letters, name=name)
    protein = probe.protein
    alignment = align_chain(chain, protein.letters, name=name)
    try:
        pairs = contacts.judged_pairs(alignment.coordinates)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    raw, corrected, total = [], [], 0
    for layer in range(model.config.num_layers):
        maps = probe.map(layer)[0, :, protein.residues, protein.residues]
        maps = contacts.symmetrised(maps)
        total = total + maps.sum(0)
        raw.append(pairs.of(maps))
        corrected.append(pairs.of(contacts.average_product_corrected(maps)))
    mean = pairs.of(contacts.average_product_corrected(np.asarray(total)))
    closed = chain.gaps if sequence is None and chain.sequence is None else ()
    return _Judged(
        name, protein.letters, chain, alignment, pairs, np.concatenate(raw), np.concatenate(corrected), mean, closed
    )


def _described(judged):
    alignment, chain = judged.alignment, judged.chain
    return {
        "protein": judged.name,
        "num_residues": len(judged.letters),
        "structure": chain.path,
        "chain": chain.name,
        "chains": list(chain.chains),
        "sequence_in_file": chain.sequence is not None,
        "num_resolved": judged.pairs.num_resolved,
        "num_aligned": alignment.num_aligned,
        "num_unresolved": len(judged.letters) - judged.pairs.num_resolved,
        "num_mismatches": len(alignment.mismatches),
        "mismatches": _mismatches(alignment),
        "num_residues_without_structure": len(judged.letters) - alignment.num_aligned,
        "num_without_contact_atom": alignment.num_aligned - judged.pairs.num_resolved,
        "num_structure_residues_without_place": alignment.num_inserted,
        "gaps_closed_up": [{"after": a, "before": b, "missing": b - a - 1} for a, b in judged.closed_gaps],
        "contact": f"C-beta (glycine C-alpha) nearer than {contacts.CUTOFF:g} Å, {contacts.CLOSEST} or more apart",
        "pairs": contacts.contacts_by_range(judged.pairs),
    }


def _mismatches(alignment):
    return [f"{letter}{position}{structure_letter}" for position, letter, structure_letter in alignment.mismatches]


def _warnings(judged):
    """Return a sentence for each difference between structure and protein."""
    alignment, length = judged.alignment, len(judged.letters)
    warnings = _gap_warnings(judged)
    if different := _mismatches(alignment):
        listed = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
        warnings.append(
            f"{len(different)} of {alignment.num_aligned} aligned residues differ{'s' if len(different) == 1 else ''} "
            f"between protein and structure ({listed}): the model read the protein's."
        )
    if number := alignment.num_inserted:
        warnings.append(
            f"{number} residue{_plural(number)} of the structure ha{'s' if number == 1 else 've'} no counterpart in "
            f"the protein and {'is' if number == 1 else 'are'} left out."
        )
    if number := length - judged.pairs.num_resolved:
        warnings.append(
            f"{number} of the protein's {length} residues {'is' if number == 1 else 'are'} not resolved in the "
            "structure: pairs with them are not judged."
        )
    return warnings


def _gap_warnings(judged):
    if not judged.closed_gaps:
        return []
    missing = [after - before - 1 for before, after in judged.closed_gaps]
    where = [f"{number} between {a} and {b}" for number, (a, b) in zip(missing, judged.closed_gaps, strict=True)]
    if len(where) == 1:
        total = missing[0]
        text, across = f"between {judged.closed_gaps[0][0]} and {judged.closed_gaps[0][1]}", "it"
    else:
        total = sum(missing)
        text, across = f"({', '.join(where[:5])}{', …' if len(where) > 5 else ''})", "them"
    return [
        f"the file states no sequence; {total} residue{_plural(total)} seem{'s' if total == 1 else ''} to be missing "
        f"{text}: separations across {across} are too small; give the protein's own sequence."
    ]


def _plural(number):
    return "" if number == 1 else "s"


def _long_range(scores, judged):
    return contacts.precisions(scores, judged.pairs)[0, 0]


def _by_name(table):
    return {
        band: dict(zip(contacts.CUTS, row, strict=True))
        for band, row in zip(contacts.RANGES, rounded(table), strict=True)
    }
