import math
from collections import defaultdict

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from proteinlm import alphabet
from proteinlm.evaluation.breakdowns import BREAKDOWNS
from proteinlm.evaluation.metrics import Sums, bootstrap
from proteinlm.evaluation.tables import groups_frame, score_sequence_groups, score_token_groups

RESIDUES = BREAKDOWNS["residue"].groups(0)
ABOUT = {"split": "test", "objective": "causal", "model": "m", "tokens": "residues"}


def some_sums(*shape, seed=0):
    generator = np.random.default_rng(seed)
    count = generator.integers(0, 5, shape).astype(float)
    correct = np.minimum(generator.integers(0, 5, shape), count).astype(float)
    # Multiples of 2^-20, so that sums in any order are the same bits.
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


def test_groups_of_sequences_are_those_of_a_plain_loop():
    table, sums = facts(), some_sums(40)
    rows = table.to_pylist()
    keys = {
        "family": lambda row: "+".join(sorted(row["families"])) or "none",
        "length": lambda row: row["length"],
        "identity": lambda row: row["identity"],
    }
    for by, key in keys.items():
        scores = score_sequence_groups(by, sums, *BREAKDOWNS[by].assign(table), ABOUT)
        expected = defaultdict(list)
        for place, row in enumerate(rows):
            value = key(row)
            inside = [
                c.group.label for c in scores
                if c.group.label == value
                or (value is None and c.group.label == "no alignment")
                or (by == "length" and c.group.low <= value <= c.group.high)
                or (by == "identity" and value is not None and c.group.low <= round(value, 3) < c.group.high)
            ]  # fmt: skip
            assert len(inside) == 1 or sums.count[place] == 0
            for name in inside:
                expected[name].append(place)
        for one in scores:
            places = expected[one.group.label]
            part = Sums(sums.nll[places], sums.correct[places], sums.count[places])
            assert (one.nll, one.correct, one.score.num_tokens) == (
                part.nll.sum(), part.correct.sum(), part.count.sum(),
            )  # fmt: skip
            assert one.score.perplexity == pytest.approx(math.exp(part.nll.sum() / part.count.sum()))
            assert one.score.accuracy == part.correct.sum() / part.count.sum()
            if (part.count > 0).sum() > 1:
                assert (one.score.accuracy_low, one.score.accuracy_high) == bootstrap(part).accuracy
            else:
                assert math.isnan(one.score.accuracy_low)
        total = sums.total()
        assert sum(c.nll for c in scores) == total.nll
        assert sum(c.correct for c in scores) == total.correct
        assert sum(c.score.num_tokens for c in scores) == total.count


def test_groups_of_tokens_are_columns_and_small_ones_are_shown():
    sums = some_sums(30, alphabet.NUM_RESIDUES)
    for field in (sums.nll, sums.correct, sums.count):
        field[:, 20:] = 0
    # One sequence has five tokens of U: a one without an interval, not a one left out.
    sums.count[3, 24], sums.nll[3, 24] = 5, 16
    scores = score_token_groups("residue", sums, RESIDUES, ABOUT)
    assert [c.group.label for c in scores] == [*alphabet.STANDARD_RESIDUES, "U"]
    for one in scores:
        column = alphabet.RESIDUES.index(one.group.label)
        assert one.nll == sums.nll[:, column].sum()
        assert one.score.num_tokens == sums.count[:, column].sum()
        assert one.score.num_sequences == (sums.count[:, column] > 0).sum()
    assert math.isnan(scores[-1].score.perplexity_low)
    assert scores[0].score.accuracy_low < scores[0].score.accuracy < scores[0].score.accuracy_high


def test_the_frame_says_of_what_each_number_is(tmp_path):
    scores = score_token_groups("residue", some_sums(5, 25), RESIDUES, ABOUT)
    frame = groups_frame(scores, {"run": "r", "step": 3})
    assert list(frame.columns[:5]) == ["run", "step", "by", "cell", "low"]
    assert {"split", "objective", "tokens", "num_tokens", "accuracy_low"} <= set(frame.columns)
    frame.to_csv(tmp_path / "x.csv", index=False)
    # Every digit comes back, so that sums can be checked from the file too.
    assert list(map(float, pd.read_csv(tmp_path / "x.csv", dtype=str).nll)) == [c.nll for c in scores]


def test_an_index_of_no_group_is_refused():
    sums = some_sums(3)
    for assigned in ([0, 1, 2], [0, -1, 1]):
        with pytest.raises(ValueError, match="by length has 2 groups, but assigns others too"):
            score_sequence_groups("length", sums, np.array(assigned), RESIDUES[:2], ABOUT)
