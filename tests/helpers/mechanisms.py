"""A case of each mechanism in a size for tests, with its properties; tests of all mechanisms use these cases."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from proteinlm.models.attention import (
    FavorConfig,
    GeneralizedConfig,
    IdentityConfig,
    LinformerConfig,
    PolynomialConfig,
    PolySketchConfig,
    ReformerConfig,
    SoftmaxConfig,
)
from proteinlm.models.attention.base import MechanismConfig

B, H, D, E = 2, 2, 6, 5


@dataclass(frozen=True)
class Case:
    """A mechanism and its properties.

    Attributes:
        averages: weights are never negative, and those of a residue with visible keys sum to 1.
        mixes: residues attend to others.
        equivariant: bidirectional attention does not depend on positions.
        sees_itself: a residue that attends to others also attends to itself.
        tolerance: tolerance of values and gradients in float32, relative to the largest.
        bfloat16: the same for bfloat16 inputs: rounding of results and cotangents, 2^-8, larger if denominators come
            near 0.
    """

    config: MechanismConfig
    averages: bool = True
    mixes: bool = True
    equivariant: bool = True
    sees_itself: bool = True
    tolerance: float = 2e-5
    bfloat16: float = 1e-2


# If the denominator comes near 0, the factor 1 / den^2 of the gradient enlarges rounding errors.
SIGNED = {"tolerance": 2e-4, "bfloat16": 5e-2}


def generalized(function, **changes):
    positive = function in ("relu", "sigmoid", "exp", "abs")
    config = GeneralizedConfig(function=function, num_features=10, chunk_size=4)
    return Case(config, averages=positive, **({} if positive else SIGNED), **changes)


def polysketch(*, local, **options):
    # Positions matter for local blocks alone.
    config = PolySketchConfig(sketch_size=4, block_size=4, local=local, **options)
    return Case(config, averages=False, equivariant=not local, **({} if config.nonnegative else SIGNED))


CASES = {
    "softmax": Case(SoftmaxConfig(block_size=4)),
    "polynomial": Case(PolynomialConfig(degree=4, block_size=4), averages=False),
    "polynomial_2": Case(PolynomialConfig(degree=2, block_size=4), averages=False),
    **{
        f"linformer_{name}": Case(
            LinformerConfig(num_projections=7, max_length=40, projections=name, block_size=4),
            averages=False,
            equivariant=False,
        )
        for name in ("redrawn", "learned")
    },
    "favor": Case(FavorConfig(num_features=10, chunk_size=4)),
    "hyperbolic_hadamard": Case(
        FavorConfig(num_features=10, chunk_size=4, features="hyperbolic", projection="hadamard", regularized=True),
    ),
    "trigonometric_givens": Case(
        FavorConfig(num_features=10, chunk_size=4, features="trigonometric", projection="givens", min_denominator=0.1),
        averages=False,
        tolerance=2e-4,
    ),
    "returns_v": Case(IdentityConfig(), mixes=False),
    **{name: generalized(name) for name in ("relu", "sigmoid", "exp", "abs", "gelu", "cos", "tanh", "identity")},
    "reformer": Case(ReformerConfig(num_hashes=3, num_buckets=4, bucket_size=3), equivariant=False, sees_itself=False),
    "polysketch": polysketch(local=True, learned=True),
    "polysketch_learned": polysketch(local=False, learned=True),
    "polysketch_random": polysketch(local=False, learned=False),
    "polysketch_random_local": polysketch(local=True, learned=False),
    "polysketch_8": polysketch(local=True, learned=False, degree=8),
    "polysketch_2": polysketch(local=False, learned=False, degree=2),
    "polysketch_signed": polysketch(local=False, learned=False, nonnegative=False),
}
CAUSAL = [name for name, case in CASES.items() if not case.config.no_causal]
MODES = [(name, causal) for name in CASES for causal in (False, True) if not causal or name in CAUSAL]


def build(name):
    """The mechanism of a case, for inputs [B, L, H, D]."""
    return CASES[name].config.build(num_heads=H, head_dim=D, key=jax.random.key(0))


def inputs(length, *, seed=1, size=2.0, dtype=jnp.float32):
    q, k, v = jax.random.split(jax.random.key(seed), 3)
    shape = (B, length, H, D)
    return (
        (size * jax.random.normal(q, shape)).astype(dtype),
        (size * jax.random.normal(k, shape)).astype(dtype),
        jax.random.normal(v, (B, length, H, E)).astype(dtype),
    )


def keys(attention, q, k):
    """The keys that the model passes."""
    return q if attention.config.shares_queries_and_keys else k


def fast(attention, causal, mask):
    return lambda q, k, v: attention(q, keys(attention, q, k), v, causal=causal, key_mask=mask)


def reference(attention, causal, mask):
    def attend(q, k, v):
        weights = attention.weights(q, keys(attention, q, k), causal=causal, key_mask=mask)
        return jnp.einsum("bhij,bjhe->bihe", weights, v.astype(jnp.float32)).astype(v.dtype)

    return attend


def value_and_gradients(attend, q, k, v):
    """The output, and the gradients of a fixed weighted sum of it."""
    cotangent = jax.random.normal(jax.random.key(9), v.shape)

    def loss(q, k, v):
        out = attend(q, k, v)
        return (out.astype(jnp.float32) * cotangent).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return (out, *gradients)


def assert_close(found, expected, tolerance):
    """Each array within `tolerance` of the largest value of its expected one."""
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()))
