"""`proteinlm analyze`: load the run, check the options of all parts, draw the parts one after another."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from proteinlm.analysis.amino_acids.analyze import FEW_PROTEINS, analyze_similarity
from proteinlm.analysis.amino_acids.blosum import normalised_blosum
from proteinlm.analysis.contacts.analyze import analyze_structure
from proteinlm.analysis.contacts.structures import Chain, read_chain
from proteinlm.analysis.heads.analyze import analyze_head_kinds
from proteinlm.analysis.maps.analyze import analyze_interactive, analyze_protein
from proteinlm.analysis.maps.interactive import TooLargeError
from proteinlm.analysis.record import Record
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
from proteinlm.output.files import require_writable
from proteinlm.runs.loading import load_run

_PART_OF_OPTION: dict[str, Part] = {
    "layers": "maps", "heads": "maps", "blosum": "similarity", "order": "similarity", "windows": "windows",
    "structure": "structure", "chain": "structure", "training_structures": "structure",
}  # fmt: skip
"""Options that only one part reads."""
_OF_SPLIT: tuple[Part, ...] = ("kinds", "similarity", "windows")
"""Parts that read proteins of a split."""
MOST_FOR_KINDS = 100
"""Largest number of proteins for the kinds of heads: more proteins change no kind, and each takes a whole probe."""


@dataclass(frozen=True)
class Inputs:
    """What a part reads: options, run, dataset (None where no part needs it), chains of --structure, output folder."""

    options: Analyze
    run: Run
    dataset: ProteinDataset | None
    chains: Sequence[Chain]
    output: Path


Drawn = tuple[dict[str, Any], Sequence[str]]
"""The summary of a part, and messages for the terminal."""


def _maps(inputs: Inputs) -> Drawn:
    options, model = inputs.options, inputs.run.model
    name, sequence = _protein(options.protein, inputs.dataset)
    limit = capacity(model)
    if options.protein == DEFAULT_PROTEIN and len(sequence) > limit:
        raise InputError(
            f"{name}, which is drawn by default, has {len(sequence)} residues, and this model reads at most {limit}: "
            "name a shorter one with --protein, or leave the part maps out of --parts."
        )
    layers, heads = options.layers or None, options.heads or None
    probe = probe_protein(model, sequence, name=name)
    summary = analyze_protein(probe, inputs.output, layers=layers, heads=heads)
    messages = [f"{name}, {summary['num_residues']} residues; heads in detail: {summary['heads_chosen']}"]
    try:
        analyze_interactive(probe, inputs.output, layers=layers, heads=heads)
    except TooLargeError as error:
        messages.append(f"attention.html is left out: {error}")
    return summary, messages


def _kinds(inputs: Inputs) -> Drawn:
    sequences, messages = _sequences(inputs, min(inputs.options.sequences, MOST_FOR_KINDS))
    summary = analyze_head_kinds(inputs.run.model, sequences, inputs.output)
    return summary, [*messages, f"over {summary['num_sequences']} proteins: {summary['sentence']}"]


def _similarity(inputs: Inputs) -> Drawn:
    options = inputs.options
    sequences, messages = _sequences(inputs, options.sequences)
    summary = analyze_similarity(inputs.run.model, sequences, inputs.output, blosum=options.blosum, order=options.order)
    agreement, number = summary["agreement"], summary["num_sequences"]
    if agreement["pearson"] is None:
        return summary, [*messages, f"over {number} proteins: no correlation, since one of the two does not vary"]
    few = "; few proteins, so that chance is large" if number < FEW_PROTEINS else ""
    correlation = f"over {number} proteins: r = {agreement['pearson']:.2f} with {summary['blosum']}"
    return summary, [*messages, f"{correlation}, one-sided p = {agreement['pearson_p']:.2g} by permutation{few}"]


def _windows(inputs: Inputs) -> Drawn:
    options, run, batches = inputs.options, inputs.run, inputs.run.config.batches
    dataset = not_empty(inputs.dataset, options.split)
    rows = (row for batch in evaluation_batches(dataset, batches, options.split) for row in batch["tokens"])
    # The index of a window in the split's stream tells which proteins it holds.
    chosen = list(islice(((i, row) for i, row in enumerate(rows) if holds_several(row)), options.windows))
    if not chosen:
        raise InputError(
            f"no window of {batches.length} tokens of {options.split} holds two proteins: name another split."
        )
    messages = []
    if len(chosen) < options.windows:
        messages.append(
            f"{options.split} has {len(chosen)} windows with two proteins or more; all are used (--windows asked for "
            f"{options.windows})"
        )
    names = names_in_windows(dataset, options.split, [i for i, _ in chosen], batches.length, run.model.causal)
    summary = analyze_windows(run.model, [row for _, row in chosen], inputs.output, names=names)
    messages.append(f"{summary['num_proteins']} proteins in {len(chosen)} windows of {batches.length} tokens")
    return summary, [*messages, *summary.get("warnings", ())]


def names_in_windows(
    dataset: ProteinDataset, split: str, windows: Sequence[int], length: int, causal: bool
) -> list[list[str]]:
    """Return the accessions of the proteins in some windows, with "..." where a part of the protein is outside.

    Args:
        dataset: the dataset of the windows.
        split: their split, whose sequences form one stream with <eos> after each.
        windows: indices of the windows in that stream.
        length: number of tokens of a window.
        causal: whether the model is causal and so does not read the last token of a window.
    """
    accessions = sequence_facts(dataset, split)["accession"].to_pylist()
    stops = np.cumsum(dataset.lengths(split) + 1) - 1
    starts = np.concatenate([[0], stops[:-1] + 1])
    names = []
    for window in windows:
        first = window * length
        last = min(first + length, int(stops[-1]) + 1) - int(causal)
        inside = np.flatnonzero((starts < last) & (stops > first))
        names.append(
            [("..." if starts[i] < first else "") + accessions[i] + ("..." if stops[i] > last else "") for i in inside]
        )
    return names


def _structure(inputs: Inputs) -> Drawn:
    # The structure file has a name and a sequence, unless --protein names another protein.
    from_file = inputs.options.protein == DEFAULT_PROTEIN
    name, sequence = (None, None) if from_file else _protein(inputs.options.protein, inputs.dataset)
    summary = analyze_structure(
        inputs.run.model, inputs.chains[0], inputs.output, name=name, sequence=sequence, training=inputs.chains[1:]
    )
    return summary, [f"{summary['protein']}, {summary['num_resolved']} residues", *summary.get("warnings", ())]


PARTS: dict[Part, Callable[[Inputs], Drawn]] = {
    "maps": _maps, "kinds": _kinds, "similarity": _similarity, "windows": _windows, "structure": _structure,
}  # fmt: skip


def _protein(protein: str, dataset: ProteinDataset | None) -> tuple[str, bytes]:
    """Return name and letters of the paper's protein, of the first record of a FASTA file, or of an accession."""
    if protein == DEFAULT_PROTEIN:
        return "BPT1_BOVIN (P00974)", BPT1_BOVIN
    if Path(protein).is_file():
        record = first_record(Path(protein))
        return record.accession, record.sequence
    if dataset is None or (place := dataset.find(protein)) is None:
        where = dataset.path if dataset else "a dataset"
        raise InputError(f"{protein} is neither a FASTA file nor an accession of {where}.")
    return protein, dataset.sequences(*place)[0]


def not_empty(dataset: ProteinDataset | None, split: str) -> ProteinDataset:
    """Return the dataset.

    Raises:
        InputError: the split is empty.
    """
    assert dataset is not None
    if not dataset.counts[split]:
        raise InputError(f"the split {split!r} of {dataset.path} is empty: name another one with --split.")
    return dataset


def _sequences(inputs: Inputs, number: int) -> tuple[list[bytes], list[str]]:
    """Return the first sequences of the split that the model can read, and a message if there are fewer than `number`.

    The order is that of the dataset, by digest, so that they are a random sample.
    """
    split = inputs.options.split
    dataset = not_empty(inputs.dataset, split)
    limit = inputs.run.config.model.max_length
    # One token is for <bos> or <eos>.
    fitting = np.flatnonzero(dataset.lengths(split) < limit)[:number]
    if not len(fitting):
        raise InputError(
            f"no sequence of {split} is shorter than the model's {limit} positions: name another split with --split."
        )
    messages = []
    if len(fitting) < number:
        messages.append(
            f"{split} has {len(fitting)} sequences shorter than the model's {limit} positions; all are used (asked for "
            f"{number})"
        )
    return dataset.sequences(split, fitting), messages


def analyze_command(options: Analyze) -> None:
    """Run `proteinlm analyze`: draw, then print where the figures are."""
    inputs, _ = _draw(options)
    print(f"figures and arrays of {inputs.run.name}, step {inputs.run.step}, are in {inputs.output}")


def analyze_run(options: Analyze) -> dict[str, dict[str, Any]]:
    """Draw, and return the summary of each part that was drawn; see `proteinlm.analyze`."""
    return _draw(options)[1]


def _draw(options: Analyze) -> tuple[Inputs, dict[str, dict[str, Any]]]:
    """Draw the parts and return their inputs and their summaries, which are also written to OUTPUT/analysis.json.

    All options are checked before the first part is drawn. If parts are named, an error in one of them is raised after
    the others are drawn. If none is named, a part that this run cannot have is left out with a message.

    Raises:
        InputError: an option does not fit the run, the dataset or the model.
    """
    _check_options(options)
    run = load_run(options.run, options.step)
    parts = _chosen_parts(options, run)
    dataset = _open_dataset(options, run, parts)
    chains = _check_parts(options, run, dataset, parts)
    inputs = Inputs(options, run, dataset, chains, options.output or options.run / "analysis")
    require_writable(inputs.output, "and the figures belong there: nothing was drawn.")
    record, summaries, errors = Record(inputs.output / "analysis.json"), {}, []
    for part in parts:
        # Removed first: from here on, files of the earlier analysis are replaced one by one.
        record.remove(part)
        try:
            with console.status(f"analyzing: {part}"):
                summary, messages = PARTS[part](inputs)
        except InputError as error:
            errors.append(error)
            messages = [] if options.parts else [f"left out: {error}"]
        else:
            summaries[part] = {**_origin(inputs, part), **summary}
            record.add(part, summaries[part])
        for message in messages:
            console.print(f"{part}: {message}", soft_wrap=True, highlight=False, markup=False)
    if errors and (options.parts or len(errors) == len(parts)):
        raise InputError(" ".join(dict.fromkeys(map(str, errors))))
    return inputs, summaries


def _origin(inputs: Inputs, part: Part) -> dict[str, Any]:
    """Return the run, checkpoint, dataset and split of a part's figures."""
    run, dataset = inputs.run, inputs.dataset
    origin = {
        "run": run.name, "step": run.step, "dataset": str(dataset.path if dataset else run.dataset),
        "fingerprint": dataset.fingerprint if dataset else run.dataset_fingerprint,
    }  # fmt: skip
    return {**origin, "split": inputs.options.split} if part in _OF_SPLIT else origin


def _check_options(options: Analyze) -> None:
    """Check the options that need neither the run nor the dataset."""
    if options.sequences < 0:
        raise InputError(f"--sequences is {options.sequences}; it cannot be below 0.")
    if options.windows < 1:
        raise InputError(f"--windows is {options.windows}; it must be at least 1.")
    on_sequences = [part for part in options.parts if part in ("kinds", "similarity")]
    if on_sequences and not options.sequences:
        raise InputError(f"--sequences is 0, and the part {on_sequences[0]} is measured on sequences: give 1 or more.")
    if "structure" in options.parts and options.structure is None:
        raise InputError("the part structure needs a file: name a PDB or mmCIF file with --structure.")
    if options.structure is None and (options.chain is not None or options.training_structures):
        raise InputError("--chain and --training-structures go with --structure FILE, which is not given.")


def _chosen_parts(options: Analyze, run: Run) -> tuple[Part, ...]:
    """Return the named parts, or by default those that fit the run and the options."""
    if options.parts:
        for part in options.parts:
            if part not in get_args(Part):
                raise InputError(f"there is no part {part!r}; there are {', '.join(get_args(Part))}.")
        return tuple(dict.fromkeys(options.parts))
    parts: list[Part] = ["maps", *(("kinds", "similarity") if options.sequences else ())]
    if run.config.batches.form == "concat":
        parts.append("windows")
    if options.structure is not None:
        parts.append("structure")
    return tuple(parts)


def _open_dataset(options: Analyze, run: Run, parts: tuple[Part, ...]) -> ProteinDataset | None:
    """Return the dataset, or None where no part needs it, as for the maps of a protein from a file."""
    without = options.protein == DEFAULT_PROTEIN or Path(options.protein).is_file()
    if set(_OF_SPLIT) & set(parts) or not without:
        return ProteinDataset.open(options.dataset or run.dataset)
    return None


def _check_parts(options: Analyze, run: Run, dataset: ProteinDataset | None, parts: tuple[Part, ...]) -> list[Chain]:
    """Check the options of all parts before the first part is drawn; return the chains of the structure files."""
    for field in dataclasses.fields(options):
        part = _PART_OF_OPTION.get(field.name)
        if part and part not in parts and getattr(options, field.name) != field.default:
            option = field.name.replace("_", "-")
            raise InputError(
                f"--{option} is of the part {part}, which is not drawn: add it to --parts, or leave it out."
            )
    if "maps" in parts:
        check_layers(run.model, options.layers or None)
        check_heads(run.model, options.heads or None)
    if "similarity" in parts:
        normalised_blosum(options.blosum)
    chains = []
    if options.structure is not None:
        chains = [read_chain(options.structure, options.chain), *map(read_chain, options.training_structures)]
    if dataset is not None and options.split not in dataset.counts:
        raise InputError(f"there is no split {options.split!r}; there are {', '.join(dataset.counts)}.")
    if set(options.parts) & set(_OF_SPLIT):
        not_empty(dataset, options.split)
    if "windows" in options.parts and run.config.batches.form != "concat":
        raise InputError(
            f"{run.name} was trained with batches.form {run.config.batches.form}, and the part windows is about "
            "concatenated sequences: name a run with batches.form concat."
        )
    return chains
