import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import TINY

from proteinlm.analysis import head_kinds
from proteinlm.analysis.head_kinds import KINDS, REACH, SEGMENTS
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM

LONG = b"ACDEFGHIKLMNPQRSTVWYACDEFGHIKLMNPQRSTVWYACD"
SEQUENCES = [LONG, LONG[:33], b"ACD", LONG[:40]]


def by_hand(protein, weights, causal):
    """Every statistic of one head by loops over the pairs of its matrix [L, L]."""
    places = range(len(protein.tokens))[protein.residues]
    length, rows = len(protein.tokens), len(places)
    sees = {i: [j for j in range(length) if j <= i or not causal] for i in places}
    columns, offsets = np.zeros((2, length)), np.zeros((2, 2 * REACH + 1))
    blocks = np.zeros((2, SEGMENTS, SEGMENTS))
    masses = [[] for _ in range(SEGMENTS)]
    evenness, special = 0.0, 0.0
    for row, i in enumerate(places):
        p = np.abs(weights[i]) / np.abs(weights[i]).sum()
        evenness += np.exp(-sum(x * np.log(x) for x in p if x > 0)) / len(sees[i]) / rows
        masses[row * SEGMENTS // rows].append(np.zeros(SEGMENTS))
        for j in sees[i]:
            both = np.array([p[j], 1 / len(sees[i])])
            columns[:, j] += both / rows
            if j not in places:
                special += p[j] / rows
            elif abs(j - i) <= REACH:
                offsets[:, j - i + REACH] += both / rows
            if j in places and abs(j - i) > REACH:
                blocks[:, row * SEGMENTS // rows, (j - places[0]) * SEGMENTS // rows] += both
                masses[row * SEGMENTS // rows][-1][(j - places[0]) * SEGMENTS // rows] += p[j]
    fit = blocks[1].copy()
    for _ in range(50):
        fit *= (blocks[0].sum(1) / np.maximum(fit.sum(1), 1e-30))[:, None]
        fit *= blocks[0].sum(0) / np.maximum(fit.sum(0), 1e-30)
    chance = sum(np.sqrt(2 / np.pi * len(m) * np.var(m, axis=0, ddof=1)).sum() for m in masses)
    excess = columns[0] - columns[1]
    return {
        "diagonal": np.maximum(offsets[0] - offsets[1], 0).sum(),
        "vertical": sum(x - e for x, e in zip(*columns, strict=True) if x - e > 3 * np.sqrt(max(e, 1 / rows) / rows)),
        "block": max(0, np.abs(blocks[0] - fit).sum() - chance) / 2 / rows,
        "evenness": evenness,
        "offset_excess": offsets[0] - offsets[1],
        "column_excess": excess,
        "special": special,
    }


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
        monkeypatch.setattr(head_kinds, "queries_keys", lambda model, tokens: (zeros, zeros))
        found = head_kinds.measure_patterns(model, [LETTERS[: 100 - causal]], batch_size=1, block=32)
        kinds = head_kinds.kinds_of(found.diagonal, found.vertical, found.block, found.evenness)[0, 0]
        names = [KINDS[kind] if kind >= 0 else None for kind in kinds]
        return found, dict(zip(matrices, names, strict=True))

    return of


def normal(weights):
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)


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
        "sharp": np.eye(100)[rng.integers(0, 100, 100)] + 1e-4,
    }


def test_planted_patterns_are_found_with_their_offsets_and_positions(measure):
    found, kinds = measure(patterns(np.random.default_rng(0)))
    assert kinds == {
        "before": "diagonal", "after": "diagonal", "around": "diagonal", "itself": "diagonal", "stripes": "vertical",
        "halves": "block", "corner": "block", "even": "diffuse", "noise": "diffuse", "sharp": "scattered",
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
        assert values[at["noise"]] < 0.03
        assert values[at["sharp"]] < 0.1
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
        "corner": np.where((i >= 50) & (i < 80) & (j >= 10) & (j < 30), 40.0, 1.0),
        "halves": np.where((i < 50) == (j < 50), 1.0, 0.02),
    }
    found, kinds = measure({name: normal(weights * np.tri(100)) for name, weights in matrices.items()}, causal=True)
    assert kinds == {
        "even": "diffuse", "before": "diagonal", "recent": "diagonal", "<bos>": "vertical", "corner": "block",
        # Not told from a preference of the second half, which is no position.
        "halves": "diffuse",
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


def test_the_fit_leaves_what_rows_and_columns_do_not_explain():
    rng = np.random.default_rng(2)
    even = rng.uniform(size=(5, 5))
    explained = even * rng.uniform(size=(5, 1)) * rng.uniform(size=5)
    np.testing.assert_allclose(head_kinds.fitted(even, explained[None])[0], explained, rtol=1e-6)
    observed = rng.uniform(size=(3, 5, 5))
    fit = head_kinds.fitted(even, observed)
    np.testing.assert_allclose(fit.sum(-1), observed.sum(-1), rtol=1e-6)
    np.testing.assert_allclose(fit.sum(-2), observed.sum(-2), rtol=1e-6)
    assert not head_kinds.fitted(even, np.zeros((5, 5))).any()


def test_kinds_by_threshold():
    found = head_kinds.kinds_of(
        np.array([0.2, 0.19, 0.3, 0.0, 0.0, np.nan]),
        np.array([0.1, 0.1, 0.3, 0.1, 0.0, 0.3]),
        np.array([0.0, 0.0, 0.2, 0.1, 0.0, 0.0]),
        np.array([0.1, 0.6, 0.6, 0.6, 0.4, 0.6]),
    )
    assert [KINDS[kind] if kind >= 0 else None for kind in found] == [
        "diagonal", "diffuse", "block", "block", "scattered", None
    ]  # fmt: skip


def test_bad_input_is_named(make_model):
    model = make_model()
    with pytest.raises(InputError, match="none of the 2 sequences has the 32 residues"):
        head_kinds.measure_patterns(model, [b"ACD", b"A" * 31])
    with pytest.raises(InputError, match="at least one sequence"):
        head_kinds.measure_patterns(model, [])
    with pytest.raises(InputError, match="sequence 2: the letter '1' at residue 3"):
        head_kinds.measure_patterns(model, [LONG, b"AC1D"])
    with pytest.raises(InputError, match="sequence 1 has 65 residues, but this model reads at most 64"):
        head_kinds.measure_patterns(model, [b"A" * 65])
    with pytest.raises(ValueError, match="batch_size"):
        head_kinds.measure_patterns(model, [LONG], batch_size=0)
