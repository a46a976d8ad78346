"""Trackers: TensorBoard and Weights & Biases, which get the numbers of metrics.jsonl too, where installed."""

import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from proteinlm.config import Config
from proteinlm.errors import InputError


class Tracker(Protocol):
    """A service that logs numbers by name and step."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log the numbers of a step, by names such as "train/loss"."""
        ...

    def close(self) -> None:
        """Write what is still in memory."""
        ...


class _TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, run: Path, start: int, _config: Config):
        import tensorboardX  # pyright: ignore[reportMissingImports]

        # Removes numbers of steps after the start, which will be repeated.
        self._writer = tensorboardX.SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """A run of the project "proteinlm", the same one each time the folder is resumed."""

    def __init__(self, run: Path, _start: int, config: Config):
        import wandb  # pyright: ignore[reportMissingImports]

        folder = str(run.resolve())
        identity = f"{run.resolve().name}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
        try:
            self._run = wandb.init(
                project="proteinlm", name=run.resolve().name, id=identity, resume="allow", dir=folder,
                config=json.loads(config.to_json()),
            )  # fmt: skip
        except wandb.Error as error:
            raise InputError(f"--track wandb: {error}; run `wandb login`, or set WANDB_MODE=offline.") from error

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS: dict[str, tuple[str, Callable[[Path, int, Config], Tracker]]] = {
    "tensorboard": ("tensorboardX", _TensorBoard),
    "wandb": ("wandb", _Wandb),
}


def check_trackers(text: str) -> tuple[str, ...]:
    """Return the names of trackers in a text such as "tensorboard,wandb"; none for "".

    Raises:
        InputError: a name is unknown, or its package is not installed.
    """
    names = tuple(name for name in text.replace(" ", "").split(",") if name)
    for name in names:
        if name not in _TRACKERS:
            raise InputError(f"--track {name!r} is unknown; there are {', '.join(_TRACKERS)}, separated by commas.")
        package = _TRACKERS[name][0]
        if importlib.util.find_spec(package) is None:
            raise InputError(f"--track {name} needs the package {package}: pip install 'proteinlm[logging]'.")
    return names


def open_trackers(names: tuple[str, ...], run: Path, start: int, config: Config) -> list[Tracker]:
    """Return the trackers of these names (from `check_trackers`) for a run that starts or resumes at step `start`."""
    return [_TRACKERS[name][1](run, start, config) for name in names]


def tagged(kind: str, values: dict[str, Any]) -> dict[str, float]:
    """Return the values of a line that are numbers, by names "KIND/NAME"."""
    return {
        f"{kind}/{name}": value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
