"""One page about a folder of runs: what the data are, how training went, the scores, the figures, and what they say.

It reads files that the other commands wrote and computes nothing new but the sentences, which follow from the numbers.
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
    """What a run's folder says: its config, its curves, its scores and the folder of its figures.

    Attributes:
        label: the folder's name, with its parent's where several runs have the same.
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
        """The newest step in the log that was made."""
        return max((row["step"] for row in self.metrics if row["kind"] != "not_finite"), default=0)

    @property
    def steps(self) -> str:
        """How far it came, as "20" or "5 of 20"."""
        last, wanted = self.last_step, self.config.num_steps
        return f"{last:,}" if last >= wanted else f"{last:,} of {wanted:,}"

    def score(self, split: str, model: str) -> dict | None:
        """Return the residue score of a split for a model ("empirical baseline" or the run's name)."""
        for row in self.scores:
            if (row["split"], row["model"], row["tokens"]) == (split, model, "residues"):
                return row
        return None


def find_runs(*folders: Path) -> list[RunFiles]:
    """Return the runs that folders are or hold, each once, in the folders' order and by name inside each.

    Raises:
        InputError: a folder holds none.
    """
    places: dict[Path, Path] = {}
    for folder in folders:
        found = (
            [folder] if (folder / CONFIG_FILE).is_file() else sorted(p.parent for p in folder.glob(f"*/{CONFIG_FILE}"))
        )
        if not found:
            raise InputError(f"{folder} holds no training run: give the folder of a run, or one that contains runs.")
        for run in found:
            places.setdefault(run.resolve(), run)
    runs = []
    names = [place.name for place in places]
    for place, run in places.items():
        config, origin = read_run_files(run)
        evaluation = run / "evaluation.json"
        saved = _read_json(evaluation) if evaluation.is_file() else {}
        label = place.name if names.count(place.name) == 1 else f"{place.parent.name}/{place.name}"
        runs.append(RunFiles(run, config, Path(origin["dataset"]), read_metrics(run), saved, label))
    return runs


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): run the command that wrote it again.") from error


def write_report(*folders: str | Path, output: str | Path | None = None) -> Path:
    """Write report.md with curves.png and curves.pdf about runs, and return the page's path.

    Args:
        folders: of runs, or folders that hold runs.
        output: where the page goes; by default into the folder, if it is one, else into the one that holds them all.

    Raises:
        InputError: a folder holds no run.
    """
    paths = [Path(folder) for folder in folders]
    runs = find_runs(*paths)
    common = paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.resolve() for path in paths]))
    place = common if output is None else Path(output)
    curves = [Curve(run.label, run.metrics) for run in runs]
    save_figure(plot_curves(curves), place / "curves")
    sections = ["# Report\n", _introduction(runs), _data(runs, place), _training(runs), _scores(runs)]
    sections += [_figures(run, place) for run in runs]
    path = place / "report.md"
    with whole_file(path) as handle:
        handle.write("\n".join(section for section in sections if section))
    return path


def _introduction(runs: Sequence[RunFiles]) -> str:
    lines = ["Each number below was measured by the commands that made this folder; nothing is copied from a paper.\n"]
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
            parts.append(f"The dataset {path} is no longer there, so its table is left out.\n")
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
        "Train is dashed (every counted token of the steps since the last point, eos included, with dropout if the "
        "config has any), validation is solid (residues alone, no dropout; the last point may be of more sequences).\n",
    ]
    lines += [f"- {run.label}: {'; '.join(_course(run))}." for run in runs]
    return "\n".join(lines) + "\n"


def _course(run: RunFiles) -> list[str]:
    """Return what there is to say about how a run went: speed, the best step, what was skipped or not exact."""
    kinds: dict[str, list[dict]] = {"train": [], "valid": [], "skipped": [], "not_finite": [], "resume": []}
    for row in run.metrics:
        kinds.setdefault(row["kind"], []).append(row)
    parts = [f"{run.steps} steps"]
    for row in kinds["not_finite"][-1:]:
        found = ", ".join(f"{_number(row[name], digits=4)}" for name in ("loss", "gradient_norm", "parameter_norm"))
        parts.append(
            f"ended at step {row['step']:,}, which was not finite (loss, norms of the gradient and of the updated "
            f"parameters: {found}; - is not finite)"
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
    """Return the sentence about the lowest loss among the evaluations that were made on the same sample of valid."""
    # The evaluation at the end is on all of valid, but has the loss on the sample too.
    losses = [(row["sample_loss"], row["sample_sequences"], row) for row in valid]
    alike = [(loss, row["step"]) for loss, number, row in losses if number == losses[0][1] and loss is not None]
    if not alike:
        return []
    loss, step = min(alike)
    kept = (run.folder / CHECKPOINTS / str(step)).is_dir()
    others = f" of {len(valid):,}, the others being of another number" if len(alike) < len(valid) else ""
    return [
        f"lowest loss on valid {loss:.4f} at step {step:,} (compared on the same {losses[0][1]:,} sequences in "
        f"{len(alike):,} evaluations{others}{f'; its checkpoint is kept: `--step {step}`' if kept else ''})"
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
        "## Scores\n\nPerplexity is exp of the mean negative log-likelihood per counted token: the number of residues "
        "that the model hesitates between. The baseline always says the residue frequencies of train; it and the "
        "uniform guess are scored on the same tokens as the model. Intervals are 95 % by bootstrap over sequences "
        "(windows, for concatenated runs). A masked model is scored on the residues that its masks select; it sees "
        "some of them as they are (one in ten, as in BERT), and copying these already gains something.\n\n"
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
        text += f"; training has gone on to step {run.last_step} since: evaluate again"
    if Path(about["dataset"]) != run.dataset:
        text += f"; this is not the dataset that it was trained on (`{run.dataset}`)"
    return text + "."


def what_the_scores_say(run: RunFiles) -> list[str]:
    """Return sentences that follow from a run's scores: against the baseline, and ood against test."""
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
                f"{pair} is not worse than {test['perplexity']:.2f} on test: this model has not learned what is "
                "particular to the families of train."
            )
        else:
            sentences.append(f"{pair} is worse than {test['perplexity']:.2f} on test{_why_worse(test, ood, gains)}.")
    return sentences


def _why_worse(test: dict, ood: dict, gains: dict[str, float]) -> str:
    """Say how sure it is that ood is worse, and whether the baseline finds ood just as much harder."""
    if ood["perplexity_low"] is None or test["perplexity_high"] is None:
        return ", but from so few sequences that no interval can be given"
    if ood["perplexity_low"] <= test["perplexity_high"]:
        return ", but the intervals overlap: more ood sequences or more training would tell"
    if gains["test"] - gains["ood"] < 0.02:
        return (
            ", beyond both intervals, but no more so than for the baseline: the composition of ood differs, and this "
            "model has learned little else"
        )
    return ", beyond both intervals and by more than for the baseline: families that were never seen are harder"


def _figures(run: RunFiles, folder: Path) -> str:
    place = run.folder / "analysis"
    parts = []
    if (place / "attention.png").is_file():
        parts.append(
            f"![Attention maps]({os.path.relpath(place / 'attention.png', folder)})\n\n"
            "Each panel is one head's attention matrix, measured by one-hot V probing: row i says where residue i "
            "looks. A diagonal is a head that looks at neighbours, a vertical line one that looks at the same residues "
            "from everywhere.\n"
        )
    if (place / "similarity.png").is_file():
        parts.append(f"![Amino-acid similarity]({os.path.relpath(place / 'similarity.png', folder)})\n")
        parts.append(_similarity_sentence(_read_json(place / "similarity.json")))
    return f"## What attention learned: {run.name}\n\n" + "\n".join(parts) if parts else ""


def _similarity_sentence(numbers: dict) -> str:
    agreement = numbers["agreement"]
    if agreement["pearson"] is None:
        return "These heads attend too evenly for a correlation with BLOSUM to be computed.\n"
    p, floor = agreement["pearson_p"], 1 / (agreement["num_permutations"] + 1)
    verdict = "more alike than shuffled labels would be" if p < 0.05 else "not distinguishable from shuffled labels"
    pairs = ", ".join("({}, {})".format(*row["pair"]) for row in numbers["closest_pairs"][:6])
    return (
        "Two amino acids are similar when the same heads attend to both. Over "
        f"{numbers['num_sequences']:,} sequences and {numbers['num_heads_used']} heads, the correlation with "
        f"normalised {numbers['blosum']} over the {agreement['num_pairs']} pairs of different residues is "
        f"{agreement['pearson']:.2f} (Pearson; permutation p {'at most' if p <= floor else '='} {p:.2g}): {verdict}. "
        f"With so few heads as in a small model, unrelated residues often look alike too. Closest pairs: {pairs}.\n"
    )


def markdown_table(columns: Iterable[str], rows: Iterable[Sequence]) -> str:
    """Return a Markdown table; numbers that are not whole get two decimals."""

    def cell(value) -> str:
        if isinstance(value, float):
            return f"{value:,.0f}" if value.is_integer() else f"{value:,.2f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    columns = list(columns)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
