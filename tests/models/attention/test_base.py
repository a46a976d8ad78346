"""The contract: what may come in, the registry of kinds, who sees whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.attention import ATTENTION, SoftmaxConfig
from proteinlm.models.attention.base import visible_pairs


def build(config):
    return config.build(num_heads=2, head_dim=6, key=jax.random.key(0))


def inputs(length):
    return tuple(jnp.ones((2, length, 2, width)) for width in (6, 6, 5))


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a | {"q": a["q"][0]}, ["q has shape (7, 2, 6)", "B, L, H, D"]),
        (lambda a: a | {n: a[n].swapaxes(1, 2) for n in "qkv"}, ["q has shape (2, 2, 7, 6)", "H = 2", "D = 6"]),
        (lambda a: a | {"k": a["k"][..., :5]}, ["k has shape (2, 7, 2, 5)", "(2, 7, 2, 6)"]),
        (lambda a: a | {"k": a["k"][:, :4]}, ["k has shape (2, 4, 2, 6)"]),
        (lambda a: a | {"v": a["v"][:, :4]}, ["v has shape (2, 4, 2, 5)", "(2, 7, 2)"]),
        (lambda a: a | {"v": a["v"][:, :, 0]}, ["v has shape (2, 7, 5)"]),
        (lambda a: {n: x[:, :0] for n, x in a.items()}, ["q has shape (2, 0, 2, 6)", "no residue"]),
        (lambda a: {n: x[:0] for n, x in a.items()}, ["q has shape (0, 7, 2, 6)", "no residue"]),
        (lambda a: a | {"q": a["q"].astype(int)}, ["q has", "int32", "float"]),
        (lambda a: a | {"key_mask": jnp.ones((7, 2), bool)}, ["key_mask has shape (7, 2)", "(2, 7)"]),
        (lambda a: a | {"key_mask": jnp.ones((2, 7), int)}, ["key_mask", "int32", "bool"]),
    ],
)
@pytest.mark.parametrize("kind", ATTENTION)
def test_wrong_shapes_are_refused_by_name(kind, change, words):
    attention = build(ATTENTION[kind]())
    q, k, v = inputs(7)
    arguments = change({"q": q, "k": k, "v": v})
    with pytest.raises(ValueError, match="expected") as error:
        attention(**arguments, causal=True)
    for word in words:
        assert word in str(error.value)


def test_weights_refuse_wrong_shapes_too():
    q, k, _ = inputs(7)
    with pytest.raises(ValueError, match="k has shape"):
        build(SoftmaxConfig()).weights(q, k[:, :3], causal=False)


def test_registry_names_each_kind():
    assert {kind: config.kind for kind, config in ATTENTION.items()} == {kind: kind for kind in ATTENTION}
    for config in ATTENTION.values():
        assert hash(config()) == hash(config())


def test_visible_pairs_are_the_past_without_masked_keys():
    mask = jnp.array([[False, True, True]])
    found = visible_pairs(3, True, mask)[0, 0].astype(int)
    np.testing.assert_array_equal(found, [[0, 0, 0], [0, 1, 0], [0, 1, 1]])
    assert visible_pairs(3, False, None).all()
    assert not visible_pairs(3, False, mask)[..., 0].any()
