"""`proteinlm evaluate`: options, and the call of the evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from proteinlm.cli.options import Processes
from proteinlm.evaluation.options import EvaluateOptions


@dataclass(frozen=True)
class Evaluate(EvaluateOptions):
    """Score trained runs on whole splits: accuracy, perplexity and bits per residue with 95 % intervals.

    The empirical baseline (residue frequencies of train) and the uniform guess are scored on the same tokens. Each
    run's folder gets evaluation.csv, evaluation.json and, unless its rows are windows, sequences.parquet (one row for
    each sequence). Breakdowns and calibration come from the same pass over the split.

    Example: proteinlm evaluate runs/causal runs/masked --splits test ood --by residue length --calibration --table
    """

    processes: Annotated[Processes, tyro.conf.arg(name="")] = field(default_factory=Processes)


def evaluate(arguments: Sequence[str]) -> None:
    """Run `proteinlm evaluate`."""
    options = tyro.cli(Evaluate, args=arguments, prog="proteinlm evaluate")
    from proteinlm.evaluation.evaluate import evaluate_command

    options.processes.join()
    evaluate_command(
        options.runs, options.splits, options.dataset, options.step,
        by=options.by, calibrate=options.calibration, table=options.table, paper=options.paper, output=options.output,
    )  # fmt: skip
