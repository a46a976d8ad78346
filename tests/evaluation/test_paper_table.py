"""The table over runs: what stands where, whose the numbers are, and what each format makes of odd names."""

import dataclasses
import math
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    FavorConfig,
    GeneralizedConfig,
    ModelConfig,
    SoftmaxConfig,
)
from proteinlm.evaluation.metrics import Sums, score
from proteinlm.evaluation.paper_table import (
    BASELINE,
    PAPER,
    Evaluated,
    in_latex,
    table_lines,
    to_frame,
    to_latex,
    to_markdown,
    write_table,
)
from proteinlm.output.console import print_table


def evaluated(label, kind="causal", attention=None, form="single", seed=0, splits=("test", "ood")):
    config = Config(
        model=ModelConfig(vocab_size=VOCAB_SIZE, attention=attention or GeneralizedConfig()),
        batches=BatchesConfig(form=form),
    )
    about = {"run": label, "step": 7, "dataset": "data/sprot", "fingerprint": "f" * 32, "rows": "first 1024 tokens"}
    scores = []
    for split in splits:
        for model in ("uniform guess", "empirical baseline", label):
            for tokens in ("residues", "residues+eos")[: 2 if model == label and kind == "causal" else 1]:
                # A baseline depends on what is counted, not on the run.
                generator = np.random.default_rng(seed if model == label else 99)
                count = generator.integers(1, 50, 20).astype(float)
                sums = Sums(count * generator.uniform(1, 3, 20), np.floor(count / 3), count)
                scores.append(score(sums, split=split, objective=kind, model=model, tokens=tokens, num_resamples=20))
    return Evaluated(label, about, config, scores, "test drawn at random")


def test_the_papers_numbers_are_the_papers(shared_data):
    """Against the text of Table 2, number by number in its order."""
    text = (shared_data.parent / "papers" / "performer.txt").read_text()
    row = next(line for line in text.splitlines() if line.startswith("UNI Test Empirical Baseline"))
    printed = [float(x) for x in re.findall(r"\d+\.\d\d", row)]
    ours = []
    for (objective, _), models in PAPER.items():
        for name, numbers in models.items():
            ours += numbers if objective == "UNI" or name != BASELINE else ()
    assert ours == printed
    # "Applicable to both".
    assert PAPER["BID", "Test"][BASELINE] == PAPER["UNI", "Test"][BASELINE]
    assert PAPER["BID", "OOD"][BASELINE] == PAPER["UNI", "OOD"][BASELINE]


def test_two_runs_make_lines_in_the_papers_order():
    runs = [evaluated("b", "masked", SoftmaxConfig()), evaluated("a"), evaluated("a2", seed=2)]
    lines = table_lines(runs)
    assert [(line.objective, line.split, line.model) for line in lines] == [
        ("UNI", "Test", BASELINE), ("UNI", "Test", "a"), ("UNI", "Test", "a2"),
        ("UNI", "OOD", BASELINE), ("UNI", "OOD", "a"), ("UNI", "OOD", "a2"),
        ("BID", "Test", BASELINE), ("BID", "Test", "b"),
        ("BID", "OOD", BASELINE), ("BID", "OOD", "b"),
    ]  # fmt: skip
    assert all(line.score.tokens == "residues" and line.paper is None for line in lines)
    by_run = {s.split: s for s in runs[1].scores if s.model == "a" and s.tokens == "residues"}
    assert lines[1].score is by_run["test"]
    assert "paper" not in " ".join(to_frame(lines, paper=False).columns)


def test_baselines_of_other_tokens_are_lines_of_their_own():
    other = evaluated("b", "causal")
    crop = [dataclasses.replace(s, num_tokens=s.num_tokens - 1) for s in other.scores]
    lines = table_lines([evaluated("a"), dataclasses.replace(other, scores=crop)], paper=True)
    lines = [line for line in lines if line.score]
    assert [line.model for line in lines if line.split == "Test"] == [
        f"{BASELINE}, as a", f"{BASELINE}, as b", "a", "b",
    ]  # fmt: skip
    # Both stand above the models, with the paper's beside both.
    assert [line.paper[0] for line in lines if line.split == "OOD"][:2] == [BASELINE] * 2


def test_the_papers_numbers_stand_beside_their_own_kind_and_alone_where_there_is_none():
    runs = [
        evaluated("relu", "masked"), evaluated("exact", "masked", SoftmaxConfig(), seed=1),
        evaluated("gelu", "masked", GeneralizedConfig(function="gelu"), seed=2),
        evaluated("windows", "causal", FavorConfig(), form="concat", splits=("test",)),
    ]  # fmt: skip
    lines = table_lines(runs, paper=True)
    beside = {(line.objective, line.split, line.model): line.paper for line in lines if line.score}
    assert beside["BID", "Test", "relu"] == ("Performer (generalized)", 36.09, 8.36)
    assert beside["BID", "OOD", "exact"] == ("Transformer", 25.07, 12.09)
    assert beside["BID", "Test", BASELINE] == (BASELINE, 9.92, 17.80)
    assert beside["BID", "Test", "gelu"] is None
    # Windows are another task than the table's.
    assert beside["UNI", "Test", "windows"] is None
    alone = [(line.objective, line.split, line.paper[0]) for line in lines if line.score is None]
    assert alone == [
        ("UNI", "Test", BASELINE), ("UNI", "Test", "Transformer"), ("UNI", "Test", "Performer (generalized)"),
        ("BID", "Test", "Performer (softmax)"), ("BID", "OOD", "Performer (softmax)"),
    ]  # fmt: skip
    frame = to_frame(lines, paper=True)
    theirs = frame[frame.model.isna()]
    assert theirs.accuracy.isna().all()
    assert (theirs.paper_dataset == "TrEMBL, January 2019").all()
    assert frame[frame.paper_model.isna()].paper_accuracy_percent.isna().all()


ODD = r"a_b 50% & c#1 $x^2 ~{y}\z | [bold]*<t>"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX: apt-get install texlive-latex-recommended")
@pytest.mark.parametrize("paper", [False, True])
def test_latex_compiles_and_fits_the_page(tmp_path, paper):
    run = evaluated(f'{ODD} "quoted"')
    write_table([run, evaluated("relu"), evaluated("exact", attention=SoftmaxConfig())], tmp_path, paper=paper)
    document = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}\input{table.tex}\end{document}"
    (tmp_path / "t.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:]
    assert "Overfull" not in found.stdout


def test_odd_names_are_themselves_in_every_format(tmp_path, capsys):
    run = evaluated(ODD)
    print_table(write_table([run], tmp_path, paper=True))
    # Folded in its column on the terminal, markup and all.
    assert "[bold]" in capsys.readouterr().out.replace("\n", "")
    latex = (tmp_path / "table.tex").read_text()
    assert in_latex(ODD) == (
        r"a\_b 50\% \& c\#1 \$x\textasciicircum{}2 \textasciitilde{}\{y\}\textbackslash{}z \textbar{} "
        r"[bold]*\textless{}t\textgreater{}"
    )
    assert in_latex(ODD) in latex
    body = latex.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    columns = len(re.search(r"begin\{tabular\}\{(\w+)\}", latex).group(1))
    for line in body.strip().splitlines():
        if line != r"\midrule":
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
            assert line.endswith(r"\\")
    # No character that LaTeX would read as a command is bare, and braces are even.
    assert not re.search(r"(?<!\\)[%#$_^~]", latex.split("\n", 1)[1])
    bare = re.sub(r"\\[{}]", "", latex)
    assert bare.count("{") == bare.count("}")
    markdown = (tmp_path / "table.md").read_text().split("\n\n")[0].splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in markdown} == {13}
    assert r"\[bold\]\*\<t\>" in markdown[3]
    assert pd.read_csv(tmp_path / "table.csv").model[1] == ODD


def test_numbers_and_notes_say_what_they_are():
    runs = [evaluated("a")]
    lines = table_lines(runs, paper=True)
    s = lines[1].score
    for text in (to_markdown(lines, runs, paper=True), to_latex(lines, runs, paper=True)):
        numbers = f"{100 * s.accuracy:.2f}", f"{s.perplexity_low:.2f}", f"{s.num_tokens:,}", "31.58"
        origin = (
            "TrEMBL",
            "Counted are residues",
            "step 7",
            "first 1024 tokens",
            "ffffffffffff; test drawn at random",
            "not measured here",
        )
        for words in (*numbers, *origin):
            assert words in text
    assert "31.58" not in to_markdown(table_lines(runs), runs, paper=False)
    assert "TrEMBL" not in to_markdown(table_lines(runs), runs, paper=False)


@pytest.mark.parametrize("paper", [False, True])
def test_nothing_scored_is_an_empty_table(tmp_path, paper):
    write_table([evaluated("a", splits=())], tmp_path, paper=paper)
    assert (tmp_path / "table.md").read_text().count("\n|") == 1


def test_one_sequence_has_no_interval_in_print():
    run = evaluated("a")
    scores = [dataclasses.replace(s, accuracy_low=math.nan, perplexity_low=math.nan) for s in run.scores]
    lines = table_lines([dataclasses.replace(run, scores=scores)])
    assert "nan" not in to_markdown(lines, [run], paper=False)
