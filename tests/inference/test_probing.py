import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params
from mechanisms import CASES, CAUSAL
from sweeps import sweep
from tiny_models import DISTINCT, KINDS, mechanism

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.inference import probing
from proteinlm.inference.probing import Probe, ProteinProbe, probe_protein
from proteinlm.inference.proteins import Protein

LENGTH = 23


@pytest.fixture(scope="module")
def tokens():
    """Three rows: full, padded on the right, padded on the left; special tokens among the residues."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(1, alphabet.SIZE, (3, LENGTH)).astype(np.uint8)
    tokens[1, 14:] = alphabet.PAD
    tokens[2, :5] = alphabet.PAD
    return tokens


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "causal"),
    sweep([(name, causal) for name in DISTINCT for causal in (False, True) if not causal or name in CAUSAL], KINDS),
)
def test_probing_equals_the_explicit_matrix(make_model, explicit_maps, tokens, name, causal):
    model = make_model(attention=mechanism(name, 64), causal=causal)
    expected = explicit_maps(model, tokens)
    # Not a test of even weights, which any mistake in the columns would pass.
    assert np.abs(expected).max() > 3 / LENGTH
    tolerance = CASES[name].tolerance * max(1.0, np.abs(expected).max())
    # A block that does not divide L, and for some one larger than L.
    for block in (5, 64) if name in ("softmax", "relu") else (5,):
        found = Probe(model, tokens).maps(block=block)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["softmax", "favor", "generalized"])
def test_rows_of_tokens_sum_to_one_and_padding_gets_nothing(make_model, tokens, kind):
    found = Probe(make_model(kind, causal=True), tokens).map(1)
    real = tokens != alphabet.PAD
    sums = np.broadcast_to(real[:, None, :], found.shape[:3])
    np.testing.assert_allclose(found.sum(-1), sums, atol=1e-3)
    assert not found.transpose(0, 3, 1, 2)[~real].any()
    assert not found[..., np.triu_indices(LENGTH, 1)[0], np.triu_indices(LENGTH, 1)[1]].any()


def test_layers_differ_and_stack_in_the_order_asked_for(make_model, tokens):
    model = make_model("favor", num_layers=3)
    maps = Probe(model, tokens).maps(layers=[2, 0], heads=[1])
    assert maps.shape == (2, 3, 1, LENGTH, LENGTH)
    for place, layer in enumerate((2, 0)):
        one = Probe(model, tokens).map(layer, block=64)
        np.testing.assert_allclose(maps[place], one[:, 1:2], atol=1e-6)
    assert np.abs(maps[0] - maps[1]).max() > 1e-3
    assert Probe(model, tokens).maps().shape == (3, 3, 2, LENGTH, LENGTH)


def test_column_blocks_stream_the_map_in_order(make_model, tokens):
    model = make_model("generalized")
    blocks = list(Probe(model, tokens).columns(0, block=5))
    assert [start for start, _ in blocks] == [0, 5, 10, 15, 20]
    assert [columns.shape[-1] for _, columns in blocks] == [5, 5, 5, 5, 3]
    joined = np.concatenate([columns for _, columns in blocks], -1)
    np.testing.assert_array_equal(joined, Probe(model, tokens).map(0, block=5))


def test_one_compilation_serves_every_block_and_layer(make_model, tokens):
    model = make_model("favor", num_layers=3)
    Probe(model, tokens).maps(layers=[0], block=5)
    before = probing._column_block._cache_size()
    Probe(model, tokens).maps(block=5)
    assert probing._column_block._cache_size() == before


def test_memory_of_a_block_is_linear_in_the_length(make_model):
    def temporary(length):
        model = make_model("generalized", causal=True, max_length=length, chunk_size=64)
        graph, state = nnx.split(model.attention(0))
        q, k = model.queries_keys(jnp.full((1, length), alphabet.FIRST_RESIDUE, jnp.int32))
        lowered = probing._column_block.lower(
            graph, state, q[0], k[0], jnp.ones((1, length), bool), jnp.int32(0), block=32, causal=True
        )
        return lowered.compile().memory_analysis().temp_size_in_bytes

    small, large = temporary(1024), temporary(2048)
    assert 0 < small < large < 2.5 * small


def largest_array(jaxpr):
    """Elements of the largest array that a traced function makes anywhere, in scans and branches too."""
    sizes = [math.prod(var.aval.shape) for eqn in jaxpr.eqns for var in eqn.outvars if hasattr(var.aval, "shape")]
    inner = [largest_array(sub) for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params)]
    return max([*sizes, *inner, 0])


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "causal"),
    sweep([(name, causal) for name in DISTINCT for causal in (False, True) if not causal or name in CAUSAL], KINDS),
)
def test_no_mechanism_makes_an_array_of_length_by_length(make_model, name, causal):
    def largest(length):
        attention = mechanism(name, 2048).build(num_heads=1, head_dim=8, key=jax.random.key(0))
        graph, state = nnx.split(attention)
        q = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        mask = jax.ShapeDtypeStruct((1, length), bool)
        function = functools.partial(probing._column_block.__wrapped__, graph, block=8, causal=causal)
        return largest_array(jax.make_jaxpr(function)(state, q, q, mask, jnp.int32(0)).jaxpr)

    small, large = largest(1024), largest(2048)
    assert 1024 * 8 <= small < 1024**2 / 2
    assert large <= 2.1 * small


def test_a_map_on_the_disk_is_the_map_and_appears_whole(make_model, tokens, tmp_path):
    model = make_model("favor", causal=True)
    path = Probe(model, tokens).save(tmp_path / "new" / "map.npy", 1, heads=[1], block=5)
    assert [file.name for file in path.parent.iterdir()] == ["map.npy"]
    mapped = np.load(path, mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    assert mapped.dtype == np.float32
    expected = Probe(model, tokens).map(1, heads=[1], block=5)
    np.testing.assert_array_equal(mapped, expected)
    with pytest.raises(InputError, match=r"map\.txt.*must end in \.npy"):
        Probe(model, tokens).save(tmp_path / "map.txt", 1)
    with pytest.raises(InputError, match="no layer 7"):
        Probe(model, tokens).save(tmp_path / "map.npy", 7)
    assert [file.name for file in tmp_path.iterdir()] == ["new"]


def test_a_map_that_fails_half_way_leaves_no_file(make_model, tokens, tmp_path, monkeypatch):
    def fails(*arguments, **options):
        yield 0, np.zeros((3, 2, LENGTH, 5), np.float32)
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(Probe, "columns", fails)
    with pytest.raises(RuntimeError, match="gone"):
        Probe(make_model(), tokens).save(tmp_path / "map.npy", 0)
    assert not list(tmp_path.iterdir())


def test_a_fold_sees_every_column_once(make_model, tokens):
    model = make_model("favor")
    q, k = Probe(model, tokens).queries_keys
    weight = jnp.arange(25.0)

    @jax.jit
    def moments(q, k):
        def add(sums, start, columns):
            here = jax.lax.dynamic_slice_in_dim(weight, start, 5)
            return sums[0] + columns.sum(-1), sums[1] + columns @ here

        zero = jnp.zeros(q.shape[:3])
        mask = jnp.asarray(tokens != alphabet.PAD)
        attention = model.attention(1)
        return probing.fold_columns(attention, q, k, mask, add, (zero, zero), block=5, causal=False)

    whole = Probe(model, tokens).map(1).transpose(0, 2, 1, 3)
    sums, places = moments(q[1], k[1])
    np.testing.assert_allclose(sums, whole.sum(-1), atol=1e-5)
    np.testing.assert_allclose(places, whole @ np.arange(LENGTH), atol=1e-4)


@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cell", [1, 4])
def test_pooled_maps_are_means_over_what_can_be_seen(make_model, tokens, causal, cell):
    model = make_model("favor", causal=causal)
    residues = slice(1, 22)
    probe = ProteinProbe(model, Protein("p", tokens[0], residues))
    found = probe.pooled(layers=[1], heads=[1], cell=cell, block=5)
    whole = Probe(model, tokens[:1]).map(1)[0, 1, residues, residues]
    expected = np.zeros((1, 1, -(-21 // cell), -(-21 // cell)))
    for row in range(expected.shape[2]):
        for column in range(expected.shape[3]):
            pairs = [
                whole[i, j]
                for i in range(row * cell, min(21, row * cell + cell))
                for j in range(column * cell, min(21, column * cell + cell))
                if j <= i or not causal
            ]
            expected[0, 0, row, column] = np.mean(pairs) if pairs else 0
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(ValueError, match="cell"):
        probe.pooled(cell=0)


def test_a_bfloat16_model_gives_a_float32_map(make_model, explicit_maps, tokens):
    model = make_model("softmax", dtype="bfloat16")
    found = Probe(model, tokens).map(0)
    assert found.dtype == np.float32
    # Eight bits of mantissa: one part in 256 of weights that are at most 1.
    np.testing.assert_allclose(found, explicit_maps(model, tokens)[0], atol=8e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 2}, "no layer 2: this model's layers go from 0 to 1"),
        ({"layer": -1}, "no layer -1"),
        ({"layer": 0, "heads": [0, 5]}, "no head 5: this model's heads go from 0 to 1"),
        ({"layer": 0, "heads": []}, "at least one head"),
    ],
)
def test_layers_and_heads_out_of_range_name_the_range(make_model, tokens, options, message):
    with pytest.raises(InputError, match=message):
        Probe(make_model(), tokens).map(**options)
    with pytest.raises(InputError, match=message):
        Probe(make_model(), tokens).columns(**options)


def test_too_many_tokens_name_both_numbers(make_model):
    with pytest.raises(InputError, match=r"65 tokens.*max_length is 64"):
        Probe(make_model(), np.ones((1, 65), np.uint8))


def test_a_protein_that_cannot_be_read_is_named(make_model):
    with pytest.raises(InputError, match=r"BPT1.*100 residues.*at most 64"):
        probe_protein(make_model())
    with pytest.raises(InputError, match="mine: the letter '@' at residue 1"):
        probe_protein(make_model(), b"@", name="mine")


def test_a_block_must_be_positive(make_model, tokens):
    with pytest.raises(ValueError, match="block"):
        Probe(make_model(), tokens).map(0, block=0)
    with pytest.raises(ValueError, match="block"):
        Probe(make_model(), tokens).maps(block=-1)


def test_layers_and_heads_named_twice_count_once(make_model):
    model = make_model()
    layers, heads = model.config.num_layers, model.config.num_heads
    assert probing.check_layers(model, [layers - 1, 0, layers - 1]) == list(dict.fromkeys([layers - 1, 0]))
    assert probing.check_heads(model, [heads - 1, 0, heads - 1, 0]) == list(dict.fromkeys([heads - 1, 0]))
    assert probing.check_heads(model, None) == list(range(heads))
