"""Evaluation: full splits, remainder kept, one row a split, beside the empirical baseline and the uniform guess.

Every number says its run, split, objective, which tokens count and how many. The baselines are scored on the very same
tokens as the run beside them: its crop, and for a masked model the residues that its masks select.
"""

import functools
import json
import math
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
from rich.table import Table

from proteinlm import processes, sharding
from proteinlm.checkpoint import Run, load_run
from proteinlm.config import Config
from proteinlm.data import alphabet
from proteinlm.data.batches import evaluation_batches
from proteinlm.data.dataset import ProteinDataset
from proteinlm.data.statistics import EmpiricalBaseline
from proteinlm.errors import InputError
from proteinlm.files import whole_file
from proteinlm.logs import console, print_table
from proteinlm.metrics import Score, Sums, score
from proteinlm.objective import make_example, residue_weights, sum_tokens, token_sums
from proteinlm.randomness import random_key

SPLITS = ("test", "ood")


@dataclass(frozen=True)
class SplitResult:
    """Sums of each row of a split, N rows, in evaluation order: a row is a sequence, packed or not, or a window.

    Attributes:
        rows: int64 [N], the row's place in the split (the manifest's order, for single sequences).
        residues: nll (nats), correct and count over residues, float64 [N] each.
        all_tokens: the same over residues and eos; equal to `residues` for a masked model.
        residue_counts: int64 [N, 25], how often each residue was a counted target, in the order of alphabet.RESIDUES.
    """

    rows: np.ndarray
    residues: Sums
    all_tokens: Sums
    residue_counts: np.ndarray

    @property
    def num_rows(self) -> int:
        """Number of rows that hold at least one counted token."""
        return int((self.all_tokens.count > 0).sum())


@dataclass(frozen=True)
class EvaluationStep:
    """A compiled (model state, this process's rows) -> sums by row of all processes, on each; and its mesh."""

    mesh: Mesh
    compiled: Callable[[nnx.State, dict[str, jax.Array]], dict[str, Any]]

    def __call__(self, state: nnx.State, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return NumPy arrays, "rows" (the batch's own) among them."""
        placed = {**batch, "rows": batch["rows"].astype(np.int32)}
        return jax.device_get(self.compiled(state, sharding.place_batch(placed, self.mesh)))


def make_evaluation_step(config: Config, graph: nnx.GraphDef, mesh: Mesh | None = None) -> EvaluationStep:
    """Return the step: no dropout, no redraw, masks from (seed, digest).

    Args:
        config: the run's.
        graph: of its model.
        mesh: where the model's state lies; None is one device.
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
        return {
            "rows": batch["rows"],
            "residues": token_sums(logits, targets, on_residues, segments),
            "all_tokens": token_sums(logits, targets, weights, segments),
            "residue_counts": sum_tokens(is_residue * on_residues[:, :, None], segments).astype(jnp.int32),
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

    def sums(name: str) -> Sums:
        fields = ("nll", "correct", "count")
        return Sums(*(_joined([getattr(p[name], f) for p in parts], np.float64) for f in fields))

    counts = [p["residue_counts"] for p in parts] or [np.zeros((0, alphabet.NUM_RESIDUES), np.int64)]
    rows = _joined([p["rows"] for p in parts], np.int64)
    return SplitResult(rows, sums("residues"), sums("all_tokens"), np.concatenate(counts).astype(np.int64))


def _joined(parts: list[np.ndarray], dtype) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


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


def evaluate(
    run: Run,
    dataset: ProteinDataset,
    splits: Sequence[str] = SPLITS,
) -> list[Score]:
    """Score a trained model on whole splits.

    Args:
        run: from `load_run`.
        dataset: usually the run's own; another one is allowed, the baseline is then fitted on its train split.
        splits: names among train, valid, test, ood; an empty split gives no rows and a line that says so.

    Returns:
        For each split: uniform guess, empirical baseline, the model on residues, and for a causal model also on
        residues and eos.
    """
    for split in splits:
        if split not in dataset.counts:
            raise InputError(f"there is no split {split!r}; there are {', '.join(dataset.counts)}.")
    graph, state = nnx.split(run.model)
    step = make_evaluation_step(run.config, graph, run.mesh)
    baseline = EmpiricalBaseline.fit(dataset.residue_counts("train"))
    objective, name = run.config.objective.kind, run.name
    scores = []
    for split in splits:
        if not dataset.counts[split]:
            console.print(f"split {split} of {dataset.path} is empty: it has no row in the table")
            continue
        with console.status(f"evaluating {name} on {split}") as status:
            seen = 0

            def show(number: int, split=split, status=status) -> None:
                nonlocal seen
                seen += number
                status.update(f"evaluating {name} on {split}: {seen:,} rows")

            result = evaluate_split(run.config, dataset, split, step, state, progress=show)
        scores += baseline_scores(result, baseline, split, objective)
        scores.append(score(result.residues, split=split, objective=objective, model=name, tokens="residues"))
        if objective == "causal":
            scores.append(score(result.all_tokens, split=split, objective=objective, model=name, tokens="residues+eos"))
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
                run, s.split, s.objective, s.model, s.tokens, f"{100 * s.accuracy:.2f}",
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


def evaluate_command(runs: Sequence[Path], splits: Sequence[str], dataset: Path | None, step: int | None) -> None:
    """Score each run, write its evaluation.csv and evaluation.json, and print one table of all.

    Args:
        runs: folders of runs.
        splits: names of splits.
        dataset: instead of the one that each run was trained on.
        step: checkpoint; the newest when None.
    """
    if not runs:
        raise InputError("name at least one run: proteinlm evaluate RUN...")
    scores: dict[str, list[Score]] = {}
    for folder in runs:
        run = load_run(folder, step, mesh_of=sharding.evaluation_mesh)
        data = ProteinDataset.open(dataset or run.dataset)
        found = evaluate(run, data, splits)
        batches = run.config.batches
        rows = f"windows of {batches.length} tokens" if batches.form == "concat" else f"first {batches.length} tokens"
        about = {
            "run": run.name, "step": run.step, "dataset": str(data.path), "fingerprint": data.fingerprint, "rows": rows,
        }  # fmt: skip
        processes.first_alone(functools.partial(write_scores, found, folder, about))
        scores[f"{run.name} ({rows})"] = found
    title = "Accuracy and perplexity per split; a row is a sequence or a window; intervals by bootstrap over rows"
    if processes.is_first():
        print_table(scores_table(scores, title))
