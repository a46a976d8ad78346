"""Rows spread over devices ("sequence"): linear attention equals that of whole rows, and memory a device falls."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from mechanisms import CASES
from subprocesses import PROGRAMS, environment

# Every kind of state and feature: with and without a log scale, of any sign, with exact blocks, and the padding that
# has moved away from the first device.
COMPARED = [
    "favor:causal:float32:right",
    "favor:causal:bfloat16:right",
    "favor:bidirectional:float32:right",
    "hyperbolic_hadamard:causal:float32:left",
    "trigonometric_givens:bidirectional:float32:left",
    "relu:causal:float32:left",
    "relu:bidirectional:bfloat16:right",
    "polysketch_learned:causal:float32:left",
    "polysketch:causal:float32:right",
    "polysketch:causal:bfloat16:right",
    "polysketch:bidirectional:float32:right",
]


def printed(*arguments, **variables):
    program = [sys.executable, PROGRAMS / "spread_rows.py", *arguments]
    done = subprocess.run(program, env=environment(8) | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("cases", [COMPARED[::2], COMPARED[1::2]])
def test_values_and_gradients_are_those_of_whole_rows(cases):
    compared = printed("attention", *cases)
    for case in cases:
        name, _, dtype, _ = case.split(":")
        bound = CASES[name].bfloat16 if dtype == "bfloat16" else CASES[name].tolerance
        assert compared[case].keys() == {"out", "parameters", "q", "k", "v"}
        for of, difference in compared[case].items():
            assert difference < bound, f"{of} of {case}"


@pytest.mark.slow
def test_blocks_read_nan_where_padding_is_not_on_the_right():
    found = printed("nan", "polysketch:causal", "polysketch_learned:causal")
    # The first row is full, the second is padded on the left, the third is padding alone.
    assert found == {"polysketch:causal": [False, True, False], "polysketch_learned:causal": [False, False, False]}


@pytest.mark.slow
def test_a_model_trains_on_spread_rows_as_on_whole_ones_in_less_memory():
    one, eight = printed("model", "16384:1:2", "16384:8:2").values()
    assert eight["temporary_bytes"] < one["temporary_bytes"] / 6
    assert one["steps"][1][0] < one["steps"][0][0]
    for found, expected in zip(eight["steps"], one["steps"], strict=True):
        assert found == pytest.approx(expected, rel=1e-5)

    # Here it is the run that takes the time, not the compilation.
    flags = "--xla_cpu_use_fusion_emitters=false --xla_force_host_platform_device_count=8"
    found = printed("model", "131072:8:1", XLA_FLAGS=flags)["131072:8:1"]
    # On 8 devices each takes what 16,384 tokens take on one.
    assert found["temporary_bytes"] < 1.2 * one["temporary_bytes"]
    loss, gradient_norm, count = found["steps"][0]
    assert count == 131072
    # What an untrained model says of random tokens, as of the shorter row.
    assert loss == pytest.approx(one["steps"][0][0], rel=0.02)
    assert 0.5 < gradient_norm < 5


def test_what_cannot_be_spread_is_said():
    q = jnp.ones((1, 6, 2, 6))
    softmax, blocks, favor = (
        CASES[name].config.build(num_heads=2, head_dim=6, key=jax.random.key(0))
        for name in ("softmax", "polysketch", "favor")
    )
    with pytest.raises(ValueError, match="softmax attention takes no rows that are split over devices: its resi"):
        softmax(q, q, q, causal=True, axis="sequence")
    with pytest.raises(ValueError, match="has 6 residues of each row; for polysketch attention .* multiple of 4"):
        blocks(q, q, q, causal=True, axis="sequence")
    with pytest.raises(ValueError, match="segments would cross devices"):
        favor(q, q, q, causal=True, axis="sequence", segments=jnp.ones((1, 6), int))
