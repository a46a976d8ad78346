"""What may change when a run goes on, what may not, and what a step that is not finite leaves behind."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import dataset, rows, small, unscored  # noqa: F401 (fixtures)
from subprocesses import TESTS, environment

from proteinlm.config import (
    MeshConfig,
    OptimizerConfig,
)
from proteinlm.data.batches.batches import TrainBatches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.devices.sharding import place_batch
from proteinlm.errors import InputError
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.training.optimizer import at_step
from proteinlm.training.resume import differences
from proteinlm.training.step import TrainStep
from proteinlm.training.train import train


def test_what_changes_no_loss_may_change_and_the_rest_is_named():
    config = small()
    free = dataclasses.replace(
        config,
        batches=dataclasses.replace(config.batches, num_threads=9),
        **dict.fromkeys(("eval_every", "checkpoint_every", "keep_checkpoints", "keep_best", "skip_bad_steps"), 7),
        num_steps=9,
        mesh=MeshConfig(data=1),
    )
    assert differences(config, free) == []
    other = dataclasses.replace(
        config, accumulate=2, batches=dataclasses.replace(config.batches, batch_size=8, seed=1), redraw_growth=2.0
    )
    assert differences(config, other) == [
        "accumulate is 1 there, 2 here", "batches.batch_size is 4 there, 8 here", "batches.seed is 0 there, 1 here",
        "redraw_growth is 1.0 there, 2.0 here",
    ]  # fmt: skip
    decaying = dataclasses.replace(config, optimizer=OptimizerConfig(schedule="linear"))
    assert differences(decaying, dataclasses.replace(decaying, num_steps=9)) == ["num_steps is 4 there, 9 here"]


# Goes on with a run on as many devices as XLA_FLAGS says, twice: refused, then as it is told.
ON_OTHER_DEVICES = """
import sys
from proteinlm.training import train as module
from proteinlm.config import Config
from proteinlm.errors import InputError
module._evaluate = lambda *_, **__: (None, None)
config = Config.from_json(open(sys.argv[1]).read())
try:
    module.train(config, *sys.argv[2:])
except InputError as error:
    print(error)
print(module.train(config, *sys.argv[2:], allow_inexact_resume=True).step)
"""


@pytest.mark.slow
def test_other_batches_and_another_mesh_go_on_only_when_told(tmp_path, dataset, unscored):  # noqa: F811
    config, run = small(), tmp_path / "run"
    train(config, dataset, run)
    straight = np.array([row["loss"] for row in rows(run, "train")])
    assert rows(run, "resume") == []

    # On two devices from step 2 on, the losses are the same but for rounding.
    moved = tmp_path / "moved"
    train(dataclasses.replace(config, num_steps=2), dataset, moved)
    (tmp_path / "config.json").write_text(config.to_json())
    done = subprocess.run(
        [sys.executable, "-c", ON_OTHER_DEVICES, tmp_path / "config.json", dataset, moved],
        env=environment(2), cwd=TESTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused, reached = done.stdout.splitlines()
    assert "checkpoint 2 of" in refused
    assert "mesh.data is 1 there, 2 here" in refused
    assert "--allow-inexact-resume" in refused
    assert reached == "4"
    np.testing.assert_allclose([row["loss"] for row in rows(moved, "train")], straight, rtol=1e-5)
    assert rows(moved, "resume") == [{"kind": "resume", "step": 2, "inexact": ["mesh.data is 1 there, 2 here"]}]
    assert "inexact resume: mesh.data is 1 there, 2 here" in (moved / "train.log").read_text()
    starts = json.loads((moved / "environment.json").read_text())["starts"]
    assert [(start["step"], start["devices"]["mesh"]["data"]) for start in starts] == [(0, 1), (2, 2)]

    # Half as many rows: as far into the epoch as before, which has twice as many batches.
    halved = dataclasses.replace(config, num_steps=6, batches=dataclasses.replace(config.batches, batch_size=2))
    with pytest.raises(InputError, match=r"batches.batch_size is 4 there, 2 here\. Give .* --allow-inexact-resume"):
        train(halved, dataset, run)
    read = []
    following = TrainBatches.__next__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainBatches, "__next__", lambda self: read.append(self.get_state()["step"]) or following(self))
        train(halved, dataset, run, allow_inexact_resume=True)
    assert read == [8, 9]
    (row,) = rows(run, "resume")
    assert row["step"] == 4
    assert row["inexact"][0] == "batches.batch_size is 4 there, 2 here"
    assert row["inexact"][1].startswith(
        "the data continue at batch 8 of 14 of epoch 0, the same share of the epoch as "
    )
    assert [row["step"] for row in rows(run, "train")] == [1, 2, 3, 4, 5, 6]
    # From there on it is exact again.
    assert train(dataclasses.replace(halved, num_steps=6), dataset, run).step == 6


def poison(monkeypatch, dataset, config, numbers):  # noqa: F811
    """Make the gradients of some batches NaN."""
    batches = TrainBatches(ProteinDataset.open(dataset), config.batches)
    bad = [batches.batch(number)["tokens"] for number in numbers]
    batches.close()
    gradient = TrainStep._gradient

    def poisoned(self, parameters, others, example, segments, key):
        sums, found = gradient(self, parameters, others, example, segments, key)
        is_bad = jnp.any(jnp.stack([jnp.all(example.targets == tokens) for tokens in bad]))
        return sums, jax.tree.map(lambda x: jnp.where(is_bad, jnp.nan, x), found)

    monkeypatch.setattr(TrainStep, "_gradient", poisoned)


@pytest.mark.slow
def test_bad_batches_are_skipped_and_leave_no_trace(tmp_path, dataset, unscored, monkeypatch):  # noqa: F811
    config, run = small(num_steps=6, skip_bad_steps=1, keep_checkpoints=9, checkpoint_every=1), tmp_path / "run"
    poison(monkeypatch, dataset, config, (2, 3))
    # Two in a row where one is allowed: the run ends, and what is saved is good.
    with pytest.raises(InputError) as error:
        train(config, dataset, run)
    for words in ("step 4 (batch 3) is not finite", "gradient norm nan", "is of step 3", "The 1 steps before it were"):
        assert words in str(error.value)
    assert [(row["step"], row["batch"]) for row in rows(run, "skipped")] == [(3, 2)]
    # How many may be skipped changes nothing else, so the run goes on; the row goes on too.
    train(dataclasses.replace(config, skip_bad_steps=2), dataset, run)
    skipped = rows(run, "skipped")
    assert [(row["step"], row["batch"], row["in_a_row"], row["in_all"]) for row in skipped] == [
        (3, 2, 1, 1),
        (4, 3, 2, 2),
    ]
    assert skipped[0]["gradient_norm"] is None
    trained = {row["step"]: row for row in rows(run, "train")}
    assert (trained[3]["loss"], trained[3]["steps"], trained[3]["tokens"] > 0) == (None, 0, True)

    # The same program given the other batches alone, at their steps.
    train_step = TrainStep(config)
    batches = TrainBatches(ProteinDataset.open(dataset), config.batches)
    state = train_step.init()
    for number in (0, 1, 4, 5):
        if number == 4:
            state = {**state, "step": state["step"] + 2, "optimizer": at_step(state["optimizer"], state["step"] + 2)}
        state, metrics = train_step.step(state, place_batch(batches.batch(number), train_step.mesh))
        assert float(metrics["loss"]) == pytest.approx(trained[number + 1]["loss"], rel=1e-6)
    batches.close()
    saved = Checkpoints(run, read_only=True)
    found, position = saved.restore(6, train_step.abstract_state)
    assert position["step"] == 6
    jax.tree.map(np.testing.assert_array_equal, found, state)
    # Warm-up goes by steps, so its last step is the fourth whatever was skipped; Adam's own count does not.
    counts = {name: int(x) for name, x in named_counts(found["optimizer"]).items()}
    assert sorted(counts.values()) == [4, 6]
    assert trained[6]["learning_rate"] == pytest.approx(config.optimizer.learning_rate)
    saved.close()


def named_counts(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if "count" in jax.tree_util.keystr(path)}
