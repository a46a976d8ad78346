"""The small scale of an experiment: the same choices, with sizes that a laptop trains in seconds."""

import dataclasses
from typing import Any, Literal

from proteinlm.config import Config

Scale = Literal["full", "tiny"]

LENGTH = 64
"""Number of tokens of a row at the tiny scale."""

# Upper limits: a field that is already smaller stays as it is.
_MODEL = {"num_layers": 2, "num_heads": 2, "embed_dim": 32, "mlp_dim": 64, "max_length": LENGTH}
_RUN = {
    "num_steps": 20, "eval_every": 10, "eval_examples": 16, "checkpoint_every": 10, "log_every": 1, "redraw_every": 5,
}  # fmt: skip


def scaled(config: Config, scale: Scale) -> Config:
    """Return the config itself for "full", or a config with the same choices and small sizes for "tiny".

    Tiny keeps mechanism, objective, form, positions, feed-forward part, precision, rematerialisation, mesh and
    optimizer. It has two narrow layers, 20 steps, and batches of eight rows (times `accumulate`) of 64 tokens.
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
    """Return a dataclass with its fields cut to the limits; a 0, which stands for a default, stays 0."""
    sizes = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: min(sizes[name], limits[name]) for name in limits if name in sizes})
