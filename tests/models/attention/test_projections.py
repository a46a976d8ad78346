"""Directions and norms of random features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.attention.projections import gaussian, orthogonal


@pytest.mark.parametrize(("m", "d"), [(3, 8), (8, 8), (16, 8), (21, 8), (5, 1)])
def test_rows_are_orthogonal_within_blocks(m, d):
    rows = np.asarray(orthogonal(jax.random.key(0), m, d, norms="sqrt"))
    assert rows.shape == (m, d)
    assert rows.dtype == np.float32
    for start in range(0, m, d):
        block = rows[start : start + d]
        np.testing.assert_allclose(block @ block.T, d * np.eye(len(block)), atol=1e-4 * d)
    if m > d > 1:
        # Blocks are independent draws, not copies.
        assert np.abs(rows[:d][: m - d] - rows[d : 2 * d][: m - d]).max() > 0.1


def test_chi_norms_are_those_of_gaussian_vectors():
    """E |w|^2 = d with variance 2 d; 4,000 norms, so 5 standard deviations are 5 sqrt(2 d / 4000)."""
    d, n = 8, 4000
    squares = (np.asarray(orthogonal(jax.random.key(1), n, d)) ** 2).sum(1)
    assert abs(squares.mean() - d) < 5 * (2 * d / n) ** 0.5
    # The variance of |w|^2: its estimate's own deviation is below 2 d sqrt(14 / n) for a chi-square of 8 degrees.
    assert abs(squares.var() - 2 * d) < 5 * 2 * d * (14 / n) ** 0.5


def test_signs_make_the_directions_uniform():
    """QR as LAPACK gives it has a sign of its own: the mean of its first entry is far from 0."""
    d, n = 6, 4000
    draws = jax.vmap(lambda key: orthogonal(key, d, d, norms="sqrt"))(jax.random.split(jax.random.key(2), n))
    directions = np.asarray(draws) / d**0.5
    # Each entry of a Haar matrix has mean 0 and variance 1 / d.
    assert np.abs(directions.mean(0)).max() < 5 / (d * n) ** 0.5
    raw = np.linalg.qr(np.random.default_rng(0).normal(size=(n, d, d)))[0]
    assert np.abs(raw.mean(0)).max() > 20 / (d * n) ** 0.5


def test_one_feature_estimates_the_exponential_kernel():
    """x = y = e1: SM = e, |z|^2 = 4; without the signs the mean is 0.124 (facts, trap 2)."""
    d, n = 8, 40_000
    rows = jax.vmap(lambda key: orthogonal(key, 1, d)[0])(jax.random.split(jax.random.key(3), n))
    estimates = jnp.exp(2 * rows[:, 0] - 1)
    variance = np.exp(4.0) * np.e**2 * (1 - np.exp(-4.0))
    assert abs(float(estimates.mean()) - np.e) < 5 * (variance / n) ** 0.5


def test_draws_are_pure_functions_of_the_key():
    for draw in (gaussian, orthogonal):
        one, again, other = (draw(jax.random.key(s), 5, 4) for s in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert (one != other).all()


def test_unknown_norms_are_refused():
    with pytest.raises(ValueError, match="norms is 'unit'"):
        orthogonal(jax.random.key(0), 4, 4, norms="unit")
