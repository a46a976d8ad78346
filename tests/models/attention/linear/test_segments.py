"""Several proteins in a row: every mechanism gives each of them what it gives it alone, and nothing of the others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import CASES, MODES, B, D, H, assert_close, build, inputs, reference, value_and_gradients
from sweeps import sweep

from proteinlm.models.attention import GeneralizedConfig, PolySketchConfig, SoftmaxConfig
from proteinlm.models.attention.linear.segments import segmented_attention
from proteinlm.models.positions import positions_in, segment_starts

# Proteins of 1 to 12 residues in chunks, blocks and windows of 3 and 4: one inside a chunk, some over several.
SEGMENTS = np.array([[1] * 6 + [2] + [3] * 9 + [4] * 3 + [0] * 4, [1] * 11 + [2] * 12], np.int32)
L = SEGMENTS.shape[1]
# Of feature maps, kernels and sketches one of each nature: all others go the same way.
BOTH = ("softmax", "favor", "cos", "reformer", "polysketch")
PACKED = [
    (n, causal) for n, causal in MODES if n in BOTH or (n, causal) in {("polynomial", False), ("returns_v", True)}
]
modes = pytest.mark.parametrize(("name", "causal"), PACKED, ids=[f"{n}-{'causal' if c else 'both'}" for n, c in PACKED])


def packed(attention, causal, segments=SEGMENTS):
    def attend(q, k, v):
        k = q if attention.config.shares_queries_and_keys else k
        return attention(q, k, v, causal=causal, segments=jnp.asarray(segments))

    return attend


def alone(attention, causal, segments=SEGMENTS):
    """The reference: each protein in a row of its own, through the explicit matrix."""
    proteins = [(b, np.flatnonzero(row == s)) for b, row in enumerate(segments) for s in range(1, row.max() + 1)]
    rows, columns = (np.zeros((len(proteins), max(len(p) for _, p in proteins)), int) for _ in range(2))
    mask = np.zeros(rows.shape, bool)
    for i, (row, places) in enumerate(proteins):
        rows[i], columns[i, : len(places)], mask[i, : len(places)] = row, places, True

    def attend(q, k, v):
        out = reference(attention, causal, jnp.asarray(mask))(*(x[rows, columns] for x in (q, k, v)))
        return jnp.zeros_like(v).at[rows[mask], columns[mask]].set(out[mask])

    return attend


@functools.cache
def compiled(name, causal):
    """Output and gradients of a fixed sum of it, one compilation for all tests of a mode."""
    attend = packed(build(name), causal)
    return jax.jit(lambda q, k, v: value_and_gradients(attend, q, k, v))


@pytest.mark.few(4)
@modes
def test_packed_equals_alone(name, causal):
    """Values and all gradients against the explicit matrix; padding reads 0."""
    q, k, v = inputs(L, size=1.0)
    found = compiled(name, causal)(q, k, v)
    assert_close(found, value_and_gradients(alone(build(name), causal), q, k, v), CASES[name].tolerance)
    assert all((x[SEGMENTS == 0] == 0).all() for x in map(np.asarray, found))


@modes
def test_a_neighbour_changes_no_bit(name, causal):
    """Values and gradients of all others, whether a protein becomes large, infinite or NaN."""
    q, k, v = inputs(L, size=1.0)
    attend = compiled(name, causal)
    before = [np.asarray(x) for x in attend(q, k, v)]
    inside = np.zeros((B, L), bool)
    inside[0] = SEGMENTS[0] == 3
    for value in (1e4, np.inf, np.nan):
        changed = [jnp.where(inside[:, :, None, None], x * value, x) for x in (q, k, v)]
        after = [np.asarray(x) for x in attend(*changed)]
        for a, b in zip(after, before, strict=True):
            np.testing.assert_array_equal(a[~inside], b[~inside])
        # It is not hidden from the protein itself.
        assert (after[0][inside] != before[0][inside]).any() if value == 1e4 else np.isnan(after[0][inside]).all()


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "causal"), sweep(PACKED, [("favor", True)]))
def test_bfloat16(name, causal):
    """Inputs and results are rounded, and nothing between them."""
    q, k, v = inputs(L, size=1.0, dtype=jnp.bfloat16)
    found = compiled(name, causal)(q, k, v)
    assert all(x.dtype == jnp.bfloat16 for x in found)
    expected = compiled(name, causal)(*(x.astype(jnp.float32) for x in (q, k, v)))
    assert_close(found, expected, CASES[name].bfloat16)


@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        GeneralizedConfig(function="exp", num_features=7, chunk_size=1, renormalize=False),
        PolySketchConfig(sketch_size=3, block_size=64, learned=False),
        SoftmaxConfig(block_size=64),
    ],
    ids=lambda config: f"{config.kind}-{getattr(config, 'chunk_size', 0) or config.block_size}",
)
def test_every_chunk_gives_the_same(config, causal):
    """Chunks of one residue, and one chunk for everything."""
    attention = config.build(num_heads=H, head_dim=D, key=jax.random.key(0))
    q, k, v = inputs(L, size=1.0)
    found, expected = jax.jit(packed(attention, causal))(q, k, v), jax.jit(alone(attention, causal))(q, k, v)
    assert_close([found], [expected], 2e-5)


def test_memory_does_not_know_the_number_of_segments():
    """Bidirectional, where it would be easiest to keep a sum for each: gradients take twice the memory at twice L."""

    def temporary(length):
        attention = build("favor")
        x = jax.ShapeDtypeStruct((1, length, H, D), jnp.float32)

        def loss(q, k, v, segments):
            return attention(q, k, v, causal=False, segments=segments).sum()

        lowered = jax.jit(jax.grad(loss)).lower(x, x, x, jax.ShapeDtypeStruct((1, length), jnp.int32))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporary(2048) < 2.3 * temporary(1024)


def test_places_in_segments():
    segments = jnp.array([[1, 1, 2, 3, 3, 3, 0, 0], [0, 0, 5, 5, 2, 0, 2, 2]])
    starts = [[0, 0, 2, 3, 3, 3, 6, 7], [0, 1, 2, 2, 4, 5, 6, 6]]
    assert segment_starts(segments).tolist() == starts
    assert positions_in(segments).tolist() == [[0, 1, 0, 0, 1, 2, 0, 0], [0, 0, 0, 1, 0, 0, 0, 1]]


def test_what_cannot_be_packed_says_why():
    q, k, v = inputs(L)
    segments = jnp.asarray(SEGMENTS)
    with pytest.raises(ValueError, match="linformer attention takes no segments: every protein would need"):
        build("linformer_redrawn")(q, k, v, causal=False, segments=segments)
    cudnn = SoftmaxConfig(implementation="cudnn").build(num_heads=H, head_dim=D, key=jax.random.key(0))
    with pytest.raises(ValueError, match="softmax attention takes no segments: cuDNN"):
        cudnn(q, k, v, causal=False, segments=segments)
    attention = build("favor")
    with pytest.raises(ValueError, match=r"segments has shape \(2, 22\) and dtype int32; expected integers \(2, 23\)"):
        attention(q, k, v, causal=True, segments=segments[:, 1:])
    with pytest.raises(ValueError, match="dtype bool; expected integers"):
        attention(q, k, v, causal=True, segments=segments > 0)
    with pytest.raises(ValueError, match="segments and key_mask are both given"):
        attention(q, k, v, causal=True, segments=segments, key_mask=segments > 0)
    options = build("polysketch")._options()
    with pytest.raises(ValueError, match="need block_scores"):
        segmented_attention(q, k, v, segments, options, causal=True)
