"""Table 2 of "Rethinking Attention with Performers" over runs: for the terminal, as CSV, LaTeX and Markdown.

The paper's own numbers stand beside ours only when asked for, in columns of their own that name the paper and its
data: models of another size, trained on TrEMBL, are not ours.
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
    """Return what the paper calls a run's kind of model, "" for one that its table has not."""
    attention = config.model.attention
    if isinstance(attention, GeneralizedConfig):
        return _RELU if attention.function == "relu" else ""
    return {SoftmaxConfig: _TRANSFORMER, FavorConfig: _SOFTMAX}.get(type(attention), "")


_PAPER_NOTE = (
    "The paper's: Choromanski et al. 2021, Table 2: 36 layers, trained and scored on TrEMBL of January 2019, first "
    "1,024 residues; not measured here, and beside ours only since objective, split and kind of attention are the same."
)


@dataclass(frozen=True)
class Evaluated:
    """A run's label, `about` of its evaluation (run, step, dataset, fingerprint, rows), its config and its scores.

    `how_split` says how the dataset's splits were drawn, as `ProteinDataset.how_split` does.
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
        model: the run's name, or the baseline's.
        score: ours, on residues; None where only the paper has such a model.
        about: of the evaluation; empty where there is none.
        paper: model, accuracy (%) and perplexity of the paper; None where it has no such model or was not asked for.
    """

    objective: str
    split: str
    model: str
    score: Score | None
    about: Mapping[str, Any]
    paper: tuple[str, float, float] | None = None


def table_lines(runs: Sequence[Evaluated], *, paper: bool = False) -> list[Line]:
    """Return the lines in the paper's order: objective, split, baselines, models.

    A baseline appears once for all runs that it is the same for. Its tokens are those of the run; where masks or crops
    make several of it, each names a run that it belongs to. The paper's numbers stand beside every run of their
    objective, split and attention whose rows are single sequences; those without a run of ours stand alone.
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
            known = any((o.score, o.about["fingerprint"]) == (s, run.about["fingerprint"]) for o in lines)
            if not (is_baseline and known):
                lines.append(Line(objective, split, name, s, {**run.about, "label": run.label}, beside))
    if paper:
        groups = {(line.objective, line.split) for line in lines}
        there = {(line.objective, line.split, line.paper[0]) for line in lines if line.paper}
        for (objective, split), models in PAPER.items():
            for name, numbers in models.items():
                if (objective, split) in groups and (objective, split, name) not in there:
                    lines.append(Line(objective, split, name, None, {}, (name, *numbers)))
    baselines = Counter((line.objective, line.split) for line in lines if line.score and line.model == BASELINE)
    lines = [
        replace(line, model=f"{BASELINE}, as {line.about['label']}")
        if line.score and line.model == BASELINE and baselines[line.objective, line.split] > 1
        else line
        for line in lines
    ]
    order = list(SPLIT_NAMES.values())

    def place(line: Line) -> tuple:
        is_model = line.score.model != "empirical baseline" if line.score else line.model != BASELINE
        return line.objective != "UNI", order.index(line.split), is_model, line.score is None

    return sorted(lines, key=place)


_HEADINGS = (
    "Objective", "Split", "Model", "Accuracy (%)", "95 % interval", "Perplexity", "95 % interval", "Tokens", "Rows",
)  # fmt: skip
_PAPER_HEADINGS = ("Paper, on TrEMBL: model", "accuracy (%)", "perplexity")


def _texts(line: Line, paper: bool) -> list[str]:
    s = line.score
    own = ["-"] * 6
    if s is not None:
        own = [
            f"{100 * s.accuracy:.2f}", _range(100 * s.accuracy_low, 100 * s.accuracy_high),
            f"{s.perplexity:.2f}", _range(s.perplexity_low, s.perplexity_high),
            f"{s.num_tokens:,}", f"{s.num_sequences:,}",
        ]  # fmt: skip
    name = line.model if s is not None else "(none of ours)"
    theirs = [line.paper[0], f"{line.paper[1]:.2f}", f"{line.paper[2]:.2f}"] if line.paper else ["-"] * 3
    return [line.objective, line.split, name, *own, *(theirs if paper else [])]


def _range(low: float, high: float) -> str:
    return "-" if math.isnan(low) else f"{low:.2f} to {high:.2f}"


def notes(runs: Sequence[Evaluated], *, paper: bool) -> list[str]:
    """Return what must be known to read the table: what is counted, of which runs, and whose the numbers are."""
    lines = [
        "Counted are residues (UNI: all, BID: those that the masks select), not <eos>; a row is a sequence, of a run "
        f"on windows a window. Intervals: 95 %, bootstrap over rows, none for fewer than {FEWEST}. UNI is causal, BID "
        "masked language modelling. The empirical baseline predicts residue frequencies of train, scored on the tokens "
        "of the runs."
    ]
    for run in runs:
        a = run.about
        of = f"dataset {a['dataset']} ({a['fingerprint'][:12]}; {run.how_split})"
        lines.append(f"{run.label}: step {a['step']}, {a['rows']}, {of}.")
    return [*lines, _PAPER_NOTE] if paper else lines


def to_terminal(lines: Sequence[Line], runs: Sequence[Evaluated], *, paper: bool) -> Table:
    """Return the table for `logs.print_table`."""
    table = Table(title="Accuracy and perplexity", title_justify="left", caption_justify="left")
    table.caption = "\n".join(escape(note) for note in notes(runs, paper=paper))
    headings = (*_HEADINGS, *(_PAPER_HEADINGS if paper else ()))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < 3 or place == len(_HEADINGS) else "right", overflow="fold")
    for place, line in enumerate(lines):
        last = place + 1 == len(lines) or _group(lines[place + 1]) != _group(line)
        table.add_row(*map(escape, _texts(line, paper)), end_section=last)
    return table


def _group(line: Line) -> tuple[str, str]:
    return line.objective, line.split


def to_markdown(lines: Sequence[Line], runs: Sequence[Evaluated], *, paper: bool) -> str:
    """Return the table and its notes as Markdown."""
    headings = (*_HEADINGS, *(_PAPER_HEADINGS if paper else ()))
    rules = ["---" if place < 3 or place == len(_HEADINGS) else "---:" for place in range(len(headings))]
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
    """Return a text in which every character that LaTeX reads as a command stands for itself."""
    return text.translate(str.maketrans(_LATEX))


def _latex_heading(text: str) -> str:
    """Break a heading of several words into two lines, so that columns are as wide as their numbers."""
    first, *rest = text.rsplit(" ", 1) if text.endswith(")") or text.endswith("interval") else (text,)
    return rf"\shortstack{{{in_latex(first)}\\{in_latex(*rest)}}}" if rest else in_latex(text)


def to_latex(lines: Sequence[Line], runs: Sequence[Evaluated], *, paper: bool) -> str:
    """Return a LaTeX table, made smaller where the page is narrower; it needs booktabs and graphicx."""
    headings = _HEADINGS + (_PAPER_HEADINGS if paper else ())
    columns = "lllrrrrrr" + ("lrr" if paper else "")
    shown = [[in_latex(text).replace(" to ", "--") for text in _texts(line, paper)] for line in lines]
    rows = []
    for place, row in enumerate(shown):
        rows.append(" & ".join(row) + r" \\")
        if place + 1 < len(shown) and _group(lines[place + 1]) != _group(lines[place]):
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
    """Return the table as numbers: ours as fractions and perplexities, the paper's in columns that say so."""
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
    with whole_file(folder / "table.csv") as handle:
        to_frame(lines, paper=paper).to_csv(handle, index=False)
    with whole_file(folder / "table.tex") as handle:
        handle.write(to_latex(lines, runs, paper=paper))
    with whole_file(folder / "table.md") as handle:
        handle.write(to_markdown(lines, runs, paper=paper))
    return to_terminal(lines, runs, paper=paper)
