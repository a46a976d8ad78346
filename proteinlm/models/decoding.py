"""The state of a causal model that decodes token by token."""

from dataclasses import dataclass, field
from typing import Any

import jax
from jax.core import Tracer
from jaxtyping import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodingState:
    """State after the tokens so far of each row; a pytree, so that jax.jit takes it as an argument.

    Attributes:
        layers: states of the layers' mechanisms, stacked: the first axis of each array is N.
        positions: int32 [B], position of each row's next token: the number of its tokens so far, without padding.
        places: int32 [], number of places in use: the length of the prompt (padding included) and one for each step.
        max_length: number of places.
    """

    # Any, not Array: jax.tree.map replaces the arrays by shapes, shardings and others.
    layers: Any
    positions: Any
    places: Any
    max_length: int = field(metadata={"static": True})

    def check(self, tokens: Array) -> None:
        """Refuse a step that is not possible. While JAX traces, the number of free places is unknown and not checked.

        Raises:
            ValueError: tokens is not [B]; no place is free.
        """
        if tokens.shape != self.positions.shape:
            raise ValueError(f"tokens has shape {tokens.shape}; a step takes one token per row, {self.positions.shape}")
        if not isinstance(self.places, Tracer) and int(self.places) >= self.max_length:
            raise ValueError(f"no token is left to decode: prefill was given a max_length of {self.max_length}")
