"""The optimizer: gradient clipping, Adam, decoupled weight decay and learning-rate schedule as one optax chain."""

from typing import Any

import jax
import optax

from proteinlm.config import OptimizerConfig
from proteinlm.devices.sharding import leaf_name

# Parameters without weight decay, by the last word of a part of their names, as in mlp/bias, query_scale, biases/0.
# Shapes cannot decide it: layers are stacked, and a mechanism may stack more.
_NOT_DECAYED = ("bias", "biases", "scale", "scales")


def learning_rate_schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """Return the function step -> learning rate: linear warm-up from 0, then constant, or linear or cosine decay."""
    decay_steps = max(num_steps - config.warmup_steps, 1)
    end = config.learning_rate * config.final_fraction
    after = {
        "constant": optax.constant_schedule(config.learning_rate),
        "linear": optax.linear_schedule(config.learning_rate, end, decay_steps),
        "cosine": optax.cosine_decay_schedule(config.learning_rate, decay_steps, config.final_fraction),
    }[config.schedule]
    if not config.warmup_steps:
        return after
    warmup = optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps)
    return optax.join_schedules([warmup, after], [config.warmup_steps])


def is_decayed(parameters) -> object:
    """Return a tree of bools: True for parameters with weight decay (matrices, embeddings), else False."""

    def decayed(path, _leaf):
        return not any(name.split("_")[-1] in _NOT_DECAYED for name in leaf_name(path).split("/"))

    return jax.tree_util.tree_map_with_path(decayed, parameters)


def at_step(state: Any, step: jax.Array) -> Any:
    """Return the optimizer's state with the count of the schedule set to `step`: skipped steps count in it too."""

    def is_schedule(part: Any) -> bool:
        return isinstance(part, optax.ScaleByScheduleState)

    def set_count(part: Any) -> Any:
        return part._replace(count=step) if is_schedule(part) else part

    return jax.tree.map(set_count, state, is_leaf=is_schedule)


def make_optimizer(config: OptimizerConfig, num_steps: int) -> optax.GradientTransformation:
    """Return clipping by global norm followed by AdamW (Performer paper, appendix on protein models)."""
    adamw = optax.adamw(
        learning_rate_schedule(config, num_steps),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=is_decayed,
    )
    return optax.chain(optax.clip_by_global_norm(config.clip), adamw) if config.clip else adamw
