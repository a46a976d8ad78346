"""Two processes on this machine, joined as two hosts are, do what one does."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_train import BATCH, config

from proteinlm import processes
from proteinlm.checkpoint import Checkpoints
from proteinlm.config import MeshConfig
from proteinlm.errors import InputError
from proteinlm.evaluate import evaluate_command
from proteinlm.logs import read_metrics
from proteinlm.sharding import one_device
from proteinlm.train import train

TESTS = Path(__file__).parent


def environment(devices):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}


def rows(run, kind):
    return {r["step"]: [r["loss"], r["accuracy"], r["tokens"]] for r in read_metrics(run) if r["kind"] == kind}


@pytest.mark.slow
def test_two_processes_interrupted_and_resumed_give_the_losses_of_one(tmp_path, make_dataset):
    dataset = make_dataset(form="single", batches=7, batch_size=BATCH, length=48)
    alone = config("masked", num_steps=6, eval_every=3, redraw_every=2, checkpoint_every=100)
    train(alone, dataset, tmp_path / "alone")

    # Parameters and optimizer state lie in halves, one a process: a checkpoint needs both.
    together = dataclasses.replace(alone, mesh=MeshConfig(data=1, fsdp=2))
    (tmp_path / "config.json").write_text(together.to_json())
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, TESTS / "joined.py"]
    options = [port, tmp_path / "config.json", dataset, tmp_path / "run"]
    started = [
        subprocess.Popen(
            [*command, str(index), *map(str, options)], env=environment(1), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for index in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], said[0][1] + said[1][1]
    # Ctrl-C came to the second before step 4 was sent off; both learn of it at step 5.
    for out, _ in said:
        assert "interrupted 5 2\n" in out
        assert "reached 6\n" in out
        assert "refused" in out
    # One stream of metrics, one set of tables and of lines.
    assert len([line for line in said[1][0].splitlines() if "[Gloo]" not in line]) == 3
    assert ["step 6 of 6" in err for _, err in said] == [True, False]
    for kind in ("train", "valid"):
        found, expected = rows(tmp_path / "run", kind), rows(tmp_path / "alone", kind)
        assert list(found) == list(expected)
        np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)
    assert Checkpoints(tmp_path / "run", read_only=True).steps() == [5, 6]

    # What two processes wrote, one reads, and scores alike.
    both = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    evaluate_command([tmp_path / "run"], ("valid",), None, None)
    one = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for a, b in zip(both["scores"], one["scores"], strict=True):
        assert (a["model"], a["num_tokens"], a["num_sequences"]) == (b["model"], b["num_tokens"], b["num_sequences"])
        assert a["perplexity"] == pytest.approx(b["perplexity"], rel=1e-5)


def test_a_process_alone_joins_nobody_and_has_its_own_word():
    processes.join()
    assert processes.is_first()
    assert processes.Vote(one_device()).of(7) == 7
    with pytest.raises(InputError, match="no such thing"):
        processes.first_alone(refuse)


def refuse():
    raise InputError("no such thing")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"coordinator": "localhost:1"}, "--num-processes and --process-id must be given too"),
        ({"num_processes": 2, "process_id": 0}, "--coordinator must be given too"),
        ({"coordinator": "localhost:1", "num_processes": 2, "process_id": 2}, "--process-id is 2; .* it is 0 to 1"),
    ],
)
def test_half_said_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        processes.join(**given)
