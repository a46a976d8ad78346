import json

import numpy as np
import pytest

from proteinlm import alphabet
from proteinlm.analysis.heads.kinds import REACH, HeadPatterns, kinds_of
from proteinlm.analysis.heads.table import claims, clearest_heads, head_table, vertical_positions
from proteinlm.inference.proteins import Protein

LETTERS = b"MKVCAC" * 6


def protein(*, causal):
    tokens = alphabet.encode(LETTERS)
    if causal:
        return Protein("p", np.append(np.uint8(alphabet.BOS), tokens), slice(1, None))
    return Protein("p", np.append(tokens, np.uint8(alphabet.EOS)), slice(0, len(LETTERS)))


def patterns(diagonal=0.0, vertical=0.0, block=0.0, evenness=0.9, *, offset=-1, columns=None, causal=False, number=2):
    """One layer of heads; arguments are a number for all heads or a list, one each."""
    values = [np.atleast_1d(np.asarray(x, float)) for x in (diagonal, vertical, block, evenness)]
    heads = max(len(value) for value in values)
    values = [np.broadcast_to(value, (number, 1, heads)) for value in values]
    excess = np.zeros((number, 1, heads, 2 * REACH + 1))
    excess[..., offset + REACH] = values[0]
    proteins = [protein(causal=causal)] * number
    columns = np.zeros(len(proteins[0].tokens)) if columns is None else columns
    columns = [np.broadcast_to(columns, (1, heads, len(columns)))] * number
    return HeadPatterns(proteins, *values, excess, columns, np.full((number, 1, heads), 0.25))


def test_a_row_for_each_layer_and_head():
    found = head_table(
        patterns([0.5, 0.0, 0.0, 0.0, 0.0], [0, 0.4, 0, 0, 0], [0, 0, 0.3, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.9])
    )
    assert found["kind"].tolist() == ["diagonal", "vertical", "block", "scattered", "diffuse"]
    assert found["head"].tolist() == [0, 1, 2, 3, 4]
    assert set(found["layer"]) == {0}
    assert (found["agreement"] == 1).all()
    assert found["offset"][0] == -1
    assert (found["special"] == 0.25).all()
    assert found.columns.tolist() == [
        "layer", "head", "kind", "agreement", "diagonal", "vertical", "block", "evenness", "offset", "position",
        "position_share", "letter", "letter_share", "special",
    ]  # fmt: skip


def test_offsets_that_differ_between_proteins_are_no_diagonal_of_the_head():
    one, two = patterns(0.3, offset=-2, number=1), patterns(0.3, offset=5, number=1)
    names = ("diagonal", "vertical", "block", "evenness", "offset_excess")
    joined = [np.concatenate([getattr(one, name), getattr(two, name)]) for name in names]
    columns, special = [*one.column_excess, *two.column_excess], np.concatenate([one.special, two.special])
    both = HeadPatterns([*one.proteins, *two.proteins], *joined, columns, special)
    # Chance has another sign elsewhere.
    both.offset_excess[0, ..., 5 + REACH] = both.offset_excess[1, ..., -2 + REACH] = -0.3
    found = head_table(both)
    assert found["diagonal"][0] == pytest.approx(0)
    assert found["kind"][0] == "diffuse"
    assert found["agreement"][0] == 0


@pytest.mark.parametrize("causal", [False, True])
def test_positions_are_counted_from_the_first_residue_and_special_tokens_named(causal):
    start = int(causal)
    columns = np.full(len(LETTERS) + 1, -0.01)
    columns[start + np.arange(3, len(LETTERS), 6)] = 0.1
    columns[start + 9] = 0.15
    columns[start] = 0.05
    found = head_table(patterns(vertical=0.5, columns=columns, causal=causal)).iloc[0]
    assert (found["position"], found["position_share"]) == ("10", 1.0)
    assert found["letter"] == "C"
    assert found["letter_share"] == pytest.approx(0.65 / 0.7)
    tops = vertical_positions(patterns(vertical=0.5, columns=columns, causal=causal), 1, 0, 0, number=9)
    assert [top["position"] for top in tops[:2]] == ["10", "4"]
    assert tops[-1] == {"position": "1", "letter": "M", "excess": 0.05}
    assert len(tops) == 7
    columns[0 if causal else -1] = 0.9
    special = head_table(patterns(vertical=0.9, columns=columns, causal=causal)).iloc[0]
    assert special["position"] == special["letter"] == ("<bos>" if causal else "<eos>")


def test_a_head_without_weights_has_no_kind():
    found = head_table(
        patterns([np.nan, 0.5], [np.nan, 0.0], [np.nan, 0.0], [np.nan, 0.5], columns=np.full(37, np.nan))
    )
    assert found["kind"].tolist() == ["none", "diagonal"]
    assert found["offset"].isna().tolist() == [True, False]
    assert found["position"].isna().all()
    assert claims(found)["counts"]["none"] == 1


def test_claims_count():
    found = claims(head_table(patterns([0.5, 0.4, 0.25, 0.0], [0, 0, 0.5, 0], 0.0, [0.2, 0.2, 0.2, 0.9], offset=2)))
    assert found["counts"] == {"diagonal": 2, "vertical": 1, "block": 0, "scattered": 0, "diffuse": 1}
    assert found["shares"]["diagonal"] == 0.5
    # The third passes both thresholds.
    assert found["passing"] == {"diagonal": 3, "vertical": 1, "block": 0}
    assert found["offsets"] == {"2": 2}
    assert found["by_layer"] == [{"layer": 0, **found["counts"]}]
    assert found["sentence"] == "Of 4 heads 2 are diagonal, 1 vertical, 0 block, 0 scattered, 1 diffuse."
    json.dumps(found, allow_nan=False)


def test_the_clearest_of_each_pattern_then_the_next_clearest():
    table = head_table(patterns([0.3, 0.9, 0.8, 0.0, 0.05], [0, 0, 0, 0.25, 0.1], [0, 0, 0, 0, 0.01]))
    chosen = clearest_heads(table, layers=[0], heads=[0, 1, 2, 3, 4], number=3)
    assert chosen == [(0, 1, "diagonal"), (0, 3, "vertical"), (0, 2, "diagonal")]
    assert clearest_heads(table, layers=[0], heads=[4, 0], number=9) == [(0, 0, "diagonal"), (0, 4, "diffuse")]
    assert clearest_heads(table, layers=[0], heads=[4], number=1) == [(0, 4, "diffuse")]


def test_kinds_are_those_of_the_means():
    given = patterns([0.3, 0.1])
    np.testing.assert_array_equal(
        kinds_of(given.diagonal[0], given.vertical[0], given.block[0], given.evenness[0]), [[0, 4]]
    )
