"""An experiment made small: the same parts, each of a size that a laptop trains in seconds."""

import dataclasses
from typing import Any, Literal

from proteinlm.config import Config

Scale = Literal["full", "tiny"]

LENGTH = 64
"""Tokens of a tiny row."""

# No field grows by this, so that what is small already stays.
_MODEL = {"num_layers": 2, "num_heads": 2, "embed_dim": 32, "mlp_dim": 64, "max_length": LENGTH}
_RUN = {
    "num_steps": 20, "eval_every": 10, "eval_examples": 16, "checkpoint_every": 10, "log_every": 1, "redraw_every": 5,
}  # fmt: skip


def scaled(config: Config, scale: Scale) -> Config:
    """Return the config itself for "full", and for "tiny" one with the same choices and small numbers.

    Mechanism, objective, form, positions, feed-forward part, precision, rematerialisation, mesh and optimizer are the
    config's; there are two narrow layers, eight rows (times `accumulate`) of 64 tokens and 20 steps.
    """
    if scale == "full":
        return config
    model, batches, optimizer = config.model, config.batches, config.optimizer
    buckets = (LENGTH // 2, LENGTH) if len(batches.padded_lengths) > 1 else ()
    return dataclasses.replace(
        _at_most(config, _RUN),
        model=dataclasses.replace(_at_most(model, _MODEL), attention=model.attention.tiny(LENGTH)),
        batches=dataclasses.replace(batches, length=LENGTH, batch_size=8 * config.accumulate, buckets=buckets),
        optimizer=_at_most(optimizer, {"warmup_steps": 2}),
    )


def _at_most(part: Any, limits: dict[str, int]) -> Any:
    """Return a dataclass with each of its fields that has a limit at that or below, a 0 (a default) as it is."""
    sizes = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: min(sizes[name], limits[name]) for name in limits if name in sizes})
