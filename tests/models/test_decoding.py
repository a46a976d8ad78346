"""Token by token, a causal model says what it says of the whole sequence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mechanisms import CASES, CAUSAL
from sweeps import sweep
from tiny_models import DISTINCT, V, build, logits, loud, mechanism, some_tokens

OPTIONS = {"positions": "sinusoidal_rotary", "norm": "post", "tied_output": True, "feed_forward": "geglu"}


@functools.partial(jax.jit, static_argnums=(0, 3))
def prefill(graph, parameters, tokens, max_length):
    return nnx.merge(graph, parameters).prefill(tokens, max_length)


@functools.partial(jax.jit, static_argnums=0)
def step(graph, parameters, tokens, state):
    return nnx.merge(graph, parameters).step(tokens, state)


def assert_decoding_equals_the_whole(model, tolerance):
    """Prompts of 9, of 6 padded on the left and of 5 padded on the right; then six tokens each."""
    prompt, lengths = 9, (9, 6, 5)
    tokens = some_tokens(3, 15)
    # The whole sequences, right padded: padding moves nothing, so this is what each row must give.
    rows = [jnp.concatenate([row[:n], row[prompt:]]) for row, n in zip(tokens, lengths, strict=True)]
    whole = logits(model, jnp.stack([jnp.pad(row, (0, 15 - len(row))) for row in rows]))
    prompts = tokens[:, :prompt].at[2, 5:].set(0).at[1].set(jnp.pad(tokens[1, :6], (3, 0)))
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=tolerance * float(jnp.abs(whole).max()))

    parts = nnx.split(model)
    found, state = prefill(*parts, prompts, 15)
    for row, (start, n) in enumerate(((0, 9), (3, 6), (0, 5))):
        close(found[row, start : start + n], whole[row, :n])
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    np.testing.assert_array_equal(state.positions, lengths)
    for i in range(6):
        found, state = step(*parts, tokens[:, prompt + i], state)
        close(found, jnp.stack([whole[row, n + i] for row, n in enumerate(lengths)]))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == shapes
    np.testing.assert_array_equal(state.positions, np.add(lengths, 6))
    return parts, state


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", sweep([name for name in DISTINCT if name in CAUSAL], ["softmax", "favor", "reformer", "polysketch"])
)
def test_prefill_and_steps_equal_the_parallel_logits(name):
    model = loud(build(attention=mechanism(name), num_layers=2))
    parts, state = assert_decoding_equals_the_whole(model, 10 * CASES[name].tolerance)
    # All 15 places are used up.
    assert jnp.isnan(step(*parts, jnp.full(3, 5), state)[0]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_part_of_the_model_decodes(dtype):
    model = loud(build(attention=mechanism("softmax"), num_layers=2, dtype=dtype, **OPTIONS))
    assert_decoding_equals_the_whole(model, 2e-5 if dtype == "float32" else 3e-2)


def test_steps_can_start_from_one_token():
    model = build(num_layers=2)
    tokens = some_tokens(2, 4)
    whole, parts = logits(model, tokens), nnx.split(model)
    # Room for more than are decoded.
    _, state = prefill(*parts, tokens[:, :1], 7)
    for i in range(1, 4):
        found, state = step(*parts, tokens[:, i], state)
        np.testing.assert_allclose(found, whole[:, i], atol=1e-5)


def test_a_step_too_many_is_refused():
    """Learned positions would give the last one for ever."""
    model = build(num_layers=2)
    parts = nnx.split(model)
    found, state = prefill(*parts, some_tokens(2, 1), 2)
    assert found.shape == (2, 1, V)
    found, state = step(*parts, jnp.array([5, 6]), state)
    assert jnp.isfinite(found).all()
    assert jnp.isnan(step(*parts, jnp.array([5, 6]), state)[0]).all()
    with pytest.raises(ValueError, match="no token is left to decode: prefill was given a max_length of 2"):
        model.step(jnp.array([5, 6]), state)


def test_what_cannot_be_decoded_is_refused():
    model, tokens = build(num_layers=2), some_tokens(2, 5)
    for max_length in (4, 33):
        with pytest.raises(ValueError, match=rf"max_length is {max_length}; .* 5 places .* max_length of 32"):
            model.prefill(tokens, max_length)
    _, state = prefill(*nnx.split(model), tokens, 8)
    with pytest.raises(ValueError, match=r"tokens has shape \(3,\); a step takes one token per row, \(2,\)"):
        model.step(jnp.array([5, 6, 7]), state)
    bidirectional = build(causal=False, num_layers=2)
    for attempt in (lambda: bidirectional.prefill(tokens, 8), lambda: bidirectional.step(tokens[:, 0], state)):
        with pytest.raises(ValueError, match="the model is bidirectional"):
            attempt()
