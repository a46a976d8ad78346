"""Polysketch attention: what is particular to it; the rest is in test_mechanisms.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from proteinlm.errors import InputError
from proteinlm.models.attention import PolySketchConfig, Projection

H, D = 2, 6


def build(head_dim=D, **options):
    config = PolySketchConfig(**{"sketch_size": 4, "block_size": 4} | options)
    return config.build(num_heads=H, head_dim=head_dim, key=jax.random.key(0))


def inputs(length, dim=D, seed=1):
    return jax.random.normal(jax.random.key(seed), (3, 2, length, H, dim))


def normalized(x):
    x = np.asarray(x, np.float64)
    x = x - x.mean(-1, keepdims=True)
    return x / x.std(-1, keepdims=True) / x.shape[-1] ** 0.25


def exact(q, k, degree, causal):
    """<LN(q), LN(k)>^p / D^(p / 2), over 1 + its sum, float64: section 2.1."""
    scores = np.einsum("bihd,bjhd->bhij", normalized(q), normalized(k)) ** degree
    scores = np.tril(scores) if causal else scores
    return scores / (1 + scores.sum(-1, keepdims=True))


@pytest.mark.parametrize("causal", [False, True])
def test_degree_2_is_exact(causal):
    q, k, _ = inputs(11)
    found = build(degree=2, learned=False, local=False).weights(q, k, causal=causal)
    np.testing.assert_allclose(found, exact(q, k, 2, causal), atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_one_block_is_exact_polynomial_attention(learned, causal):
    q, k, v = inputs(9)
    attention = build(learned=learned, block_size=16)
    weights = exact(q, k, 4, causal)
    np.testing.assert_allclose(attention.weights(q, k, causal=causal), weights, atol=3e-5)
    out = jax.jit(lambda q, k, v: attention(q, k, v, causal=causal))(q, k, v)
    np.testing.assert_allclose(out, np.einsum("bhij,bjhe->bihe", weights, v), atol=3e-5)


def test_blocks_are_part_of_the_model_only_if_local():
    q, k, v = inputs(11)
    for local in (False, True):
        outs = []
        for size in (3, 4, 16):
            attention = build(local=local, block_size=size)
            outs.append(jax.jit(lambda q, k, v, a=attention: a(q, k, v, causal=True))(q, k, v))
        same = np.allclose(outs[0], outs[1], atol=1e-5) and np.allclose(outs[0], outs[2], atol=1e-5)
        assert same != local


@pytest.mark.parametrize("degree", [4, 8])
def test_a_large_sketch_comes_near_exact_attention(degree):
    """The error of scores falls as 1 / sqrt(r): 64 times the size, an eighth of it; a third is asked for."""
    q, k, _ = inputs(10)
    target = exact(q, k, degree, False)
    errors = [
        np.abs(build(degree=degree, learned=False, local=False, sketch_size=r).weights(q, k, causal=False) - target)
        for r in (8, 512)
    ]
    assert errors[1].mean() < errors[0].mean() / 3


@pytest.mark.parametrize("causal", [False, True])
def test_weights_sum_to_den_over_one_plus_den(causal):
    q, k, _ = inputs(11)
    attention = build()
    ones = jnp.ones((2, 11, H, 1))
    out = jax.jit(lambda q, k, v: attention(q, k, v, causal=causal))(q, k, ones)[..., 0]
    weights = attention.weights(q, k, causal=causal)
    np.testing.assert_allclose(out, weights.sum(-1).swapaxes(1, 2), atol=1e-5)
    assert (weights >= 0).all()
    assert ((out > 0) & (out < 1)).all()


def test_negative_scores_need_no_self_tensoring():
    q, k, _ = inputs(11)
    weights = build(learned=False, local=False, nonnegative=False).weights(q, k, causal=False)
    assert (weights < 0).any()


def dots(jaxpr):
    """Every matrix product of a program, loops and all, as (shape of the result, length of what is summed)."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((left, _), _) = equation.params["dimension_numbers"]
            summed = int(np.prod([equation.invars[0].aval.shape[axis] for axis in left]))
            yield equation.outvars[0].aval.shape, summed
        for value in equation.params.values():
            if inner := getattr(value, "jaxpr", None):
                yield from dots(getattr(inner, "jaxpr", inner))
            elif hasattr(value, "eqns"):
                yield from dots(value)


@pytest.mark.parametrize(("options", "summed"), [({"local": False}, 7), ({"local": True}, D)])
def test_scores_inside_a_block_never_touch_the_squared_features(options, summed):
    """O(b^2 r), section 3.1: products that give [b, b] sum over r, or D for exact blocks; 28 is r (r+1) / 2."""
    attention = build(sketch_size=7, block_size=5, learned=False, **options)
    q, k, v = inputs(20)
    program = jax.make_jaxpr(lambda q, k, v: attention(q, k, v, causal=True))(q, k, v)
    in_block = {length for shape, length in dots(program.jaxpr) if shape[-2:] == (5, 5)}
    assert in_block == {summed}
    assert 28 in {length for _, length in dots(program.jaxpr)}


def test_every_trained_part_learns_and_random_ones_do_not():
    q, k, v = inputs(11)
    for learned in (False, True):
        graph, params, rest = nnx.split(build(learned=learned), nnx.Param, ...)

        def loss(params, graph=graph, rest=rest):
            return (nnx.merge(graph, params, rest)(q, k, v, causal=True) ** 2).sum()

        gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(params))
        assert len(gradients) == 4 + 8 * learned
        assert all(jnp.abs(g).max() > 0 for g in gradients)
        drawn = jax.tree.leaves(nnx.state(nnx.merge(graph, params, rest), Projection))
        assert len(drawn) == (0 if learned else 1)


def test_redraw_leaves_learned_sketches_alone():
    for learned in (False, True):
        attention = build(learned=learned)
        before = jax.tree.leaves(nnx.state(attention))
        attention.redraw(jax.random.key(5))
        after = jax.tree.leaves(nnx.state(attention))
        assert learned == all((a == b).all() for a, b in zip(before, after, strict=True))


def test_the_state_does_not_grow():
    attention = build(block_size=4)
    sizes = set()
    for length in (3, 8, 30):
        q, k, v = inputs(length)
        shapes = jax.eval_shape(lambda *x: attention.prefill(*x, max_length=1000)[1], q, k, v)
        sizes.add(sum(x.size for x in jax.tree.leaves(shapes)))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"degree": 3}, r"attention.degree is 3; .* 2, 4, 8"),
        ({"degree": 6}, r"attention.degree is 6; .* 2, 4, 8"),
        ({"degree": 0}, r"attention.degree is 0"),
        ({"sketch_size": 0}, r"attention.sketch_size is 0; it must be at least 1"),
        ({"block_size": 0}, r"attention.block_size is 0"),
        ({"beta": -1.0}, r"attention.beta is -1"),
        ({"min_denominator": 0.0}, r"attention.min_denominator is 0"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(PolySketchConfig(), **change)


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_compiled_memory_of_the_gradient_doubles_with_the_length(local, causal):
    attention = build(local=local, block_size=64, learned=False)
    gradient = jax.jit(jax.grad(lambda q, k, v: attention(q, k, v, causal=causal).sum(), argnums=(0, 1, 2)))

    def memory(length):
        x = jax.ShapeDtypeStruct((1, length, H, D), jnp.float32)
        return gradient.lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    assert memory(4096) < 2.1 * memory(2048)
