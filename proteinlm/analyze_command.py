"""What `proteinlm analyze` does: finds the model, the proteins and the windows, and calls analysis for each part."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np

from proteinlm.analysis.analyze import analyze_head_kinds, analyze_protein, analyze_similarity
from proteinlm.analysis.analyze_structure import analyze_structure
from proteinlm.analysis.analyze_windows import analyze_windows
from proteinlm.analysis.interactive import TooLargeError, analyze_interactive
from proteinlm.analysis.proteins import BPT1_BOVIN
from proteinlm.analysis.windows import holds_several
from proteinlm.analyze_options import Analyze, Part
from proteinlm.checkpoint import Run, load_run
from proteinlm.data.batches import evaluation_batches
from proteinlm.data.dataset import ProteinDataset
from proteinlm.data.uniprot import first_record
from proteinlm.errors import InputError
from proteinlm.logs import console

MOST_FOR_KINDS = 100
"""Proteins that head kinds are measured on at most: more change no kind, and each is probed whole."""


def analyze_command(given: Analyze) -> None:
    """Draw every part that is asked for, and say where it is.

    Raises:
        InputError: an option that does not fit the run, the dataset or the model.
    """
    _check(given)
    run = load_run(given.run, given.step)
    output = given.output or given.run / "analysis"
    parts = _parts(given, run)
    dataset = _dataset(given, run, parts)
    for part in parts:
        with _shown(part):
            _PARTS[part](given, run, dataset, output)
    print(f"figures and arrays are in {output}")


def _check(given: Analyze) -> None:
    if given.sequences < 0:
        raise InputError(f"--sequences is {given.sequences}; it cannot be below 0.")
    if given.windows < 1:
        raise InputError(f"--windows is {given.windows}; it must be at least 1.")
    if "structure" in given.parts and given.structure is None:
        raise InputError("the part structure needs a file: name a PDB or mmCIF file with --structure.")
    if given.structure is None and (given.chain is not None or given.training_structures):
        raise InputError("--chain and --training-structures go with --structure FILE, which is not given.")


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
    named = given.protein == "BPT1_BOVIN" or Path(given.protein).is_file()
    if {"kinds", "similarity", "windows"} & set(parts) or ("maps" in parts and not named):
        return ProteinDataset.open(given.dataset or run.dataset)
    return None


@contextmanager
def _shown(part: Part) -> Iterator[None]:
    """Say what is being done; it may take minutes."""
    with console.status(f"analyzing: {part}"):
        yield


def _maps(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> None:
    name, sequence = _protein(given.protein, dataset)
    layers, heads = given.layers or None, given.heads or None
    analyze_protein(run.model, sequence, output, name=name, layers=layers, heads=heads)
    try:
        analyze_interactive(run.model, sequence, output, name=name, layers=layers, heads=heads)
    except TooLargeError as error:
        print(f"attention.html is left out: {error}", file=sys.stderr)


def _kinds(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> None:
    number = min(given.sequences, MOST_FOR_KINDS)
    analyze_head_kinds(run.model, _sequences(dataset, given.split, number, run), output)


def _similarity(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> None:
    sequences = _sequences(dataset, given.split, given.sequences, run)
    analyze_similarity(run.model, sequences, output, blosum=given.blosum, order=given.order)


def _windows(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> None:
    dataset = _with_split(dataset, given.split)
    if run.config.batches.form != "concat":
        raise InputError(
            f"{run.name} was trained with batches.form {run.config.batches.form}, and the part windows is about "
            "concatenated sequences: name a run with batches.form concat."
        )
    batches = evaluation_batches(dataset, run.config.batches, given.split)
    windows = list(islice((row for batch in batches for row in batch["tokens"] if holds_several(row)), given.windows))
    if not windows:
        raise InputError(
            f"no window of {run.config.batches.length} tokens of {given.split} holds two proteins: name another split."
        )
    if len(windows) < given.windows:
        print(
            f"{given.split} has {len(windows)} windows with two proteins or more; all are used (--windows asked for "
            f"{given.windows})",
            file=sys.stderr,
        )
    analyze_windows(run.model, windows, output)


def _structure(given: Analyze, run: Run, dataset: ProteinDataset | None, output: Path) -> None:
    assert given.structure is not None
    analyze_structure(run.model, given.structure, output, chain=given.chain, training=given.training_structures)


_PARTS: dict[Part, Callable[[Analyze, Run, ProteinDataset | None, Path], None]] = {
    "maps": _maps, "kinds": _kinds, "similarity": _similarity, "windows": _windows, "structure": _structure,
}  # fmt: skip


def _protein(wanted: str, dataset: ProteinDataset | None) -> tuple[str, bytes]:
    """Return the name and the letters of the paper's protein, of a FASTA file's first record, or of an accession."""
    if wanted == "BPT1_BOVIN":
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
    if split not in dataset.counts:
        raise InputError(f"there is no split {split!r}; there are {', '.join(dataset.counts)}.")
    if not dataset.counts[split]:
        raise InputError(f"the split {split!r} of {dataset.path} is empty: name another one with --split.")
    return dataset


def _sequences(dataset: ProteinDataset | None, split: str, number: int, run: Run) -> list[bytes]:
    """Return the first sequences of a split that fit the model whole, in the dataset's order (that of the digests)."""
    dataset = _with_split(dataset, split)
    limit = run.config.model.max_length
    # One place is left for the special token that stands beside the residues.
    fitting = np.flatnonzero(dataset.lengths(split) < limit)[:number]
    if not len(fitting):
        raise InputError(
            f"no sequence of {split} is shorter than the model's {limit} positions: name another split with --split."
        )
    if len(fitting) < number:
        print(
            f"{split} has {len(fitting)} sequences shorter than the model's {limit} positions; all are used "
            f"(--sequences asked for {number})",
            file=sys.stderr,
        )
    return dataset.sequences(split, fitting)
