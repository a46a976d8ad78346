"""Checkpoints: everything that a run needs to go on, saved whole or not at all. All of Orbax lives here.

A checkpoint of a step holds the parameters, the random features, the optimizer's state, the step, the position in the
data and the config. Random keys need no room: each is a pure function of (config.seed, step). Arrays are stored under
their path's name, so a checkpoint can be read without any class of this package.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from flax import nnx

from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.files import whole_file
from proteinlm.models.transformer import ProteinLM

CONFIG_FILE = "config.json"
RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"


def named_arrays(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by the name of their path, such as "params/blocks/mlp/up/kernel"."""
    return {"/".join(_name(key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def with_named_arrays(template: Any, arrays: dict[str, Any], source: str) -> Any:
    """Return `template`'s tree with the leaves of `arrays`.

    Args:
        template: a tree of arrays or ShapeDtypeStructs.
        arrays: leaves by name, as from `named_arrays`.
        source: how to name the checkpoint in an error.

    Raises:
        InputError: names, shapes or dtypes differ: the checkpoint is of another config.
    """
    expected = named_arrays(template)
    odd = sorted(set(expected) ^ set(arrays))
    if odd:
        where = "the checkpoint lacks it" if odd[0] in expected else "the config has no such array"
        raise InputError(f"{source} is of another config: {len(odd)} arrays differ, first {odd[0]} ({where}).")
    for name, leaf in expected.items():
        found = arrays[name]
        if found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise InputError(
                f"{source} is of another config: {name} is {found.dtype}{list(found.shape)} there, "
                f"{leaf.dtype}{list(leaf.shape)} here."
            )
    leaves = [arrays[name] for name in expected]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template), leaves)


class Checkpoints:
    """The checkpoints of one run folder, newest `keep` of them."""

    def __init__(self, run: str | Path, *, keep: int = 3, read_only: bool = False):
        """Open RUN/checkpoints.

        Args:
            run: the run's folder.
            keep: how many of the newest checkpoints stay.
            read_only: for evaluation and analysis, beside a run that may still be training.
        """
        self._folder = (Path(run) / CHECKPOINTS).absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else keep,
            create=not read_only,
            read_only=read_only,
            # A folder left half written by a kill goes; a whole one is never touched.
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=False,
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def steps(self) -> list[int]:
        """Return the steps that have a whole checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, data: dict, config: Config) -> None:
        """Write one checkpoint and delete those beyond `keep`.

        Args:
            step: number of optimizer steps done.
            state: any tree of arrays.
            data: JSON-able position in the data.
            config: written beside the arrays.
        """
        if step in self._manager.all_steps():
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(named_arrays(state)),
                data=ocp.args.JsonSave(data),
                config=ocp.args.JsonSave(json.loads(config.to_json())),
            ),
        )
        self._manager.wait_until_finished()

    def restore(self, step: int, template: Any) -> tuple[Any, dict]:
        """Return (state, data) of a step, the arrays placed as in `template`.

        Raises:
            InputError: the checkpoint's arrays are not those of the template.
        """
        source = f"checkpoint {self._folder / str(step)}"
        found = self._metadata(step)
        placed = named_arrays(template)
        # Shapes are compared before anything is read: Orbax would otherwise cut or pad in silence.
        with_named_arrays(template, found, source)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore({name: _abstract(leaf) for name, leaf in placed.items()}),
                data=ocp.args.JsonRestore(),
            ),
        )
        return with_named_arrays(template, restored["state"], source), restored["data"]

    def _metadata(self, step: int) -> dict[str, jax.ShapeDtypeStruct]:
        metadata = self._manager.item_metadata(step)["state"]
        tree = getattr(metadata, "tree", metadata)
        return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in tree.items()}

    def restore_part(self, step: int, part: str, template: Any) -> Any:
        """Return one branch of the state, such as "model", without reading the rest (the optimizer's moments)."""
        prefix = f"{part}/"
        source = f"checkpoint {self._folder / str(step)}"
        found = {name: leaf for name, leaf in self._metadata(step).items() if name.startswith(prefix)}
        wanted = {part: template}
        with_named_arrays(wanted, found, source)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeRestore(
                    {name: _abstract(leaf) for name, leaf in named_arrays(wanted).items()}, partial_restore=True
                )
            ),
        )
        return with_named_arrays(wanted, restored["state"], source)[part]

    def close(self) -> None:
        """Release the folder."""
        self._manager.close()


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


@dataclass(frozen=True)
class Run:
    """A trained model and where it came from."""

    folder: Path
    config: Config
    step: int
    model: ProteinLM
    dataset: str
    dataset_fingerprint: str


def write_run_files(run: Path, config: Config, dataset: Path, fingerprint: str) -> None:
    """Write RUN/config.json and RUN/run.json (the dataset's folder and fingerprint)."""
    with whole_file(run / CONFIG_FILE) as handle:
        handle.write(config.to_json() + "\n")
    with whole_file(run / RUN_FILE) as handle:
        handle.write(json.dumps({"dataset": str(dataset.absolute()), "fingerprint": fingerprint}, indent=2) + "\n")


def read_run_files(run: Path) -> tuple[Config, dict[str, str]]:
    """Return the config and {"dataset", "fingerprint"} of a run folder.

    Raises:
        InputError: the folder is not a training run's.
    """
    for name in (CONFIG_FILE, RUN_FILE):
        if not (run / name).is_file():
            raise InputError(f"{run} has no {name}: it is not the folder of a training run.")
    config = Config.from_json((run / CONFIG_FILE).read_text(encoding="utf-8"), str(run / CONFIG_FILE))
    return config, json.loads((run / RUN_FILE).read_text(encoding="utf-8"))


def load_run(run: str | Path, step: int | None = None) -> Run:
    """Load the model of a run folder from its newest checkpoint, or from that of `step`.

    Raises:
        InputError: not a run's folder, no checkpoint, no such step (the steps that exist are named), or arrays that
            do not fit the config.
    """
    run = Path(run)
    config, origin = read_run_files(run)
    if not (run / CHECKPOINTS).is_dir():
        raise InputError(f"{run} has no checkpoints yet: train first, or name another run.")
    checkpoints = Checkpoints(run, read_only=True)
    try:
        steps = checkpoints.steps()
        if not steps:
            raise InputError(f"{run} has no checkpoints yet: train first, or name another run.")
        if step is not None and step not in steps:
            raise InputError(f"{run} has no checkpoint of step {step}; there are {', '.join(map(str, steps))}.")
        step = steps[-1] if step is None else step
        abstract = nnx.eval_shape(
            lambda: ProteinLM(config.model, causal=config.causal, key=jax.random.key(config.seed))
        )
        graph, state = nnx.split(abstract)
        model = nnx.merge(graph, checkpoints.restore_part(step, "model", state))
    finally:
        checkpoints.close()
    return Run(run, config, step, model, origin["dataset"], origin["fingerprint"])
