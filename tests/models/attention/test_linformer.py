"""Linformer: against its formula, its two kinds of projections, places, and memory."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx

from proteinlm.errors import InputError
from proteinlm.models.attention import LinformerConfig
from proteinlm.models.attention.base import Projection

B, H, D = 2, 2, 6


def build(**options):
    options = {"num_projections": 5, "max_length": 16, "block_size": 4} | options
    return LinformerConfig(**options).build(num_heads=H, head_dim=D, key=jax.random.key(0))


def inputs(length):
    return jax.random.normal(jax.random.key(1), (3, B, length, H, D))


@pytest.mark.parametrize("projections", ["redrawn", "learned"])
def test_equals_the_formula_one_head_at_a_time(projections):
    attention = build(projections=projections, delta=0.5)
    q, k, v = inputs(7)
    out = jax.jit(lambda q, k, v: attention(q, k, v, causal=False))(q, k, v)
    if projections == "redrawn":
        of_keys = np.asarray(attention.projection[...], np.float64)[:, :7]
        of_values = np.exp(-0.5) * of_keys
    else:
        of_keys, of_values = (np.asarray(x[...], np.float64)[:, :7] for x in (attention.of_keys, attention.of_values))
    for b in range(B):
        for h in range(H):
            scores = np.exp(q[b, :, h] @ (of_keys @ k[b, :, h]).T / np.sqrt(D))
            expected = scores / scores.sum(-1, keepdims=True) @ (of_values @ v[b, :, h])
            np.testing.assert_allclose(out[b, :, h], expected, atol=1e-5)


def test_redrawn_projections_are_saved_not_trained_and_a_pure_function_of_the_key():
    attention = build()
    assert not jax.tree.leaves(nnx.state(attention, nnx.Param))
    first = attention.projection[...]
    attention.redraw(jax.random.key(0))
    np.testing.assert_array_equal(attention.projection[...], first)
    attention.redraw(jax.random.key(1))
    assert (attention.projection[...] != first).any()
    assert isinstance(attention.projection, Projection)


def test_learned_projections_are_trained_apart_and_never_redrawn():
    attention = build(projections="learned")
    q, k, v = inputs(7)
    graph, state = nnx.split(attention)
    gradients = jax.jit(jax.grad(lambda s: (nnx.merge(graph, s)(q, k, v, causal=False) ** 2).sum()))(state)
    for name in ("of_keys", "of_values"):
        gradient = gradients[name][...]
        assert (gradient[:, :7] != 0).all()
        assert (gradient[:, 7:] == 0).all()
    before = attention.of_keys[...]
    assert (before != attention.of_values[...]).all()
    attention.redraw(jax.random.key(1))
    np.testing.assert_array_equal(attention.of_keys[...], before)


@pytest.mark.parametrize("projections", ["redrawn", "learned"])
def test_entries_have_variance_one_over_k(projections):
    attention = build(projections=projections, num_projections=50, max_length=200)
    for leaf in jax.tree.leaves(nnx.state(attention, (nnx.Param, Projection))):
        n = leaf.size
        assert float(leaf.mean()) == pytest.approx(0.0, abs=5 * (1 / 50 / n) ** 0.5)
        assert float((leaf**2).mean()) == pytest.approx(1 / 50, abs=5 / 50 * (2 / n) ** 0.5)


def test_neither_the_side_nor_the_amount_of_padding_changes_anything():
    """Five residues alone, padded on the left, on the right, with a hole; what the padding holds is not read."""
    attention = build()
    q, k, v = inputs(5)
    attend = jax.jit(lambda q, k, v, mask: attention(q, k, v, causal=False, key_mask=mask))
    expected = attend(q, k, v, jnp.ones((B, 5), bool))
    for places in ([4, 5, 6, 7, 8], [0, 1, 2, 3, 4], [0, 3, 4, 8, 11]):
        places = jnp.array(places)
        wide = [jnp.full((B, 12, H, D), 7.0).at[:, places].set(x) for x in (q, k, v)]
        found = attend(*wide, jnp.zeros((B, 12), bool).at[:, places].set(True))
        np.testing.assert_allclose(found[:, places], expected, atol=1e-5)


def test_longer_inputs_are_refused():
    attention = build()
    q, k, v = inputs(17)
    with pytest.raises(ValueError, match=r"q has 17 residues, above attention.max_length, 16"):
        attention(q, k, v, causal=False)
    with pytest.raises(ValueError, match=r"q has 17 residues, above attention.max_length, 16"):
        attention.weights(q, k, causal=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_projections", 0), ("max_length", 0), ("block_size", 0), ("delta", -1.0), ("projections", "fixed")],
)
def test_settings_out_of_range_are_refused(field, value, monkeypatch):
    # Users do not run under beartype, which would be first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match=f"attention.{field} is {value!r}; it"):
        LinformerConfig(**{field: value})


def test_memory_doubles_when_the_length_doubles():
    """Temporaries of the compiled gradient; the scores [L, k] of all blocks are not kept."""
    heads, dim, rows = 2, 16, 128

    def temporary(length):
        attention = LinformerConfig(num_projections=rows, max_length=length, block_size=64).build(
            num_heads=heads, head_dim=dim, key=jax.random.key(0)
        )
        shape = jax.ShapeDtypeStruct((1, length, heads, dim), jnp.float32)
        gradient = jax.jit(jax.grad(lambda *x: (attention(*x, causal=False) ** 2).sum(), argnums=(0, 1, 2)))
        return gradient.lower(shape, shape, shape).compile().memory_analysis().temp_size_in_bytes

    short, long = temporary(4096), temporary(8192)
    assert 1.5 < long / short < 2.1
    assert long < 8192 * heads * rows * 4
