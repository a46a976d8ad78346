"""Polynomial sketches: short vectors whose products estimate powers, <S(x), S(y)> ~ <x, y>^p (PolySketchFormer).

Algorithm 1 is a binary tree. A node of degree p has two children of degree p / 2, and a node of degree 1 is x:

    S_p(x) = 1 / sqrt(r) [G_1 S_{p/2}(x)] * [G_2 S'_{p/2}(x)]        * entry by entry

The factor 1 / sqrt(r) per product gives E <S_p(x), S_p(y)> = <x, y>^p. Algorithm 2 has the same tree with a trained
network f in place of each Gaussian G, and a bounded result: S_p = sqrt(r) tanh([f_1 * f_2] / sqrt(r)).

Levels are numbered from the leaves: level 0 has p / 2 nodes, whose input is x; each next level has half as many.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from proteinlm.models.attention.base import Projection
from proteinlm.models.attention.features.norms import normalized

EXPANSION = 8
"""Width of a network's hidden layers, divided by r (appendix D)."""


class RandomSketch(nnx.Module):
    """PolySketchWithNegativity (Algorithm 1): 2 (p - 1) Gaussian matrices."""

    def __init__(self, *, dim: int, degree: int, size: int, key: jax.Array):
        """Draw the matrices of a sketch of x^p, p = degree, with r = size entries, for x of width `dim`."""
        self.dim, self.degree, self.size = dim, degree, size
        self.levels = nnx.List([Projection(draw) for draw in self._draw(key)])

    def _draw(self, key: jax.Array) -> list[Float[Array, "nodes 2 W R"]]:
        levels = tree_levels(self.degree)
        widths = [self.dim, *[self.size] * (len(levels) - 1)]
        keys = jax.random.split(key, max(len(levels), 1))
        return [
            jax.random.normal(k, (nodes, 2, width, self.size), jnp.float32)
            for k, nodes, width in zip(keys, levels, widths, strict=False)
        ]

    def redraw(self, key: jax.Array) -> None:
        """Draw new matrices, as a pure function of the key."""
        for level, draw in zip(self.levels, self._draw(key), strict=True):
            level[...] = draw

    def __call__(self, x: Float[Array, "N C D"]) -> Float[Array, "N C R"]:
        """Return the sketch, float32 [N, C, r]; x itself if the degree is 1."""
        nodes = [x] * self.degree
        for level in self.levels:
            nodes = [
                (nodes[2 * i] @ pair[0]) * (nodes[2 * i + 1] @ pair[1]) * self.size**-0.5
                for i, pair in enumerate(level[...])
            ]
        return nodes[0]


class LearnedSketch(nnx.Module):
    """LearnablePolySketchWithNegativity (Algorithm 2, appendix D): 2 (p - 1) networks of 8 h r + 24 r^2 weights."""

    def __init__(self, *, dim: int, degree: int, size: int, key: jax.Array):
        """Draw the initial weights of the networks."""
        self.degree, self.size = degree, size
        levels = tree_levels(degree)
        keys = jax.random.split(key, max(len(levels), 1))
        self.levels = nnx.List(
            [
                SketchNetworks(nodes=nodes, width=dim if i == 0 else size, dim=dim, size=size, key=keys[i])
                for i, nodes in enumerate(levels)
            ]
        )

    def __call__(self, x: Float[Array, "N C D"]) -> Float[Array, "N C R"]:
        """Return the sketch, float32 [N, C, r]; x itself if the degree is 1."""
        nodes, bound = [x] * self.degree, self.size**0.5
        for networks in self.levels:
            nodes = [
                bound * jnp.tanh(networks(nodes[2 * i], i, 0) * networks(nodes[2 * i + 1], i, 1) / bound)
                for i in range(networks.nodes)
            ]
        return nodes[0]


class SketchNetworks(nnx.Module):
    """The networks of one level: LayerNorm, dense 8r, gelu, dense r, LayerNorm, dense 8r, gelu, dense r; no biases."""

    def __init__(self, *, nodes: int, width: int, dim: int, size: int, key: jax.Array):
        self.nodes = nodes
        wide = EXPANSION * size
        shapes = [(width, wide), (wide, size), (size, wide), (wide, size)]
        # The factors 2 make up for the variance that gelu removes. The last gain gives sketches of squared length
        # sqrt(D): at the start, scores of unrelated residues are of order 1, like exact scores, so that neither distant
        # nor local residues dominate.
        gains = [1.0, 2.0, 1.0, 2.0 * (dim**0.5 / size) ** 0.5]
        self.dense = nnx.List(
            [
                nnx.Param((gain / shape[0]) ** 0.5 * jax.random.normal(k, (nodes, 2, *shape), jnp.float32))
                for k, shape, gain in zip(jax.random.split(key, 4), shapes, gains, strict=True)
            ]
        )
        self.scales = nnx.List([nnx.Param(jnp.ones((nodes, 2, w), jnp.float32)) for w in (width, size)])
        self.biases = nnx.List([nnx.Param(jnp.zeros((nodes, 2, w), jnp.float32)) for w in (width, size)])

    def __call__(self, x: Float[Array, "N C W"], node: int, side: int) -> Float[Array, "N C R"]:
        """Apply the network of one side of a node."""
        # All rows in one axis: on CPUs, gradients of the weights are several times slower as sums over two axes.
        shape, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
        for half in range(2):
            scale, bias = (p[...][node, side] for p in (self.scales[half], self.biases[half]))
            x = normalized(x, 1e-5) * scale[None] + bias[None]
            x = jax.nn.gelu(x @ self.dense[2 * half][...][node, side]) @ self.dense[2 * half + 1][...][node, side]
        return x.reshape(*shape, -1)


def tree_levels(degree: int) -> list[int]:
    """Return the number of nodes in each level of the tree of a power of two: [2, 1] for 4, [] for 1."""
    return [degree >> level for level in range(1, degree.bit_length())]


def self_tensor(x: Float[Array, "*rows R"]) -> Float[Array, "*rows M"]:
    """Return r (r + 1) / 2 features whose products are <x, y>^2: x_a x_b for a <= b, times sqrt(2) if a < b.

    Pairs are grouped by their cyclic distance b - a, so that each distance is one product of whole vectors.
    """
    size = x.shape[-1]
    twice = jnp.concatenate([x, x], axis=-1)
    parts = [x * x]
    for distance in range(1, size // 2 + 1):
        # At half of an even size, each pair occurs twice.
        count = size // 2 if 2 * distance == size else size
        parts.append(2**0.5 * x[..., :count] * twice[..., distance : distance + count])
    return jnp.concatenate(parts, axis=-1)
