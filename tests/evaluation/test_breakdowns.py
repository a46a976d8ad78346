import math
from collections import defaultdict

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.evaluation.breakdowns import cells_frame, sequence_cells, sequence_groups, token_cells, token_labels
from proteinlm.evaluation.metrics import Sums, bootstrap

ABOUT = {"split": "test", "objective": "causal", "model": "m", "tokens": "residues"}


def some_sums(*shape, seed=0):
    generator = np.random.default_rng(seed)
    count = generator.integers(0, 5, shape).astype(float)
    correct = np.minimum(generator.integers(0, 5, shape), count).astype(float)
    # On the grid of the device's sums, so that any order gives the same bits.
    return Sums(np.round(count * generator.uniform(1, 3, shape) * 2**20) / 2**20, correct, count)


def facts(n=40, seed=0):
    generator = np.random.default_rng(seed)
    families = [sorted(generator.choice(["PF1", "PF2", "PF3"], k, replace=False)) for k in generator.integers(0, 3, n)]
    identity = [None if x < 0.2 else x for x in np.round(generator.uniform(0, 1, n), 3).tolist()]
    return pa.table(
        {
            "families": pa.array([list(map(str, f)) for f in families], pa.list_(pa.string())),
            "length": pa.array(generator.integers(1, 500, n), pa.int32()),
            "identity": pa.array(identity, pa.float32()),
        }
    )


def test_cells_by_sequence_are_those_of_a_plain_loop():
    table, sums = facts(), some_sums(40)
    rows = table.to_pylist()
    keys = {
        "family": lambda row: "+".join(sorted(row["families"])) or "none",
        "length": lambda row: row["length"],
        "identity": lambda row: row["identity"],
    }
    for by, key in keys.items():
        cells = sequence_cells(by, sums, *sequence_groups(by, table), ABOUT)
        expected = defaultdict(list)
        for place, row in enumerate(rows):
            value = key(row)
            inside = [
                c.cell for c in cells
                if c.cell == value
                or (value is None and c.cell == "no alignment")
                or (by == "length" and c.low <= value <= c.high)
                or (by == "identity" and value is not None and c.low <= round(value, 3) < c.high)
            ]  # fmt: skip
            assert len(inside) == 1 or sums.count[place] == 0
            for name in inside:
                expected[name].append(place)
        for cell in cells:
            places = expected[cell.cell]
            part = Sums(sums.nll[places], sums.correct[places], sums.count[places])
            assert (cell.nll, cell.correct, cell.score.num_tokens) == (
                part.nll.sum(), part.correct.sum(), part.count.sum(),
            )  # fmt: skip
            assert cell.score.perplexity == pytest.approx(math.exp(part.nll.sum() / part.count.sum()))
            assert cell.score.accuracy == part.correct.sum() / part.count.sum()
            if (part.count > 0).sum() > 1:
                assert (cell.score.accuracy_low, cell.score.accuracy_high) == bootstrap(part).accuracy
            else:
                assert math.isnan(cell.score.accuracy_low)
        total = sums.total()
        assert sum(c.nll for c in cells) == total.nll
        assert sum(c.correct for c in cells) == total.correct
        assert sum(c.score.num_tokens for c in cells) == total.count


def test_identities_at_the_edges_of_bins_and_none():
    table = pa.table({"identity": pa.array([0.3, 0.299, 0.05, 0.0, 1.0, None], pa.float32())})
    groups, labels = sequence_groups("identity", table)
    assert [labels[g][0] for g in groups] == [
        "0.30-0.35", "0.25-0.30", "0.05-0.10", "0.00-0.05", "0.95-1.00", "no alignment",
    ]  # fmt: skip
    with pytest.raises(InputError, match="--split-identity"):
        sequence_groups("identity", pa.table({"length": [3]}))
    with pytest.raises(ValueError, match="no breakdown by 'colour'"):
        sequence_groups("colour", table)


def test_cells_by_token_are_columns_and_small_ones_are_shown():
    sums = some_sums(30, alphabet.NUM_RESIDUES)
    for field in (sums.nll, sums.correct, sums.count):
        field[:, 20:] = 0
    # One sequence has five tokens of U: a cell without an interval, not a cell left out.
    sums.count[3, 24], sums.nll[3, 24] = 5, 16
    cells = token_cells("residue", sums, token_labels("residue", 0), ABOUT)
    assert [c.cell for c in cells] == [*alphabet.STANDARD_RESIDUES, "U"]
    for cell in cells:
        column = alphabet.RESIDUES.index(cell.cell)
        assert cell.nll == sums.nll[:, column].sum()
        assert cell.score.num_tokens == sums.count[:, column].sum()
        assert cell.score.num_sequences == (sums.count[:, column] > 0).sum()
    assert math.isnan(cells[-1].score.perplexity_low)
    assert cells[0].score.accuracy_low < cells[0].score.accuracy < cells[0].score.accuracy_high
    assert [label for label, *_ in token_labels("position", 70)] == ["1-8", "9-16", "17-32", "33-64", "65-96"]


def test_the_frame_says_of_what_each_number_is(tmp_path):
    cells = token_cells("residue", some_sums(5, 25), token_labels("residue", 0), ABOUT)
    frame = cells_frame(cells, {"run": "r", "step": 3})
    assert list(frame.columns[:5]) == ["run", "step", "by", "cell", "low"]
    assert {"split", "objective", "tokens", "num_tokens", "accuracy_low"} <= set(frame.columns)
    frame.to_csv(tmp_path / "x.csv", index=False)
    # Every digit comes back, so that sums can be checked from the file too.
    assert list(map(float, pd.read_csv(tmp_path / "x.csv", dtype=str).nll)) == [c.nll for c in cells]
