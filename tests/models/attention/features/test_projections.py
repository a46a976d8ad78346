"""Directions and norms of random features; fast products against dense ones; what each kind needs to be unbiased."""

import math
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard as sylvester
from scipy.stats import chi

from proteinlm.models.attention.features.projections import (
    Givens,
    Hadamard,
    Kind,
    draw_projection,
    matrix,
    orthogonal,
    project,
    walsh_hadamard,
)

KINDS = get_args(Kind)
STRUCTURED = ("hadamard", "givens")


def rows_of(kind, m, d, *, norms="chi", seed=0):
    draw = jax.jit(lambda key: matrix(draw_projection(kind, key, m, d, norms=norms), d))
    return np.asarray(draw(jax.random.key(seed)))


@pytest.mark.few(4)
@pytest.mark.parametrize(("m", "d"), [(3, 8), (8, 8), (16, 8), (21, 8), (5, 1)])
@pytest.mark.parametrize("kind", ["orthogonal", *STRUCTURED])
def test_rows_are_orthogonal_within_blocks(kind, m, d):
    rows = rows_of(kind, m, d, norms="sqrt")
    assert rows.shape == (m, d)
    assert rows.dtype == np.float32
    for start in range(0, m, d):
        block = rows[start : start + d]
        np.testing.assert_allclose(block @ block.T, d * np.eye(len(block)), atol=1e-4 * d)
    if m > d > 1:
        # Blocks are independent draws, not copies.
        assert np.abs(rows[:d][: m - d] - rows[d : 2 * d][: m - d]).max() > 0.1


def test_a_padded_hadamard_block_has_orthogonal_columns():
    """Of a whole block of P = 8 rows, 5 columns are left: W^T W = P I, and no row is longer than sqrt(P)."""
    rows = rows_of("hadamard", 8, 5, norms="sqrt")
    np.testing.assert_allclose(rows.T @ rows, 8 * np.eye(5), atol=1e-4)
    assert (rows**2).sum(1).max() < 8 + 1e-4


@pytest.mark.few(2)
@pytest.mark.parametrize("d", [8, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_chi_norms_are_those_of_gaussian_vectors(kind, d):
    """E |w|^2 = d with variance 2 d; 4,000 norms, so 5 standard deviations are 5 sqrt(2 d / 4000)."""
    n = 4000
    squares = (rows_of(kind, n, d, seed=1) ** 2).sum(1)
    assert abs(squares.mean() - d) < 5 * (2 * d / n) ** 0.5
    # The variance of |w|^2: its estimate's own deviation is below 2 d sqrt(14 / n) for a chi-square of 8 degrees.
    assert abs(squares.var() / (2 * d) - 1) < 5 * (14 / n) ** 0.5 + (0.2 if kind == "hadamard" and d < 8 else 0)


@pytest.mark.parametrize("kind", ["gaussian", "orthogonal", "givens"])
def test_regularised_rows_have_the_norm_sqrt_d(kind):
    np.testing.assert_allclose((rows_of(kind, 13, 6, norms="sqrt") ** 2).sum(1), 6.0, rtol=1e-5)


@pytest.mark.slow
def test_signs_make_the_directions_uniform():
    """QR as LAPACK gives it has a sign of its own: the mean of its first entry is far from 0."""
    d, n = 6, 4000
    draws = jax.vmap(lambda key: orthogonal(key, d, d, norms="sqrt"))(jax.random.split(jax.random.key(2), n))
    directions = np.asarray(draws) / d**0.5
    # Each entry of a Haar matrix has mean 0 and variance 1 / d.
    assert np.abs(directions.mean(0)).max() < 5 / (d * n) ** 0.5
    raw = np.linalg.qr(np.random.default_rng(0).normal(size=(n, d, d)))[0]
    assert np.abs(raw.mean(0)).max() > 20 / (d * n) ** 0.5


D = 16
PER_ROW = (np.exp(4) * np.e**2 * (1 - np.exp(-4))) ** 0.5
"""Standard deviation of exp(2 w_1 - 1), w Gaussian: the estimate of exp(x.y) at x = y = e1 by one feature."""


def first_coordinates(kind, m, draws):
    """w.e1 for all rows of independent draws, by the fast product: [draws, m]."""
    x = jnp.zeros(D).at[0].set(1.0)

    def one(key):
        return project(draw_projection(kind, key, m, D), x)

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), draws)), np.float64)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_features_of_every_kind_estimate_the_exponential_kernel(kind):
    """x = y = e1: exp(x.y) = e. Orthogonal rows vary no more together than iid ones do (Theorem 2)."""
    m, draws = D, 12_000
    estimates = np.exp(2 * first_coordinates(kind, m, draws) - 1)
    assert abs(estimates.mean() - np.e) < 5 * PER_ROW / (m * draws) ** 0.5


def test_wrong_constructions_fail_that_test():
    """Traps 2 and 3: QR without signs gives 0.124, one H D block 1.43, too few Givens rotations about 8."""
    rng = np.random.default_rng(0)
    n = 20_000
    lengths = chi.ppf((np.arange(200) + 0.5) / 200, D)

    def mean(directions):
        return np.mean([np.exp(2 * length * directions - 1).mean() for length in lengths])

    unsigned = np.linalg.qr(rng.normal(size=(n, D, D)))[0][:, 0, 0]
    assert mean(unsigned) == pytest.approx(0.124, abs=0.01)
    one_block = rng.choice([-1.0, 1.0], size=n) / D**0.5
    assert mean(one_block) == pytest.approx(1.43, abs=0.05)
    vectors, row = np.zeros((n, D)), np.arange(n)
    vectors[:, 0] = 1.0
    for _ in range(D * math.ceil(math.log(D))):
        i = rng.integers(0, D, n)
        j = (i + rng.integers(1, D, n)) % D
        angle = rng.uniform(0, 2 * np.pi, n)
        a, b = vectors[row, i], vectors[row, j]
        vectors[row, i], vectors[row, j] = np.cos(angle) * a - np.sin(angle) * b, np.sin(angle) * a + np.cos(angle) * b
    assert mean(vectors) > 6


@pytest.mark.parametrize(("d", "direction"), [(12, "first"), (6, "all")])
def test_padded_hadamard_features_stay_right(d, direction):
    """exp(x.y) at x = y of length 1 with D no power of two, to 5 % (three blocks are nearly Gaussian, not quite)."""
    x = jnp.zeros(d).at[0].set(1.0) if direction == "first" else jnp.full(d, d**-0.5)
    width, n = 1 << (d - 1).bit_length(), 160_000

    def one(key):
        return project(draw_projection("hadamard", key, width, d), x)

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(4), n // width))
    # At half the argument, exp(w.x - 1/2) has the mean 1 and the variance e - 1.
    estimates = np.exp(np.asarray(found, np.float64) - 0.5)
    assert abs(estimates.mean() - 1) < 5 * ((np.e - 1) / n) ** 0.5 + 0.005
    estimates = np.exp(2 * np.asarray(found, np.float64) - 1)
    assert abs(estimates.mean() / np.e - 1) < 5 * PER_ROW / np.e / n**0.5 + 0.05


def numpy_draw(kind, m, d, rng):
    """A draw of the shapes and dtypes of `draw_projection`, without the seconds that random keys take to compile."""
    draw = jax.eval_shape(lambda: draw_projection(kind, jax.random.key(0), m, d))
    lengths = jnp.asarray(rng.normal(size=draw.lengths.shape), jnp.float32)
    if kind == "hadamard":
        return Hadamard(jnp.asarray(rng.choice([-1, 1], draw.signs.shape), draw.signs.dtype), lengths)
    order = jnp.asarray(rng.random(draw.order.shape).argsort(-1), draw.order.dtype)
    return Givens(order, jnp.asarray(rng.uniform(0, 2 * np.pi, draw.angles.shape), jnp.float32), lengths)


@pytest.mark.slow
@settings(deadline=None, max_examples=10, derandomize=True)
@given(m=st.integers(1, 20), d=st.integers(1, 9), kind=st.sampled_from(STRUCTURED))
def test_fast_products_equal_dense_ones(m, d, kind):
    """Values, and the gradient, which for a linear map is the product with the transpose."""
    rng = np.random.default_rng(0)
    x, cotangent = (jnp.asarray(rng.normal(size=(2, 3, n)), jnp.float32) for n in (d, m))

    @jax.jit
    def both(draw):
        found, pull = jax.vjp(lambda x: project(draw, x), x)
        return matrix(draw, d), found, pull(cotangent)[0]

    w, found, gradient = map(np.asarray, both(numpy_draw(kind, m, d, rng)))
    assert w.shape == (m, d)
    np.testing.assert_allclose(found, np.asarray(x) @ w.T, atol=2e-5 * (1 + np.abs(w).max()))
    np.testing.assert_allclose(gradient, np.asarray(cotangent) @ w, atol=2e-5 * m * (1 + np.abs(w).max()))


@pytest.mark.few(2)
@pytest.mark.parametrize("width", [1, 2, 32])
def test_walsh_hadamard_is_scipys_matrix(width):
    x = np.random.default_rng(0).normal(size=(3, width)).astype(np.float32)
    np.testing.assert_allclose(walsh_hadamard(jnp.asarray(x)), x @ sylvester(width).T, atol=1e-5 * width)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_fast_products_never_form_a_matrix(kind):
    """No product of matrices in the compiled program, and a draw smaller than W."""
    draw = draw_projection(kind, jax.random.key(0), 64, 64)
    program = jax.make_jaxpr(lambda draw, x: project(draw, x))(draw, jnp.ones((3, 64)))
    assert "dot_general" not in str(program)
    assert isinstance(draw, Hadamard) == (kind == "hadamard")
    if kind == "hadamard":
        assert sum(x.size for x in jax.tree.leaves(draw)) == 4 * 64


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_pure_functions_of_the_key(kind):
    one, again, other = (draw_projection(kind, jax.random.key(s), 40, 6) for s in (0, 0, 1))
    for a, b, c in zip(*(jax.tree.leaves(x) for x in (one, again, other)), strict=True):
        np.testing.assert_array_equal(a, b)
        # All of it is new: signs, orders, angles and norms.
        assert (a != c).mean() > 0.3
    assert (matrix(one, 6) != matrix(other, 6)).any(axis=1).all()


def test_unknown_kinds_and_norms_are_refused():
    with pytest.raises(ValueError, match="kind is 'fourier'; expected one of gaussian, orthogonal, hadamard, givens"):
        draw_projection("fourier", jax.random.key(0), 4, 4)
    for kind in KINDS:
        with pytest.raises(ValueError, match="norms is 'unit'"):
            draw_projection(kind, jax.random.key(0), 4, 4, norms="unit")
