import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import TINY

from proteinlm.analysis.heads import kinds as head_kinds
from proteinlm.analysis.heads.kinds import KINDS, REACH, SEGMENTS
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM

LONG = b"ACDEFGHIKLMNPQRSTVWYACDEFGHIKLMNPQRSTVWYACD"
SEQUENCES = [LONG, LONG[:33], b"ACD", LONG[:40]]


def by_hand(protein, weights, causal):
    """Every statistic of one head by loops over the pairs of its matrix [L, L]."""
    places = np.arange(len(protein.tokens))[protein.residues]
    length, rows = len(protein.tokens), len(places)
    sees = {i: [j for j in range(length) if j <= i or not causal] for i in places}
    p = {i: np.abs(weights[i]) / np.abs(weights[i]).sum() for i in places}
    over, offsets = np.zeros((rows, length)), np.zeros((2, 2 * REACH + 1))
    evenness, special = 0.0, 0.0
    for row, i in enumerate(places):
        evenness += np.exp(-sum(x * np.log(x) for x in p[i] if x > 0)) / len(sees[i]) / rows
        special += sum(p[i][j] for j in sees[i] if j not in places) / rows
        for j in sees[i]:
            over[row, j] = p[i][j] - 1 / len(sees[i])
            if j in places and abs(j - i) <= REACH:
                offsets[:, j - i + REACH] += np.array([p[i][j], 1 / len(sees[i])]) / rows
    excess = over.mean(0)
    chance = 3 * over.std(0) / np.sqrt(rows)
    of_row = np.arange(rows) * SEGMENTS // rows
    stripes = []
    for j in range(length):
        means = [over[of_row == s, j].mean() for s in range(SEGMENTS) if not causal or places[of_row == s][0] >= j]
        common = len(means) > 0 and np.median(means) > excess[j] / 2
        if excess[j] > chance[j] and excess[j] > 0.01 / length and common:
            stripes.append(j)
    segments = [[] for _ in range(SEGMENTS)]
    for row, i in enumerate(places):
        rest = [j for j in sees[i] if j in places and abs(j - i) > REACH and j not in stripes]
        amount, difference = sum(p[i][j] for j in rest), np.zeros(SEGMENTS)
        for j in rest:
            difference[(j - places[0]) * SEGMENTS // rows] += p[i][j] - amount / len(rest)
        segments[row * SEGMENTS // rows].append(difference)
    chance = sum(np.sqrt(2 / np.pi * len(own) * np.var(own, axis=0, ddof=1)).sum() for own in segments)
    return {
        "diagonal": np.maximum(offsets[0] - offsets[1], 0).sum(),
        "vertical": sum(excess[j] for j in stripes),
        "block": max(0, sum(np.abs(np.sum(own, axis=0)).sum() for own in segments) - chance) / 2 / rows,
        "evenness": evenness,
        "offset_excess": offsets[0] - offsets[1],
        "column_excess": excess,
        "special": special,
    }


@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "causal"), [("favor", False), ("softmax", True), ("generalized", True)])
def test_statistics_are_those_of_loops_over_pairs(make_model, explicit_maps, kind, causal):
    options = {"function": "tanh"} if kind == "generalized" else {}
    model = make_model(kind, causal=causal, **options)
    found = head_kinds.measure_patterns(model, SEQUENCES, batch_size=2, block=7)
    # The protein of three residues says nothing of patterns.
    assert [len(protein.letters) for protein in found.proteins] == [43, 33, 40]
    for number, protein in enumerate(found.proteins):
        maps = explicit_maps(model, protein.tokens[None])[:, 0]
        for layer, head in np.ndindex(2, 2):
            expected = by_hand(protein, maps[layer, head], causal)
            for name, value in expected.items():
                np.testing.assert_allclose(
                    getattr(found, name)[number][layer, head], value, atol=2e-4, err_msg=f"{name} of {number}"
                )


class Given(nnx.Module):
    """Attention whose matrices [H, L, L] are given."""

    def __init__(self, weights):
        self.weights = nnx.Variable(jnp.asarray(weights, jnp.float32))

    def __call__(self, q, k, v, *, causal, key_mask):
        return jnp.einsum("hij,bjhe->bihe", self.weights[...], v)


class Planted(ProteinLM):
    """A model of one layer with that attention."""

    def __init__(self, weights, causal):
        self.causal = causal
        self.config = dataclasses.replace(
            TINY, num_layers=1, num_heads=len(weights), embed_dim=len(weights), max_length=100
        )
        self.planted = Given(weights)

    def attention(self, layer):
        return self.planted


LETTERS = b"ACDEFGHIKLMNPQRSTVWY" * 5


@pytest.fixture
def measure(monkeypatch):
    """Return a function from matrices {name: [tokens, tokens]} of 100 residues to their statistics and kinds."""

    def of(matrices, *, causal=False):
        # As many tokens as the model reads: <bos> and 99 residues, or 100 residues.
        weights = np.stack(list(matrices.values()))
        weights = weights * np.tri(100) if causal else weights
        model = Planted(weights, causal)
        zeros = jnp.zeros((1, 1, 100, len(weights), 1))
        monkeypatch.setattr(head_kinds.Probe, "queries_keys", (zeros, zeros))
        found = head_kinds.measure_patterns(model, [LETTERS[: 100 - causal]], batch_size=1, block=32)
        kinds = head_kinds.kinds_of(found.diagonal, found.vertical, found.block, found.evenness)[0, 0]
        names = [KINDS[kind] if kind >= 0 else None for kind in kinds]
        return found, dict(zip(matrices, names, strict=True))

    return of


def normal(weights):
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)


def like_some(rng):
    """A preference of two to one for half of the tokens."""
    return np.broadcast_to(np.where(rng.permutation(100) < 50, 2.0, 1.0), (100, 100))


def patterns(rng):
    i, j = np.indices((100, 100))
    stripes = np.full((100, 100), 0.3)
    stripes[:, [0, 84]] = 20
    halves = np.where((i < 50) == (j < 50), 1.0, 0.05)
    corner = np.ones((100, 100))
    corner[50:80, :20] = 40
    return {
        "before": np.where(j == i - 1, 1.0, 1e-3),
        "after": np.where(j == i + 3, 5.0, 0.1),
        "around": np.exp(-np.abs(i - j) / 3.0),
        "itself": np.eye(100),
        "stripes": stripes,
        "halves": halves,
        "corner": corner,
        "even": np.ones((100, 100)),
        "noise": rng.exponential(size=(100, 100)),
        "preference": like_some(rng),
        "sharp": np.eye(100)[rng.integers(0, 100, 100)] + 1e-4,
    }


def test_planted_patterns_are_found_with_their_offsets_and_positions(measure):
    found, kinds = measure(patterns(np.random.default_rng(0)))
    assert kinds == {
        "before": "diagonal", "after": "diagonal", "around": "diagonal", "itself": "diagonal", "stripes": "vertical",
        "halves": "block", "corner": "block", "even": "diffuse", "noise": "diffuse", "preference": "diffuse",
        "sharp": "scattered",
    }  # fmt: skip
    order = list(kinds)
    offsets = dict(zip(order, found.offset_excess[0, 0].argmax(-1) - REACH, strict=True))
    assert (offsets["before"], offsets["after"], offsets["around"], offsets["itself"]) == (-1, 3, 0, 0)
    stripes = found.column_excess[0][0, order.index("stripes")]
    assert set(np.argsort(-stripes)[:2]) == {0, 84}
    # Even attention has no pattern at all, and noise far less than the thresholds.
    at = {name: order.index(name) for name in order}
    for name in ("diagonal", "vertical", "block"):
        values = getattr(found, name)[0, 0]
        assert values[at["even"]] < 1e-5
        assert values[at["noise"]] < 0.04
        assert values[at["sharp"]] < 0.1
        assert values[at["preference"]] == pytest.approx(1 / 6 if name == "vertical" else 0, abs=0.01)
    assert found.evenness[0, 0, at["even"]] == pytest.approx(1, abs=1e-4)
    assert found.diagonal[0, 0, at["itself"]] == pytest.approx(0.99, abs=1e-4)


def test_a_causal_head_that_sees_the_past_evenly_has_no_pattern(measure):
    i, j = np.indices((100, 100))
    to_start = np.where(j == 0, 30.0, 1.0)
    matrices = {
        "even": np.ones((100, 100)),
        "before": np.where(j == i - 1, 10.0, 0.1),
        "recent": np.exp(-(i - j) / 3.0 * (j <= i)),
        "<bos>": to_start,
        "corner": np.where((i >= 60) & (i < 88) & (j >= 10) & (j < 22), 900.0, 1.0),
        "halves": np.where((i < 50) == (j < 50), 1.0, 0.02),
    }
    found, kinds = measure({name: normal(weights * np.tri(100)) for name, weights in matrices.items()}, causal=True)
    assert kinds == {
        "even": "diffuse", "before": "diagonal", "recent": "diagonal", "<bos>": "vertical", "corner": "block",
        # All who see the second half prefer it.
        "halves": "vertical",
    }  # fmt: skip
    for name in ("diagonal", "vertical", "block"):
        assert getattr(found, name)[0, 0, 0] < 1e-5
    assert found.evenness[0, 0, 0] == pytest.approx(1, abs=1e-4)
    assert found.column_excess[0][0, 3].argmax() == 0
    assert found.special[0, 0, 3] > 0.3


def test_scale_and_sign_of_weights_do_not_matter(measure):
    matrices = patterns(np.random.default_rng(0))
    plain, kinds = measure(matrices)
    rows = np.random.default_rng(1).uniform(-5, 5, (100, 1))
    scaled, same = measure({name: weights * rows for name, weights in matrices.items()})
    assert kinds == same
    np.testing.assert_allclose(scaled.diagonal, plain.diagonal, atol=1e-5)
    np.testing.assert_allclose(scaled.block, plain.block, atol=1e-5)


def test_rows_without_weights_do_not_count_and_a_head_without_any_has_no_kind(measure):
    half = np.where(np.arange(100)[:, None] < 50, np.eye(100, k=-1), 0)
    half[0, 0] = 1
    found, kinds = measure({"nothing": np.zeros((100, 100)), "half": half})
    assert kinds == {"nothing": None, "half": "diagonal"}
    assert found.diagonal[0, 0, 1] > 0.9
    assert np.isnan(found.diagonal[0, 0, 0])


def test_kinds_by_threshold():
    found = head_kinds.kinds_of(
        np.array([0.2, 0.19, 0.3, 0.0, 0.0, np.nan]),
        np.array([0.1, 0.1, 0.3, 0.1, 0.0, 0.3]),
        np.array([0.0, 0.0, 0.3, 0.15, 0.0, 0.0]),
        np.array([0.1, 0.6, 0.6, 0.6, 0.4, 0.6]),
    )
    assert [KINDS[kind] if kind >= 0 else None for kind in found] == [
        "diagonal", "diffuse", "block", "block", "scattered", None
    ]  # fmt: skip


def test_bad_input_is_named(make_model):
    model = make_model()
    with pytest.raises(InputError, match="none of the 2 sequences has 32 residues or more"):
        head_kinds.measure_patterns(model, [b"ACD", b"A" * 31])
    with pytest.raises(InputError, match="at least one sequence"):
        head_kinds.measure_patterns(model, [])
    with pytest.raises(InputError, match="sequence 2: the letter '1' at residue 3"):
        head_kinds.measure_patterns(model, [LONG, b"AC1D"])
    with pytest.raises(InputError, match="sequence 1 has 65 residues, but this model reads at most 64"):
        head_kinds.measure_patterns(model, [b"A" * 65])
    with pytest.raises(ValueError, match="batch_size"):
        head_kinds.measure_patterns(model, [LONG], batch_size=0)
