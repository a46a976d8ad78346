"""The report: one page about several runs, with their data, curves, scores and figures, and sentences about them.

It reads files that the other commands wrote. It computes nothing but the sentences, which follow from the numbers.
"""

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proteinlm.config import Config
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.dataset.statistics import table_1
from proteinlm.errors import InputError
from proteinlm.output.figures import save_figure
from proteinlm.output.files import whole_file
from proteinlm.runs.curves import Curve, plot_curves
from proteinlm.runs.folder import CHECKPOINTS, CONFIG_FILE, read_run_files
from proteinlm.runs.logs import read_metrics


@dataclass(frozen=True)
class RunFiles:
    """The files of a run's folder that the report reads.

    Attributes:
        folder: folder of the run.
        config: config of the run.
        dataset: folder of its dataset.
        metrics: lines of metrics.jsonl.
        evaluation: contents of evaluation.json; empty if the run was not evaluated.
        label: name of the folder, with that of its parent where several runs have the same name.
    """

    folder: Path
    config: Config
    dataset: Path
    metrics: list[dict]
    evaluation: dict
    label: str = ""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def scores(self) -> list[dict]:
        """Rows of evaluation.json; none if the run was not evaluated."""
        return self.evaluation.get("scores", [])

    @property
    def last_step(self) -> int:
        """The last step in the log that changed the model or was skipped."""
        return max((row["step"] for row in self.metrics if row["kind"] != "not_finite"), default=0)

    @property
    def steps(self) -> str:
        """Number of steps done, such as "20", or "5 of 20" if the run is not finished."""
        last, total = self.last_step, self.config.num_steps
        return f"{last:,}" if last >= total else f"{last:,} of {total:,}"

    def score(self, split: str, model: str) -> dict | None:
        """Return the residue score of a split for a model ("empirical baseline" or the run's name)."""
        for row in self.scores:
            if (row["split"], row["model"], row["tokens"]) == (split, model, "residues"):
                return row
        return None


def find_runs(*folders: Path) -> list[RunFiles]:
    """Return the runs in folders, each once, in the order of the folders and by name inside each.

    Args:
        folders: folders of runs, or folders that contain folders of runs.

    Raises:
        InputError: a folder contains no run.
    """
    run_folders: dict[Path, Path] = {}
    for folder in folders:
        is_run = (folder / CONFIG_FILE).is_file()
        inside = [folder] if is_run else sorted(path.parent for path in folder.glob(f"*/{CONFIG_FILE}"))
        if not inside:
            raise InputError(f"{folder} holds no training run: give the folder of a run, or one that contains runs.")
        for run in inside:
            run_folders.setdefault(run.resolve(), run)
    runs = []
    names = [path.name for path in run_folders]
    for path, run in run_folders.items():
        config, origin = read_run_files(run)
        evaluation = run / "evaluation.json"
        saved = _read_json(evaluation) if evaluation.is_file() else {}
        label = path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}"
        runs.append(RunFiles(run, config, Path(origin["dataset"]), read_metrics(run), saved, label))
    return runs


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): run the command that wrote it again.") from error


def write_report(*folders: str | Path, output: str | Path | None = None) -> Path:
    """Write report.md, curves.png and curves.pdf about runs, and return the path of the page.

    Args:
        folders: folders of runs, or folders that contain folders of runs.
        output: output folder; by default the one folder that was named, or the closest folder that contains all named.

    Raises:
        InputError: a folder contains no run.
    """
    paths = [Path(folder) for folder in folders]
    runs = find_runs(*paths)
    common = paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.resolve() for path in paths]))
    page_folder = common if output is None else Path(output)
    curves = [Curve(run.label, run.metrics) for run in runs]
    save_figure(plot_curves(curves), page_folder / "curves")
    sections = ["# Report\n", _introduction(runs), _data(runs, page_folder), _training(runs), _scores(runs)]
    sections += [_figures(run, page_folder) for run in runs]
    path = page_folder / "report.md"
    with whole_file(path) as handle:
        handle.write("\n".join(section for section in sections if section))
    return path


def _introduction(runs: Sequence[RunFiles]) -> str:
    lines = ["The commands that made this folder measured every number below; none is copied from a paper.\n"]
    lines += ["| run | objective | attention | layers x width | rows x tokens | steps |", "|---|---|---|---|---|---|"]
    for run in runs:
        c = run.config
        lines.append(
            f"| {run.label} | {c.objective.kind} | {c.model.attention.label} | "
            f"{c.model.num_layers} x {c.model.embed_dim} | {c.batches.batch_size} x {c.batches.length} "
            f"({c.batches.form}) | {run.steps} |"
        )
    return "\n".join(lines) + "\n"


def _data(runs: Sequence[RunFiles], folder: Path) -> str:
    parts = []
    for path in sorted({run.dataset for run in runs}):
        if not path.is_dir():
            parts.append(f"The dataset {path} does not exist any more, so its table is left out.\n")
            continue
        dataset = ProteinDataset.open(path)
        frame = table_1(dataset.statistics)
        parts.append(
            f"## Data\n\n`{os.path.relpath(path, folder)}`: sequences without copies, lengths in residues (Table 1 of "
            "the Performer paper, for this dataset). `ood` holds the proteins of the held-out Pfam families; the "
            "other splits are drawn at random from the rest.\n\n"
            + markdown_table(frame.columns, frame.itertuples(index=False))
        )
    return "\n".join(parts)


def _training(runs: Sequence[RunFiles]) -> str:
    lines = [
        "## Training\n",
        "![Perplexity and accuracy over steps](curves.png)\n",
        "Dashed lines are training: all counted tokens of the steps since the last point, eos included, with dropout "
        "if the config has any. Solid lines are validation: residues alone, no dropout; the last point may be of more "
        "sequences.\n",
    ]
    lines += [f"- {run.label}: {'; '.join(_course(run))}." for run in runs]
    return "\n".join(lines) + "\n"


def _course(run: RunFiles) -> list[str]:
    """Return phrases about the course of a run: speed, best step, skipped steps, starts that were not exact."""
    kinds: dict[str, list[dict]] = {"train": [], "valid": [], "skipped": [], "not_finite": [], "resume": []}
    for row in run.metrics:
        kinds.setdefault(row["kind"], []).append(row)
    parts = [f"{run.steps} steps"]
    for row in kinds["not_finite"][-1:]:
        values = ", ".join(f"{_number(row[name], digits=4)}" for name in ("loss", "gradient_norm", "parameter_norm"))
        parts.append(
            f"ended at step {row['step']:,}, which was not finite (loss, norms of the gradient and of the updated "
            f"parameters: {values}; - is not finite)"
        )
    rates = [row["tokens_per_second"] for row in kinds["train"] if row["tokens_per_second"]]
    if rates:
        parts.append(f"{statistics.median(rates):,.0f} tokens/s (median of {len(rates)} lines of the log)")
    parts += _best(run, kinds["valid"])
    if kinds["skipped"]:
        steps = ", ".join(f"{row['step']:,}" for row in kinds["skipped"][:5])
        more = " and others" if len(kinds["skipped"]) > 5 else ""
        parts.append(f"{len(kinds['skipped'])} steps were not finite and were skipped ({steps}{more})")
    for row in kinds["resume"]:
        parts.append(f"resumed at step {row['step']:,}, not exactly: {', '.join(row['inexact'])}")
    return parts


def _best(run: RunFiles, valid: Sequence[dict]) -> list[str]:
    """Return a phrase about the lowest loss among the evaluations on the same sample of valid; none without valid."""
    # The evaluation at the end is of all of valid, and has the loss on the sample too.
    sizes = [row["sample_sequences"] for row in valid]
    losses = [
        (row["sample_loss"], row["step"])
        for row, size in zip(valid, sizes, strict=True)
        if size == sizes[0] and row["sample_loss"] is not None
    ]
    if not losses:
        return []
    loss, step = min(losses)
    kept = (run.folder / CHECKPOINTS / str(step)).is_dir()
    others = f" of {len(valid):,}; the others used another number" if len(losses) < len(valid) else ""
    return [
        f"lowest loss on valid {loss:.4f} at step {step:,} (compared on the same {sizes[0]:,} sequences in "
        f"{len(losses):,} evaluations{others}{f'; its checkpoint is kept: `--step {step}`' if kept else ''})"
    ]


def _scores(runs: Sequence[RunFiles]) -> str:
    rows = [s for run in runs for s in run.scores]
    if not rows:
        return "## Scores\n\nNo run has been evaluated yet: `proteinlm evaluate RUN...`.\n"
    columns = (
        "run", "split", "model", "counted", "accuracy (%)", "95 %", "perplexity", "95 %", "bits/residue", "tokens",
        "rows",
    )  # fmt: skip
    body = [
        (
            run.label, s["split"], s["model"] if s["model"] != run.name else f"**{run.name}**", s["tokens"],
            _number(s["accuracy"], 100), _interval(s, "accuracy", 100), _number(s["perplexity"]),
            _interval(s, "perplexity"), _number(s["bits_per_residue"], digits=3), f"{s['num_tokens']:,}",
            f"{s['num_sequences']:,}",
        )
        for run in runs
        for s in run.scores
    ]  # fmt: skip
    text = (
        "## Scores\n\nPerplexity is exp of the mean negative log-likelihood per counted token. A model that chooses "
        "between N equally likely residues has perplexity N. The baseline always predicts the residue frequencies of "
        "train. It and the uniform guess are scored on the same tokens as the model. Intervals are 95 % by bootstrap "
        "over sequences (windows, for concatenated runs). A masked model is scored on the residues that its masks "
        "select. Some of them are not hidden (one in ten, as in BERT), and copying these already improves its scores."
        "\n\n"
    )
    sentences = [_what_was_scored(run) for run in runs if run.scores]
    sentences += [sentence for run in runs for sentence in what_the_scores_say(run)]
    return text + markdown_table(columns, body) + "\n" + "\n".join(f"- {s}" for s in sentences) + "\n"


def _number(value: float | None, factor: float = 1, digits: int = 2) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def _interval(score: dict, name: str, factor: float = 1) -> str:
    return f"{_number(score[f'{name}_low'], factor)} to {_number(score[f'{name}_high'], factor)}"


def _what_was_scored(run: RunFiles) -> str:
    about = run.evaluation
    text = f"{run.name}: checkpoint of step {about['step']}, {about['rows']}, on `{Path(about['dataset']).name}`"
    if about["step"] != run.last_step:
        text += f"; training has gone on to step {run.last_step} since then: evaluate again"
    if Path(about["dataset"]) != run.dataset:
        text += f"; the run was trained on another dataset (`{run.dataset}`)"
    return text + "."


def what_the_scores_say(run: RunFiles) -> list[str]:
    """Return sentences that compare a run's scores with those of the baseline, and ood with test."""
    sentences = []
    gains = {}
    for split in ("test", "ood"):
        ours, baseline = run.score(split, run.name), run.score(split, "empirical baseline")
        if ours and baseline and ours["perplexity"] is not None:
            gains[split] = 1 - ours["perplexity"] / baseline["perplexity"]
            word = "below" if gains[split] > 0 else "above"
            sentences.append(
                f"{run.name} on {split}: perplexity {ours['perplexity']:.2f}, {100 * abs(gains[split]):.1f} % {word} "
                f"the baseline's {baseline['perplexity']:.2f}; accuracy {100 * ours['accuracy']:.1f} % against "
                f"{100 * baseline['accuracy']:.1f} %."
            )
    test, ood = run.score("test", run.name), run.score("ood", run.name)
    if len(gains) == 2 and test and ood:
        pair = f"{run.name}: perplexity {ood['perplexity']:.2f} on ood"
        if ood["perplexity"] <= test["perplexity"]:
            sentences.append(
                f"{pair} is not worse than {test['perplexity']:.2f} on test: this model has not learned properties "
                "that only the families of train have."
            )
        else:
            sentences.append(f"{pair} is worse than {test['perplexity']:.2f} on test{_why_worse(test, ood, gains)}.")
    return sentences


def _why_worse(test: dict, ood: dict, gains: dict[str, float]) -> str:
    """Return the end of the sentence on ood: whether intervals overlap, and whether the baseline is as much worse."""
    if ood["perplexity_low"] is None or test["perplexity_high"] is None:
        return ", but from so few sequences that no interval can be given"
    if ood["perplexity_low"] <= test["perplexity_high"]:
        return ", but the intervals overlap: more ood sequences or more training are needed to decide"
    if gains["test"] - gains["ood"] < 0.02:
        return (
            ", beyond both intervals, but no more so than for the baseline: the residue composition of ood differs, "
            "and this model has learned little else"
        )
    return ", beyond both intervals and by more than for the baseline: families that are not in train are harder"


def _figures(run: RunFiles, folder: Path) -> str:
    analysis = run.folder / "analysis"
    parts = []
    if (analysis / "attention.png").is_file():
        parts.append(
            f"![Attention maps]({os.path.relpath(analysis / 'attention.png', folder)})\n\n"
            "Each panel is the attention matrix of one head, measured by one-hot V probing. Row i has the weights with "
            "which residue i attends to all residues. A diagonal is a head that attends to neighbours; a vertical line "
            "is a head that attends to the same residues from all positions.\n"
        )
    if (analysis / "similarity.png").is_file():
        parts.append(f"![Amino-acid similarity]({os.path.relpath(analysis / 'similarity.png', folder)})\n")
        parts.append(_similarity_sentence(_read_json(analysis / "similarity.json")))
    return f"## What attention learned: {run.name}\n\n" + "\n".join(parts) if parts else ""


def _similarity_sentence(numbers: dict) -> str:
    agreement = numbers["agreement"]
    if agreement["pearson"] is None:
        return "The attention of these heads is too even to compute a correlation with BLOSUM.\n"
    p, floor = agreement["pearson_p"], 1 / (agreement["num_permutations"] + 1)
    verdict = "more alike than shuffled labels would be" if p < 0.05 else "not distinguishable from shuffled labels"
    pairs = ", ".join("({}, {})".format(*row["pair"]) for row in numbers["closest_pairs"][:6])
    return (
        "Two amino acids count as similar when the same heads attend to both. Over "
        f"{numbers['num_sequences']:,} sequences and {numbers['num_heads_used']} heads, the correlation with "
        f"normalised {numbers['blosum']} over the {agreement['num_pairs']} pairs of different residues is "
        f"{agreement['pearson']:.2f} (Pearson; permutation p {'at most' if p <= floor else '='} {p:.2g}): {verdict}. "
        "A small model has few heads, and with few heads unrelated residues often appear similar too. Closest pairs: "
        f"{pairs}.\n"
    )


def markdown_table(columns: Iterable[str], rows: Iterable[Sequence]) -> str:
    """Return a Markdown table; numbers that are not integers get two decimals."""

    def cell(value) -> str:
        if isinstance(value, float):
            return f"{value:,.0f}" if value.is_integer() else f"{value:,.2f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    columns = list(columns)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
