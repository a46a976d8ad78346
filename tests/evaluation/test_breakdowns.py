"""How tokens and sequences fall into groups, and a breakdown that another package registers."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tyro

from proteinlm import alphabet
from proteinlm.cli.evaluate import Evaluate
from proteinlm.cli.main import main
from proteinlm.errors import InputError
from proteinlm.evaluation.breakdowns import (
    BREAKDOWNS,
    Group,
    SequenceBreakdown,
    TokenBreakdown,
    find_breakdowns,
    range_ends,
    register_breakdown,
)
from proteinlm.evaluation.sums import SUM_TOLERANCE


def test_identities_at_the_edges_of_bins_and_none():
    table = pa.table({"identity": pa.array([0.3, 0.299, 0.05, 0.0, 1.0, None], pa.float32())})
    assigned, groups = BREAKDOWNS["identity"].assign(table)
    assert [groups[index].label for index in assigned] == [
        "0.30-0.35", "0.25-0.30", "0.05-0.10", "0.00-0.05", "0.95-1.00", "no alignment",
    ]  # fmt: skip
    with pytest.raises(InputError, match="--split-identity"):
        BREAKDOWNS["identity"].assign(pa.table({"length": [3]}))
    with pytest.raises(InputError, match="no breakdown by 'colour'; there are residue, position, family, length"):
        find_breakdowns(["residue", "colour"])


def test_ranges_of_positions():
    assert [group.label for group in BREAKDOWNS["position"].groups(70)] == ["1-8", "9-16", "17-32", "33-64", "65-96"]


@pytest.mark.parametrize("limit", [1, 8, 9, 64, 65, 96, 1024, 8191, 74_488])
def test_ranges_hold_each_number_once(limit):
    ends = range_ends(limit)
    assert (np.diff(ends) > 0).all()
    assert ends[-1] >= limit
    assert len(ends) == 1 or ends[-2] < limit


class ByCharge(TokenBreakdown):
    """By the charge of the residue to predict."""

    name = "charge"
    description = "the charge of the residue to predict"
    axis_label = "Charge of the residue"
    positive, negative = "KR", "DE"

    def groups(self, length):
        return [Group("negative"), Group("neutral"), Group("positive")]

    def assign(self, tokens, length):
        charge = [(r in self.positive) - (r in self.negative) for r in alphabet.RESIDUES]
        return 1 + jnp.asarray([0] * alphabet.FIRST_RESIDUE + charge, jnp.int32)[tokens.targets]


class ByCopies(SequenceBreakdown):
    """By a column of the manifest that no other breakdown reads."""

    name = "copies"
    description = "whether the sequence has several entries in the sources"
    axis_label = "Number of copies"
    columns = ("copies",)

    def assign(self, facts):
        return (facts["copies"].to_numpy() > 1).astype(int), [Group("one"), Group("more")]


@pytest.fixture
def registry():
    """The registry, restored after the test."""
    before = dict(BREAKDOWNS)
    yield BREAKDOWNS
    BREAKDOWNS.clear()
    BREAKDOWNS.update(before)


def test_a_registered_breakdown_is_a_choice_with_a_table_and_a_figure(registry, tiny_runs):
    register_breakdown(ByCharge())
    register_breakdown(ByCopies())
    run = tiny_runs["causal"]
    assert tyro.cli(Evaluate, args=["run", "--by", "charge"]).by == ("charge",)
    assert main(["evaluate", str(run), "--by", "residue", "charge", "copies"]) == 0
    by_residue = pd.read_csv(run / "evaluation_by_residue.csv")
    by_residue["cell"] = by_residue.cell.map(
        lambda r: "positive" if r in "KR" else "negative" if r in "DE" else "neutral"
    )
    expected = by_residue.groupby(["split", "cell"])[["num_tokens", "nll"]].sum()
    by_charge = pd.read_csv(run / "evaluation_by_charge.csv").set_index(["split", "cell"])
    assert set(by_charge.by) == {"charge"}
    assert by_charge.num_tokens.to_dict() == expected.num_tokens.to_dict()
    assert by_charge.nll.to_dict() == pytest.approx(expected.nll.to_dict(), rel=SUM_TOLERANCE)
    by_copies = pd.read_csv(run / "evaluation_by_copies.csv")
    assert by_copies.num_sequences.sum() == len(pd.read_parquet(run / "sequences.parquet"))
    for name in ("charge", "copies"):
        assert (run / f"evaluation_by_{name}.png").stat().st_size > 10_000
        with np.load(run / f"evaluation_by_{name}.npz") as arrays:
            assert len(arrays["cell"]) > 1


def test_a_name_that_is_taken_or_no_file_name_is_refused(registry):
    class Other(ByCharge):
        name = "residue"

    for name, message in (("residue", "already"), ("confidence", "already"), ("a/b", "letters, digits")):
        Other.name = name
        with pytest.raises(ValueError, match=message):
            register_breakdown(Other())


def test_residues_left_out_of_all_groups_are_noticed(registry, tiny_runs):
    class Partial(ByCharge):
        def groups(self, length):
            return [Group("negative"), Group("neutral")]

    register_breakdown(Partial())
    with pytest.raises(ValueError, match="by charge leaves residues out"):
        main(["evaluate", str(tiny_runs["causal"]), "--by", "charge"])


def test_the_page_lists_every_breakdown():
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page.split("| `--by` |")[1], re.MULTILINE)[: len(BREAKDOWNS)]
    assert rows == [(name, breakdown.description) for name, breakdown in BREAKDOWNS.items()]
