import dataclasses

import pytest
from tiny_models import TINY, V, mechanism

from proteinlm.errors import InputError
from proteinlm.models.config import ModelConfig


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": "rotary", "embed_dim": 14}, r"model.embed_dim / model.num_heads is 14 / 2 = 7, an odd number"),
        (
            {"attention": mechanism("linformer_learned", 31)},
            "model.attention.max_length is 31, below model.max_length, 32",
        ),
    ],
)
def test_impossible_options_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(TINY, **changes)


def test_odd_widths_of_heads_are_fine_without_rotation():
    assert ModelConfig(vocab_size=V, embed_dim=21, num_heads=3, positions="sinusoidal").head_dim == 7


def test_misspelt_options_are_refused():
    config = dataclasses.replace(TINY)
    # As where the tests' checks of types are off: no quiet choice of another option.
    object.__setattr__(config, "feed_forward", "GEGLU")
    with pytest.raises(InputError, match="model.feed_forward is 'GEGLU'; it must be one of 'gelu', 'geglu'"):
        config.__post_init__()
