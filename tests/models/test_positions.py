"""Places do not move with padding, and turn queries and keys as they should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.positions import (
    LearnedPositions,
    SinusoidalPositions,
    positions_of,
    rotate,
    rotation_of,
    waves,
)


def queries(length, head_dim, *, seed=0, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), (2, length, 3, head_dim)).astype(dtype)


def places(length, start=0):
    return start + jnp.arange(length)[None]


def test_positions_do_not_move_with_padding():
    mask = jnp.array([[True, True, True, False, False], [False, False, True, True, True]])
    np.testing.assert_array_equal(positions_of(mask), [[0, 1, 2, 2, 2], [0, 0, 0, 1, 2]])


def test_learned_positions_are_rows_of_one_table():
    positions = LearnedPositions(5, 4, jax.random.key(0))
    places = jnp.array([[4, 0, 4]])
    np.testing.assert_array_equal(positions(places)[0], positions.embedding[...][places[0]])
    assert positions(places).dtype == jnp.float32


@pytest.mark.parametrize("embed_dim", [1, 7, 8])
def test_waves_by_the_formula(embed_dim):
    found = waves(jnp.array([[0, 3], [100, 8191]]), embed_dim)
    assert found.shape == (2, 2, embed_dim)
    for row, p in enumerate((0, 3, 100, 8191)):
        for i in range(embed_dim):
            angle = p / 10_000 ** (2 * (i // 2) / embed_dim)
            # A float32 angle of thousands has three digits after the point.
            expected = np.sin(angle) if i % 2 == 0 else np.cos(angle)
            assert float(found.reshape(4, -1)[row, i]) == pytest.approx(expected, abs=1e-6 + 2**-24 * angle)


def test_sinusoidal_positions_are_as_long_as_embeddings():
    """As in the paper, where embeddings are multiplied by sqrt(F): for one of length 1, a wave of sqrt(1/2)."""
    found = SinusoidalPositions(64)(places(50))
    np.testing.assert_allclose(jnp.linalg.norm(found, axis=-1), 0.5**0.5, rtol=1e-6)


def test_rotations_are_plane_rotations():
    """By complex numbers: values i and i + D / 2 are one number, turned by p / 10000^(2i / D)."""
    x, p = np.asarray(queries(5, 6), np.float64), np.array([[0, 1, 2, 3, 4], [0, 0, 7, 8, 9]])
    turns = np.exp(1j * p[:, :, None, None] / 10_000 ** (np.arange(3) / 3))
    turned = (x[..., :3] + 1j * x[..., 3:]) * turns
    found = rotate(jnp.asarray(x, jnp.float32), rotation_of(jnp.asarray(p), 6))
    np.testing.assert_allclose(found, np.concatenate([turned.real, turned.imag], -1), atol=1e-6)
    np.testing.assert_array_equal(found[:, 0], x[:, 0].astype(np.float32))


def test_scores_depend_on_distances_alone():
    q, k = queries(9, 8), queries(9, 8, seed=1)

    def scores(start):
        rotation = rotation_of(places(9, start), 8)
        return jnp.einsum("bihd,bjhd->bhij", rotate(q, rotation), rotate(k, rotation))

    near = scores(0)
    for start in (1, 500):
        # Of angles near 500 the last bit is 3e-5.
        np.testing.assert_allclose(scores(start), near, atol=1e-5 if start == 1 else 5e-4)
    assert float(jnp.abs(near - jnp.einsum("bihd,bjhd->bhij", q, k)).max()) > 0.1


def test_padding_on_either_side_turns_alike():
    x = queries(4, 6)
    left, right = (jnp.pad(x, ((0, 0), pad, (0, 0), (0, 0))) for pad in ((3, 0), (0, 3)))
    mask = jnp.array([[True] * 4 + [False] * 3] * 2)

    def turned(x, mask):
        return rotate(x, rotation_of(positions_of(mask), 6))

    np.testing.assert_array_equal(turned(left, mask[:, ::-1])[:, 3:], turned(right, mask)[:, :4])
    np.testing.assert_array_equal(turned(right, mask)[:, :4], rotate(x, rotation_of(places(4), 6)))


def test_rotations_of_bfloat16_are_taken_in_float32():
    x = queries(600, 8, dtype=jnp.bfloat16)
    rotation = rotation_of(places(600), 8)
    found = rotate(x, rotation)
    assert found.dtype == jnp.bfloat16
    expected = rotate(x.astype(jnp.float32), rotation)
    np.testing.assert_array_equal(found, expected.astype(jnp.bfloat16))


def test_gradients_are_turned_back():
    x, cotangent = queries(5, 6), queries(5, 6, seed=1)
    rotation = rotation_of(places(5), 6)
    gradient = jax.grad(lambda x: (rotate(x, rotation) * cotangent).sum())(x)
    assert jnp.isfinite(gradient).all()
    np.testing.assert_allclose(rotate(gradient, rotation), cotangent, atol=1e-6)


def test_rotations_are_those_of_esm():
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[interop]'")
    esm = pytest.importorskip(
        "transformers.models.esm.modeling_esm", reason="needs transformers: pip install -e '.[interop]'"
    )
    from transformers.models.esm.configuration_esm import EsmConfig

    q, k = queries(40, 16), queries(40, 16, seed=1)
    ours = [rotate(x, rotation_of(places(40), 16)) for x in (q, k)]
    # transformers' tensors are [B, H, L, D].
    q, k = (torch.tensor(np.asarray(x)).transpose(1, 2) for x in (q, k))
    if hasattr(esm, "EsmRotaryEmbedding"):
        rotary = esm.EsmRotaryEmbedding(EsmConfig(vocab_size=33, hidden_size=48, num_attention_heads=3))
        theirs = esm.apply_rotary_pos_emb(q, k, *rotary(q, torch.arange(40)[None]))
    else:
        theirs = esm.RotaryEmbedding(16)(q, k)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b.transpose(1, 2).detach().numpy(), atol=2e-5)
