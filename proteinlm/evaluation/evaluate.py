"""Evaluation: accuracy and perplexity of trained models on whole splits, beside two baselines.

Every number states its run, split, objective, which tokens count and their number. The baselines (uniform guess and
residue frequencies of train) are scored on the same tokens as the run: with its crop, and for a masked model on the
residues that its masks select. The last batch is filled up, so that no sequence is left out.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx
from jax.sharding import Mesh
from rich.markup import escape
from rich.table import Table

from proteinlm import alphabet
from proteinlm.config import Config
from proteinlm.data.batches.batches import evaluation_batches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.dataset.statistics import EmpiricalBaseline
from proteinlm.devices import processes, sharding
from proteinlm.errors import InputError
from proteinlm.evaluation.breakdowns import BY_CONFIDENCE, Breakdown, TokenBreakdown, find_breakdowns
from proteinlm.evaluation.files import ResultFiles, check_form, facts_of
from proteinlm.evaluation.metrics import Score, Sums, score
from proteinlm.evaluation.paper_table import Evaluated, write_table
from proteinlm.evaluation.sums import SplitResult, split_result, sum_groups
from proteinlm.inference.run import Run
from proteinlm.models.objective import make_example, residue_weights, sum_tokens, token_sums, token_values
from proteinlm.models.randomness import random_key
from proteinlm.output.console import console, print_table
from proteinlm.output.files import require_writable
from proteinlm.output.saving import write_csv, write_json
from proteinlm.runs.folder import read_run_files
from proteinlm.runs.loading import Step, load_run

HELD_OUT_SPLITS = ("test", "ood")


@dataclass(frozen=True)
class EvaluationStep:
    """A compiled function from the model's state and a batch to the sums of each row, and the mesh that it runs on.

    Each process gives its own rows of the batch and gets the sums of the rows of all processes.
    """

    mesh: Mesh
    compiled: Callable[[nnx.State, dict[str, jax.Array]], dict[str, Any]]

    def __call__(self, state: nnx.State, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return NumPy arrays, as `sums.split_result` takes them."""
        placed = {**batch, "rows": batch["rows"].astype(np.int32)}
        return jax.device_get(self.compiled(state, sharding.place_batch(placed, self.mesh)))


def make_evaluation_step(
    config: Config, graph: nnx.GraphDef, mesh: Mesh | None = None, breakdowns: Sequence[TokenBreakdown] = ()
) -> EvaluationStep:
    """Return the step: no dropout, no redraw of random features, masks from (seed, digest of the sequence).

    Args:
        config: config of the run.
        graph: graph of its model.
        mesh: mesh of the model's state; None is one device.
        breakdowns: breakdowns by tokens, summed in the same pass.
    """
    mesh = mesh or sharding.one_device()
    layout = sharding.layout(mesh)

    def step(state: nnx.State, batch: dict[str, jax.Array]) -> dict[str, Any]:
        model = nnx.merge(graph, layout.tables(state))
        key = random_key(config.seed, "masks")
        segments = batch.get("segments")
        inputs, targets, weights = make_example(
            batch["tokens"], batch["keys"], config.objective, key, segments=segments
        )
        logits = model(inputs, segments=segments, layout=layout)
        on_residues = residue_weights(targets, weights)
        residue = jnp.arange(alphabet.FIRST_RESIDUE, alphabet.SIZE)
        is_residue = targets[:, :, None] == residue[None, None, :]
        values = token_values(logits, targets)
        return {
            "rows": batch["rows"],
            "residues": token_sums(logits, targets, on_residues, segments),
            "all_tokens": token_sums(logits, targets, weights, segments),
            "residue_counts": sum_tokens(is_residue * on_residues[:, :, None], segments).astype(jnp.int32),
            "groups": {
                breakdown.name: sum_groups(breakdown, values, targets, on_residues, segments, config.batches.length)
                for breakdown in breakdowns
            },
        }

    return EvaluationStep(mesh, jax.jit(step, out_shardings=sharding.replicated(mesh)))


def evaluate_split(
    config: Config,
    dataset: ProteinDataset,
    split: str,
    step: EvaluationStep,
    state: nnx.State,
    *,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> SplitResult:
    """Run a model over a split.

    Args:
        config: config of the run (its batches and its objective).
        dataset: dataset of the split.
        split: "train", "valid", "test" or "ood"; an empty one gives a result of no rows.
        step: from `make_evaluation_step`.
        state: the model's whole nnx state, on the step's mesh.
        limit: number of examples, a fixed random sample of the split (evaluation during training); None is all.
        progress: called with the number of rows after each batch.
    """
    share, shares = sharding.row_share(step.mesh)
    parts: list[dict[str, Any]] = []
    for batch in evaluation_batches(
        dataset, config.batches, split, limit=limit, process_index=share, process_count=shares
    ):
        sums = step(state, batch)
        # Not rows that fill up the last batch, and not unused segments of rows of several proteins.
        is_used = sums["rows"] >= 0
        parts.append(jax.tree.map(lambda x, is_used=is_used: x[is_used], sums))
        if progress:
            progress(int(is_used.sum()))
    if not parts:
        nothing = Sums(np.zeros(0), np.zeros(0), np.zeros(0))
        return SplitResult(np.zeros(0, np.int64), nothing, nothing, np.zeros((0, alphabet.NUM_RESIDUES), np.int64))
    return split_result(parts)


def baseline_scores(result: SplitResult, baseline: EmpiricalBaseline, split: str, objective: str) -> list[Score]:
    """Return the scores of the uniform guess and the empirical baseline on the residues that a model was scored on."""
    counts = result.residue_counts
    number = counts.sum(axis=1).astype(np.float64)
    uniform = Sums(number * math.log(alphabet.NUM_RESIDUES), number / alphabet.NUM_RESIDUES, number)
    empirical = Sums(
        counts @ -np.asarray(baseline.log_probs, np.float64), counts[:, baseline.argmax].astype(np.float64), number
    )
    return [
        score(sums, split=split, objective=objective, model=name, tokens="residues")
        for name, sums in (("uniform guess", uniform), ("empirical baseline", empirical))
    ]


def evaluate(run: Run, dataset: ProteinDataset, splits: Sequence[str] = HELD_OUT_SPLITS) -> list[Score]:
    """Return the scores of a trained model on whole splits; arguments as for `evaluate_splits`."""
    return scores_of(run, dataset, evaluate_splits(run, dataset, splits))


def evaluate_splits(
    run: Run,
    dataset: ProteinDataset,
    splits: Sequence[str] = HELD_OUT_SPLITS,
    breakdowns: Sequence[TokenBreakdown] = (),
) -> dict[str, SplitResult]:
    """Run a trained model over whole splits, once each.

    Args:
        run: from `load_run`.
        dataset: usually that of the run. Another one is allowed; the baseline is then fitted on its train split.
        splits: names among train, valid, test, ood. An empty split has no result, and a line is printed.
        breakdowns: as for `make_evaluation_step`.

    Raises:
        InputError: there is no split of a name.
    """
    for split in splits:
        if split not in dataset.counts:
            raise InputError(f"there is no split {split!r}; there are {', '.join(dataset.counts)}.")
    graph, state = nnx.split(run.model)
    step = make_evaluation_step(run.config, graph, run.mesh, breakdowns)
    results = {}
    for split in dict.fromkeys(splits):
        if not dataset.counts[split]:
            why = "no protein has a held-out family" if split == "ood" else "its fraction is 0 or too small"
            console.print(
                f"split {split} of {dataset.path} is empty ({why}): it has no row in any table", soft_wrap=True
            )
            continue
        with console.status(f"evaluating {run.name} on {split}") as status:
            seen = 0

            def show(number: int, split=split, status=status) -> None:
                nonlocal seen
                seen += number
                status.update(f"evaluating {run.name} on {split}: {seen:,} rows")

            results[split] = evaluate_split(run.config, dataset, split, step, state, progress=show)
    return results


def scores_of(run: Run, dataset: ProteinDataset, results: Mapping[str, SplitResult]) -> list[Score]:
    """Return four scores a split: uniform guess, empirical baseline, model on residues, and, if causal, with eos."""
    baseline = EmpiricalBaseline.fit(dataset.residue_counts("train"))
    objective = run.config.objective.kind
    scores = []
    for split, result in results.items():
        scores += baseline_scores(result, baseline, split, objective)
        about: dict[str, Any] = {"split": split, "objective": objective, "model": run.name}
        scores.append(score(result.residues, **about, tokens="residues"))
        if objective == "causal":
            scores.append(score(result.all_tokens, **about, tokens="residues+eos"))
    return scores


def scores_table(scores: Mapping[str, Sequence[Score]], title: str) -> Table:
    """Return the scores as a table for the terminal.

    Args:
        scores: scores by run, such as "causal (first 1024 tokens)".
        title: title of the table.
    """
    table = Table(title=title, title_justify="left")
    headings = ("accuracy %", "95 % interval", "perplexity", "95 % interval", "bits/token", "tokens", "rows")
    for heading in ("run", "split", "objective", "model", "counted"):
        table.add_column(heading)
    for heading in headings:
        table.add_column(heading, justify="right")
    for run, rows in scores.items():
        for s in rows:
            table.add_row(
                escape(run), s.split, s.objective, escape(s.model), s.tokens, f"{100 * s.accuracy:.2f}",
                f"{100 * s.accuracy_low:.2f} to {100 * s.accuracy_high:.2f}", f"{s.perplexity:.2f}",
                f"{s.perplexity_low:.2f} to {s.perplexity_high:.2f}", f"{s.bits_per_residue:.3f}", f"{s.num_tokens:,}",
                f"{s.num_sequences:,}",
            )  # fmt: skip
        table.add_section()
    return table


def write_scores(scores: Sequence[Score], folder: Path, about: dict[str, str | int]) -> None:
    """Write evaluation.csv (one row a score) and evaluation.json, with `about` (run, step, dataset, rows) in both."""
    rows = [asdict(s) for s in scores]
    columns = [*about, *(field.name for field in fields(Score))]
    frame = pd.DataFrame([{**about, **row} for row in rows], columns=pd.Index(columns))
    write_csv(folder / "evaluation.csv", frame)
    clean = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in r.items()} for r in rows]
    write_json(folder / "evaluation.json", {**about, "scores": clean})


def evaluate_command(
    runs: Sequence[Path],
    splits: Sequence[str],
    dataset: Path | None,
    step: Step,
    *,
    by: Sequence[str] = (),
    calibrate: bool = False,
    table: bool = False,
    paper: bool = False,
    output: Path | None = None,
    show: bool = True,
) -> list[Evaluated]:
    """Score each run, write the results into its folder, and print one table of all runs.

    Args:
        runs: folders of runs.
        splits: names of splits.
        dataset: folder of a dataset; None is the one that each run was trained on.
        step: checkpoint, as for `load_run`.
        by: breakdowns of the scores: names in `breakdowns.BREAKDOWNS`.
        calibrate: whether to compare the model's confidence with its accuracy.
        table: whether to write Table 2 of the Performer paper over the runs.
        paper: whether that table has the paper's numbers too.
        output: folder of that table; None is the run's folder, or the folder that holds all runs.
        show: whether to print the tables.

    Returns:
        The scores of each run, in the order of the runs.

    Raises:
        InputError: an option does not fit, a run or a dataset cannot be read, or a folder cannot be written.
    """
    if not runs:
        raise InputError("name at least one run: proteinlm evaluate RUN...")
    if not splits:
        raise InputError("name at least one split: train, valid, test or ood.")
    if (paper or output) and not table:
        raise InputError("--paper and --output change the table over the runs: add --table.")
    breakdowns = find_breakdowns(by)
    labels = _labels(runs)
    common = Path(os.path.commonpath([folder.resolve() for folder in runs]))
    tables = output or (runs[0] if len(runs) == 1 else common)
    for folder in runs:
        # All runs are checked before the first one is scored.
        config, origin = read_run_files(folder)
        data = ProteinDataset.open(dataset or origin["dataset"])
        check_form(str(folder), config.batches.form, breakdowns)
        processes.agree(
            config, data.fingerprint,
            runs=labels, splits=list(splits), step=step, by=list(by), calibration=calibrate, table=table,
        )  # fmt: skip
    # Before the models run, which may take hours.
    processes.first_alone(lambda: _check_writable(*runs, *((tables,) if table else ())))
    evaluated, write_error = [], None
    for folder, label in zip(runs, labels, strict=True):
        one, write = _evaluate_run(folder, label, splits, dataset, step, breakdowns, calibrate)
        evaluated.append(one)
        try:
            processes.first_alone(write)
        except (InputError, OSError) as error:
            # Raised after the scores of all runs were printed.
            write_error = write_error or error
    if show and processes.is_first():
        _print_scores(evaluated)
    if write_error:
        raise write_error
    if table and processes.is_first():
        rows = write_table(evaluated, tables, paper=paper)
        if show:
            print_table(rows)
            print(f"table.csv, table.tex and table.md are in {tables}")
    return evaluated


def _print_scores(evaluated: Sequence[Evaluated]) -> None:
    title = "Accuracy and perplexity per split; a row is a sequence or a window; intervals by bootstrap over rows"
    print_table(scores_table({f"{one.label} ({one.about['rows']})": one.scores for one in evaluated}, title))


def _check_writable(*folders: Path) -> None:
    for folder in folders:
        require_writable(folder, "and the scores are written there: nothing was evaluated.")


def _labels(runs: Sequence[Path]) -> list[str]:
    """Return the names of the folders; where several have the same name, their paths from the common folder."""
    paths = [folder.resolve() for folder in runs]
    if len(set(paths)) < len(paths):
        raise InputError("a run is named twice: name each run once.")
    names = [path.name for path in paths]
    return [
        path.name if names.count(path.name) == 1 else str(path.relative_to(os.path.commonpath(paths))) for path in paths
    ]


def _evaluate_run(
    folder: Path,
    label: str,
    splits: Sequence[str],
    dataset: Path | None,
    step: Step,
    breakdowns: Sequence[Breakdown],
    calibrate: bool,
) -> tuple[Evaluated, Callable[[], None]]:
    """Score one run; return its scores and a function that writes its files. Arguments as for `evaluate_command`."""
    run = load_run(folder, step, mesh_of=sharding.evaluation_mesh)
    if step == "best" and processes.is_first():
        console.print(f"{run.name}: best on valid is step {run.step}", highlight=False, markup=False)
    data = ProteinDataset.open(dataset or run.dataset)
    batches = run.config.batches
    # Before the model runs, which may take hours.
    facts = facts_of(data, splits, batches.form, breakdowns)
    by_tokens = [breakdown for breakdown in breakdowns if isinstance(breakdown, TokenBreakdown)]
    results = evaluate_splits(run, data, splits, [*by_tokens, *([BY_CONFIDENCE] if calibrate else [])])
    scores = scores_of(run, data, results)
    rows = f"windows of {batches.length} tokens" if batches.form == "concat" else f"first {batches.length} tokens"
    about = {
        "run": run.name, "step": run.step, "dataset": str(data.path), "fingerprint": data.fingerprint, "rows": rows,
    }  # fmt: skip

    def write() -> None:
        write_scores(scores, folder, about)
        files = ResultFiles(folder, about, run.config.objective.kind, batches.length, results, facts)
        paths = files.write(breakdowns, calibrate)
        names = ", ".join(path.name for path in paths)
        console.print(f"{folder} has {names or 'the scores'}", soft_wrap=True, highlight=False, markup=False)

    return Evaluated(label, about, run.config, scores, data.how_split), write
