import dataclasses

import numpy as np
import pytest
from mechanisms import CASES, CAUSAL
from tiny_models import KINDS, mechanism

from proteinlm import alphabet
from proteinlm.analysis.maps import row_sums
from proteinlm.errors import InputError
from proteinlm.inference.probing import Probe
from proteinlm.models.attention import FavorConfig, GeneralizedConfig


@pytest.fixture(scope="module")
def tokens():
    tokens = np.random.default_rng(3).integers(1, alphabet.SIZE, (2, 19)).astype(np.uint8)
    tokens[1, 12:] = alphabet.PAD
    return tokens


@pytest.mark.few(2)
@pytest.mark.parametrize("name", KINDS)
def test_sums_are_those_of_the_explicit_matrix(make_model, explicit_maps, tokens, name):
    model = make_model(attention=mechanism(name, 64), causal=name in CAUSAL)
    found = row_sums.measure_row_sums(Probe(model, tokens))
    expected = explicit_maps(model, tokens).sum(-1)
    assert found.shape == (2, 2, 2, 19)
    real = tokens != alphabet.PAD
    assert (np.isnan(found) == ~real[None, :, None, :]).all()
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(np.nan_to_num(found), expected, atol=50 * CASES[name].tolerance * scale)
    some = tokens > 15
    part = row_sums.measure_row_sums(Probe(model, tokens), over=some)
    expected = np.einsum("abhij,bj->abhi", explicit_maps(model, tokens), some)
    np.testing.assert_allclose(np.nan_to_num(part), expected, atol=50 * CASES[name].tolerance * scale)
    summary = row_sums.summarise(found, model.config.attention)
    # Whoever does not sum to 1 has a reason, and whoever has one does not.
    assert summary.to_one == (summary.reason == "")
    assert summary.least <= summary.mean <= summary.largest


@pytest.mark.parametrize("name", CASES)
def test_a_reason_is_given_where_weights_are_no_averages_and_there_alone(name):
    case = CASES[name]
    assert bool(case.config.no_unit_sums) != case.averages


def test_sentences_say_numbers_and_the_reason():
    config = GeneralizedConfig(renormalize=False)
    summary = row_sums.summarise(np.array([[[[0.5, 12.0, np.nan]]]], np.float32), config)
    assert summary == row_sums.RowSums(6.25, 0.5, 12.0, False, "renormalize is off: weights are the kernel itself")
    assert summary.sentence() == (
        "rows sum to 0.5 to 12 (mean 6.2) and are shown as they are: renormalize is off: weights are the kernel itself"
    )
    ones = row_sums.summarise(np.full((1, 1, 1, 3), 1.0002, np.float32), FavorConfig())
    assert ones.to_one
    assert ones.sentence() == "each row sums to 1 over all tokens, special ones included"
    odd = dataclasses.replace(ones, to_one=False, largest=float("inf"))
    assert "not known why" in odd.sentence()
    assert odd.to_dict()["largest"] is None


def test_too_many_tokens(make_model):
    with pytest.raises(InputError, match="65 tokens"):
        row_sums.measure_row_sums(Probe(make_model(), np.ones((1, 65), np.uint8)))
