"""What a causal model remembers between tokens."""

from dataclasses import dataclass, field
from typing import Any

import jax
from jax.core import Tracer
from jaxtyping import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodingState:
    """State after some tokens of each row; a tree, to go through jax.jit as an argument.

    Attributes:
        layers: the mechanisms' states, stacked: each array has a first axis N.
        positions: int32 [B], the position of each row's next token: the number of its tokens so far, padding apart.
        places: int32 [], the places used up: the length of the prompt and one for each step.
        max_length: how many places there are.
    """

    # Not arrays alone: jax.tree.map puts shapes, shardings and other things in their place.
    layers: Any
    positions: Any
    places: Any
    max_length: int = field(metadata={"static": True})

    def check(self, tokens: Array) -> None:
        """Refuse a step that cannot be; while JAX traces, it is not known whether places are left.

        Raises:
            ValueError: tokens is not [B]; all places are used up.
        """
        if tokens.shape != self.positions.shape:
            raise ValueError(f"tokens has shape {tokens.shape}; a step takes one token a row, {self.positions.shape}")
        if not isinstance(self.places, Tracer) and int(self.places) >= self.max_length:
            raise ValueError(f"no token is left to decode: prefill was given a max_length of {self.max_length}")
