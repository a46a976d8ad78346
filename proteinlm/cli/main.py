"""The command line: arguments only. Each command is one call into a module below.

Everything heavy is imported inside a command, so that --help answers at once.
"""

import errno
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from proteinlm import __version__
from proteinlm.errors import InputError, Interrupted
from proteinlm.evaluation.options import EvaluateOptions

if TYPE_CHECKING:
    from proteinlm.config import Config

_HELP = f"""proteinlm {__version__}: protein language models with linear attention.

usage: proteinlm COMMAND ...

  ingest     UniProt or FASTA files (+ Pfam families) -> a deduplicated, split dataset
  train      a config + a dataset -> checkpoints and curves
  evaluate   trained runs -> accuracy and perplexity per split, beside the baselines
  analyze    a trained run + proteins -> attention maps, amino-acid similarity versus BLOSUM
  report     runs -> one page with tables, curves and figures
  plan       a config -> what a step takes: memory, FLOPs, time; for this machine or for TPUs that are elsewhere

`proteinlm COMMAND --help` tells the rest. A first run on real proteins, about five minutes on two cores:

  proteinlm ingest sample --output runs/quickstart/dataset --valid 0.05 --test 0.1
  proteinlm train quickstart_causal --dataset runs/quickstart/dataset --run runs/quickstart/causal
  proteinlm evaluate runs/quickstart/causal
  proteinlm analyze runs/quickstart/causal
"""


@dataclass(frozen=True)
class Processes:
    """Several processes that work as one: the same command on each, with its own --process-id."""

    coordinator: str | None = None
    """HOST:PORT of process 0, the same in every process."""
    num_processes: int | None = None
    """How many there are."""
    process_id: int | None = None
    """Which of them this is, from 0."""
    distributed: bool = False
    """On a TPU pod, Slurm, Open MPI or Kubernetes: find all three out from the cluster."""

    def join(self) -> None:
        """Meet the others; nothing to do where none of the options is given."""
        from proteinlm.devices import processes

        processes.join(self.coordinator, self.num_processes, self.process_id, automatic=self.distributed)


@dataclass(frozen=True)
class Evaluate(EvaluateOptions):
    """Score trained runs on whole splits: accuracy, perplexity and bits per residue with 95 % intervals.

    The empirical baseline (residue frequencies of train) and the uniform guess are scored on the same tokens. Each
    run's folder gets evaluation.csv, evaluation.json and, unless its rows are windows, sequences.parquet (a row for
    each sequence); breakdowns and calibration come from the same pass.

    Example: proteinlm evaluate runs/causal runs/masked --splits test ood --by residue length --calibration --table
    """

    processes: Annotated[Processes, tyro.conf.arg(name="")] = field(default_factory=Processes)


@dataclass(frozen=True)
class Report:
    """Gather runs into one page: the dataset's table, curves of all in one figure, scores, figures, what they say.

    Example: proteinlm report runs/causal runs/masked --output comparison
    """

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs, or folders that hold runs."""
    output: Path | None = None
    """Folder of report.md, curves.png and curves.pdf; by default the one that was named, or that holds all named."""


def _ingest(arguments: Sequence[str]) -> None:
    # The options are there, in groups; the help needs nothing heavy.
    from proteinlm.data.ingest.options import parse_ingest

    given = parse_ingest(arguments)
    from proteinlm.data.ingest.ingest import ingest_command

    ingest_command(given)


def _read_config(command: str, arguments: Sequence[str]) -> "tuple[str, Config, Sequence[str]]":
    """Return the config's name and the config, at the scale asked for, and the other arguments.

    Both are read first: the other options are the config's fields, with its values as defaults.
    """
    from proteinlm.config import Config, load_config, named_configs
    from proteinlm.config.scale import scaled

    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is None and not {"-h", "--help"} & set(arguments):
        raise InputError(
            f"name a config first: proteinlm {command} CONFIG ...; CONFIG is a file or one of "
            f"{', '.join(named_configs())}."
        )
    tiny = "--scale=tiny" in arguments or ("--scale", "tiny") in pairwise(arguments)
    config = scaled(load_config(name) if name else Config(), "tiny" if tiny else "full")
    return name or "CONFIG", config, arguments[1:] if name else arguments


def _train(arguments: Sequence[str]) -> None:
    from proteinlm.config import Config

    name, config, arguments = _read_config("train", arguments)

    @dataclass(frozen=True)
    class Train:
        dataset: Path | None = None
        """Folder that `proteinlm ingest` wrote."""
        run: Path | None = None
        """Folder of the run: made when missing, resumed when it holds this run."""
        scale: Literal["full", "tiny"] = "full"
        """tiny: the same experiment with small numbers, seconds on a laptop. Overrides come on top."""
        dry_run: bool = False
        """Print what `proteinlm plan` prints for this machine, and train nothing."""
        allow_inexact_resume: bool = False
        """Go on in the run's folder although batches, dataset, devices or other things are not the run's own, and say
        which: the losses are not those of a run that never stopped."""
        track: str = ""
        """Send the numbers to tensorboard, wandb or tensorboard,wandb too (extra logging)."""
        profile: str = ""
        """Trace the steps START:STOP, or so many steps near the beginning, into RUN/profile."""
        processes: Annotated[Processes, tyro.conf.arg(name="")] = field(default_factory=Processes)
        config: Annotated[tyro.conf.AvoidSubcommands[Config], tyro.conf.arg(name="")] = field(default_factory=Config)

    given = tyro.cli(
        Train,
        args=arguments,
        default=Train(config=config),
        prog=f"proteinlm train {name}",
        description=(
            "Train a protein language model, or go on where the run in the folder stopped. Every field of the config "
            "can be overridden.\n\nExample: proteinlm train quickstart_causal --dataset data/sprot --run runs/causal "
            "--model.num-layers 12"
        ),
    )
    from proteinlm.training.planning import describe_plan, plan
    from proteinlm.training.train import train

    if given.dry_run:
        print(describe_plan(plan(given.config)))
        return
    if given.dataset is None or given.run is None:
        raise InputError("training needs --dataset (a folder that proteinlm ingest wrote) and --run (a folder).")
    given.processes.join()
    train(
        given.config, given.dataset, given.run,
        allow_inexact_resume=given.allow_inexact_resume, track=given.track, profile=given.profile,
    )  # fmt: skip


def _plan(arguments: Sequence[str]) -> None:
    from proteinlm.config import Config

    name, config, arguments = _read_config("plan", arguments)

    @dataclass(frozen=True)
    class Plan:
        topology: str | None = None
        """TPUs to compile for, such as v2:16x16, v4:4x4x4, v5e:16x16 (needs the extra `tpu`, but no TPU); this
        machine's devices by default."""
        rows_per_device: int | None = None
        """Rows of a batch on each device (or on each group of devices that share rows, over mesh.tensor and
        mesh.sequence), in place of --batches.batch-size."""
        fit: bool = False
        """Search the largest batch that fits, by compiling for several."""
        scale: Literal["full", "tiny"] = "full"
        """tiny: the same experiment with small numbers."""
        config: Annotated[tyro.conf.AvoidSubcommands[Config], tyro.conf.arg(name="")] = field(default_factory=Config)

    given = tyro.cli(
        Plan,
        args=arguments,
        default=Plan(config=config),
        prog=f"proteinlm plan {name}",
        description=(
            "Compile the train step of a config, without data, and print what it takes. Compiling the paper's models "
            "for a pod takes minutes.\n\nExample: proteinlm plan trembl_performer_relu_masked --topology v2:16x16 "
            "--rows-per-device 64"
        ),
    )
    from proteinlm.training.planning import describe_plan, describe_trial, fit, plan

    if not given.fit:
        print(describe_plan(plan(given.config, given.topology, given.rows_per_device)))
        return

    def tell(found: Any) -> None:
        print(describe_trial(found), file=sys.stderr, flush=True)

    start = 8 if given.rows_per_device is None else given.rows_per_device
    largest, beyond = fit(given.config, given.topology, tell, start)
    print(describe_plan(largest))
    if beyond:
        print(f"largest batch       {largest.rows:,} rows: {beyond.share} do not fit")


def _evaluate(arguments: Sequence[str]) -> None:
    given = tyro.cli(Evaluate, args=arguments, prog="proteinlm evaluate")
    from proteinlm.evaluation.evaluate import evaluate_command

    given.processes.join()
    evaluate_command(
        given.runs, given.splits, given.dataset, given.step,
        by=given.by, calibrate=given.calibration, table=given.table, paper=given.paper, output=given.output,
    )  # fmt: skip


def _analyze(arguments: Sequence[str]) -> None:
    from proteinlm.cli.analyze_options import Analyze

    given = tyro.cli(Analyze, args=arguments, prog="proteinlm analyze")
    from proteinlm.cli.analyze import analyze_command

    analyze_command(given)


def _report(arguments: Sequence[str]) -> None:
    given = tyro.cli(Report, args=arguments, prog="proteinlm report")
    from proteinlm.runs.report import write_report

    if not given.folders:
        raise InputError("name at least one run: proteinlm report RUN...")
    print(write_report(*given.folders, output=given.output))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "ingest": _ingest,
    "train": _train,
    "evaluate": _evaluate,
    "analyze": _analyze,
    "report": _report,
    "plan": _plan,
}


# What a disk or a path can do to any command; other errors of the system are ours to explain, with a traceback.
_ERRORS_OF_PATHS = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
    errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _explained(error: BaseException, arguments: Sequence[str]) -> tuple[str, int] | None:
    """Return a sentence for what the user can mend, or ordered, and the exit code; None for any other error."""
    if isinstance(error, InputError):
        return f"{error}", 2
    if isinstance(error, Interrupted):
        return f"{error}", 128 + error.signal_number
    if isinstance(error, KeyboardInterrupt):
        return "interrupted.", 128 + signal.SIGINT
    if isinstance(error, OSError) and error.errno in _ERRORS_OF_PATHS:
        remedy = "; make room, then give the same command again" if error.errno in _FULL else ""
        return f"{error.strerror}: {error.filename or _written_folder(arguments)}{remedy}.", 2
    return None


def _written_folder(arguments: Sequence[str]) -> str:
    """Return in words where a command writes, for an error of the system that does not say."""
    for word, following in pairwise((*arguments, "")):
        name, _, value = word.partition("=")
        if name in ("--output", "--run") and (value or following):
            return f"while writing in {value or following}"
    # Without such an option the other commands write in the runs' folders.
    folders = [word for word in arguments if Path(word).is_dir()]
    return f"while writing in {' or '.join(folders)}" if folders else "while writing"


def _ended(command: str, arguments: Sequence[str], error: BaseException) -> int:
    """Say how a command ended and return its exit code, or raise what is ours to explain.

    One of several processes does not return, so that the others are not left waiting for it.
    """
    # Not imported for this: a command that never joined others has not waited for JAX.
    processes = sys.modules.get("proteinlm.devices.processes")
    found = _explained(error, arguments)
    gone = processes.who_is_gone(error) if processes and not found else None
    if gone:
        found = gone, 1
    if found:
        print(f"proteinlm {command}: {found[0]}", file=sys.stderr)
    if processes and not isinstance(error, Interrupted):
        if not found:
            traceback.print_exception(error)
        processes.leave(found[1] if found else 1, gone=bool(gone))
    if not found:
        raise error
    return found[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0, or 2 after one clear sentence for what the user can mend."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP)
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"proteinlm {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        import difflib

        close = difflib.get_close_matches(arguments[0], COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}."
        print(f"proteinlm: there is no command {arguments[0]!r}; {hint}", file=sys.stderr)
        return 2
    # A machine with libtpu and no TPU would print warnings at every start.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # Orbax warns of every checkpoint that it opens to read only.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        COMMANDS[arguments[0]](arguments[1:])
    except (Exception, KeyboardInterrupt) as error:
        return _ended(arguments[0], arguments[1:], error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
