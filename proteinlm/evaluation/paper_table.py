"""Table 2 of "Rethinking Attention with Performers" over runs: for the terminal, as CSV, LaTeX and Markdown.

The paper's numbers are added only on request, in separate columns that name the paper and its data: its models have
another size and were trained on TrEMBL.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from proteinlm.config import Config
from proteinlm.evaluation.metrics import FEWEST, Score
from proteinlm.models.attention import FavorConfig, GeneralizedConfig, SoftmaxConfig
from proteinlm.output.files import whole_file
from proteinlm.output.saving import write_csv

OBJECTIVES = {"causal": "UNI", "masked": "BID"}
SPLIT_NAMES = {"train": "Train", "valid": "Valid", "test": "Test", "ood": "OOD"}
BASELINE = "Empirical baseline"
_TRANSFORMER, _RELU, _SOFTMAX = "Transformer", "Performer (generalized)", "Performer (softmax)"

# Choromanski et al. 2021, appendix C.3, Table 2: accuracy (%) and perplexity. The baseline holds for both objectives.
PAPER: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("UNI", "Test"): {BASELINE: (9.92, 17.80), _TRANSFORMER: (30.80, 9.37), _RELU: (31.58, 9.17)},
    ("UNI", "OOD"): {BASELINE: (9.07, 17.93), _TRANSFORMER: (19.70, 13.20), _RELU: (18.44, 13.63)},
    ("BID", "Test"): {
        BASELINE: (9.92, 17.80), _TRANSFORMER: (33.32, 9.22), _RELU: (36.09, 8.36), _SOFTMAX: (33.00, 9.24),
    },
    ("BID", "OOD"): {
        BASELINE: (9.07, 17.93), _TRANSFORMER: (25.07, 12.09), _RELU: (24.10, 12.26), _SOFTMAX: (23.48, 12.41),
    },
}  # fmt: skip


def _paper_name(config: Config) -> str:
    """Return the paper's name for the kind of model of a run; "" for a kind that its table does not have."""
    attention = config.model.attention
    if isinstance(attention, GeneralizedConfig):
        return _RELU if attention.function == "relu" else ""
    return {SoftmaxConfig: _TRANSFORMER, FavorConfig: _SOFTMAX}.get(type(attention), "")


_PAPER_NOTE = (
    "The paper's numbers: Choromanski et al. 2021, Table 2; 36 layers, trained and scored on TrEMBL of January 2019, "
    "first 1,024 residues. They were not measured here. They are beside our runs of the same objective, split and kind "
    "of attention."
)


@dataclass(frozen=True)
class Evaluated:
    """An evaluated run.

    Attributes:
        label: name of the run in tables.
        about: run, step, dataset, fingerprint and rows of the evaluation.
        config: config of the run.
        scores: scores on all splits.
        how_split: how the splits of the dataset were drawn, from `ProteinDataset.how_split`.
    """

    label: str
    about: Mapping[str, Any]
    config: Config
    scores: Sequence[Score]
    how_split: str


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        objective: UNI or BID.
        split: Test, OOD, ...
        model: name of the run or the baseline.
        score: our score on residues; None where only the paper has such a model.
        about: `about` of the run's evaluation, with its label; empty where there is no score.
        paper: the paper's model, accuracy (%) and perplexity; None where it has no such model, or without `paper`.
    """

    objective: str
    split: str
    model: str
    score: Score | None
    about: Mapping[str, Any]
    paper: tuple[str, float, float] | None = None


def table_lines(runs: Sequence[Evaluated], *, paper: bool = False) -> list[Line]:
    """Return the lines in the paper's order: objective, split, baselines, models.

    A baseline is scored on the tokens of a run. Runs that give the same baseline share one line; where masks or crops
    give several baselines, each line names a run. The paper's numbers are beside every run of the same objective,
    split and attention whose rows are single sequences. The paper's numbers without such a run have separate lines.
    """
    lines: list[Line] = []
    for run in runs:
        single = run.config.batches.form != "concat"
        for s in run.scores:
            if s.tokens != "residues" or s.model == "uniform guess":
                continue
            is_baseline = s.model == "empirical baseline"
            name = BASELINE if is_baseline else run.label
            objective, split = OBJECTIVES[s.objective], SPLIT_NAMES[s.split]
            kind = BASELINE if is_baseline else _paper_name(run.config)
            theirs = PAPER.get((objective, split), {}).get(kind) if paper and single else None
            beside = (kind, *theirs) if theirs else None
            is_known = any((o.score, o.about["fingerprint"]) == (s, run.about["fingerprint"]) for o in lines)
            if not (is_baseline and is_known):
                lines.append(Line(objective, split, name, s, {**run.about, "label": run.label}, beside))
    if paper:
        groups = {(line.objective, line.split) for line in lines}
        listed = {(line.objective, line.split, line.paper[0]) for line in lines if line.paper}
        for (objective, split), models in PAPER.items():
            for name, numbers in models.items():
                if (objective, split) in groups and (objective, split, name) not in listed:
                    lines.append(Line(objective, split, name, None, {}, (name, *numbers)))
    baselines = Counter((line.objective, line.split) for line in lines if line.score and line.model == BASELINE)
    lines = [
        replace(line, model=f"{BASELINE}, as {line.about['label']}")
        if line.score and line.model == BASELINE and baselines[line.objective, line.split] > 1
        else line
        for line in lines
    ]
    order = list(SPLIT_NAMES.values())

    def sort_key(line: Line) -> tuple:
        is_model = line.score.model != "empirical baseline" if line.score else line.model != BASELINE
        return line.objective != "UNI", order.index(line.split), is_model, line.score is None

    return sorted(lines, key=sort_key)


_HEADINGS = (
    "Objective", "Split", "Model", "Accuracy (%)", "95 % interval", "Perplexity", "95 % interval", "Tokens", "Rows",
)  # fmt: skip
_PAPER_HEADINGS = ("Paper, on TrEMBL: model", "accuracy (%)", "perplexity")


def _texts(line: Line, paper: bool) -> list[str]:
    s = line.score
    numbers = ["-"] * 6
    if s is not None:
        numbers = [
            f"{100 * s.accuracy:.2f}", _range(100 * s.accuracy_low, 100 * s.accuracy_high),
            f"{s.perplexity:.2f}", _range(s.perplexity_low, s.perplexity_high),
            f"{s.num_tokens:,}", f"{s.num_sequences:,}",
        ]  # fmt: skip
    name = line.model if s is not None else "(none of ours)"
    theirs = [line.paper[0], f"{line.paper[1]:.2f}", f"{line.paper[2]:.2f}"] if line.paper else ["-"] * 3
    return [line.objective, line.split, name, *numbers, *(theirs if paper else [])]


def _range(low: float, high: float) -> str:
    return "-" if math.isnan(low) else f"{low:.2f} to {high:.2f}"


def notes(runs: Sequence[Evaluated], *, paper: bool) -> list[str]:
    """Return the notes below the table: definitions of its numbers, a line for each run, the origin of the paper's."""
    lines = [
        "Counted are residues (UNI: all, BID: those that the masks select), not <eos>. A row is a sequence, or a "
        f"window if the run reads windows. Intervals: 95 %, bootstrap over rows, none for fewer than {FEWEST} rows. "
        "UNI is causal, BID is masked language modelling. The empirical baseline predicts the residue frequencies of "
        "train; it is scored on the tokens of the runs."
    ]
    for run in runs:
        a = run.about
        dataset = f"dataset {a['dataset']} ({a['fingerprint'][:12]}; {run.how_split})"
        lines.append(f"{run.label}: step {a['step']}, {a['rows']}, {dataset}.")
    return [*lines, _PAPER_NOTE] if paper else lines


def to_terminal(lines: Sequence[Line], runs: Sequence[Evaluated], *, paper: bool) -> Table:
    """Return the table for `console.print_table`."""
    table = Table(title="Accuracy and perplexity", title_justify="left", caption_justify="left")
    table.caption = "\n".join(escape(note) for note in notes(runs, paper=paper))
    headings = (*_HEADINGS, *(_PAPER_HEADINGS if paper else ()))
    for column, heading in enumerate(headings):
        justify = "left" if column < 3 or column == len(_HEADINGS) else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    for row, line in enumerate(lines):
        is_last = row + 1 == len(lines) or _group(lines[row + 1]) != _group(line)
        table.add_row(*map(escape, _texts(line, paper)), end_section=is_last)
    return table


def _group(line: Line) -> tuple[str, str]:
    return line.objective, line.split


def to_markdown(lines: Sequence[Line], runs: Sequence[Evaluated], *, paper: bool) -> str:
    """Return the table and its notes as Markdown."""
    headings = (*_HEADINGS, *(_PAPER_HEADINGS if paper else ()))
    rules = ["---" if column < 3 or column == len(_HEADINGS) else "---:" for column in range(len(headings))]
    rows = [headings, rules, *([_in_markdown(text) for text in _texts(line, paper)] for line in lines)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([table, *map(_in_markdown, notes(runs, paper=paper))]) + "\n"


_MARKDOWN = {c: f"\\{c}" for c in "\\`*_[]|<>"}
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", '"': r"\char34{}", "|": r"\textbar{}",
    **{c: f"\\{c}" for c in "&%$#_"},
}  # fmt: skip


def _in_markdown(text: str) -> str:
    return text.translate(str.maketrans(_MARKDOWN))


def in_latex(text: str) -> str:
    """Return the text with every special character of LaTeX escaped."""
    return text.translate(str.maketrans(_LATEX))


def _latex_heading(text: str) -> str:
    """Return a heading for LaTeX, in two lines if it has several words, so that columns are not wider than numbers."""
    first, *rest = text.rsplit(" ", 1) if text.endswith(")") or text.endswith("interval") else (text,)
    return rf"\shortstack{{{in_latex(first)}\\{in_latex(*rest)}}}" if rest else in_latex(text)


def to_latex(lines: Sequence[Line], runs: Sequence[Evaluated], *, paper: bool) -> str:
    """Return a LaTeX table, scaled down to the width of the page; it needs the packages booktabs and graphicx."""
    headings = _HEADINGS + (_PAPER_HEADINGS if paper else ())
    columns = "lllrrrrrr" + ("lrr" if paper else "")
    texts = [[in_latex(text).replace(" to ", "--") for text in _texts(line, paper)] for line in lines]
    rows = []
    for number, row in enumerate(texts):
        rows.append(" & ".join(row) + r" \\")
        if number + 1 < len(texts) and _group(lines[number + 1]) != _group(lines[number]):
            rows.append(r"\midrule")
    caption = " ".join(in_latex(note) for note in notes(runs, paper=paper))
    heading = " & ".join(map(_latex_heading, headings)) + r" \\"
    return "\n".join(
        [
            r"% needs \usepackage{booktabs,graphicx}", r"\begin{table}", r"\centering", r"\footnotesize",
            r"\setlength{\tabcolsep}{3pt}", r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{"
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule", heading, r"\midrule", *rows, r"\bottomrule",
            r"\end{tabular}}", rf"\caption{{Accuracy and perplexity. {caption}}}", r"\end{table}", "",
        ]
    )  # fmt: skip


def to_frame(lines: Sequence[Line], *, paper: bool) -> pd.DataFrame:
    """Return the table as numbers: ours as fractions and perplexities, the paper's in columns named paper_*."""
    names = (
        "accuracy", "accuracy_low", "accuracy_high", "perplexity", "perplexity_low", "perplexity_high", "num_tokens",
        "num_sequences", "tokens",
    )  # fmt: skip
    rows = []
    for line in lines:
        s = line.score
        row: dict[str, Any] = {"objective": line.objective, "split": line.split}
        row["model"] = line.model if s is not None else None
        row |= {name: getattr(s, name, None) for name in names}
        row |= {name: line.about.get(name) for name in ("run", "step", "dataset", "fingerprint", "rows")}
        if paper:
            model, accuracy, perplexity = line.paper or (None, None, None)
            row |= {"paper_model": model, "paper_dataset": "TrEMBL, January 2019" if line.paper else None}
            row |= {"paper_accuracy_percent": accuracy, "paper_perplexity": perplexity}
        rows.append(row)
    frame = pd.DataFrame(rows)
    counts = [name for name in ("num_tokens", "num_sequences", "step") if name in frame]
    return frame.astype(dict.fromkeys(counts, "Int64"))


def write_table(runs: Sequence[Evaluated], folder: Path, *, paper: bool) -> Table:
    """Write table.csv, table.tex and table.md into a folder, and return the table for the terminal."""
    lines = table_lines(runs, paper=paper)
    write_csv(folder / "table.csv", to_frame(lines, paper=paper))
    with whole_file(folder / "table.tex") as handle:
        handle.write(to_latex(lines, runs, paper=paper))
    with whole_file(folder / "table.md") as handle:
        handle.write(to_markdown(lines, runs, paper=paper))
    return to_terminal(lines, runs, paper=paper)
