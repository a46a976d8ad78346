"""Random projections: the rows w of feature maps exp(w.x - |x|^2 / 2), f(w.x), ... (Performer paper, section 2.4).

| kind | rows | product with x | stored |
|---|---|---|---|
| gaussian | iid Gaussian | dense, O(M D) | W, [M, D] |
| orthogonal | R-ORF: Haar within blocks of D rows | dense, O(M D) | W, [M, D] |
| hadamard | H-ORF: H D3 H D2 H D1, H Walsh-Hadamard, D random signs | O(M log D) | 3 signs and a length per row |
| givens | G-ORF: Givens rotations of random pairs at random angles | O(M log D) | pairs, angles, lengths |

Each single row has the distribution of a Gaussian vector (norms "chi"), exactly for gaussian and orthogonal, nearly for
the other two, so features are unbiased. With norms "sqrt" each row has the norm sqrt(D) and a uniform direction, which
gives the regularised kernel SMREG of Theorem 1. A block has at most D orthogonal rows; blocks are independent, and the
last one may be partial.

Accuracy of the structured projections, for exp(x.y) at x = y = e1, which is 2.718. With one H D block the mean is 1.43;
with three it is within 4 % from D = 8 on. With D ceil(ln D) Givens rotations the mean is 8.2 at D = 16; with four times
as many it is 2.73.

Hadamard matrices here have a width P that is a power of two. Vectors of another width D are padded with zeros, which
change no product x.y: W is the first D columns of a projection of width P, with the norms of that width, chi(P) or
sqrt(P). The first D coordinates of a Gaussian vector in P dimensions are a Gaussian vector in D dimensions: estimates
stay unbiased; dividing the rows by their norm over D columns would make them biased. SMREG is that of width P, which
lies between SMREG of width D and SM. Blocks have P rows, which are orthogonal in P dimensions and nearly so in D.

Dense products are faster for D = 64 on hardware for matrix products. The structured projections are those that the
paper compares; they need less memory, since W is never formed.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import scipy.linalg
from jaxtyping import Array, Float, Int

Kind = Literal["gaussian", "orthogonal", "hadamard", "givens"]
Norms = Literal["chi", "sqrt"]

# Layers of D / 2 rotations: 8 ceil(ln D) of them are 4 D ceil(ln D) rotations.
_LAYERS = 8


class Hadamard(NamedTuple):
    """A draw of H-ORF; P is the power of two to which D is padded.

    Attributes:
        signs: +1 or -1, int8 [blocks, 3, P].
        lengths: norms of the rows, float32 [M].
    """

    signs: Int[Array, "blocks 3 P"]
    lengths: Float[Array, "M"]

    def project(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """Return x W^T by fast Walsh-Hadamard transforms."""
        width = self.signs.shape[-1]
        x = jnp.pad(x, ((0, 0), (0, width - x.shape[1])))[:, None, :]
        for i in range(3):
            x = walsh_hadamard(x * self.signs[None, :, i].astype(x.dtype))
        return x.reshape(x.shape[0], -1)[:, : self.lengths.shape[0]] * (self.lengths * width**-1.5)[None, :]

    def matrix(self, dim: int) -> Float[Array, "M D"]:
        """Return W by products of dense matrices."""
        width = self.signs.shape[-1]
        hadamard = jnp.asarray(scipy.linalg.hadamard(width), jnp.float32)[None]
        one, two, three = (hadamard * self.signs[:, None, i] for i in range(3))
        rows = (three @ two @ one).reshape(-1, width)[: self.lengths.shape[0], :dim]
        return rows * self.lengths[:, None] * width**-1.5


class Givens(NamedTuple):
    """A draw of G-ORF.

    Each layer permutes the coordinates at random and rotates coordinate i with coordinate i + D // 2, for all i below
    D // 2: D // 2 rotations of distinct indices at once. If D is odd, the last coordinate stays.

    Attributes:
        order: int32 [blocks, layers, D], permutations.
        angles: float32 [blocks, layers, D // 2].
        lengths: norms of the rows with a random sign, float32 [M]. The sign matters at D = 1, where nothing is rotated.
    """

    order: Int[Array, "blocks layers D"]
    angles: Float[Array, "blocks layers half"]
    lengths: Float[Array, "M"]

    def project(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """Return x W^T by applying the rotations."""
        blocks, _, dim = self.order.shape
        half = dim // 2
        block, rests = jnp.arange(blocks)[:, None], jnp.zeros((blocks, dim % 2))

        def rotate(x: Array, layer: tuple[Array, Array]) -> tuple[Array, None]:
            order, angles = layer
            first, second, rest = order[:, :half], order[:, half : 2 * half], order[:, 2 * half :]
            partner = jnp.concatenate([second, first, rest], axis=1)
            sin = jnp.sin(angles)
            cos, sin = jnp.cos(jnp.concatenate([angles, angles, rests], 1)), jnp.concatenate([-sin, sin, rests], 1)
            return cos[..., None] * take(x, order) + sin[..., None] * take(x, partner), None

        def take(x: Array, order: Array) -> Array:
            return x.at[block, order].get(unique_indices=True, mode="promise_in_bounds")

        # Coordinates are the first axis, so that a permutation moves whole rows of memory.
        start = jnp.broadcast_to(x.T[None], (blocks, dim, x.shape[0]))
        turned, _ = jax.lax.scan(rotate, start, (self.order.swapaxes(0, 1), self.angles.swapaxes(0, 1)))
        return (turned.reshape(blocks * dim, -1)[: self.lengths.shape[0]] * self.lengths[:, None]).T

    def matrix(self, dim: int) -> Float[Array, "M D"]:
        """Return W by products of dense matrices."""
        blocks = self.order.shape[0]
        first = jnp.arange(dim // 2)
        second = first + dim // 2
        eye = jnp.eye(dim)

        def multiply(rows: Array, layer: tuple[Array, Array]) -> tuple[Array, None]:
            order, angles = layer
            cos, sin = jnp.cos(angles), jnp.sin(angles)
            turn = jnp.broadcast_to(eye, (blocks, dim, dim))
            turn = turn.at[:, first, first].set(cos).at[:, first, second].set(-sin)
            turn = turn.at[:, second, first].set(sin).at[:, second, second].set(cos)
            return turn @ eye[order] @ rows, None

        start = jnp.broadcast_to(eye, (blocks, dim, dim))
        rows, _ = jax.lax.scan(multiply, start, (self.order.swapaxes(0, 1), self.angles.swapaxes(0, 1)))
        return rows.reshape(blocks * dim, dim)[: self.lengths.shape[0]] * self.lengths[:, None]


Draw = Array | Hadamard | Givens
"""The value of a `Projection` variable: W itself, float32 [M, D], or the factors of W."""


def draw_projection(kind: str, key: jax.Array, num_features: int, dim: int, *, norms: str = "chi") -> Draw:
    """Draw a projection, as a pure function of the key.

    Args:
        kind: one of `Kind`.
        key: a JAX random key.
        num_features: M, number of rows: any number, also below D or not a multiple of it.
        dim: D.
        norms: "chi" or "sqrt"; see the top of this file.

    Raises:
        ValueError: unknown kind or norms.
    """
    if kind not in _DRAWS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(_DRAWS)}")
    return _DRAWS[kind](key, num_features, dim, norms=norms)


def project(draw: Draw, x: Float[Array, "*rows D"]) -> Float[Array, "*rows M"]:
    """Return x W^T, by the fast product if the kind has one."""
    if isinstance(draw, Hadamard | Givens):
        products = draw.project(x.reshape(-1, x.shape[-1]))
        return products.reshape(*x.shape[:-1], products.shape[-1])
    return x @ draw.T


def matrix(draw: Draw, dim: int) -> Float[Array, "M D"]:
    """Return W as a dense matrix, for references and tests."""
    return draw.matrix(dim) if isinstance(draw, Hadamard | Givens) else draw


def gaussian(key: jax.Array, num_features: int, dim: int, *, norms: str = "chi") -> Float[Array, "M D"]:
    """Return iid rows, float32 [M, D]; arguments as in `draw_projection`."""
    rows = jax.random.normal(key, (num_features, dim), jnp.float32)
    if _check(norms) == "chi":
        return rows
    return rows / jnp.linalg.norm(rows, axis=-1, keepdims=True) * math.sqrt(dim)


def orthogonal(key: jax.Array, num_features: int, dim: int, *, norms: str = "chi") -> Float[Array, "M D"]:
    """Return rows that are orthogonal within blocks of D, float32 [M, D]; arguments as in `draw_projection`."""
    blocks = math.ceil(num_features / dim)
    direction_key, norm_key = jax.random.split(key)
    square, triangle = jnp.linalg.qr(jax.random.normal(direction_key, (blocks, dim, dim), jnp.float32))
    # Without the signs of R's diagonal, Q is not uniform over rotations (Mezzadri 2007).
    signs = jnp.where(jnp.diagonal(triangle, axis1=1, axis2=2) < 0, -1.0, 1.0)
    directions = (square * signs[:, None, :]).transpose(0, 2, 1).reshape(blocks * dim, dim)[:num_features]
    return directions * _lengths(norm_key, num_features, dim, norms)[:, None]


def hadamard(key: jax.Array, num_features: int, dim: int, *, norms: str = "chi") -> Hadamard:
    """Draw H-ORF; arguments as in `draw_projection`."""
    width = 1 << (dim - 1).bit_length()
    sign_key, norm_key = jax.random.split(key)
    signs = jax.random.rademacher(sign_key, (math.ceil(num_features / width), 3, width), jnp.int8)
    return Hadamard(signs, _lengths(norm_key, num_features, width, norms))


def givens(key: jax.Array, num_features: int, dim: int, *, norms: str = "chi") -> Givens:
    """Draw G-ORF; arguments as in `draw_projection`."""
    order_key, angle_key, norm_key, sign_key = jax.random.split(key, 4)
    shape = (math.ceil(num_features / dim), _LAYERS * max(1, math.ceil(math.log(dim))))
    order = jnp.argsort(jax.random.uniform(order_key, (*shape, dim), jnp.float32), axis=-1).astype(jnp.int32)
    angles = jax.random.uniform(angle_key, (*shape, dim // 2), jnp.float32, maxval=2 * math.pi)
    signs = jax.random.rademacher(sign_key, (num_features,), jnp.float32)
    return Givens(order, angles, signs * _lengths(norm_key, num_features, dim, norms))


def walsh_hadamard(x: Float[Array, "*rows P"]) -> Float[Array, "*rows P"]:
    """Return H x in O(P log P), H the Walsh-Hadamard matrix of +1 and -1 in Sylvester's order; P is a power of two."""
    *rows, width = x.shape
    step = 1
    while step < width:
        x = x.reshape(*rows, width // (2 * step), 2, step)
        a, b = x[..., 0, :], x[..., 1, :]
        x = jnp.stack([a + b, a - b], axis=-2)
        step *= 2
    return x.reshape(*rows, width)


def _lengths(key: jax.Array, num_features: int, dim: int, norms: str) -> Float[Array, "M"]:
    if _check(norms) == "sqrt":
        return jnp.full((num_features,), math.sqrt(dim), jnp.float32)
    return jnp.linalg.norm(jax.random.normal(key, (num_features, dim), jnp.float32), axis=-1)


def _check(norms: str) -> str:
    if norms not in ("chi", "sqrt"):
        raise ValueError(f"norms is {norms!r}; expected 'chi' or 'sqrt'")
    return norms


_DRAWS = {"gaussian": gaussian, "orthogonal": orthogonal, "hadamard": hadamard, "givens": givens}
