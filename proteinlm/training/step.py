"""The compiled programs of training: the initial state, an optimizer step, the redraw of random features."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from proteinlm.config import Config
from proteinlm.data.batches.batches import batch_arrays
from proteinlm.devices import sharding
from proteinlm.models.objective import Example, TokenSums, make_example, mean_loss, token_sums
from proteinlm.models.randomness import random_key
from proteinlm.models.transformer import ProteinLM
from proteinlm.training.optimizer import at_step, make_optimizer


class TrainStep:
    """The compiled programs of training for one config on one mesh.

    The state is {"model", "optimizer", "step"}: nnx state, optax state and an int32 scalar.

    Attributes:
        init: () -> the initial state, sharded by `sharding.RULES`.
        step: (state, batch) -> (state, metrics): one optimizer step. The buffers of the old state are donated. Metrics
            are scalars, replicated on every device: loss, nll, correct, count, gradient_norm, parameter_norm, tokens.
        redraw: state -> the state with new random features; the buffers of the old state are donated.
        abstract_state: shapes, dtypes and shardings of the state.
        graph: nnx graph definition of the model.
    """

    def __init__(self, config: Config, mesh: Mesh | None = None):
        """Define the programs of a config; each is compiled when it is first called.

        Args:
            config: the experiment.
            mesh: mesh of devices of this or another machine (`step.lower` compiles for either); None is the mesh of
                `config.mesh` on this machine.

        Raises:
            InputError: the config does not fit the mesh.
        """
        self.config = config
        self.mesh = sharding.make_mesh(config.mesh) if mesh is None else mesh
        sharding.check_fits(config, self.mesh)
        self.layout = sharding.layout(self.mesh)
        self.optimizer = make_optimizer(config.optimizer, config.num_steps)
        self.graph = nnx.split(nnx.eval_shape(self._make_model))[0]
        state, attention = jax.eval_shape(self._init), config.model.attention
        self.abstract_state: dict[str, Any] = sharding.abstract(state, self.mesh, attention)
        state = self._shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        batch, sums = sharding.batch_sharding(self.mesh), sharding.replicated(self.mesh)
        self.init = jax.jit(self._init, out_shardings=state)
        self.step = jax.jit(self._step, in_shardings=(state, batch), out_shardings=(state, sums), donate_argnums=0)
        self.redraw = jax.jit(self._redraw, in_shardings=(state,), out_shardings=state, donate_argnums=0)

    def abstract_batch(self, rows: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes, dtypes and shardings of a batch, [rows, length], of all processes together."""
        split, arrays = sharding.batch_sharding(self.mesh), batch_arrays(self.config.batches, rows, length)
        return {name: jax.ShapeDtypeStruct(*array, sharding=split) for name, array in arrays.items()}

    def _make_model(self) -> ProteinLM:
        return ProteinLM(self.config.model, causal=self.config.causal, key=random_key(self.config.seed, "parameters"))

    def _init(self) -> dict[str, Any]:
        state = nnx.split(self._make_model())[1]
        parameters, _ = nnx.split_state(state, nnx.Param, ...)
        return {"model": state, "optimizer": self.optimizer.init(parameters), "step": jnp.zeros((), jnp.int32)}

    def _example(self, batch: dict[str, jax.Array], step: jax.Array) -> Example:
        key = random_key(self.config.seed, "masks")
        return make_example(batch["tokens"], batch["keys"], self.config.objective, key, step, batch.get("segments"))

    def _step(self, state: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        """Compute one optimizer step: (state, batch) -> (state, metrics).

        If the loss or the gradient is not finite, parameters and Adam's moments keep their values. The decision is made
        before the update, so that the update can be in place. It is compiled for every config, so that a resumed run
        may change `skip_bad_steps`.
        """
        example = self._example(batch, state["step"])
        dropout_key = random_key(self.config.seed, "dropout", state["step"])
        parameters, others = nnx.split_state(state["model"], nnx.Param, ...)
        sums, gradient = self._gradient(parameters, others, example, batch.get("segments"), dropout_key)
        loss, norm = mean_loss(sums), optax.tree.norm(gradient)
        good = jnp.isfinite(loss) & jnp.isfinite(norm)

        def update(parameters: Any, optimizer: Any) -> tuple[Any, Any]:
            updates, optimizer = self.optimizer.update(gradient, optimizer, parameters)
            return optax.apply_updates(parameters, updates), optimizer

        def keep(parameters: Any, optimizer: Any) -> tuple[Any, Any]:
            return parameters, optimizer

        parameters, optimizer = jax.lax.cond(good, update, keep, parameters, state["optimizer"])
        optimizer = at_step(optimizer, state["step"] + 1)
        metrics = {
            "loss": loss,
            "nll": sums.nll,
            "correct": sums.correct,
            "count": sums.count,
            "gradient_norm": norm,
            "parameter_norm": optax.tree.norm(parameters),
            "tokens": (batch["tokens"] != 0).sum(),
        }
        state = {"model": nnx.merge_state(parameters, others), "optimizer": optimizer, "step": state["step"] + 1}
        return state, metrics

    def _gradient(
        self, parameters: Any, others: Any, example: Example, segments: jax.Array | None, dropout_key: jax.Array
    ) -> tuple[TokenSums, Any]:
        """Return the sums over a batch and the gradient of its mean loss, computed in `config.accumulate` parts."""
        count = jnp.maximum(example.weights.sum(), 1.0)

        def loss_of(
            parameters: Any, part: Example, segments: jax.Array | None, key: jax.Array
        ) -> tuple[jax.Array, TokenSums]:
            model = nnx.merge(self.graph, self.layout.tables(parameters), others)
            logits = model(part.inputs, segments=segments, dropout_key=key, layout=self.layout)
            sums = jax.tree.map(jnp.sum, token_sums(logits, part.targets, part.weights))
            # Divided by the count of the whole batch, so that the parts add up to its mean.
            return sums.nll / count, sums

        gradient_of = jax.value_and_grad(loss_of, has_aux=True)
        parts = self.config.accumulate
        if parts == 1:
            (_, sums), gradient = gradient_of(parameters, example, segments, dropout_key)
            return sums, gradient

        def add(so_far: Any, inputs: tuple[Example, jax.Array | None, jax.Array]) -> tuple[Any, None]:
            (_, sums), gradient = gradient_of(parameters, *inputs)
            return jax.tree.map(jnp.add, so_far, (sums, gradient)), None

        # Part i is rows i, i + parts, ...: each device then holds its share of every part, and no row moves.
        rows = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), (example, segments))
        nothing = (TokenSums(*jnp.zeros(3)), jax.tree.map(jnp.zeros_like, parameters))
        return jax.lax.scan(add, nothing, (*rows, jax.random.split(dropout_key, parts)))[0]

    def _redraw(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state with new random features, a pure function of (config.seed, step)."""
        model = nnx.merge(self.graph, state["model"])
        model.redraw(random_key(self.config.seed, "features", state["step"]))
        return {**state, "model": nnx.split(model)[1]}


def count_parameters(state: nnx.State) -> int:
    """Return the number of trained parameters of a model; random features do not count."""
    parameters, _ = nnx.split_state(state, nnx.Param, ...)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(parameters))
