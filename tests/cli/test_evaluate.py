import subprocess
import sys

import pytest
import tyro

from proteinlm.cli.evaluate import Evaluate
from proteinlm.cli.main import main


@pytest.mark.parametrize(
    ("words", "step"),
    [([], "last"), (["--step", "best"], "best"), (["--step", "200"], 200)],
    ids=["newest", "best", "200"],
)
def test_a_step_is_a_number_or_best(words, step):
    assert tyro.cli(Evaluate, args=["runs/a", *words]).step == step


def test_breakdowns_are_listed():
    given = tyro.cli(Evaluate, args=["runs/a", "runs/b", "--by", "residue", "length", "--table", "--paper"])
    assert (len(given.runs), given.by, given.table, given.paper, given.calibration) == (
        2, ("residue", "length"), True, True, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--step", "newest"], "best"), (["--by", "colour"], "identity")],
    ids=["step", "by"],
)
def test_other_words_are_answered_with_those_there_are(words, said, capsys):
    with pytest.raises(SystemExit) as left:
        main(["evaluate", "runs/a", *words])
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_the_help_needs_nothing_heavy():
    code = "import sys, proteinlm.cli.evaluate; print([m for m in ('jax', 'numpy', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
