"""One of two processes that train a run together, stop after a signal to one of them, resume, and evaluate.

usage: python joined.py PROCESS_ID PORT CONFIG.json DATASET RUN
"""

import dataclasses
import os
import signal
import sys
from pathlib import Path

from proteinlm.config import Config
from proteinlm.data.batches.batches import TrainBatches
from proteinlm.devices import processes
from proteinlm.errors import InputError, Interrupted
from proteinlm.evaluation.evaluate import evaluate_command
from proteinlm.training.train import train

if __name__ == "__main__":
    index, config, dataset, run = int(sys.argv[1]), Config.from_json(Path(sys.argv[3]).read_text()), *sys.argv[4:]
    processes.join(f"localhost:{sys.argv[2]}", 2, index)
    following = TrainBatches.__next__

    def interrupted(batches):
        if index == 1 and batches.get_state()["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return following(batches)

    TrainBatches.__next__ = interrupted
    try:
        train(config, dataset, run)
    except Interrupted as order:
        print("interrupted", order.step, order.signal_number)
    TrainBatches.__next__ = following
    print("reached", train(config, dataset, run).step)
    evaluate_command([Path(run)], ("valid",), None, "last")
    try:
        train(Config(num_steps=7), dataset, run)
    except InputError as error:
        print("refused by its folder", str(error)[:40])
    try:
        train(dataclasses.replace(config, seed=index), dataset, run)
    except InputError as error:
        print("refused", error)
