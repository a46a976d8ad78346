"""What `proteinlm analyze` does: finds the model, the proteins and the windows, and calls analysis for each part."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from proteinlm.analysis.amino_acids.analyze import FEW_PROTEINS, analyze_similarity
from proteinlm.analysis.amino_acids.blosum import normalised_blosum
from proteinlm.analysis.contacts.analyze import analyze_structure
from proteinlm.analysis.contacts.structures import Chain, read_chain
from proteinlm.analysis.heads.analyze import analyze_head_kinds
from proteinlm.analysis.maps.analyze import analyze_interactive, analyze_protein
from proteinlm.analysis.maps.interactive import TooLargeError
from proteinlm.analysis.windows.analyze import analyze_windows
from proteinlm.analysis.windows.measure import holds_several
from proteinlm.cli.analyze_options import DEFAULT_PROTEIN, Analyze, Part
from proteinlm.data.batches.batches import evaluation_batches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.sources.uniprot import first_record
from proteinlm.errors import InputError
from proteinlm.evaluation.sequences import sequence_facts
from proteinlm.inference.probing import check_heads, check_layers, probe_protein
from proteinlm.inference.proteins import BPT1_BOVIN, capacity
from proteinlm.inference.run import Run
from proteinlm.output.console import console
from proteinlm.output.files import require_writable, whole_file
from proteinlm.runs.loading import load_run

MOST_FOR_KINDS = 100
"""Proteins that head kinds are measured on at most: more change no kind, and each is probed whole."""


def analyze_command(given: Analyze) -> None:
    """Run `proteinlm analyze`: draw, then print where the figures are."""
    run, output, _ = _draw(given)
    print(f"figures and arrays of {run.name}, step {run.step}, are in {output}")


def analyze_run(given: Analyze) -> dict[str, dict[str, Any]]:
    """Draw, and return the summary of each part that was drawn; see `proteinlm.analyze`."""
    return _draw(given)[2]


def _draw(given: Analyze) -> tuple[Run, Path, dict[str, dict[str, Any]]]:
    """Draw the parts and return the run, the output folder and the summaries.

    OUTPUT/analysis.json says of each part which run, checkpoint, dataset and split it is of, with its summary. What can
    be refused is refused before anything is drawn. A part that was not named and that this run cannot have is left out
    with a sentence; where parts were named, the others are drawn first.

    Raises:
        InputError: an option that does not fit the run, the dataset or the model.
    """
    _check(given)
    run = load_run(given.run, given.step)
    output = given.output or given.run / "analysis"
    parts = _parts(given, run)
    dataset = _dataset(given, run, parts)
    chains = _check_parts(given, run, dataset, parts)
    draw = {**_PARTS, "structure": functools.partial(_PARTS["structure"], chains)}
    require_writable(output, "and the figures belong there: nothing was drawn.")
    record, summaries, failed = Record(output / "analysis.json"), {}, []
    for part in parts:
        # Files of a part go before its new ones come: what the record says of them is no longer sure.
        record.forget(part)
        try:
            with console.status(f"analyzing: {part}"):
                found, said = draw[part](given, run, dataset, output)
        except InputError as error:
            failed.append(error)
            said = [] if given.parts else [f"left out: {error}"]
        else:
            summaries[part] = {**_origin(given, run, dataset, part), **found}
            record.add(part, summaries[part])
        for sentence in said:
            console.print(f"{part}: {sentence}", soft_wrap=True, highlight=False, markup=False)
    if failed and (given.parts or len(failed) == len(parts)):
        raise InputError(" ".join(dict.fromkeys(map(str, failed))))
    return run, output, summaries


def _origin(given: Analyze, run: Run, dataset: ProteinDataset | None, part: Part) -> dict[str, Any]:
    """Return what a part's files are of."""
    origin = {
        "run": run.name, "step": run.step, "dataset": str(dataset.path if dataset else run.dataset),
        "fingerprint": dataset.fingerprint if dataset else run.dataset_fingerprint,
    }  # fmt: skip
    return {**origin, "split": given.split} if part in _OF_SPLIT else origin


class Record:
    """analysis.json: {"parts": {part: what its files are of, and its summary}}; whole at every moment."""

    def __init__(self, path: Path):
        """Read what an earlier analysis wrote; a file that is none of ours is begun anew, and said to be."""
        self._path, self._parts = path, {}
        try:
            parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
            self._parts = {part: about for part, about in parts.items() if isinstance(about, dict)}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            console.print(f"{path} cannot be read as a record of figures: it is begun anew", soft_wrap=True)

    def forget(self, part: Part) -> None:
        """Take a part out."""
        if self._parts.pop(part, None) is not None:
            self._write()

    def add(self, part: Part, about: dict[str, Any]) -> None:
        """Put a part in."""
        self._parts[part] = about
        self._write()

    def _write(self) -> None:
        with whole_file(self._path) as handle:
            json.dump({"parts": self._parts}, handle, indent=2)
            handle.write("\n")


_OPTIONS_OF: dict[str, Part] = {
    "layers": "maps", "heads": "maps", "blosum": "similarity", "order": "similarity", "windows": "windows",
    "structure": "structure", "chain": "structure", "training_structures": "structure",
}  # fmt: skip
"""Options that only one part reads."""
_OF_SPLIT: tuple[Part, ...] = ("kinds", "similarity", "windows")
"""Parts that read proteins of a split."""


def _check(given: Analyze) -> None:
    if given.sequences < 0:
        raise InputError(f"--sequences is {given.sequences}; it cannot be below 0.")
    if given.windows < 1:
        raise InputError(f"--windows is {given.windows}; it must be at least 1.")
    needing = [part for part in given.parts if part in ("kinds", "similarity")]
    if needing and not given.sequences:
        raise InputError(f"--sequences is 0, and the part {needing[0]} is measured on sequences: give 1 or more.")
    if "structure" in given.parts and given.structure is None:
        raise InputError("the part structure needs a file: name a PDB or mmCIF file with --structure.")
    if given.structure is None and (given.chain is not None or given.training_structures):
        raise InputError("--chain and --training-structures go with --structure FILE, which is not given.")


def _check_parts(given: Analyze, run: Run, dataset: ProteinDataset | None, parts: tuple[Part, ...]) -> list[Chain]:
    """Check the options of all parts before the first part is drawn; return the chains of the structure files."""
    for field in dataclasses.fields(given):
        part = _OPTIONS_OF.get(field.name)
        if part and part not in parts and getattr(given, field.name) != field.default:
            option = field.name.replace("_", "-")
            raise InputError(
                f"--{option} is of the part {part}, which is not drawn: add it to --parts, or leave it out."
            )
    if "maps" in parts:
        check_layers(run.model, given.layers or None)
        check_heads(run.model, given.heads or None)
    if "similarity" in parts:
        normalised_blosum(given.blosum)
    chains = []
    if given.structure is not None:
        chains = [read_chain(given.structure, given.chain), *map(read_chain, given.training_structures)]
    if dataset is not None and given.split not in dataset.counts:
        raise InputError(f"there is no split {given.split!r}; there are {', '.join(dataset.counts)}.")
    if set(given.parts) & set(_OF_SPLIT):
        _with_split(dataset, given.split)
    if "windows" in given.parts and run.config.batches.form != "concat":
        raise InputError(
            f"{run.name} was trained with batches.form {run.config.batches.form}, and the part windows is about "
            "concatenated sequences: name a run with batches.form concat."
        )
    return chains


def _parts(given: Analyze, run: Run) -> tuple[Part, ...]:
    if given.parts:
        return tuple(dict.fromkeys(given.parts))
    parts: list[Part] = ["maps", *(("kinds", "similarity") if given.sequences else ())]
    if run.config.batches.form == "concat":
        parts.append("windows")
    if given.structure is not None:
        parts.append("structure")
    return tuple(parts)


def _dataset(given: Analyze, run: Run, parts: tuple[Part, ...]) -> ProteinDataset | None:
    """Return the dataset where a part needs it: a protein from a file can be drawn without."""
    named = given.protein == DEFAULT_PROTEIN or Path(given.protein).is_file()
    if {"kinds", "similarity", "windows"} & set(parts) or not named:
        return ProteinDataset.open(given.dataset or run.dataset)
    return None


Found = tuple[dict[str, Any], Sequence[str]]
"""A part's summary, and what is said of it on the terminal."""


def _maps(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> Found:
    name, sequence = _protein(given.protein, dataset)
    room = capacity(run.model)
    if given.protein == DEFAULT_PROTEIN and len(sequence) > room:
        raise InputError(
            f"{name}, which is drawn by default, has {len(sequence)} residues, and this model reads at most {room}: "
            "name a shorter one with --protein, or leave the part maps out of --parts."
        )
    layers, heads = given.layers or None, given.heads or None
    probe = probe_protein(run.model, sequence, name=name)
    summary = analyze_protein(probe, output, layers=layers, heads=heads)
    said = [f"{name}, {summary['num_residues']} residues; heads in detail: {summary['heads_chosen']}"]
    try:
        analyze_interactive(probe, output, layers=layers, heads=heads)
    except TooLargeError as error:
        said.append(f"attention.html is left out: {error}")
    return summary, said


def _kinds(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> Found:
    number = min(given.sequences, MOST_FOR_KINDS)
    sequences, said = _sequences(dataset, given.split, number, run)
    summary = analyze_head_kinds(run.model, sequences, output)
    return summary, [*said, f"over {summary['num_sequences']} proteins: {summary['sentence']}"]


def _similarity(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> Found:
    sequences, said = _sequences(dataset, given.split, given.sequences, run)
    summary = analyze_similarity(run.model, sequences, output, blosum=given.blosum, order=given.order)
    agreement, number = summary["agreement"], summary["num_sequences"]
    if agreement["pearson"] is None:
        return summary, [*said, f"over {number} proteins: no correlation, since one of the two does not vary"]
    few = "; few proteins, so that chance is large" if number < FEW_PROTEINS else ""
    found = f"over {number} proteins: r = {agreement['pearson']:.2f} with {summary['blosum']}"
    return summary, [*said, f"{found}, one-sided p = {agreement['pearson_p']:.2g} by permutation{few}"]


def _windows(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> Found:
    dataset, batches = _with_split(dataset, given.split), run.config.batches
    rows = (row for batch in evaluation_batches(dataset, batches, given.split) for row in batch["tokens"])
    # Places in the split's stream, from which the names of proteins follow.
    chosen = list(islice(((i, row) for i, row in enumerate(rows) if holds_several(row)), given.windows))
    if not chosen:
        raise InputError(
            f"no window of {batches.length} tokens of {given.split} holds two proteins: name another split."
        )
    said = []
    if len(chosen) < given.windows:
        said.append(
            f"{given.split} has {len(chosen)} windows with two proteins or more; all are used (--windows asked for "
            f"{given.windows})"
        )
    names = _names_in_windows(dataset, given.split, [i for i, _ in chosen], batches.length, run.model.causal)
    summary = analyze_windows(run.model, [row for _, row in chosen], output, names=names)
    said.append(f"{summary['num_proteins']} proteins in {len(chosen)} windows of {batches.length} tokens")
    return summary, [*said, *summary.get("warnings", ())]


def _names_in_windows(
    dataset: ProteinDataset, split: str, windows: Sequence[int], length: int, causal: bool
) -> list[list[str]]:
    """Return the accessions of the proteins in windows of a split's stream, with "..." where a part is outside."""
    accessions = sequence_facts(dataset, split)["accession"].to_pylist()
    stops = np.cumsum(dataset.lengths(split) + 1) - 1
    starts = np.concatenate([[0], stops[:-1] + 1])
    names = []
    for window in windows:
        first = window * length
        # A causal model does not read a window's last token.
        last = min(first + length, int(stops[-1]) + 1) - int(causal)
        inside = np.flatnonzero((starts < last) & (stops > first))
        names.append(
            [("..." if starts[i] < first else "") + accessions[i] + ("..." if stops[i] > last else "") for i in inside]
        )
    return names


def _structure(
    chains: Sequence[Chain], given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path
) -> Found:
    # The file says what it is of, unless a protein is named.
    own = given.protein == DEFAULT_PROTEIN
    name, sequence = (None, None) if own else _protein(given.protein, dataset)
    summary = analyze_structure(run.model, chains[0], output, name=name, sequence=sequence, training=chains[1:])
    return summary, [f"{summary['protein']}, {summary['num_resolved']} residues", *summary.get("warnings", ())]


_PARTS: dict[Part, Callable[..., Found]] = {
    "maps": _maps, "kinds": _kinds, "similarity": _similarity, "windows": _windows, "structure": _structure,
}  # fmt: skip


def _protein(wanted: str, dataset: ProteinDataset | None) -> tuple[str, bytes]:
    """Return the name and the letters of the paper's protein, of a FASTA file's first record, or of an accession."""
    if wanted == DEFAULT_PROTEIN:
        return "BPT1_BOVIN (P00974)", BPT1_BOVIN
    if Path(wanted).is_file():
        record = first_record(Path(wanted))
        return record.accession, record.sequence
    if dataset is None or (found := dataset.find(wanted)) is None:
        where = dataset.path if dataset else "a dataset"
        raise InputError(f"{wanted} is neither a FASTA file nor an accession of {where}.")
    return wanted, dataset.sequences(*found)[0]


def _with_split(dataset: ProteinDataset | None, split: str) -> ProteinDataset:
    assert dataset is not None
    if not dataset.counts[split]:
        raise InputError(f"the split {split!r} of {dataset.path} is empty: name another one with --split.")
    return dataset


def _sequences(dataset: ProteinDataset | None, split: str, number: int, run: Run) -> tuple[list[bytes], list[str]]:
    """Return the first sequences of a split that fit the model whole, in the dataset's order (that of the digests).

    And a sentence where there are fewer than asked for.
    """
    dataset = _with_split(dataset, split)
    limit = run.config.model.max_length
    # One place is left for the special token that stands beside the residues.
    fitting = np.flatnonzero(dataset.lengths(split) < limit)[:number]
    if not len(fitting):
        raise InputError(
            f"no sequence of {split} is shorter than the model's {limit} positions: name another split with --split."
        )
    said = []
    if len(fitting) < number:
        said.append(
            f"{split} has {len(fitting)} sequences shorter than the model's {limit} positions; all are used (asked for "
            f"{number})"
        )
    return dataset.sequences(split, fitting), said
