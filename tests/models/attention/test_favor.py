"""FAVOR+ against the mathematics of the Performer paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import hyp0f1

from proteinlm.errors import InputError
from proteinlm.models.attention import FavorConfig, Projection
from proteinlm.models.attention.favor import softmax_features
from proteinlm.models.attention.features.projections import draw_projection, gaussian, matrix

D = 6


KINDS = ("positive", "hyperbolic", "trigonometric")


def kernel_estimate(phi_x, phi_y):
    """The products phi(x).phi(y) of all pairs, not normalised: [..., X, Y] of [..., X, M] and [..., Y, M]."""
    scale = phi_x.log_scale[..., :, None] + phi_y.log_scale[..., None, :]
    return jnp.einsum("...xm,...ym->...xy", phi_x.values, phi_y.values) * jnp.exp(scale)


def estimates(projection, pairs, *, m, n, kinds=KINDS, norms="chi", seed=0):
    """n independent estimates of exp(x.y) with m rows, by kind and pair (x, y): x, y are already over D^(1/4).

    Returns:
        float64 [n] arrays by kind, for each pair.
    """

    def one(key):
        draw = draw_projection(projection, key, m, pairs[0][0].shape[0], norms=norms)
        return [
            {kind: kernel_estimate(*(softmax_features(u[None], draw, kind) for u in pair))[0, 0] for kind in kinds}
            for pair in pairs
        ]

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), n))
    return jax.tree.map(lambda x: np.asarray(x, np.float64), found)


def pair(angle):
    """Two vectors of length 0.6 and 0.8 with an angle between them."""
    x = np.zeros(D)
    y = np.zeros(D)
    x[0] = 0.6
    y[0], y[1] = 0.8 * np.cos(angle), 0.8 * np.sin(angle)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def variances(x, y, m):
    """Lemma 2 of the paper, for m rows, and for hyperbolic features half of what is left of the positive ones'."""
    z2, apart, sm = float(((x + y) ** 2).sum()), float(((x - y) ** 2).sum()), float(np.exp(x @ y))
    positive = np.exp(z2) * sm**2 * (1 - np.exp(-z2)) / m
    return {
        "positive": positive,
        "hyperbolic": (1 - np.exp(-z2)) * positive / 2,
        "trigonometric": np.exp(z2) / sm**2 * (1 - np.exp(-apart)) ** 2 / (2 * m),
    }


def test_estimates_are_unbiased_with_the_known_variance():
    """All kinds at three angles; orthogonal rows give the same means."""
    pairs = [pair(angle) for angle in (0.0, 1.5, np.pi)]
    m, n = 4, 20_000
    iid, ort = (estimates(p, pairs, m=m, n=n, seed=s) for s, p in enumerate(("gaussian", "orthogonal")))
    for (x, y), by_iid, by_ort in zip(pairs, iid, ort, strict=True):
        for kind, variance in variances(x, y, m).items():
            deviation = (variance / n) ** 0.5
            assert abs(by_iid[kind].mean() - float(jnp.exp(x @ y))) < 5 * deviation
            assert abs(by_ort[kind].mean() - float(jnp.exp(x @ y))) < 5 * deviation
            # The fourth moment of a log-normal bounds how far an empirical variance strays; 20 % is over 5 deviations.
            assert abs(by_iid[kind].var() / variance - 1) < 0.2


@pytest.mark.parametrize("d", [8, 64, 512])
def test_the_regularised_kernel_is_a_bessel_function(d):
    """SMREG / SM = e^{-|z|^2 / 2} 0F1(; d/2; d |z|^2 / 4) <= 1 (Theorem 1); at |z|^2 = 4 facts.md has numbers."""
    z2 = np.linspace(0, 12, 25)
    ratio = np.exp(-z2 / 2) * hyp0f1(d / 2, d * z2 / 4)
    assert (ratio <= 1).all()
    assert (np.diff(ratio) < 0).all()
    assert ratio[8] == pytest.approx({8: 0.753, 64: 0.945, 512: 0.992}[d], abs=6e-4)


@pytest.mark.few(2)
@pytest.mark.parametrize("projection", ["gaussian", "orthogonal", "givens", "hadamard"])
def test_regularised_features_estimate_the_regularised_kernel(projection):
    """x = y = e1 in 8 dimensions: 0.753 of SM. One row's exp(w.z) has as variance SMREG's at 2 z minus its square."""
    d, n = 8, 8_000
    x = jnp.zeros(d).at[0].set(1.0)
    sm, regularised = np.e, np.exp(-1) * hyp0f1(d / 2, d)
    assert regularised == pytest.approx(0.753 * sm, abs=2e-3)
    variance = np.exp(-2) * hyp0f1(d / 2, 4 * d) - regularised**2
    # Three Hadamard blocks are uniform nearly, not quite.
    allowed = 5 * (variance / (n * d)) ** 0.5 + (0.04 * sm if projection == "hadamard" else 0)
    (found,) = estimates(projection, [(x, x)], m=d, n=n, norms="sqrt", kinds=("positive", "hyperbolic"))
    for values in found.values():
        assert abs(values.mean() - regularised) < allowed


def test_the_configured_kernel_is_the_regularised_one():
    """The mechanism's rows have the norm sqrt(D), those of the padded width for Hadamard."""
    attention = build(regularized=True)
    np.testing.assert_allclose((attention.projection[...] ** 2).sum(1), D, rtol=1e-5)
    attention.redraw(jax.random.key(1))
    np.testing.assert_allclose((attention.projection[...] ** 2).sum(1), D, rtol=1e-5)
    np.testing.assert_allclose(build(regularized=True, projection="hadamard").projection.get_value().lengths, 8**0.5)


def test_orthogonal_features_have_the_smaller_error():
    """Theorem 2: the gain is at least 2 (m-1) / (m (d+2)) (SM - e^{-(|x|^2+|y|^2)/2})^2."""
    x = y = jnp.zeros(D).at[0].set(0.45)
    m, n = D, 100_000
    sm = float(jnp.exp(x @ y))
    iid, ort = (
        (estimates(p, [(x, y)], m=m, n=n, seed=5, kinds=("positive",))[0]["positive"] - sm) ** 2
        for p in ("gaussian", "orthogonal")
    )
    gain = 2 * (m - 1) / (m * (D + 2)) * (sm - np.exp(-(float(x @ x) + float(y @ y)) / 2)) ** 2
    noise = ((iid.var() + ort.var()) / n) ** 0.5
    assert gain > 5 * noise
    assert iid.mean() - ort.mean() > gain - 3 * noise


def in_numpy(x, w, kind):
    """The features of the top of favor.py, float64."""
    wx, half = x @ w.T, (x**2).sum(-1, keepdims=True) / 2
    if kind == "positive":
        return np.exp(wx - half) / len(w) ** 0.5
    if kind == "hyperbolic":
        return np.concatenate([np.exp(wx - half), np.exp(-wx - half)], -1) / (2 * len(w)) ** 0.5
    return np.exp(half) * np.concatenate([np.cos(wx), np.sin(wx)], -1) / len(w) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_the_paper(kind):
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(2, 3, D)), rng.normal(size=(2, 4, D)), rng.normal(size=(5, D))
    phi_x, phi_y = (softmax_features(jnp.asarray(u, jnp.float32), jnp.asarray(w, jnp.float32), kind) for u in (x, y))
    np.testing.assert_allclose(phi_x.values * np.exp(phi_x.log_scale)[..., None], in_numpy(x, w, kind), rtol=2e-5)
    assert np.abs(phi_x.values).max() <= 1.0
    expected = in_numpy(x, w, kind) @ in_numpy(y, w, kind).swapaxes(1, 2)
    np.testing.assert_allclose(kernel_estimate(phi_x, phi_y), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_features_of_large_inputs_do_not_overflow(kind):
    """|x|^2 / 2 is near 15,000: the logarithm of the scale carries it, the values stay within [-1, 1]."""
    x = 70 * jax.random.normal(jax.random.key(0), (4, D))
    w = gaussian(jax.random.key(1), 9, D)

    def total(x):
        phi = softmax_features(x, w, kind)
        return phi.values.sum(), phi

    (_, phi), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(x)
    assert jnp.abs(phi.values).max() <= 1.0
    assert jnp.isfinite(phi.log_scale).all()
    assert jnp.isfinite(gradient).all()


def build(**options):
    config = FavorConfig(num_features=8, chunk_size=4, **options)
    return config.build(num_heads=2, head_dim=D, key=jax.random.key(0))


def in_log_domain(attention, q, k, v, causal):
    """float64 weights from the logarithms of single features, with no stabiliser at all."""
    w = np.asarray(matrix(attention.projection.get_value(), D), np.float64)

    def logs(x):
        x = np.asarray(x, np.float64) / D**0.25
        h = np.einsum("blhd,md->bhlm", x, w)
        h = np.concatenate([h, -h], -1) if attention.config.features == "hyperbolic" else h
        h = h - (x**2).sum(-1).transpose(0, 2, 1)[..., None] / 2
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


@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "size"), [("positive", 0.5), ("positive", 40.0), ("hyperbolic", 40.0)])
def test_large_queries_and_keys_stay_exact(kind, size, causal):
    """Features span e^+-1000 at size 40; the result is that of float64 logarithms."""
    attention = build(features=kind)
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


def test_trigonometric_denominators_near_zero_leave_everything_finite():
    """Trap 11. Keys opposite to the queries: exp(x.y) is tiny, the estimates' noise is not, and sums cross zero."""
    attention = FavorConfig(num_features=4, chunk_size=4, features="trigonometric").build(
        num_heads=2, head_dim=D, key=jax.random.key(0)
    )
    q = 4 * jax.random.normal(jax.random.key(1), (1, 32, 2, D))
    v = jax.random.normal(jax.random.key(2), q.shape)
    (_, out), gradients = output_and_gradients(attention, q, -q, v, True)
    w, x = attention.projection[...], q / D**0.25
    phi_q, phi_k = (softmax_features(u.swapaxes(1, 2), w, "trigonometric") for u in (x, -x))
    # In the policy's unit: by the largest |phi(k)| that the residue sees.
    scale = jnp.where(jnp.tril(jnp.ones((32, 32), bool)), phi_k.log_scale[..., None, :], -jnp.inf)
    scores = jnp.einsum("bhim,bhjm->bhij", phi_q.values, phi_k.values) * jnp.exp(scale - scale.max(-1, keepdims=True))
    denominators = scores.sum(-1)
    assert (denominators < 0).any()
    least = attention.config.min_denominator
    moved = jnp.where(jnp.abs(denominators) < least, jnp.where(denominators < 0, -least, least), denominators)
    expected = jnp.einsum("bhij,bjhe->bihe", scores / moved[..., None], v)
    np.testing.assert_allclose(out, expected, rtol=2e-3, atol=2e-3)
    assert all(jnp.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("opposite", [1.0, -1.0])
def test_a_trigonometric_denominator_below_the_least_is_moved(opposite):
    """w.(x - y) = pi / 2 minus or plus 0.01: the score, its cosine, is 0.01 or -0.01, the denominator 0.5 or -0.5."""
    attention = FavorConfig(num_features=1, features="trigonometric", min_denominator=0.5).build(
        num_heads=1, head_dim=D, key=jax.random.key(0)
    )
    attention.projection[...] = jnp.zeros((1, D)).at[0, 0].set(1.0)
    q = jnp.zeros((1, 1, 1, D)).at[..., 0].set((np.pi / 2 - opposite * 0.01) * D**0.25)
    out = attention(q, jnp.zeros_like(q), jnp.ones_like(q), causal=False)
    np.testing.assert_allclose(out, np.sin(opposite * 0.01) / (opposite * 0.5), rtol=1e-4)


def test_different_projections_for_queries_and_keys_are_nearly_uniform_attention():
    """Trap 4: scores of independent draws factor into a part of the query and one of the key, whatever q.k is."""
    q = 1.5 * jax.random.normal(jax.random.key(5), (12, D)) / D**0.25
    same, other = (gaussian(jax.random.key(s), 4096, D) for s in (0, 1))

    @jax.jit
    def spread(draw):
        """How far the logarithm of scores is from a sum of two parts; exact softmax's is q.k's own."""
        log = jnp.log(kernel_estimate(softmax_features(q, same), softmax_features(q, draw)))
        log = log - log.mean(0, keepdims=True)
        return (log - log.mean(1, keepdims=True)).std()

    exact = float((q @ q.T).std())
    assert spread(same) > 0.5 * exact
    assert spread(other) < 0.2 * exact


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


@pytest.mark.parametrize("projection", ["gaussian", "orthogonal", "hadamard", "givens"])
def test_redraw_is_a_pure_function_of_the_key(projection):
    one, two = build(projection=projection), build(projection=projection)
    first = jax.tree.leaves(one.projection.get_value())
    one.redraw(jax.random.key(8))
    two.redraw(jax.random.key(8))
    second, same = (jax.tree.leaves(x.projection.get_value()) for x in (one, two))
    for a, b, c in zip(first, second, same, strict=True):
        assert (a != b).mean() > 0.3
        np.testing.assert_array_equal(b, c)
    assert isinstance(one.projection, Projection)
    assert matrix(one.projection.get_value(), D).shape == (8, D)


@pytest.mark.parametrize(
    "options",
    [
        {"num_features": 0},
        {"chunk_size": -1},
        {"kernel_epsilon": -1.0},
        {"min_denominator": 0.0},
        {"regularized": True, "features": "trigonometric"},
    ],
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(InputError, match=f"attention.{next(iter(options))} is "):
        FavorConfig(**options)


@pytest.mark.parametrize(("name", "value"), [("features", "sine"), ("projection", "fourier")])
def test_unknown_kinds_are_refused(name, value):
    """By the config itself: here the types are checked before it, elsewhere they are not."""
    config = FavorConfig()
    object.__setattr__(config, name, value)
    with pytest.raises(InputError, match=f"attention.{name} is '{value}'; it must be one of "):
        config.__post_init__()
