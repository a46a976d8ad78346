"""TPUs that are not here: what the compiler says of them, and how its words are read."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from proteinlm.devices import topologies
from proteinlm.errors import InputError

# As libtpu writes it, shortened: a loop of 6 around one of 4, a call, a branch, a fusion with a computation of its own.
PROGRAM = """HloModule jit_step, is_scheduled=true

%inner_condition.1 (wide.param.1: (s32[], f32[8])) -> pred[] {
  %constant.5 = s32[]{:T(256)} constant(4), metadata={op_name="jit(step)"}
  %constant.6 = s32[]{:T(256)} constant(9), metadata={op_name="jit(step)"}
  %get-tuple-element.1 = s32[]{:T(256)} get-tuple-element(%wide.param.1), index=0
  ROOT %lt.86 = pred[]{:T(1024)} compare(%get-tuple-element.1, %constant.5), direction=LT, metadata={}
}

%inner_body.1 (wide.param.2: (s32[], f32[8])) -> (s32[], f32[8]) {
  %fusion.1 = f32[8]{0:T(256)} fusion(%x), kind=kLoop, calls=%fused.1, backend_config={"estimated_cycles":"10","x":1}
}

%outer_condition.1 (p: (s32[], f32[8])) -> pred[] {
  %constant.7 = s32[] constant(6)
  ROOT %lt.87 = pred[] compare(%get-tuple-element.2, %constant.7), direction=LT
}

%outer_body.1 (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %constant.8 = s32[]{:T(256)} constant(0)
  %copy.3 = s32[]{:T(256)} copy(%constant.8), backend_config={}
  %tuple.1 = (s32[]{:T(256)}, f32[8]{0}) tuple(%copy.3, %z)
  %while.1 = (s32[], f32[8]{0}) while(%tuple.1), condition=%inner_condition.1, body=%inner_body.1
  %copy.1 = f32[8]{0} copy(%y), backend_config={"estimated_cycles":"3"}
}

%fused.1 (q: f32[8]) -> f32[8] {
  %add.1 = f32[8]{0} add(%q, %q), backend_config={"estimated_cycles":"1000"}
}

%called.1 (q: f32[8]) -> f32[8] {
  %add.2 = f32[8]{0} add(%q, %q), backend_config={"estimated_cycles":"7"}
}

%short.1 (q: f32[8]) -> f32[8] {
  %add.3 = f32[8]{0} add(%q, %q), backend_config={"estimated_cycles":"1"}
}

ENTRY %main.1 (a: f32[8]) -> f32[8] {
  %constant.9 = s32[]{:T(256)} constant(0)
  %tuple.2 = (s32[]{:T(256)}, f32[8]{0}) tuple(%constant.9, %a)
  %while.2 = (s32[], f32[8]{0}) while(%tuple.2), condition=%outer_condition.1, body=%outer_body.1
  %call.1 = f32[8]{0} call(%a), to_apply=%called.1
  %conditional.1 = f32[8]{0} conditional(%p, %a, %a), branch_computations={%short.1, %called.1}
  ROOT %copy.2 = f32[8]{0} copy(%a), backend_config={"estimated_cycles":"100"}
}
"""


def test_cycles_of_loops_count_as_often_as_they_run():
    assert topologies.cycles_of_schedule(PROGRAM) == 6 * (4 * 10 + 3) + 7 + 7 + 100
    known = PROGRAM.replace("body=%outer_body.1", 'body=%outer_body.1, x={"known_trip_count":{"n":"2"}}')
    assert topologies.cycles_of_schedule(known) == 2 * (4 * 10 + 3) + 7 + 7 + 100
    # From a number that comes with each step of the outer loop, or to one: 5 / 2 times on average.
    for unknown in (PROGRAM.replace("copy(%constant.8)", "add(%p, %one)"), PROGRAM.replace("constant(4)", "copy(%n)")):
        assert topologies.cycles_of_schedule(unknown) == 6 * (2.5 * 10 + 3) + 7 + 7 + 100
    assert topologies.seconds_of_schedule(PROGRAM, "TPU v2") == pytest.approx(372 / 0.7e9)
    assert topologies.seconds_of_schedule(PROGRAM, "a new one") is None
    of_cpu = jax.jit(lambda x: x + 1).lower(1.0).compile().as_text()
    assert topologies.seconds_of_schedule(of_cpu, "TPU v2") is None


def test_a_refusal_says_how_much_was_asked_for():
    refusal = Exception("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 9.50G of 7.48G hbm. Exceeded")
    assert topologies.exceeds_memory(refusal)
    assert topologies.bytes_needed(refusal) == 9.5 * 2**30
    other = Exception(
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (512.00M) exceeds "
        "available HBM (7.48G)."
    )
    assert topologies.bytes_needed(other) == 2**29
    assert topologies.bytes_needed(Exception("RESOURCE_EXHAUSTED")) is None
    assert not topologies.exceeds_memory(ValueError("INVALID_ARGUMENT"))


def test_a_cpu_has_the_memory_of_its_machine():
    memory = Path("/proc/meminfo").read_text()
    total = int(memory.split("MemTotal:")[1].split()[0]) * 1024
    assert topologies.memory_limit(jax.devices("cpu")[0]) == total


def test_without_libtpu_it_says_what_to_install(monkeypatch):
    def absent(**_):
        raise RuntimeError("JAX TPU support not installed; cannot generate TPU topology.")

    monkeypatch.setattr(topologies.topologies, "get_topology_desc", absent)
    for name in ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.setenv(name, os.environ.get(name, "unused"))
    with pytest.raises(InputError, match=r"needs libtpu: pip install 'proteinlm\[tpu\]'"):
        topologies.devices("v2:1x1")


@pytest.mark.parametrize("topology", ["", " ", "v2", "16x16", "v2-8"])
def test_what_names_no_topology_is_refused(topology, monkeypatch):
    monkeypatch.setattr(topologies.topologies, "get_topology_desc", lambda **_: pytest.fail("libtpu was asked"))
    with pytest.raises(InputError, match=f"--topology is '{topology}'; it must be a generation and a grid"):
        topologies.devices(topology)


class TestWithLibtpu:
    @pytest.fixture(autouse=True)
    def libtpu(self):
        pytest.importorskip("libtpu", reason="needs libtpu: pip install -e '.[tpu]'")

    def test_topologies_have_their_devices_and_memory(self):
        """A device of v2 is a core with 8 GiB, one of v4 a chip with 32 GiB, one of v5e a chip with 16, less what is
        reserved."""
        for topology, count, kind, gib in (
            ("v2:16x16", 512, "TPU v2", 8), ("v4:2x2x1", 4, "TPU v4", 32), ("v5e:4x4", 16, "TPU v5 lite", 16),
        ):  # fmt: skip
            devices = topologies.devices(topology)
            assert len(devices) == count
            assert {device.device_kind for device in devices} == {kind}
            assert 0.9 * gib < topologies.memory_limit(devices[0]) / 2**30 < gib

    def test_an_unknown_topology_is_a_sentence(self):
        with pytest.raises(InputError, match="does not support the topology 'v2:17x3'"):
            topologies.devices("v2:17x3")

    def test_a_longer_loop_takes_longer(self):
        (device, *_) = topologies.devices("v2:2x2")
        x = jax.ShapeDtypeStruct((512, 512), jnp.float32, sharding=SingleDeviceSharding(device))

        def seconds(times):
            loop = jax.jit(lambda x: jax.lax.scan(lambda y, _: (jnp.sin(y @ x), None), x, length=times)[0])
            return topologies.seconds_of_schedule(loop.lower(x).compile().as_text(), device.device_kind)

        assert 1.8 < seconds(40) / seconds(20) < 2.2
        # The matrix unit does 22.9 TFLOP/s at most.
        assert seconds(40) > 40 * 2 * 512**3 / 22.9e12
