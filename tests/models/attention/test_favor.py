"""FAVOR+ against the mathematics of the Performer paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.errors import InputError
from proteinlm.models.attention import FavorConfig, Projection
from proteinlm.models.attention.favor import positive_features
from proteinlm.models.attention.projections import gaussian, orthogonal

D = 6


def estimates(draw, x, y, *, m, n, seed=0):
    """n independent estimates of exp(x.y) with m features; x and y are already divided by D^(1/4)."""

    def one(key):
        phi_x, phi_y = (positive_features(u * D**0.25, draw(key, m, D), 0.0) for u in (x, y))
        return (phi_x.values * phi_y.values).sum() / m * jnp.exp(phi_x.log_scale + phi_y.log_scale)

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), n)), np.float64)


def pair(angle):
    """Two vectors of length 0.6 and 0.8 with an angle between them."""
    x = np.zeros(D)
    y = np.zeros(D)
    x[0] = 0.6
    y[0], y[1] = 0.8 * np.cos(angle), 0.8 * np.sin(angle)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


@pytest.mark.parametrize("angle", [0.0, 1.5, np.pi])
def test_estimates_are_unbiased_with_the_known_variance(angle):
    """Var = (1/m) e^{|z|^2} SM^2 (1 - e^{-|z|^2}) (Lemma 2); orthogonal features have the same mean."""
    x, y = pair(angle)
    m, n = 4, 20_000
    z2, sm = float(((x + y) ** 2).sum()), float(jnp.exp(x @ y))
    variance = np.exp(z2) * sm**2 * (1 - np.exp(-z2)) / m
    iid, ort = (estimates(draw, x, y, m=m, n=n, seed=s) for s, draw in enumerate((gaussian, orthogonal)))
    deviation = (variance / n) ** 0.5
    assert abs(iid.mean() - sm) < 5 * deviation
    assert abs(ort.mean() - sm) < 5 * deviation
    # The fourth moment of a log-normal bounds how far an empirical variance strays; 20 % is over 5 deviations here.
    assert abs(iid.var() / variance - 1) < 0.2


def test_orthogonal_features_have_the_smaller_error():
    """Theorem 2: the gain is at least 2 (m-1) / (m (d+2)) (SM - e^{-(|x|^2+|y|^2)/2})^2."""
    x = y = jnp.zeros(D).at[0].set(0.45)
    m, n = D, 100_000
    sm = float(jnp.exp(x @ y))
    iid, ort = (((estimates(draw, x, y, m=m, n=n, seed=5) - sm) ** 2) for draw in (gaussian, orthogonal))
    gain = 2 * (m - 1) / (m * (D + 2)) * (sm - np.exp(-(float(x @ x) + float(y @ y)) / 2)) ** 2
    noise = ((iid.var() + ort.var()) / n) ** 0.5
    assert gain > 5 * noise
    assert iid.mean() - ort.mean() > gain - 3 * noise


def test_features_are_lemma_1():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, D)), rng.normal(size=(5, D))
    values, scale = positive_features(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32), 0.0)
    y = x / D**0.25
    expected = np.exp(y @ w.T - (y**2).sum(-1, keepdims=True) / 2)
    np.testing.assert_allclose(values * np.exp(scale)[..., None], expected, rtol=1e-5)
    np.testing.assert_allclose(values.max(-1), 1.0)


def build(**options):
    config = FavorConfig(num_features=8, chunk_size=4, **options)
    return config.build(num_heads=2, head_dim=D, key=jax.random.key(0))


def in_log_domain(attention, q, k, v, causal):
    """float64 weights from the logarithms of single features, with no stabiliser at all."""
    w = np.asarray(attention.projection[...], np.float64)

    def logs(x):
        x = np.asarray(x, np.float64) / D**0.25
        h = np.einsum("blhd,md->bhlm", x, w) - (x**2).sum(-1).transpose(0, 2, 1)[..., None] / 2
        return np.logaddexp(h, h.max(-1, keepdims=True) + np.log(attention.config.kernel_epsilon))

    pairs = np.logaddexp.reduce(logs(q)[:, :, :, None, :] + logs(k)[:, :, None, :, :], axis=-1)
    if causal:
        pairs = np.where(np.tril(np.ones(pairs.shape[-2:], bool)), pairs, -np.inf)
    a = np.exp(pairs - pairs.max(-1, keepdims=True))
    return np.einsum("bhij,bjhe->bihe", a / a.sum(-1, keepdims=True), np.asarray(v, np.float64))


def output_and_gradients(attention, q, k, v, causal):
    def loss(*x):
        out = attention(*x, causal=causal)
        return (out**2).sum(), out

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [0.5, 40.0])
def test_large_queries_and_keys_stay_exact(size, causal):
    """Features span e^+-1000 at size 40; the result is that of float64 logarithms."""
    attention = build()
    q, k, v = jax.random.normal(jax.random.key(3), (3, 2, 11, 2, D))
    q, k = size * q, size * k
    (_, out), gradients = output_and_gradients(attention, q, k, v, causal)
    # Exponents near 1000 carry errors of 1e-4 in float32.
    np.testing.assert_allclose(out, in_log_domain(attention, q, k, v, causal), atol=1e-5 * max(1.0, size**2))
    assert all(jnp.isfinite(g).all() for g in gradients)


def test_rows_without_common_features_give_zero_only_without_the_stabiliser():
    """Far apart, every product underflows: with the paper's 1e-6 the row is an average, with 0 it is 0."""
    w = jnp.concatenate([jnp.eye(D), -jnp.eye(D)])[:8] * 3.0
    q = jnp.zeros((1, 3, 2, D)).at[..., 0].set(100.0)
    k = jnp.zeros((1, 3, 2, D)).at[..., 1].set(100.0)
    for epsilon, expected in ((1e-6, 1.0), (0.0, 0.0)):
        attention = build(kernel_epsilon=epsilon)
        attention.projection[...] = w
        loss = jax.jit(jax.value_and_grad(lambda q, a=attention: a(q, k, jnp.ones_like(q), causal=True).sum()))
        out, gradient = loss(q)
        assert float(out) == pytest.approx(expected * q.size, abs=1e-3)
        assert jnp.isfinite(gradient).all()


def test_approximates_softmax_with_many_features():
    """The mean absolute error of weights falls with M as 1 / sqrt(M); 4,096 features of width 6 are close."""
    q, k = 0.7 * jax.random.normal(jax.random.key(5), (2, 1, 12, 2, D))
    exact = jax.nn.softmax(jnp.einsum("bihd,bjhd->bhij", q, k) / D**0.5, axis=-1)
    errors = []
    for m in (64, 4096):
        attention = FavorConfig(num_features=m).build(num_heads=2, head_dim=D, key=jax.random.key(6))
        errors.append(float(jnp.abs(attention.weights(q, k, causal=False) - exact).mean()))
    assert errors[1] < 5e-3
    assert errors[1] < errors[0] / 3


def test_redraw_is_a_pure_function_of_the_key():
    one, two = build(), build()
    first = one.projection[...]
    one.redraw(jax.random.key(8))
    assert (one.projection[...] != first).all()
    two.redraw(jax.random.key(8))
    np.testing.assert_array_equal(one.projection[...], two.projection[...])
    assert isinstance(one.projection, Projection)
    assert one.projection.shape == (8, D)


@pytest.mark.parametrize("options", [{"num_features": 0}, {"chunk_size": 0}, {"kernel_epsilon": -1.0}])
def test_impossible_settings_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        FavorConfig(**options)
