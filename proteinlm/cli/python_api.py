"""The commands as Python functions; `import proteinlm` gives them.

JAX and all other libraries that are slow to import are imported by the first call that needs them.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from proteinlm.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from proteinlm.cli.analyze_options import Part
    from proteinlm.config import Config
    from proteinlm.data.dataset.dataset import ProteinDataset
    from proteinlm.training.planning import Plan
    from proteinlm.training.train import TrainResult

PathLike = str | os.PathLike[str]


def _require_lists(**values: Any) -> None:
    """Refuse one string, path or number where a list is expected: the letters of a string would be its items."""
    for name, value in values.items():
        if isinstance(value, str | bytes | os.PathLike | int):
            raise InputError(f"{name} is {value!r}; it must be a list: write [{value!r}].")


def _require_config(config: Any) -> None:
    """Refuse what is not a config, such as its name."""
    from proteinlm.config import Config

    if not isinstance(config, Config):
        raise InputError(
            f"config is {type(config).__name__}; it must be a Config: proteinlm.load_config(NAME) gives one."
        )


def ingest(
    sources: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    families: Sequence[PathLike] = (),
    pfam_hmm: Sequence[PathLike] = (),
    held_out: Sequence[str] | None = None,
    valid: float = 0.001,
    test: float = 0.01,
    split_identity: float | None = None,
    splits: PathLike | None = None,
    name: str = "proteins",
    workers: int = 1,
    shards: int = 0,
) -> "ProteinDataset":
    """Turn files of protein sequences into a deduplicated, split dataset; as `proteinlm ingest`.

    Downloads of UniProt releases and Apache Beam are options of the command only.

    Args:
        sources: one or more FASTA or UniProtKB flat files, plain, .gz or .zst, local or in a cloud. "sample" stands for
            the 4,509 proteins that come with the package, with their families.
        output: folder of the dataset; it must not exist, or be empty.
        families: tables of Pfam families of the proteins.
        pfam_hmm: Pfam-A.hmm or parts of it, to search the sequences without a family (extra `pfam`).
        held_out: Pfam families whose proteins are the split `ood`; by default the 20 of the Performer paper.
        valid: fraction of the other sequences in `valid`.
        test: fraction of the other sequences in `test`.
        split_identity: if given, no sequence of `train` has this identity (a fraction) or more to one of another split;
            needs MMseqs2.
        splits: manifest.parquet of a published dataset whose splits are used again.
        name: name of the dataset in TFDS.
        workers: number of processes; 1 starts none, 0 is one per core (the default of the command). With more than
            one, a script must have its calls under `if __name__ == "__main__":`, because the processes import it.
        shards: number of files per split; 0 for one per 256 MiB.

    Returns:
        The dataset, as `open_dataset` returns it.

    Raises:
        InputError: a file or an argument is wrong, or the disk is full. The output folder does not exist then.

    Examples:
        >>> dataset = proteinlm.ingest("sample", "runs/dataset", valid=0.05, test=0.1)
        >>> dataset.counts
        {'train': 3342, 'valid': 221, 'test': 438, 'ood': 124}
    """
    from dataclasses import replace

    from proteinlm.data.ingest.config import IngestConfig
    from proteinlm.data.ingest.ingest import ingest as run
    from proteinlm.data.ingest.ingest import with_sample
    from proteinlm.data.splits.rules import SplitsConfig

    _require_lists(families=families, pfam_hmm=pfam_hmm, held_out=held_out)
    files, tables = with_sample([sources] if isinstance(sources, str | os.PathLike) else list(sources), families)
    rules = SplitsConfig(valid=valid, test=test, identity=split_identity, manifest=Path(splits) if splits else None)
    if held_out is not None:
        rules = replace(rules, held_out=tuple(held_out))
    profiles = tuple(os.fspath(file) for file in pfam_hmm)
    config = IngestConfig(rules, tuple(tables), profiles=profiles, name=name, workers=workers, shards=shards)
    run(files, output, config)
    return open_dataset(output)


def open_dataset(path: PathLike) -> "ProteinDataset":
    """Open a dataset that `ingest` wrote.

    Args:
        path: folder of the dataset.

    Returns:
        The dataset: `counts` (sequences of each split), `lengths(split)` (residues, int32 [N]) and
        `sequences(split, indices)` (a list of bytes), among others.

    Raises:
        InputError: the folder is not a dataset, or it is damaged.

    Examples:
        >>> dataset = proteinlm.open_dataset("runs/dataset")
        >>> dataset.sequences("test", [0])[0][:3]
        b'MAK'
    """
    from proteinlm.data.dataset.dataset import ProteinDataset

    return ProteinDataset.open(path)


def train(
    config: "Config",
    dataset: "PathLike | ProteinDataset",
    run: PathLike,
    *,
    allow_inexact_resume: bool = False,
    track: str = "",
    profile: str = "",
) -> "TrainResult":
    """Train to `config.num_steps`, or continue the run in this folder; as `proteinlm train`.

    Args:
        config: the experiment, from `load_config`; change fields with `dataclasses.replace`.
        dataset: the dataset or its folder.
        run: folder of the run. A new folder starts a run; the folder of this same run continues it.
        allow_inexact_resume: continue also where config, dataset or devices differ from the run's.
        track: "tensorboard", "wandb" or "tensorboard,wandb" (extra `logging`).
        profile: steps START:STOP to profile, or a number of steps.

    Returns:
        The last step, the number of parameters and the sums of the last evaluation on `valid`.

    Raises:
        InputError: the folder is in use or holds another run, or the loss is no longer finite.
        Interrupted: SIGTERM or Ctrl-C, after a checkpoint was saved; the same call continues.

    Examples:
        >>> config = proteinlm.load_config("quickstart_causal")
        >>> proteinlm.train(config, dataset, "runs/causal").step                              # doctest: +SKIP
        400
    """
    from proteinlm.training.train import train as start

    _require_config(config)
    folder = dataset if isinstance(dataset, str | os.PathLike) else dataset.path
    return start(
        config, os.fspath(folder), os.fspath(run),
        allow_inexact_resume=allow_inexact_resume, track=track, profile=profile,
    )  # fmt: skip


def plan(config: "Config", *, topology: str | None = None, rows_per_device: int | None = None) -> "Plan":
    """Compile the train step of a config, without data, and return its memory, FLOPs and time; as `proteinlm plan`.

    Args:
        config: the experiment.
        topology: TPUs to compile for, such as "v2:16x16" (extra `tpu`, but no TPU); by default this machine's devices.
        rows_per_device: rows of a batch on each device, in place of `config.batches.batch_size`.

    Returns:
        The number of parameters, bytes of the state and of temporary arrays, FLOPs and estimated seconds of a step.

    Raises:
        InputError: the config does not fit the devices.

    Examples:
        >>> proteinlm.plan(config, rows_per_device=8).num_parameters                          # doctest: +SKIP
        451101
    """
    from proteinlm.training.planning import plan as compile_step

    _require_config(config)
    return compile_step(config, topology, rows_per_device)


def evaluate(
    runs: PathLike | Sequence[PathLike],
    splits: Sequence[str] = ("test", "ood"),
    *,
    dataset: PathLike | None = None,
    step: int | Literal["best", "last"] = "last",
    by: Sequence[str] = (),
    calibration: bool = False,
    table: bool = False,
    paper: bool = False,
    output: PathLike | None = None,
) -> "pd.DataFrame":
    """Score trained runs on whole splits, beside two baselines on the same tokens; as `proteinlm evaluate`.

    The files of the command are written into each run's folder.

    Args:
        runs: folder of a run, or several.
        splits: names of splits: train, valid, test, ood.
        dataset: folder of another dataset than that of training.
        step: checkpoint, as for `load_run`.
        by: breakdowns: residue, position, family, length, identity.
        calibration: compare the probability of the first choice with its accuracy.
        table: write one table over the runs, as Table 2 of the Performer paper.
        paper: add the paper's numbers to that table.
        output: folder of that table.

    Returns:
        The rows of evaluation.csv of all runs: one per split, model ("empirical baseline", "uniform guess" or the run)
        and kind of tokens, with accuracy, perplexity, bits per residue and their 95 % intervals.

    Raises:
        InputError: a folder is not a run's, or an argument does not fit.

    Examples:
        >>> scores = proteinlm.evaluate("runs/masked", splits=["ood"])
        >>> scores.set_index("model")["num_tokens"].nunique()
        1
    """
    from dataclasses import asdict

    import pandas as pd

    from proteinlm.evaluation.evaluate import evaluate_command

    _require_lists(splits=splits, by=by)
    folders = [runs] if isinstance(runs, str | os.PathLike) else runs
    evaluated = evaluate_command(
        [Path(folder) for folder in folders], splits, Path(dataset) if dataset else None, step,
        by=by, calibrate=calibration, table=table, paper=paper, output=Path(output) if output else None, show=False,
    )  # fmt: skip
    return pd.DataFrame([{**one.about, "run": one.label, **asdict(row)} for one in evaluated for row in one.scores])


def analyze(
    run: PathLike,
    *,
    parts: "Sequence[Part]" = (),
    protein: str = "BPT1_BOVIN",
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    sequences: int = 800,
    split: str = "test",
    blosum: str = "BLOSUM62",
    order: Literal["classes", "clustered"] = "classes",
    windows: int = 2,
    structure: PathLike | None = None,
    chain: str | None = None,
    training_structures: Sequence[PathLike] = (),
    dataset: PathLike | None = None,
    step: int | Literal["best", "last"] = "last",
    output: PathLike | None = None,
) -> dict[str, dict[str, Any]]:
    """Draw what attention learned, and return the numbers behind the figures; as `proteinlm analyze`.

    Args:
        run: folder of a run.
        parts: what to draw: maps, kinds, similarity, windows, structure; by default all that fit the run.
        protein: protein of the maps: "BPT1_BOVIN", a FASTA file, or an accession of the dataset.
        layers: layers of the maps, counted from 0; by default the first 4.
        heads: heads of the maps, counted from 0; by default the first 8.
        sequences: number of sequences for kinds (100 at most) and similarity; 0 leaves both out.
        split: split of these sequences.
        blosum: substitution matrix beside the similarity.
        order: order of the amino acids in that figure.
        windows: number of concatenated windows.
        structure: PDB or mmCIF file.
        chain: chain of that file; by default its first protein.
        training_structures: other structures, to fit the regression over heads.
        dataset: folder of another dataset than that of training.
        step: checkpoint, as for `load_run`.
        output: folder of the figures; by default RUN/analysis.

    Returns:
        For each part its summary, as in OUTPUT/analysis.json: the run, the split and the numbers of the figures.

    Raises:
        InputError: an option does not fit the run, the dataset or the model.

    Examples:
        >>> summary = proteinlm.analyze("runs/masked", parts=["kinds"], sequences=20, split="train")
        >>> summary["kinds"]["split"]
        'train'
    """
    from proteinlm.cli.analyze import analyze_run
    from proteinlm.cli.analyze_options import Analyze

    _require_lists(parts=parts, layers=layers, heads=heads, training_structures=training_structures)
    options = Analyze(
        Path(run), tuple(parts), protein, tuple(layers), tuple(heads), sequences, split, blosum, order, windows,
        Path(structure) if structure else None, chain, tuple(map(Path, training_structures)),
        Path(dataset) if dataset else None, step, Path(output) if output else None,
    )  # fmt: skip
    return analyze_run(options)


def report(*folders: PathLike, output: PathLike | None = None) -> Path:
    """Write one page about runs: dataset, training curves, scores, figures; as `proteinlm report`.

    Args:
        folders: folders of runs, or folders that contain runs.
        output: folder of the page; by default the named folder, or the one that contains all named folders.

    Returns:
        The path of report.md, a `pathlib.Path`.

    Raises:
        InputError: a folder contains no run.

    Examples:
        >>> proteinlm.report("runs/masked").name
        'report.md'
    """
    from proteinlm.runs.report import write_report

    if not folders:
        raise InputError("name at least one folder of runs.")
    for folder in folders:
        if not isinstance(folder, str | os.PathLike):
            kind = type(folder).__name__
            raise InputError(f"report takes each folder as an argument, report(FOLDER, FOLDER); this is {kind}.")
    return write_report(*[Path(folder) for folder in folders], output=Path(output) if output else None)
