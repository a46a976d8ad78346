"""Options that several commands share: the processes of a distributed run, and a config with overrides."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from proteinlm.errors import InputError

if TYPE_CHECKING:
    from proteinlm.config import Config


@dataclass(frozen=True)
class Processes:
    """Several processes that work together: the same command in each, with its own --process-id."""

    coordinator: str | None = None
    """HOST:PORT of process 0, the same in every process."""
    num_processes: int | None = None
    """Number of processes."""
    process_id: int | None = None
    """Index of this process, from 0."""
    distributed: bool = False
    """On a TPU pod, Slurm, Open MPI or Kubernetes: detect these three options from the cluster."""

    def join(self) -> None:
        """Connect to the other processes; without these options, do nothing."""
        from proteinlm.devices import processes

        processes.join(self.coordinator, self.num_processes, self.process_id, automatic=self.distributed)


def read_config(command: str, arguments: Sequence[str]) -> "tuple[str, Config, Sequence[str]]":
    """Return the name of the config, the config at the chosen scale, and the remaining arguments.

    Config and scale are read before the other options, because the config's fields are options too, with its values as
    defaults.

    Raises:
        InputError: no config is named, or it cannot be read.
    """
    from proteinlm.config import Config, load_config, named_configs
    from proteinlm.config.scale import scaled

    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is None and not {"-h", "--help"} & set(arguments):
        raise InputError(
            f"name a config first: proteinlm {command} CONFIG ...; CONFIG is a file or one of "
            f"{', '.join(named_configs())}."
        )
    tiny = "--scale=tiny" in arguments or ("--scale", "tiny") in pairwise(arguments)
    config = scaled(load_config(name) if name else Config(), "tiny" if tiny else "full")
    return name or "CONFIG", config, arguments[1:] if name else arguments
