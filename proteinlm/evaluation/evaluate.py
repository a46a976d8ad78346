"""Evaluation: full splits, remainder kept, one row a split, beside the empirical baseline and the uniform guess.

Every number says its run, split, objective, which tokens count and how many. The baselines are scored on the very same
tokens as the run beside them: its crop, and for a masked model the residues that its masks select.
"""

import json
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
from proteinlm.evaluation.breakdowns import BREAKDOWNS, BY_TOKEN
from proteinlm.evaluation.files import Details, check_form, facts_of
from proteinlm.evaluation.metrics import Score, Sums, score
from proteinlm.evaluation.paper_table import Evaluated, write_table
from proteinlm.evaluation.sums import SplitResult, as_sums, cells_of, sum_cells, sum_rows, token_values
from proteinlm.inference.run import Run
from proteinlm.models.objective import make_example, residue_weights, sum_tokens
from proteinlm.models.randomness import random_key
from proteinlm.output.console import console, print_table
from proteinlm.output.files import require_writable, whole_file
from proteinlm.runs.folder import read_run_files
from proteinlm.runs.loading import Step, load_run

SPLITS = ("test", "ood")


@dataclass(frozen=True)
class EvaluationStep:
    """A compiled (model state, this process's rows) -> sums by row of all processes, on each; and its mesh."""

    mesh: Mesh
    compiled: Callable[[nnx.State, dict[str, jax.Array]], dict[str, Any]]

    def __call__(self, state: nnx.State, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return NumPy arrays, "rows" (the batch's own) among them."""
        placed = {**batch, "rows": batch["rows"].astype(np.int32)}
        return jax.device_get(self.compiled(state, sharding.place_batch(placed, self.mesh)))


def make_evaluation_step(
    config: Config, graph: nnx.GraphDef, mesh: Mesh | None = None, cells: Sequence[str] = ()
) -> EvaluationStep:
    """Return the step: no dropout, no redraw, masks from (seed, digest).

    Args:
        config: the run's.
        graph: of its model.
        mesh: where the model's state lies; None is one device.
        cells: names of breakdowns by tokens (see cells.py) that are summed in the same pass.
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
        values = token_values(logits, targets)
        confidence = values.pop("confidence")
        residue = jnp.arange(alphabet.FIRST_RESIDUE, alphabet.SIZE)
        is_residue = targets[:, :, None] == residue[None, None, :]
        found = {
            "rows": batch["rows"],
            "residues": sum_rows(values, on_residues, segments),
            "all_tokens": sum_rows(values, weights, segments),
            "residue_counts": sum_tokens(is_residue * on_residues[:, :, None], segments).astype(jnp.int32),
        }
        every = {**values, "confidence": confidence}
        for name in cells:
            summed = every if name == "confidence" else values
            cell = cells_of(name, every, targets, segments, config.batches.length)
            found[f"by {name}"] = sum_cells(summed, on_residues, cell, segments)
        return found

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
        config: the run's config (its batches and its objective).
        dataset: where the split is.
        split: "train", "valid", "test" or "ood"; an empty one gives a result of no rows.
        step: from `make_evaluation_step`.
        state: the model's whole nnx state, on the step's mesh.
        limit: only so many examples, a fixed random sample (evaluation during training).
        progress: called with the number of rows after each batch.
    """
    share, shares = sharding.row_share(step.mesh)
    parts: list[dict[str, Any]] = []
    for batch in evaluation_batches(
        dataset, config.batches, split, limit=limit, process_index=share, process_count=shares
    ):
        found = step(state, batch)
        # Rows that fill the last batch, and isolated rows' room for more sequences than there are.
        real = found["rows"] >= 0
        parts.append(jax.tree.map(lambda x, real=real: x[real], found))
        if progress:
            progress(int(real.sum()))

    if not parts:
        nothing = Sums(np.zeros(0), np.zeros(0), np.zeros(0))
        return SplitResult(np.zeros(0, np.int64), nothing, nothing, np.zeros((0, alphabet.NUM_RESIDUES), np.int64))
    whole = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
    by = {name.removeprefix("by "): found for name, found in whole.items() if name.startswith("by ")}
    confidence = by["confidence"]["confidence"].astype(np.float64) if "confidence" in by else None
    return SplitResult(
        whole["rows"].astype(np.int64), as_sums(whole["residues"]), as_sums(whole["all_tokens"]),
        whole["residue_counts"].astype(np.int64), {name: as_sums(found) for name, found in by.items()}, confidence,
    )  # fmt: skip


def baseline_scores(result: SplitResult, baseline: EmpiricalBaseline, split: str, objective: str) -> list[Score]:
    """Score the uniform guess and the empirical baseline on the residues that a model was scored on."""
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


def evaluate(run: Run, dataset: ProteinDataset, splits: Sequence[str] = SPLITS) -> list[Score]:
    """Score a trained model on whole splits; arguments as for `evaluate_splits`, of which this is the scores."""
    return scores_of(run, dataset, evaluate_splits(run, dataset, splits))


def evaluate_splits(
    run: Run, dataset: ProteinDataset, splits: Sequence[str] = SPLITS, cells: Sequence[str] = ()
) -> dict[str, SplitResult]:
    """Run a trained model over whole splits, once each.

    Args:
        run: from `load_run`.
        dataset: usually the run's own; another one is allowed, the baseline is then fitted on its train split.
        splits: names among train, valid, test, ood; an empty split has no result, and a line says so.
        cells: as for `make_evaluation_step`.
    """
    for split in splits:
        if split not in dataset.counts:
            raise InputError(f"there is no split {split!r}; there are {', '.join(dataset.counts)}.")
    graph, state = nnx.split(run.model)
    step = make_evaluation_step(run.config, graph, run.mesh, cells)
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
    """Return for each split: uniform guess, empirical baseline, the model on residues; if causal, also with eos."""
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
        scores: by run, as "name (single, first 1024 tokens)".
        title: of the table.
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
    """Write evaluation.csv (one row a score) and evaluation.json, both with `about`: run, step, dataset, rows."""
    rows = [asdict(s) for s in scores]
    columns = [*about, *(field.name for field in fields(Score))]
    with whole_file(folder / "evaluation.csv") as handle:
        pd.DataFrame([{**about, **row} for row in rows], columns=pd.Index(columns)).to_csv(handle, index=False)
    with whole_file(folder / "evaluation.json") as handle:
        clean = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in r.items()} for r in rows]
        handle.write(json.dumps({**about, "scores": clean}, indent=2) + "\n")


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
) -> None:
    """Score each run, write what was found into its folder, and print one table of all.

    Args:
        runs: folders of runs.
        splits: names of splits.
        dataset: instead of the one that each run was trained on.
        step: checkpoint, as for `load_run`.
        by: breakdowns of the scores: names of breakdowns.BREAKDOWNS.
        calibrate: whether to hold the model's confidence against its accuracy.
        table: whether to write the paper's Table 2 over the runs.
        paper: whether that has the paper's numbers too.
        output: its folder; by default the run's, or that which holds all runs.
    """
    if not runs:
        raise InputError("name at least one run: proteinlm evaluate RUN...")
    if (paper or output) and not table:
        raise InputError("--paper and --output are of the table over the runs: add --table.")
    unknown = [name for name in by if name not in BREAKDOWNS]
    if unknown:
        raise InputError(f"there is no breakdown by {unknown[0]!r}; there are {', '.join(BREAKDOWNS)}.")
    labels = _labels(runs)
    common = Path(os.path.commonpath([folder.resolve() for folder in runs]))
    tables = output or (runs[0] if len(runs) == 1 else common)
    for folder in runs:
        # All of them before the first is scored.
        config, origin = read_run_files(folder)
        data = ProteinDataset.open(dataset or origin["dataset"])
        check_form(str(folder), config.batches.form, by)
        processes.agree(
            config, data.fingerprint,
            runs=labels, splits=list(splits), step=step, by=list(by), calibration=calibrate, table=table,
        )  # fmt: skip
    # Before the models run, not after hours of it.
    processes.first_alone(lambda: _check_writable(*runs, *((tables,) if table else ())))
    found, unwritten = [], None
    for folder, label in zip(runs, labels, strict=True):
        one, write = _evaluate_run(folder, label, splits, dataset, step, by, calibrate)
        found.append(one)
        try:
            processes.first_alone(write)
        except (InputError, OSError) as error:
            # What the model said is shown first.
            unwritten = unwritten or error
    if processes.is_first():
        _print_scores(found)
    if unwritten:
        raise unwritten
    if table and processes.is_first():
        print_table(write_table(found, tables, paper=paper))
        print(f"table.csv, table.tex and table.md are in {tables}")


def _print_scores(found: Sequence[Evaluated]) -> None:
    title = "Accuracy and perplexity per split; a row is a sequence or a window; intervals by bootstrap over rows"
    print_table(scores_table({f"{one.label} ({one.about['rows']})": one.scores for one in found}, title))


def _check_writable(*folders: Path) -> None:
    for folder in folders:
        require_writable(folder, "and the scores belong there: nothing was evaluated.")


def _labels(runs: Sequence[Path]) -> list[str]:
    """Return the folders' names, with as much of their paths as tells them apart."""
    paths = [folder.resolve() for folder in runs]
    if len(set(paths)) < len(paths):
        raise InputError("a run is named twice: name each once.")
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
    by: Sequence[str],
    calibrate: bool,
) -> tuple[Evaluated, Callable[[], None]]:
    """Score one run; return what was found, and what writes its files. See `evaluate_command`."""
    run = load_run(folder, step, mesh_of=sharding.evaluation_mesh)
    if step == "best" and processes.is_first():
        console.print(f"{run.name}: best on valid is step {run.step}", highlight=False, markup=False)
    data = ProteinDataset.open(dataset or run.dataset)
    batches = run.config.batches
    # Before the model runs, not after hours of it.
    facts = facts_of(data, splits, batches.form, by)
    cells = (*(name for name in by if name in BY_TOKEN), *(("confidence",) if calibrate else ()))
    results = evaluate_splits(run, data, splits, cells)
    scores = scores_of(run, data, results)
    rows = f"windows of {batches.length} tokens" if batches.form == "concat" else f"first {batches.length} tokens"
    about = {
        "run": run.name, "step": run.step, "dataset": str(data.path), "fingerprint": data.fingerprint, "rows": rows,
    }  # fmt: skip

    def write() -> None:
        write_scores(scores, folder, about)
        details = Details(folder, about, run.config.objective.kind, batches.length, results, facts)
        paths = details.write(by, calibrate)
        names = ", ".join(path.name for path in paths)
        console.print(f"{folder} has {names or 'the scores'}", soft_wrap=True, highlight=False, markup=False)

    return Evaluated(label, about, run.config, scores, data.how_split), write
