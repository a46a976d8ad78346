"""Loading a trained model from the folder of a run: the one way that commands, notebooks and the Python API use."""

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jax
from flax import nnx
from jax.sharding import Mesh

from proteinlm.config import Config
from proteinlm.devices import sharding
from proteinlm.errors import InputError
from proteinlm.inference.run import Run
from proteinlm.models.transformer import ProteinLM
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.runs.folder import CHECKPOINTS, read_run_files

Step = int | Literal["best", "last"]
"""A checkpoint: its step; "last", the newest; "best", the one with the lowest loss on valid."""


def load_run(path: str | Path, step: Step = "last", *, mesh_of: Callable[[Config], Mesh] | None = None) -> Run:
    """Load a trained model from the folder of a run.

    Args:
        path: folder of the run, as `train` wrote it.
        step: checkpoint to load. "last" is the newest. "best" has the lowest loss on valid (on the `eval_examples`
            sequences that are scored during training) among the checkpoints that were kept. An integer is the number
            of optimizer steps.
        mesh_of: function that returns the device mesh to place the model on. By default the model is placed on the
            first device of this process, whatever mesh it was trained on.

    Returns:
        The model with its config; the optimizer's state is not read.

    Raises:
        InputError: the folder is not a run's, it has no checkpoint or not the requested one (the message lists the
            steps that exist), or the checkpoint's arrays do not fit its config.

    Examples:
        >>> run = load_run("runs/masked", step="best")
        >>> run.logits(["MKTAYIAKQR"])[0].shape
        (10, 29)
    """
    path = Path(path)
    _, origin = read_run_files(path)
    if not (path / CHECKPOINTS).is_dir():
        raise InputError(f"{path} has no checkpoints yet: train first, or name another run.")
    checkpoints = Checkpoints(path, read_only=True)
    try:
        steps = checkpoints.steps()
        if not steps:
            raise InputError(f"{path} has no checkpoints yet: train first, or name another run.")
        number = _number(path, checkpoints, steps, step)
        config = checkpoints.config(number)
        abstract = nnx.eval_shape(
            lambda: ProteinLM(config.model, causal=config.causal, key=jax.random.key(config.seed))
        )
        graph, state = nnx.split(abstract)
        mesh = mesh_of(config) if mesh_of else None
        placed = sharding.abstract(state, mesh or sharding.one_device(), config.model.attention)
        model = nnx.merge(graph, checkpoints.restore_model(number, placed))
    finally:
        checkpoints.close()
    return Run(path, config, number, model, origin["dataset"], origin["fingerprint"], mesh)


def _number(path: Path, checkpoints: Checkpoints, steps: list[int], step: Step) -> int:
    """Return the number of the requested checkpoint; `steps` are those that exist, ascending."""
    there = f"there {'is' if len(steps) == 1 else 'are'} {', '.join(map(str, steps))}"
    if step == "last":
        return steps[-1]
    if step == "best":
        if (best := checkpoints.best()) is None:
            raise InputError(
                f"{path} has no best checkpoint: none was saved with a loss on valid; {there}: name one of them."
            )
        return best
    try:
        number = operator.index(step)
    except TypeError as error:
        raise InputError(f"step is {step!r}; it must be an integer, 'best' or 'last' ({path}: {there}).") from error
    if number not in steps:
        best = "" if checkpoints.best() is None else ", or best"
        raise InputError(f"{path} has no checkpoint of step {number}; {there}{best}.")
    return number
