"""The compiled parts of training: the initial state, one optimizer step, the redraw of random features."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from proteinlm.config import Config
from proteinlm.models.transformer import ProteinLM
from proteinlm.objective import make_example, mean_loss, token_sums
from proteinlm.optimizer import make_optimizer
from proteinlm.randomness import random_key


class Trainer:
    """The compiled parts of training for one config: initial state, train step, redraw."""

    def __init__(self, config: Config):
        """Prepare for a config; nothing is compiled until it is called."""
        self.config = config
        self.optimizer = make_optimizer(config.optimizer, config.num_steps)
        self.graph = nnx.split(nnx.eval_shape(self._make_model))[0]
        self.init = jax.jit(self._init)
        self.step = jax.jit(self._step, donate_argnums=0)
        self.redraw = jax.jit(self._redraw, donate_argnums=0)

    def _make_model(self) -> ProteinLM:
        return ProteinLM(self.config.model, causal=self.config.causal, key=random_key(self.config.seed, "parameters"))

    def _init(self) -> dict[str, Any]:
        state = nnx.split(self._make_model())[1]
        parameters, _ = nnx.split_state(state, nnx.Param, ...)
        return {"model": state, "optimizer": self.optimizer.init(parameters), "step": jnp.zeros((), jnp.int32)}

    def _example(self, batch: dict[str, jax.Array], step: jax.Array):
        key = random_key(self.config.seed, "masks")
        return make_example(batch["tokens"], batch["keys"], self.config.objective, key, step, batch.get("segments"))

    def _step(self, state: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        """One optimizer step: (state, batch) -> (state, sums over the batch's counted tokens)."""
        inputs, targets, weights = self._example(batch, state["step"])
        dropout_key = random_key(self.config.seed, "dropout", state["step"])
        parameters, others = nnx.split_state(state["model"], nnx.Param, ...)

        def loss_of(parameters: Any):
            model = nnx.merge(self.graph, parameters, others)
            logits = model(inputs, segments=batch.get("segments"), dropout_key=dropout_key)
            sums = token_sums(logits, targets, weights)
            return mean_loss(sums), sums

        (loss, sums), gradient = jax.value_and_grad(loss_of, has_aux=True)(parameters)
        updates, optimizer = self.optimizer.update(gradient, state["optimizer"], parameters)
        parameters: Any = optax.apply_updates(parameters, updates)
        metrics = {
            "loss": loss,
            "nll": sums.nll.sum(),
            "correct": sums.correct.sum(),
            "count": sums.count.sum(),
            "gradient_norm": optax.tree.norm(gradient),
            "parameter_norm": optax.tree.norm(parameters),
            "tokens": (batch["tokens"] != 0).sum(),
        }
        state = {"model": nnx.merge_state(parameters, others), "optimizer": optimizer, "step": state["step"] + 1}
        return state, metrics

    def _redraw(self, state: dict[str, Any]) -> dict[str, Any]:
        """Draw new random features: a pure function of (config.seed, step)."""
        model = nnx.merge(self.graph, state["model"])
        model.redraw(random_key(self.config.seed, "features", state["step"]))
        return {**state, "model": nnx.split(model)[1]}


def count_parameters(state: nnx.State) -> int:
    """Return the number of trained parameters (random features are not trained)."""
    parameters, _ = nnx.split_state(state, nnx.Param, ...)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(parameters))
