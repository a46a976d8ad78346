"""Two processes on this machine, joined as two hosts are, do what one does."""

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from small_runs import BATCH, config
from subprocesses import PROGRAMS, environment

from proteinlm.config import MeshConfig
from proteinlm.devices import processes
from proteinlm.devices.sharding import one_device
from proteinlm.errors import InputError
from proteinlm.evaluation.evaluate import evaluate_command
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.runs.logs import read_metrics
from proteinlm.training.train import train


def rows(run, kind):
    return {r["step"]: [r["loss"], r["accuracy"], r["tokens"]] for r in read_metrics(run) if r["kind"] == kind}


def started(script, *options):
    """Two processes of a script: python SCRIPT PROCESS_ID PORT OPTIONS; return their exit codes, stdout and stderr."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    both = [
        subprocess.Popen(
            [sys.executable, PROGRAMS / script, *map(str, (index, port, *options))], env=environment(1), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for index in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=300) for process in both]
    finally:
        for process in both:
            process.kill()
    return [process.returncode for process in both], said


def lines(out):
    return [line for line in out.splitlines() if "[Gloo]" not in line]


def test_processes_refuse_different_orders_and_leave_at_once_when_one_dies():
    start = time.monotonic()
    codes, said = started("parting.py")
    # JAX notices after 100 s.
    assert time.monotonic() - start < 60
    assert codes == [1, -signal.SIGKILL], said
    for out, _ in said:
        same, config, dataset = lines(out)
        assert same == "agreed"
        assert config == (
            "refused the processes have different options: optimizer.learning_rate is 0.2 in process 0, 0.1 in process "
            "1; seed is 0 in process 0, 5 in process 1. Give each of them the same command, except for --process-id."
        )
        assert "dataset's fingerprint is data 0 in process 0, data 1 in process 1; by is [] in" in dataset
    (sentence,) = lines(said[0][1])
    assert re.fullmatch(
        r"proteinlm train: process 1 has died \(connection (closed|reset)\); the same command on every process resumes "
        r"from the run's newest checkpoint\.",
        sentence,
    )


@pytest.mark.slow
def test_two_processes_interrupted_and_resumed_give_the_losses_of_one(tmp_path, make_dataset):
    dataset = make_dataset(form="single", batches=7, batch_size=BATCH, length=48)
    alone = config("masked", num_steps=6, eval_every=3, redraw_every=2, checkpoint_every=100)
    train(alone, dataset, tmp_path / "alone")

    # Parameters and optimizer state lie in halves, one a process: a checkpoint needs both.
    together = dataclasses.replace(alone, mesh=MeshConfig(data=1, fsdp=2))
    (tmp_path / "config.json").write_text(together.to_json())
    codes, said = started("joined.py", tmp_path / "config.json", dataset, tmp_path / "run")
    assert codes == [0, 0], said[0][1] + said[1][1]
    # Ctrl-C came to the second before step 4 was sent off; both learn of it at step 5.
    for out, _ in said:
        assert "interrupted 5 2\n" in out
        assert "reached 6\n" in out
        assert "refused by its folder" in out
        assert "seed is 0 in process 0, 1 in process 1" in out
    # One stream of metrics, one set of tables and of lines.
    assert len(lines(said[1][0])) == 4
    assert ["step 6 of 6" in err for _, err in said] == [True, False]
    for kind in ("train", "valid"):
        found, expected = rows(tmp_path / "run", kind), rows(tmp_path / "alone", kind)
        assert list(found) == list(expected)
        np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)
    assert Checkpoints(tmp_path / "run", read_only=True).steps() == [5, 6]

    # What two processes wrote, one reads, and scores alike.
    both = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    evaluate_command([tmp_path / "run"], ("valid",), None, "last")
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
        ({"coordinator": "localhost:1", "num_processes": 0, "process_id": 0}, "--num-processes is 0; .* at least 1"),
        *(
            ({"coordinator": address, "num_processes": 1, "process_id": 0}, "it must be HOST:PORT of process 0")
            for address in ("localhost", "localhost:abc", "localhost:0", "localhost:65536", "a:b:1", ":1", "::1", "")
        ),
        (
            {"coordinator": "no.host.invalid:1", "num_processes": 2, "process_id": 1},
            "the host no.host.invalid is unknown",
        ),
    ],
)
def test_half_said_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        processes.join(**given)


def test_no_cluster_is_a_sentence(monkeypatch):
    def initialize(*_, **__):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(processes.jax.distributed, "initialize", initialize)
    with pytest.raises(InputError, match="--distributed found no cluster"):
        processes.join(automatic=True)


def test_addresses_of_all_kinds_are_read():
    for address, port in (("localhost:1234", 1234), ("127.0.0.1:65535", 65535), ("[::1]:1", 1)):
        assert processes._port_of(address) == port


def test_a_process_that_waits_says_for_whom_and_a_failure_is_a_sentence(monkeypatch, capsys):
    def initialize(*_, **__):
        time.sleep(0.3)
        raise RuntimeError("UNKNOWN: Failed to start RPC server")

    monkeypatch.setattr(processes, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(processes.jax.distributed, "initialize", initialize)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for index, others in enumerate(("the other processes", "process 0")):
        with pytest.raises(InputError, match=r"did not connect: UNKNOWN: Failed to start RPC server\. Give each"):
            processes.join(f"localhost:{port}", 2, index)
        assert capsys.readouterr().err == f"waiting for {others} at localhost:{port}, 300 s at most\n"
    with socket.socket() as busy:
        busy.bind(("localhost", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(InputError, match=f"process 0 cannot listen at port {port} of --coordinator"):
            processes.join(f"localhost:{port}", 2, 0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("UNKNOWN: Gloo AllGather failed: [pair.cc] Connection closed by peer [10.0.0.1]:3"),
         r"process 0 has died \(connection closed\)"),
        (RuntimeError("UNAVAILABLE: Failed to send RPC to coordination service."), r"process 0 has died \(UNAVAILABLE"),
        (ValueError("Barrier failed: UNAVAILABLE: Task 1 heartbeat timeout."), r"process 0 has died \(no answer"),
        (ValueError("UNKNOWN: Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out"),
         r"process 0 has died \(no answer\)"),
        (InputError("heartbeat is no field"), None),
        (ValueError("shapes differ"), None),
    ],
)  # fmt: skip
def test_errors_that_mean_another_process_is_gone(monkeypatch, error, words):
    assert processes.who_is_gone(error) is None
    monkeypatch.setattr(processes.jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(processes.jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes.jax, "process_index", lambda: 1)
    wrapped = KeyError("while saving")
    wrapped.__cause__ = error
    for each in (error, wrapped):
        found = processes.who_is_gone(each)
        assert re.search(words, found or "") if words else found is None
