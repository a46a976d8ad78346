"""Against performer-pytorch, the same projection in both: bidirectional FAVOR+ and generalized attention."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.attention import FavorConfig, GeneralizedConfig
from proteinlm.models.attention.features.projections import matrix

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[interop]'")
B, L, H, D, M = 2, 37, 3, 16, 24


@pytest.fixture(scope="module")
def performer():
    with warnings.catch_warnings():
        # It imports distutils, torch.cuda.amp and pkg_resources, all on their way out.
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "performer_pytorch.performer_pytorch", reason="needs performer-pytorch: pip install -e '.[interop]'"
        )


def inputs():
    return tuple(jax.random.normal(key, (B, L, H, D)) for key in jax.random.split(jax.random.key(1), 3))


def theirs(x):
    """[B, L, H, D] -> a tensor [B, H, L, D]."""
    return torch.tensor(np.asarray(x).transpose(0, 2, 1, 3))


def output_and_gradients(attention, q, k, v):
    """Ours, and the gradients of the sum of the output's squares."""

    def loss(*x):
        out = attention(*x, causal=False)
        return (out**2).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return out, *gradients


def assert_equal(ours, features, linear_attention, q, k, v):
    """Output and gradients are those of their linear attention over their features."""
    tensors = [theirs(x).requires_grad_() for x in (q, k, v)]
    out = linear_attention(features(tensors[0], True), features(tensors[1], False), tensors[2])
    (out**2).sum().backward()
    for found, expected in zip(ours, (out, *(x.grad for x in tensors)), strict=True):
        np.testing.assert_allclose(found, expected.detach().numpy().transpose(0, 2, 1, 3), rtol=2e-4, atol=2e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("projection", ["gaussian", "orthogonal", "hadamard", "givens"])
def test_favor_is_their_softmax_attention(performer, projection):
    """Without stabilisers, which differ: theirs is relative to all keys' largest feature, ours to each key's own."""
    config = FavorConfig(num_features=M, projection=projection, kernel_epsilon=0.0, chunk_size=8)
    attention = config.build(num_heads=H, head_dim=D, key=jax.random.key(0))
    w = torch.tensor(np.asarray(matrix(attention.projection.get_value(), D)))

    def features(x, is_query):
        return performer.softmax_kernel(x, projection_matrix=w, is_query=is_query, eps=0.0)

    q, k, v = inputs()
    assert_equal(output_and_gradients(attention, q, k, v), features, performer.linear_attention, q, k, v)


@pytest.mark.parametrize(("function", "theirs_is"), [("relu", "ReLU"), ("sigmoid", "Sigmoid"), ("tanh", "Tanh")])
def test_generalized_is_theirs(performer, function, theirs_is):
    """tanh's kernel_epsilon is 2, so that its denominators are far from 0, where policies differ."""
    epsilon = 2.0 if function == "tanh" else 1e-3
    config = GeneralizedConfig(function=function, num_features=M, kernel_epsilon=epsilon, chunk_size=8)
    attention = config.build(num_heads=H, head_dim=D, key=jax.random.key(0))
    w = torch.tensor(np.asarray(attention.projection[...]))
    f = getattr(torch.nn, theirs_is)()

    def features(x, is_query):
        return performer.generalized_kernel(x, projection_matrix=w, kernel_fn=f, kernel_epsilon=epsilon)

    q, k, v = inputs()
    assert_equal(output_and_gradients(attention, q, k, v), features, performer.linear_attention, q, k, v)


def test_their_whole_module(performer):
    """FastAttention with its ReLU kernel and its own projection, which ours takes over."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = performer.FastAttention(D, M, causal=False, generalized_attention=True)
    attention = GeneralizedConfig(num_features=M).build(num_heads=H, head_dim=D, key=jax.random.key(0))
    attention.projection[...] = jnp.asarray(module.projection_matrix.numpy())
    q, k, v = inputs()
    expected = module(*(theirs(x) for x in (q, k, v))).numpy().transpose(0, 2, 1, 3)
    np.testing.assert_allclose(attention(q, k, v, causal=False), expected, rtol=2e-4, atol=2e-5)
