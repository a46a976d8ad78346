"""One of two processes with different options, of which one dies in the middle of its command.

usage: python parting.py PROCESS_ID PORT
"""

import dataclasses
import os
import signal
import sys

import jax

from proteinlm.cli.main import COMMANDS, main
from proteinlm.config import BatchesConfig, Config, OptimizerConfig
from proteinlm.devices import processes
from proteinlm.devices.sharding import make_mesh
from proteinlm.errors import InputError


def compare(config, fingerprint, **others):
    try:
        processes.agree(config, fingerprint, **others)
        print("agreed", flush=True)
    except InputError as error:
        print("refused", error, flush=True)


def command(arguments):
    vote = processes.Vote(make_mesh())
    for step in range(100):
        vote.of(step)
        if step == 3 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    index = int(sys.argv[1])
    processes.join(f"localhost:{sys.argv[2]}", 2, index)
    # The number of threads may differ.
    compare(dataclasses.replace(Config(), batches=BatchesConfig(num_threads=index + 1)), "abc", by=["length"])
    compare(Config(seed=5 * index, optimizer=OptimizerConfig(learning_rate=0.1 if index else 0.2)), "abc")
    compare(Config(), f"data {index}", by=["length"] * index)
    COMMANDS["train"] = command
    main(["train"])
