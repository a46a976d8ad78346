"""Sketches against the mathematics of PolySketchFormer: what they estimate, with which variance, at which size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm.models.attention.features.sketches import LearnedSketch, RandomSketch, self_tensor, tree_levels

D = 3


def by_kronecker(x, levels, size):
    """Algorithm 1 as one long matrix, float64: (x kron ... kron x) S, S [D^p, r] from the same Gaussian matrices."""

    def matrix(nodes, level):
        if level < 0:
            return np.eye(D)
        left, right = (matrix(2 * nodes + side, level - 1) for side in (0, 1))
        pair = np.asarray(levels[level][nodes], np.float64)
        a, b = left @ pair[0], right @ pair[1]
        return np.einsum("ic,jc->ijc", a, b).reshape(-1, size) / size**0.5

    power = x
    sketch = matrix(0, len(levels) - 1)
    while power.shape[-1] < sketch.shape[0]:
        power = np.einsum("ni,nj->nij", power, x).reshape(len(x), -1)
    return power @ sketch


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_sketch_is_a_matrix_times_the_kronecker_power(degree):
    sketch = RandomSketch(dim=D, degree=degree, size=5, key=jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(6, D))
    found = sketch(jnp.asarray(x, jnp.float32)[None])[0]
    levels = [level[...] for level in sketch.levels]
    assert [len(level) for level in levels] == tree_levels(degree)
    np.testing.assert_allclose(found, by_kronecker(x, levels, 5), rtol=2e-4, atol=2e-5)


def moments(x, y, r):
    """Mean and variance of <S(x), S(y)> for degrees 2 and 4: fourth moments of Gaussians, level by level."""
    xy, norms = float(x @ y), float(x @ x) * float(y @ y)
    # One Gaussian row g: E (g.x)(g.y) = x.y and E (g.x)^2 (g.y)^2 = |x|^2 |y|^2 + 2 (x.y)^2.
    fourth = norms + 2 * xy**2
    square_2 = fourth**2 / r + (1 - 1 / r) * xy**4
    lengths = fourth**2 / r + (1 - 1 / r) * norms**2
    square_4 = (lengths + 2 * square_2) ** 2 / r + (1 - 1 / r) * square_2**2
    return {2: (xy**2, square_2 - xy**4), 4: (xy**4, square_4 - xy**8)}


@pytest.mark.parametrize("degree", [2, 4])
def test_products_of_sketches_estimate_powers_with_the_known_variance(degree):
    """Also the size: without 1 / sqrt(r) a product, the mean would be r or r^3 times larger (trap 14)."""
    x, y = jnp.array([0.9, 0.1, 0.0]), jnp.array([0.8, -0.3, 0.2])
    r, n = 4, 40_000

    def one(key):
        sketch = RandomSketch(dim=D, degree=degree, size=r, key=key)
        return (sketch(x[None, None]) * sketch(y[None, None])).sum()

    estimates = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), n)), np.float64)
    mean, variance = moments(np.asarray(x), np.asarray(y), r)[degree]
    assert abs(estimates.mean() - mean) < 5 * (variance / n) ** 0.5
    if degree == 2:
        # Self-tensoring squares: its mean is the power of twice the degree, and the variance of what it squares.
        fourth_moment_noise = 5 * (estimates**2).std() / n**0.5
        assert abs((estimates**2).mean() - (mean**2 + variance)) < fourth_moment_noise


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(size=st.integers(1, 9))
def test_self_tensoring_is_the_square_with_half_the_features(size):
    x, y = jax.random.normal(jax.random.key(size), (2, 5, size))
    features = self_tensor(x)
    assert features.shape == (5, size * (size + 1) // 2)
    np.testing.assert_allclose((features * self_tensor(y)).sum(-1), (x * y).sum(-1) ** 2, rtol=2e-5, atol=2e-5)


def test_redraw_changes_each_matrix():
    sketch = RandomSketch(dim=D, degree=4, size=5, key=jax.random.key(0))
    before = [level[...] for level in sketch.levels]
    sketch.redraw(jax.random.key(1))
    assert [x.shape for x in before] == [(2, 2, D, 5), (1, 2, 5, 5)]
    for old, level in zip(before, sketch.levels, strict=True):
        assert (old != level[...]).all()


@pytest.mark.parametrize("degree", [2, 4])
def test_networks_have_the_paper_s_number_of_weights(degree):
    """Appendix D: p - 2 networks for p = 2 * degree, of 8 h r + 24 r^2 (32 r^2 above the first level) weights each."""
    h, r = 6, 4
    sketch = LearnedSketch(dim=h, degree=degree, size=r, key=jax.random.key(0))
    weights = sum(x.size for networks in sketch.levels for x in jax.tree.leaves(nnx.state(networks.dense)))
    assert weights == degree * (8 * h * r + 24 * r**2) + (degree - 2) * 32 * r**2


def test_learned_sketches_are_bounded_and_start_at_the_size_of_exact_scores():
    h, r = 64, 32
    sketch = LearnedSketch(dim=h, degree=2, size=r, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (1, 200, h)) * h**-0.25
    out = jax.jit(sketch)(x)[0]
    assert float(jnp.abs(jax.jit(sketch)(1e4 * x)).max()) <= r**0.5
    scores = jnp.einsum("ir,jr->ij", out, out) ** 2
    exact = jnp.einsum("id,jd->ij", x[0], x[0]) ** 4
    unrelated = ~np.eye(200, dtype=bool)
    # 1.3 and 3: neither far nor local residues drown the others before training has said so.
    assert 0.1 < float(scores[unrelated].mean() / exact[unrelated].mean()) < 10
