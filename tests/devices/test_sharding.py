"""Every layout of devices gives the losses of one device; every array has a rule and a place."""

import dataclasses
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from layouts import LAYOUTS, LENGTH, MODEL, ROWS
from subprocesses import PROGRAMS, environment
from tiny_models import KINDS, mechanism

from proteinlm.config import BatchesConfig, Config, MeshConfig, ObjectiveConfig, load_config, named_configs
from proteinlm.devices import sharding
from proteinlm.errors import InputError
from proteinlm.runs.checkpoints import named_arrays
from proteinlm.training.step import TrainStep

# Layouts of each mechanism; the last one of all splits rows, parameters and heads.
TRAINED = {name: ["one", "data2_fsdp2_tensor2"] for name in ("softmax", "polysketch", "linformer_learned", "reformer")}
TRAINED |= {"returns_v": ["one", "data2_fsdp2_tensor2"], "favor": list(LAYOUTS)}


def trained(names):
    """What `layouts.py` prints: by mechanism and layout, numbers of each step and bytes of state a device."""
    wanted = [f"{name}:{','.join(TRAINED[name])}" for name in names]
    done = subprocess.run(
        [sys.executable, PROGRAMS / "layouts.py", *wanted],
        env=environment(8),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # XLA says so where it can move an array between two placements only by way of a whole copy.
    assert "Involuntary" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_losses(of_layout, layout):
    found = np.array(of_layout[layout]["steps"])
    # Parts of a batch draw other dropout masks, so there is none in either.
    expected = np.array(of_layout["still" if layout == "accumulate" else "one"]["steps"])
    assert len(expected) == 3
    assert not np.isclose(expected[0], expected[1])[0]
    np.testing.assert_allclose(found[:, 0], expected[:, 0], rtol=1e-5, err_msg=layout)
    # Adam makes steps of the same size of what is but rounding, so gradients are compared before its first.
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, err_msg=layout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [("softmax", "linformer_learned", "returns_v"), ("polysketch", "reformer")],
    ids=" ".join,
)
def test_every_mechanism_gives_the_losses_of_one_device(names):
    for of_layout in trained(names).values():
        check_losses(of_layout, "data2_fsdp2_tensor2")


@pytest.mark.slow
def test_every_layout_gives_the_losses_of_one_device_and_a_smaller_state():
    of_layout = trained(["favor"])["favor"]
    for layout in of_layout.keys() - {"one", "still"}:
        check_losses(of_layout, layout)
    size = {layout: found["state_bytes_a_device"] for layout, found in of_layout.items()}
    assert size["data8"] == size["one"]
    # Biases, scales and random features stay whole.
    assert size["one"] / 8 < size["fsdp8"] < size["one"] / 5
    assert size["one"] / 4 < size["data2_fsdp2_tensor2"] < size["one"] / 3


@pytest.mark.few(4)
@pytest.mark.parametrize("name", named_configs())
def test_every_array_of_every_config_has_a_rule(name):
    config = load_config(name)
    state = jax.eval_shape(TrainStep(dataclasses.replace(config, mesh=MeshConfig()), sharding.one_device())._init)
    specs_of(state, config.model.attention)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_array_of_every_mechanism_has_a_rule(kind):
    attention = mechanism(kind, LENGTH)
    config = Config(
        model=dataclasses.replace(MODEL, attention=attention, feed_forward="geglu", tied_output=True),
        objective=ObjectiveConfig("masked" if attention.no_causal else "causal"),
        batches=BatchesConfig(length=LENGTH),
    )
    specs = specs_of(TrainStep(config, sharding.one_device()).abstract_state, attention)
    for name, spec in specs.items():
        # The optimizer's moments lie where their parameter does.
        if "/mu/" in name:
            parameter = "model/" + name.split("/mu/")[1]
            assert spec == specs[parameter] == specs[name.replace("/mu/", "/nu/")]
    gate = specs["model/blocks/gate/kernel/value"]
    assert gate == PartitionSpec(None, "fsdp", "tensor")


def specs_of(state, attention):
    mesh = AbstractMesh((2, 2, 2, 1), sharding.AXES)
    return {name: sharding.partition(name, leaf.shape, mesh, attention) for name, leaf in named_arrays(state).items()}


def test_an_array_without_a_rule_is_an_error():
    mesh = sharding.one_device()
    with pytest.raises(ValueError, match="no rule for model/blocks/novelty/kernel/value"):
        sharding.partition("model/blocks/novelty/kernel/value", (2, 3, 4), mesh, MODEL.attention)
    with pytest.raises(ValueError, match=r"has shape \(2, 3\), but its rule"):
        sharding.partition("model/blocks/up/kernel/value", (2, 3), mesh, MODEL.attention)


def test_what_an_axis_does_not_divide_stays_whole():
    mesh = AbstractMesh((1, 4, 3, 1), sharding.AXES)
    spec = sharding.partition("model/blocks/up/kernel/value", (2, 8, 16), mesh, MODEL.attention)
    assert spec == PartitionSpec(None, "fsdp", None)


def test_a_batch_lies_on_the_mesh_as_it_was():
    mesh = sharding.make_mesh()
    assert mesh.size == jax.device_count()
    assert sharding.row_share(mesh) == (0, 1)
    batch = {"tokens": np.arange(12, dtype=np.uint8).reshape(mesh.size * 2, -1)}
    placed = sharding.place_batch(batch, mesh)["tokens"]
    assert placed.dtype == np.uint8
    assert placed.sharding == sharding.batch_sharding(mesh)
    np.testing.assert_array_equal(placed, batch["tokens"])


class Device:
    def __init__(self, process):
        self.process_index = process


def mesh_of(processes, **sizes):
    """A mesh of devices that belong to these processes, and are never used."""
    return sharding.make_mesh(MeshConfig(**sizes), [Device(process) for process in processes])


@pytest.mark.parametrize(
    ("processes", "sizes", "share"),
    [
        ([0, 0, 1, 1], {}, (1, 2)),
        ([0, 0, 1, 1], {"fsdp": 2}, (1, 2)),
        ([0, 0, 1, 1], {"tensor": 2}, (1, 2)),
        # Both processes hold every row.
        ([0, 0, 1, 1], {"tensor": 4}, (0, 1)),
        ([0, 0, 2, 2, 1, 1, 3, 3], {"tensor": 4}, (1, 2)),
    ],
)
def test_each_process_reads_the_rows_of_its_devices(monkeypatch, processes, sizes, share):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert sharding.row_share(mesh_of(processes, **sizes)) == share


def test_a_process_has_an_even_share_of_the_rows(monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(InputError, match=r"process 1 has blocks \[1, 2\] of 4"):
        sharding.row_share(mesh_of([0, 1, 1, 0]))


@pytest.mark.parametrize(
    ("sizes", "shape"), [({}, (8, 1, 1, 1)), ({"fsdp": 4}, (2, 4, 1, 1)), ({"data": 2, "sequence": -1}, (2, 1, 1, 4))]
)
def test_an_axis_takes_what_the_others_leave(sizes, shape):
    assert mesh_of([0] * 8, **sizes).devices.shape == shape


@pytest.mark.parametrize("sizes", [{"data": 2}, {"fsdp": 3}, {"fsdp": 16}])
def test_a_mesh_takes_all_devices(sizes):
    with pytest.raises(InputError, match="do not fit 8 devices"):
        mesh_of([0] * 8, **sizes)


@pytest.mark.parametrize(
    ("sizes", "changes", "words"),
    [
        ({"data": 8}, {"batch_size": 12}, "batch_size is 12, which cannot be split evenly over 8 devices"),
        ({"data": 8}, {"accumulate": 2}, "each of 2 parts .* multiple of 16"),
        ({"tensor": 8}, {}, "num_heads is 4, which mesh.tensor, 8, does not divide"),
        ({"sequence": 8}, {"length": 12}, "12 tokens long, which mesh.sequence, 8"),
    ],
)
def test_what_does_not_fit_is_said(sizes, changes, words):
    accumulate = changes.pop("accumulate", 1)
    batches = BatchesConfig(**{"length": LENGTH, "batch_size": ROWS, **changes})
    config = Config(model=MODEL, batches=batches, accumulate=accumulate)
    with pytest.raises(InputError, match=words):
        sharding.check_fits(config, mesh_of([0] * 8, **sizes))


@pytest.mark.parametrize(
    ("sizes", "words"), [({"fsdp": 0}, "mesh.fsdp is 0"), ({"fsdp": -1}, "mesh.data and mesh.fsdp are -1")]
)
def test_sizes_make_sense(sizes, words):
    with pytest.raises(InputError, match=words):
        MeshConfig(**sizes)


def test_evaluation_takes_as_many_devices_as_divide_a_batch(monkeypatch):
    config = Config(model=MODEL, batches=BatchesConfig(length=LENGTH, batch_size=12), mesh=MeshConfig(fsdp=16))
    monkeypatch.setattr(jax, "devices", lambda: [Device(0)] * 8)
    assert sharding.evaluation_mesh(config).shape["data"] == 4
    same = dataclasses.replace(config, mesh=MeshConfig(fsdp=2, tensor=2, data=2))
    assert dict(sharding.evaluation_mesh(same).shape) == {"data": 2, "fsdp": 2, "tensor": 2, "sequence": 1}
