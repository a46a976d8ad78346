"""The model as a whole: what changes its logits, and what must not."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mechanisms import CASES, CAUSAL
from sweeps import sweep
from tiny_models import CAUSAL_KINDS, KINDS, TINY, V, build, logits, loud, mechanism, num_parameters, some_tokens

from proteinlm.errors import InputError
from proteinlm.models.attention import IdentityConfig, Projection
from proteinlm.models.positions import positions_of
from proteinlm.models.transformer import ModelConfig, ProteinLM, dropout


def expected_parameters(config):
    """Counted from the shapes of a Transformer, layer by layer, each matrix with its bias."""
    d, m = config.embed_dim, config.mlp_dim
    attention = 4 * (d * d + d)
    mlp = (d * m + m) + (m * d + d)
    norms = 2 * (2 * d)
    ends = config.vocab_size * d + config.max_length * d + 2 * d + (d * config.vocab_size + config.vocab_size)
    return config.num_layers * (attention + mlp + norms) + ends


@pytest.mark.parametrize(
    ("sizes", "millions"),
    [
        ({"num_layers": 36, "mlp_dim": 1024, "max_length": 1024}, 76.3),
        ({"num_layers": 6, "mlp_dim": 2048, "max_length": 8192}, 23.1),
        ({"num_layers": 3, "embed_dim": 256, "mlp_dim": 256, "max_length": 8192}, 3.3),
    ],
)
def test_paper_presets_have_their_number_of_parameters(sizes, millions):
    config = ModelConfig(vocab_size=V, **sizes)
    model = nnx.eval_shape(lambda: ProteinLM(config, causal=True, key=jax.random.key(0)))
    assert num_parameters(model) == expected_parameters(config)
    assert num_parameters(model) / 1e6 == pytest.approx(millions, abs=0.05)


def test_features_are_not_counted_as_parameters():
    model = build()
    assert num_parameters(model) == expected_parameters(TINY)
    (projection,) = jax.tree.leaves(nnx.state(model, Projection))
    assert projection.shape == (3, 10, 8)


def parallel(mask, mechanism, q, k, v):
    return mechanism(q, k, v, causal=True, key_mask=mask), None


def test_scan_equals_a_loop_over_layers():
    model = loud(build())
    tokens = some_tokens(2, 11).at[1, 8:].set(0)
    graph, stacked = nnx.split(model.blocks)
    mask = tokens != 0
    x = model.embedding[...][tokens] + model.positions(positions_of(mask))
    seen = []
    for i in range(3):
        block = nnx.merge(graph, jax.tree.map(lambda leaf, i=i: leaf[i], stacked))
        q, k, v = block.queries_keys_values(x)
        seen.append((q, k))
        # The layer's attention recomputed from what the model shows of it: its queries, keys and features.
        mixed = model.attention(i)(q, k, v, causal=True, key_mask=mask)
        out = x + block.out(mixed.reshape(x.shape))
        out = out + block.down(jax.nn.gelu(block.up(block.mlp_norm(out))))
        attend = functools.partial(parallel, mask)
        np.testing.assert_allclose(block(x, attend, None, None)[0], out, atol=1e-5)
        x = out
    found = logits(model, tokens)
    np.testing.assert_allclose(found, model.head(model.norm(x)), atol=2e-4)
    assert float(jnp.abs(found).max()) > 0.5
    q, k = model.queries_keys(tokens)
    assert q.shape == k.shape == (3, 2, 11, 2, 8)
    for i in range(3):
        np.testing.assert_allclose(q[i], seen[i][0], atol=2e-4)
        np.testing.assert_allclose(k[i], seen[i][1], atol=2e-4)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "causal", "dtype"),
    sweep(
        [(name, causal, "float32") for name in KINDS for causal in (False, True) if not causal or name in CAUSAL]
        + [(name, False, "bfloat16") for name in ("softmax", "favor")],
        ["favor", "returns_v", ("softmax", False, "float32"), ("reformer", False, "float32")],
    ),
)
def test_padding_and_batch_mates_leave_logits(name, causal, dtype):
    """More padding, padding on the left, other rows: float32 logits stay within 2e-5, bfloat16 within 2 %.

    Both relative to the largest logit, or to 1. What is left is rounding: padding moves residues to other chunks, so
    sums are taken in another order.
    """
    model = loud(build(causal=causal, attention=mechanism(name), dtype=dtype))
    tokens = some_tokens(1, 9)
    # Both kinds of padding and other rows in one batch, so that only two shapes are compiled.
    batch = jnp.zeros((4, 15), jnp.int32).at[0].set(some_tokens(15, seed=2)).at[3, :4].set(some_tokens(4, seed=3))
    batch = batch.at[1, :9].set(tokens[0]).at[2, 6:].set(tokens[0])
    alone, found = logits(model, tokens), logits(model, batch)
    tolerance = (CASES[name].tolerance if dtype == "float32" else 2e-2) * max(1.0, float(jnp.abs(alone).max()))
    assert found.dtype == jnp.float32
    assert jnp.isfinite(found).all()
    np.testing.assert_allclose(found[1, :9], alone[0], atol=tolerance)
    np.testing.assert_allclose(found[2, 6:], alone[0], atol=tolerance)
    if dtype == "float32":
        # The test can fail: a different residue does change the others' logits.
        other = logits(model, tokens.at[0, 0].set(tokens[0, 0] % 20 + 5))
        changed = float(jnp.abs(other[0, 1:] - alone[0, 1:]).max())
        assert changed > 10 * tolerance if CASES[name].mixes else changed == 0
        # And to the last residue all the others matter, or only earlier ones.
        other = logits(model, tokens.at[0, -1].set(tokens[0, -1] % 20 + 5))
        changed = jnp.abs(other[0, :-1] - alone[0, :-1]).max()
        assert changed == 0 if causal or not CASES[name].mixes else changed > 1e-3


def test_a_causal_model_sees_no_later_token():
    """By gradients, exactly: each place has a token of its own, so the embedding's rows are the places."""
    model = loud(build())
    tokens, i = 4 + jnp.arange(11)[None], 6
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params):
        return (nnx.merge(graph, params, rest)(tokens)[0, i] ** 2).sum()

    gradient = jax.jit(jax.grad(loss))(params)
    by_place = jnp.abs(gradient["embedding"][...][4:15]).max(axis=1)
    assert (by_place[i + 1 :] == 0).all()
    assert (by_place[: i + 1] > 0).all()
    positions = jnp.abs(gradient["positions"]["embedding"][...]).max(axis=1)
    assert (positions[i + 1 :] == 0).all()


@pytest.mark.parametrize("name", CAUSAL_KINDS)
def test_later_tokens_change_no_bit(name):
    model = loud(build(attention=mechanism(name)))
    tokens, i = some_tokens(1, 9), 5
    changed = logits(model, tokens.at[0, i + 1 :].set(28))
    np.testing.assert_array_equal(changed[0, : i + 1], logits(model, tokens)[0, : i + 1])


@functools.cache
def model_and_gradient(remat):
    """Of a batch with dropout, whose first row is all padding."""
    model = build(remat=remat)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    tokens = some_tokens(2, 11).at[0].set(0)

    def loss(params):
        return (nnx.merge(graph, params, rest)(tokens, dropout_key=jax.random.key(3)) ** 2).mean()

    return model, jax.jit(jax.grad(loss))(params)


def test_gradients_are_finite_and_leave_projections_out():
    model, gradient = model_and_gradient(remat="none")
    assert not jax.tree.leaves(nnx.split_state(gradient, Projection, ...)[0])
    assert sum(x.size for x in jax.tree.leaves(gradient)) == num_parameters(model)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(gradient))
    # Every parameter that can matter does (a key's bias shifts exp kernels of a row alike only in part).
    flat = {"/".join(map(str, path)): x for path, x in nnx.to_flat_state(gradient)}
    assert all((x[...] != 0).any() for x in flat.values()), [n for n, x in flat.items() if not (x[...] != 0).any()]


@pytest.mark.slow
def test_rematerialised_layers_give_the_same_gradient():
    gradients = [model_and_gradient(remat)[1] for remat in ("none", "dots", "full")]
    for kept, *again in zip(*map(jax.tree.leaves, gradients), strict=True):
        for other in again:
            np.testing.assert_allclose(kept, other, rtol=1e-4, atol=1e-6)


def test_dropout_depends_on_its_key_alone():
    model = build()
    tokens = some_tokens(2, 11)
    one, again, other = (logits(model, tokens, jax.random.key(s)) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert (one != logits(model, tokens)).any()
    still = build(dropout=0.0)
    np.testing.assert_array_equal(logits(still, tokens, jax.random.key(0)), logits(model, tokens))


def test_layers_have_different_dropout_masks():
    """Layers that add 1 everywhere, and a head that shows it: three masks give four sums, a repeated one only two."""
    model = build(dropout=0.5, attention=IdentityConfig())
    nnx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param)))
    model.blocks.down.bias[...] = jnp.ones((3, 16))
    model.norm.scale[...] = jnp.ones(16)
    model.head.kernel[...] = jnp.eye(16, V)
    sums = np.asarray(logits(model, some_tokens(4, 8), jax.random.key(5)))[..., :16].reshape(32, 16)
    distinct = {len(np.unique(row.round(3))) for row in sums}
    assert max(distinct) == 4


def test_dropout_keeps_the_mean():
    x = jnp.ones((200, 200))
    dropped = dropout(x, 0.25, jax.random.key(0))
    share = float((dropped == 0).mean())
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / x.size) ** 0.5
    np.testing.assert_allclose(dropped[dropped != 0], 1 / 0.75, rtol=1e-6)
    assert dropout(x, 0.25, None) is x


def test_redraw_under_jit_gives_each_layer_its_own_draw():
    model = build()
    graph, state = nnx.split(model)

    @jax.jit
    def redraw(state, key):
        model = nnx.merge(graph, state)
        model.redraw(key)
        return nnx.split(model)[1]

    one, again, other = (nnx.merge(graph, redraw(state, jax.random.key(s))) for s in (0, 0, 1))
    features = [m.blocks.mechanism.projection[...] for m in (model, one, other)]
    assert (features[0] != features[1]).all()
    assert (features[1] != features[2]).all()
    np.testing.assert_array_equal(features[1], again.blocks.mechanism.projection[...])
    for layers in features:
        assert all((layers[i] != layers[j]).all() for i in range(3) for j in range(i))
    for a, b in zip(*(jax.tree.leaves(nnx.state(m, nnx.Param)) for m in (model, one)), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.attention(2).projection[...], features[1][2])
    tokens = some_tokens(1, 9)
    assert (logits(model, tokens) != logits(one, tokens)).any()


@pytest.mark.parametrize("name", ["softmax", "returns_v"])
def test_redraw_without_features_changes_nothing(name):
    model = build(attention=mechanism(name))
    before = jax.tree.leaves(nnx.state(model))
    model.redraw(jax.random.key(5))
    for a, b in zip(before, jax.tree.leaves(nnx.state(model)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_layers_compile_like_few():
    """The program's text, and so the time to compile it, does not grow with the number of layers."""
    tokens = jax.ShapeDtypeStruct((1, 16), jnp.int32)

    def lines(num_layers):
        config = dataclasses.replace(TINY, num_layers=num_layers)
        model = nnx.eval_shape(lambda: ProteinLM(config, causal=True, key=jax.random.key(0)))
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def loss(params, rest, tokens):
            return nnx.merge(graph, params, rest)(tokens).sum()

        return len(jax.jit(jax.grad(loss)).lower(params, rest, tokens).as_text().splitlines())

    assert lines(36) == lines(6)


def test_initial_logits_are_of_size_one():
    """Whatever the depth, so that the untrained model's loss is at most about log V + 1/2."""
    tokens, targets = some_tokens(4, 32), some_tokens(4, 32, seed=2)
    for num_layers in (TINY.num_layers, 12):
        found = logits(build(num_layers=num_layers), tokens)
        assert 0.7 < float(found.std()) < 1.4
        loss = -float(jnp.take_along_axis(jax.nn.log_softmax(found), targets[..., None], axis=-1).mean())
        assert np.log(V) - 0.1 < loss < np.log(V) + 0.8


def test_small_integers_do_not_overflow():
    """uint8 tokens, as batches carry them, in a row longer than 255."""
    model = build(max_length=300, attention=IdentityConfig())
    tokens = some_tokens(1, 300)
    np.testing.assert_array_equal(logits(model, tokens.astype(jnp.uint8)), logits(model, tokens))


def test_too_long_an_input_is_refused_with_the_limit():
    model = build()
    with pytest.raises(ValueError, match=r"33.*max_length of 32"):
        model(some_tokens(1, 33))
    with pytest.raises(ValueError, match=r"33.*max_length of 32"):
        model.queries_keys(some_tokens(1, 33))


@pytest.mark.parametrize(("name", "causal", "positions"), [("favor", True, "learned"), ("softmax", False, "rotary")])
def test_isolated_proteins_have_the_logits_that_they_have_alone(name, causal, positions):
    """In float32 by rounding alone; and another protein in the same row changes no bit."""
    model = loud(build(causal=causal, attention=mechanism(name), positions=positions))
    segments = jnp.array([[1] * 5 + [2] * 13 + [3] * 8 + [0] * 3, [1] * 19 + [2] + [3] * 9])
    tokens = jnp.where(segments > 0, some_tokens(2, 29), 0)
    packed = logits(model, tokens, segments=segments)
    rows = [(b, n) for b in range(2) for n in (1, 2, 3)]
    alone = np.zeros((6, 32), np.int32)
    for row, (b, n) in zip(alone, rows, strict=True):
        own = np.asarray(tokens[b][segments[b] == n])
        row[: len(own)] = own
    expected = np.asarray(logits(model, jnp.asarray(alone)))
    for i, (b, n) in enumerate(rows):
        found = np.asarray(packed[b][segments[b] == n])
        np.testing.assert_allclose(found, expected[i, : len(found)], atol=2e-5 * np.abs(expected).max())
    second = segments == 2
    other = logits(model, jnp.where(second, (tokens + 3) % (V - 4) + 4, tokens), segments=segments)
    np.testing.assert_array_equal(other[~second], packed[~second])
    assert (other[second] != packed[second]).any(axis=-1).all()


def test_there_is_no_such_layer():
    for layer in (-1, 3):
        with pytest.raises(IndexError, match="layers 0 to 2"):
            build().attention(layer)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 3}, "num_heads is 3, which does not divide model.embed_dim, 16"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"max_length": 0}, "max_length is 0"),
    ],
)
def test_impossible_sizes_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(TINY, **changes)


def test_construction_is_a_pure_function_of_the_key():
    one, again, other = build(seed=0), build(seed=0), build(seed=1)
    for a, b in zip(*(jax.tree.leaves(nnx.state(m)) for m in (one, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (one.embedding[...] != other.embedding[...]).all()
    kernels = one.blocks.query.kernel[...]
    assert (kernels[0] != kernels[1]).all()
    assert (one.blocks.query.kernel[...] != one.blocks.key.kernel[...]).all()
