"""Generalized attention's kernels and its policy for denominators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mechanisms import assert_close, fast, inputs, reference, value_and_gradients
from scipy.special import expit
from sweeps import sweep

from proteinlm.errors import InputError
from proteinlm.models.attention import GeneralizedConfig
from proteinlm.models.attention.features.projections import matrix
from proteinlm.models.attention.generalized import FUNCTIONS, SIGNED, kernel_features

D = 6
IN_NUMPY = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": expit,
    "exp": np.exp,
    "abs": np.abs,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "cos": np.cos,
    "tanh": np.tanh,
    "identity": lambda x: x,
}


def build(**options):
    config = GeneralizedConfig(**{"num_features": 8, "chunk_size": 4, **options})
    return config.build(num_heads=2, head_dim=D, key=jax.random.key(0))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_features_are_equation_5(function):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, D)), rng.normal(size=(5, D))
    for projection in (w, None):
        values, scale = kernel_features(
            jnp.asarray(x, jnp.float32),
            None if projection is None else jnp.asarray(projection, jnp.float32),
            function,
            1e-3,
        )[:2]
        if scale is not None:
            values = values * np.exp(scale)[..., None]
        inside = x / D**0.25 if projection is None else x / D**0.25 @ w.T
        expected = (IN_NUMPY[function](inside) + 1e-3) / np.sqrt(inside.shape[-1])
        np.testing.assert_allclose(values, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.few(4)
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("function", sweep(FUNCTIONS, ["relu", "cos"]))
def test_without_projection_or_normalisation(function, renormalize):
    """Values and all gradients against the explicit matrix."""
    attention = build(function=function, num_features=0, renormalize=renormalize)
    assert not jax.tree.leaves(nnx.state(attention))
    q, k, v = inputs(9)
    found = value_and_gradients(fast(attention, True, None), q, k, v)
    expected = value_and_gradients(reference(attention, True, None), q, k, v)
    # Where the denominator comes near 0, 1 / den^2 in the gradient enlarges the rounding of float32.
    assert_close(found, expected, 2e-4 if function in SIGNED and renormalize else 2e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("function", "causal", "projection"),
    [("relu", False, "hadamard"), ("exp", True, "givens"), ("exp", False, "gaussian"), ("gelu", True, "hadamard")],
)
def test_with_a_projection_and_no_normalisation(function, causal, projection):
    """Every projection's fast product in the mechanism; one row is padded."""
    attention = build(function=function, projection=projection, renormalize=False)
    assert matrix(attention.projection.get_value(), D).shape == (8, D)
    mask = jnp.ones((2, 9), bool).at[0, :2].set(False)
    q, k, v = inputs(9, size=1.0)
    found = value_and_gradients(fast(attention, causal, mask), q, k, v)
    expected = value_and_gradients(reference(attention, causal, mask), q, k, v)
    assert_close(found, expected, 2e-5)


@pytest.mark.parametrize("function", sorted(SIGNED))
def test_denominators_near_zero_leave_everything_finite(function):
    """Keys against queries: sums of scores cross zero; values and gradients stay bounded by the policy."""
    attention = build(function=function, num_features=0, kernel_epsilon=0.0)
    q = jax.random.normal(jax.random.key(1), (1, 32, 2, D))
    k = jnp.where(jnp.arange(32)[None, :, None, None] % 2 == 0, q, -q)
    v = jax.random.normal(jax.random.key(2), q.shape)

    def loss(q, k, v):
        return (attention(q, k, v, causal=True) ** 2).sum()

    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, v)
    assert jnp.isfinite(value)
    assert all(jnp.isfinite(g).all() for g in gradients)


def test_a_negative_denominator_keeps_its_sign():
    """identity with q.k = -1 everywhere: scores and denominator are negative, their quotient is an average."""
    attention = build(function="identity", num_features=0, kernel_epsilon=0.0)
    q = jnp.ones((1, 5, 2, D))
    v = jax.random.normal(jax.random.key(2), q.shape)
    out = attention(q, -q, v, causal=False)
    np.testing.assert_allclose(out, jnp.broadcast_to(v.mean(1, keepdims=True), v.shape), atol=1e-5)


def test_a_zero_denominator_is_moved_to_the_least():
    attention = build(function="identity", num_features=0, kernel_epsilon=0.0, min_denominator=0.5)
    q = jnp.zeros((1, 2, 2, D)).at[..., 0].set(1.0)
    k = q.at[:, 1, :, 0].set(-1.0)
    v = jnp.ones_like(q).at[:, 1].set(3.0)
    # Scores +s and -s: their sum is 0, so the output is s (1 - 3) / 0.5.
    s = D**-0.5 / D
    np.testing.assert_allclose(attention(q, k, v, causal=False), -2 * s / 0.5 * jnp.ones_like(v), rtol=1e-4)


def test_relu_without_positive_features_averages_by_its_epsilon():
    attention = build(function="relu", num_features=0)
    q = -jnp.ones((1, 7, 2, D))
    v = jax.random.normal(jax.random.key(2), q.shape)
    np.testing.assert_allclose(
        attention(q, q, v, causal=False), jnp.broadcast_to(v.mean(1, keepdims=True), v.shape), atol=1e-5
    )
    silent = build(function="relu", num_features=0, kernel_epsilon=0.0)
    assert (silent(q, q, v, causal=False) == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_exponential_kernel_does_not_overflow(causal):
    """Features of e^100 and more: their products are infinite in float32, their quotients are not."""
    attention = build(function="exp")
    q, k, v = jax.random.normal(jax.random.key(3), (3, 1, 9, 2, D))
    # All in about one direction; far apart, products underflow and rows are 0, as the mechanism says.
    q, k = q + 60.0, k + 60.0
    w = np.asarray(attention.projection[...], np.float64)

    def logs(x):
        inside = np.einsum("blhd,md->bhlm", np.asarray(x, np.float64) / D**0.25, w)
        return np.logaddexp(inside, np.log(1e-3))

    pairs = np.logaddexp.reduce(logs(q)[:, :, :, None, :] + logs(k)[:, :, None, :, :], axis=-1)
    assert pairs.min() > 100
    if causal:
        pairs = np.where(np.tril(np.ones((9, 9), bool)), pairs, -np.inf)
    a = np.exp(pairs - pairs.max(-1, keepdims=True))
    expected = np.einsum("bhij,bjhe->bihe", a / a.sum(-1, keepdims=True), np.asarray(v, np.float64))
    np.testing.assert_allclose(attention(q, k, v, causal=causal), expected, atol=5e-3)


def test_redraw_with_and_without_a_projection():
    attention = build()
    first = attention.projection[...]
    attention.redraw(jax.random.key(5))
    assert (attention.projection[...] != first).all()
    bare = build(num_features=0)
    bare.redraw(jax.random.key(5))
    assert not hasattr(bare, "projection")


@pytest.mark.parametrize(
    "options",
    [{"num_features": -1}, {"chunk_size": -1}, {"kernel_epsilon": -1.0}, {"min_denominator": 0.0}],
)  # fmt: skip
def test_impossible_settings_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        GeneralizedConfig(**options)


@pytest.mark.parametrize(("name", "value"), [("function", "sine"), ("projection", "fourier")])
def test_unknown_kinds_are_refused(name, value):
    """By the config itself: here the types are checked before it, elsewhere they are not."""
    config = GeneralizedConfig()
    object.__setattr__(config, name, value)
    with pytest.raises(InputError, match=f"attention.{name} is '{value}'; it must be one of "):
        config.__post_init__()


@pytest.mark.parametrize("causal", [False, True])
def test_large_exponents_meet_rows_that_see_nothing(causal):
    """exp(query scale) is infinite here; what it multiplies is 0, and must stay 0, forward and backward."""
    config = GeneralizedConfig(function="exp", num_features=0, renormalize=False, chunk_size=4)
    attention = config.build(num_heads=1, head_dim=2, key=jax.random.key(0))
    q = jnp.full((1, 5, 1, 2), 300.0)
    mask = jnp.zeros((1, 5), bool)
    loss = jax.jit(
        jax.value_and_grad(lambda q, k, v: attention(q, k, v, causal=causal, key_mask=mask).sum(), (0, 1, 2))
    )
    out, gradients = loss(q, q, q)
    assert float(out) == 0
    assert all((g == 0).all() for g in gradients)
