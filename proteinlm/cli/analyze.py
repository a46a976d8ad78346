"""`proteinlm analyze`: load the run, check the options of all parts, draw the parts one after another."""

import dataclasses
from pathlib import Path
from typing import Any

from proteinlm.analysis.amino_acids.blosum import normalised_blosum
from proteinlm.analysis.contacts.structures import Chain, read_chain
from proteinlm.analysis.record import Record
from proteinlm.cli.analyze_options import DEFAULT_PROTEIN, Analyze, Part
from proteinlm.cli.analyze_parts import PARTS, Inputs, not_empty
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.inference.probing import check_heads, check_layers
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
