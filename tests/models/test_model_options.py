"""What a model can be beside the default: positions, feed-forward, norm, output, one layer for queries and keys."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import TINY, V, build, logits, loud, mechanism, num_parameters, some_tokens

from proteinlm.models.attention import SoftmaxConfig
from proteinlm.models.positions import positions_of, rotation_of, waves
from proteinlm.models.transformer import ProteinLM


@dataclass(frozen=True)
class SharedConfig(SoftmaxConfig):
    """Softmax attention that reads its queries as keys."""

    shares_queries_and_keys = True


TRANSFORMERPP = {"positions": "sinusoidal_rotary", "feed_forward": "geglu", "attention": SoftmaxConfig()}
OTHERS = {"positions": "rotary", "norm": "post", "tied_output": True, "attention": SharedConfig()}


def parameters_of(**changes):
    config = dataclasses.replace(TINY, **changes)
    return num_parameters(nnx.eval_shape(lambda: ProteinLM(config, causal=True, key=jax.random.key(0))))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"positions": "sinusoidal"}, -32 * 16),
        ({"positions": "rotary"}, -32 * 16),
        ({"positions": "sinusoidal_rotary"}, -32 * 16),
        # Gates: a matrix and a bias a layer.
        ({"feed_forward": "geglu"}, 3 * (16 * 24 + 24)),
        # No norm at the end.
        ({"norm": "post"}, -2 * 16),
        # No matrix at the end; the bias stays.
        ({"tied_output": True}, -16 * V),
        ({"attention": SharedConfig()}, -3 * (16 * 16 + 16)),
    ],
)
def test_parameters_are_counted(changes, difference):
    assert parameters_of(**changes) == parameters_of() + difference


def test_reformer_has_no_layer_for_keys():
    assert not hasattr(build(attention=mechanism("reformer")).blocks.key, "kernel")


def attend(block, mask, x, rotation):
    q, k, v = block.queries_keys_values(x, rotation)
    return block.out(block.mechanism(q, k, v, causal=True, key_mask=mask).reshape(x.shape)), (q, k)


def assert_loop_gives(model, layer, x, mask, output):
    """The model's logits, queries and keys, from a loop over its layers."""
    tokens = some_tokens(2, 11).at[1, 8:].set(0)
    graph, stacked = nnx.split(model.blocks)
    rotation, seen = rotation_of(positions_of(mask), 8), []
    for i in range(3):
        block = nnx.merge(graph, jax.tree.map(lambda leaf, i=i: leaf[i], stacked))
        x, queries_keys = layer(block, x, rotation)
        seen.append(queries_keys)
    found, expected = logits(model, tokens), output(x)
    assert float(jnp.abs(found).max()) > 0.5
    np.testing.assert_allclose(found, expected, atol=2e-4)
    q, k = model.queries_keys(tokens)
    for i in range(3):
        np.testing.assert_allclose(q[i], seen[i][0], atol=2e-4)
        np.testing.assert_allclose(k[i], seen[i][1], atol=2e-4)
    return q, k


def test_transformerpp_by_its_formulas():
    model = loud(build(**TRANSFORMERPP))
    tokens = some_tokens(2, 11).at[1, 8:].set(0)
    mask = tokens != 0

    def layer(block, x, rotation):
        mixed, queries_keys = attend(block, mask, x, rotation)
        x = x + mixed
        y = block.mlp_norm(x)
        return x + block.down(jax.nn.gelu(block.gate(y)) * block.up(y)), queries_keys

    x = model.embedding[...][tokens] + waves(positions_of(mask), 16) / 4
    q, _ = assert_loop_gives(model, layer, x, mask, lambda x: model.head(model.norm(x)))
    # What attention sees is turned: the length stays, the direction does not.
    block = jax.tree.map(lambda leaf: leaf[0], nnx.split(model.blocks)[1])
    plain = nnx.merge(nnx.split(model.blocks)[0], block).queries_keys_values(x)[0]
    np.testing.assert_allclose(jnp.linalg.norm(plain, axis=-1), jnp.linalg.norm(q[0], axis=-1), rtol=1e-4)
    assert float(jnp.abs(plain[:, 1:] - q[0][:, 1:]).max()) > 0.1


def test_post_norm_shared_keys_and_a_tied_output_by_their_formulas():
    model = loud(build(**OTHERS))
    tokens = some_tokens(2, 11).at[1, 8:].set(0)
    mask = tokens != 0
    model.output_bias[...] = jnp.arange(V) / V

    def layer(block, x, rotation):
        mixed, queries_keys = attend(block, mask, x, rotation)
        x = block.attention_norm(x + mixed)
        return block.mlp_norm(x + block.down(jax.nn.gelu(block.up(x)))), queries_keys

    def output(x):
        return jnp.einsum("blf,vf->blv", x, model.embedding[...]) / 4 + (jnp.arange(V) / V)[None, None]

    q, k = assert_loop_gives(model, layer, 4 * model.embedding[...][tokens], mask, output)
    np.testing.assert_array_equal(q, k)


@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [TRANSFORMERPP, OTHERS], ids=["transformer++", "others"])
def test_padding_leaves_logits(options, causal):
    model, tokens = loud(build(causal=causal, **options)), some_tokens(1, 9)
    padded = jnp.zeros((2, 15), jnp.int32).at[0, :9].set(tokens[0]).at[1, 6:].set(tokens[0])
    alone, found = logits(model, tokens), logits(model, padded)
    tolerance = 2e-5 * max(1.0, float(jnp.abs(alone).max()))
    np.testing.assert_allclose(found[0, :9], alone[0], atol=tolerance)
    np.testing.assert_allclose(found[1, 6:], alone[0], atol=tolerance)
    # Without places, exchanging two tokens would leave what a later one reads of them.
    exchanged = logits(model, tokens.at[0, :2].set(tokens[0, 1::-1]))
    assert float(jnp.abs(exchanged - alone)[0, 2:].max()) > 100 * tolerance


@pytest.mark.parametrize("options", [TRANSFORMERPP, OTHERS], ids=["transformer++", "others"])
def test_gradients_are_finite_and_reach_every_parameter(options):
    model, tokens = build(dtype="bfloat16", **options), some_tokens(2, 11).at[0].set(0)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params):
        return (jax.nn.log_softmax(nnx.merge(graph, params, rest)(tokens)) ** 2).mean()

    flat = {"/".join(map(str, path)): x[...] for path, x in nnx.to_flat_state(jax.jit(jax.grad(loss))(params))}
    assert all(jnp.isfinite(x).all() and x.dtype == jnp.float32 for x in flat.values())
    silent = {name for name, x in flat.items() if not (x != 0).any()}
    assert silent <= {"blocks/key/bias"}


@pytest.mark.few(2)
@pytest.mark.parametrize("tied_output", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_initial_logits_are_at_most_of_order_one(norm, tied_output):
    tokens, targets = some_tokens(4, 32), some_tokens(4, 32, seed=2)
    model = build(norm=norm, tied_output=tied_output, embed_dim=256, attention=SoftmaxConfig())
    found = logits(model, tokens)
    assert 0.05 < float(found.std()) < 1.4
    assert float(jnp.abs(found).max()) < 6
    loss = -float(jnp.take_along_axis(jax.nn.log_softmax(found), targets[..., None], axis=-1).mean())
    assert np.log(V) - 0.1 < loss < np.log(V) + 0.8
