"""What training costs: whole steps beside one another, compilation, and what the loop adds to the bare step.

    python benchmarks/train.py --quick      under 10 minutes on 2 cores
    python benchmarks/train.py              more repeats
    python benchmarks/train.py --tiny       everything once, small: to test this file; its figures mean nothing

Whole steps: the regular model (6 layers, 8 heads, 512, MLP 2048), causal, one window of 8,192 tokens, float32: ReLU
Performer, and exact softmax in blocks, over attention that returns V. Compilation (tracing and XLA): the model of
single sequences, 36 layers over 6. The loop: `train` on a dataset on disk over the compiled step on a batch that is
there. The input: how long a step of 50 ms waits for its batch. The last line is JSON with the ratios.
"""

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from data import FORMS, write_dataset
from timing import best_of, machine

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    GeneralizedConfig,
    IdentityConfig,
    ModelConfig,
    SoftmaxConfig,
    load_config,
)
from proteinlm.data.batches.batches import TrainBatches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.devices.sharding import place_batch
from proteinlm.training.step import TrainStep
from proteinlm.training.train import train

ATTENTION: dict[str, Any] = {
    "identity": IdentityConfig(),
    "performer": GeneralizedConfig(function="relu", num_features=256),
    "exact": SoftmaxConfig(),
}
STEP_S = 0.05


def say(*words: Any) -> None:
    """Print at once: this takes minutes."""
    print(*words, flush=True)


def resized(config: Config, batches: BatchesConfig, **model: Any) -> Config:
    """Return a config with other batches and other fields of the model."""
    return dataclasses.replace(config, batches=batches, model=dataclasses.replace(config.model, **model))


def regular(attention: str, tiny: bool, remat: str) -> Config:
    """Return the regular model on one window of 8,192 tokens."""
    length = 256 if tiny else 8192
    layers, width, mlp = (2, 64, 64) if tiny else (6, 512, 2048)
    model = ModelConfig(
        vocab_size=VOCAB_SIZE, num_layers=layers, num_heads=8, embed_dim=width, mlp_dim=mlp, max_length=length,
        attention=ATTENTION[attention], remat=remat,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    return Config(model=model, batches=BatchesConfig(form="concat", length=length, batch_size=1))


def whole_step(config: Config) -> Callable[[], Any]:
    """Return a call that trains one step on random residues."""
    train_step = TrainStep(config)
    rows, length = config.batches.batch_size, config.batches.length
    generator = np.random.default_rng(0)
    batch = {
        "tokens": generator.integers(4, VOCAB_SIZE, (rows, length)).astype(np.uint8),
        "keys": generator.integers(0, 2**32, (rows, 2), np.uint32),
    }
    placed = place_batch(batch, train_step.mesh)
    state = train_step.init()

    def call() -> Any:
        # The state that goes in is given away.
        nonlocal state
        state, metrics = train_step.step(state, placed)
        return state, metrics

    return call


def step_ratios(options: argparse.Namespace) -> dict[str, float]:
    """Measure whole steps in turns; the exact one, which takes longest, once or twice."""
    calls = {name: whole_step(regular(name, options.tiny, options.remat)) for name in ATTENTION}
    for call in calls.values():
        jax.block_until_ready(call())
    best = best_of({name: calls[name] for name in ("identity", "performer")}, options.repeats, limit_s=150.0)
    best |= best_of({"exact": calls["exact"]}, 1, limit_s=20.0)
    say("whole steps:", {name: f"{taken:.3f} s" for name, taken in best.items()})
    return {f"{name}_over_identity_8192": best[name] / best["identity"] for name in ("performer", "exact")}


def compile_seconds(config: Config) -> float:
    """Return how long a step takes to trace and compile."""
    train_step = TrainStep(config)
    rows, length = config.batches.batch_size, config.batches.length
    start = time.perf_counter()
    train_step.step.lower(train_step.abstract_state, train_step.abstract_batch(rows, length)).compile()
    return time.perf_counter() - start


def compile_ratio(options: argparse.Namespace) -> float:
    """Measure the compilation of 36 layers over that of 6, the best of turns."""
    batches = BatchesConfig(length=64 if options.tiny else 1024, batch_size=1)
    size = {"embed_dim": 64, "mlp_dim": 64} if options.tiny else {}
    config = load_config("trembl_performer_relu_causal")
    best = {6: float("inf"), 36: float("inf")}
    # What is compiled first pays for what all need.
    compile_seconds(resized(config, batches, num_layers=1, **size))
    for _, layers in itertools.product(range(options.repeats), best):
        best[layers] = min(best[layers], compile_seconds(resized(config, batches, num_layers=layers, **size)))
    say("compilation:", {f"{layers} layers": f"{taken:.2f} s" for layers, taken in best.items()})
    return best[36] / best[6]


def loop_ratio(dataset: Path, folder: Path, options: argparse.Namespace) -> float:
    """Measure a step of `train` over the bare step, less 1: medians over a stretch, the best of turns.

    One shape, no evaluation and no checkpoint but the last, a line of the log every 20 steps. On a CPU, what the loop
    and the threads that read ahead do takes time from the step.
    """
    batches = BatchesConfig(form="concat", length=64 if options.tiny else 256, batch_size=2 if options.tiny else 32)
    steps = 20 if options.tiny else 40
    config = dataclasses.replace(
        resized(load_config("quickstart_causal"), batches),
        num_steps=steps, eval_every=0, checkpoint_every=10**9, keep_best=0, redraw_every=0,
    )  # fmt: skip
    bare, loop = float("inf"), float("inf")
    call = whole_step(config)
    jax.block_until_ready(call())
    for turn in range(options.repeats):
        ends = []
        for _ in range(steps):
            jax.block_until_ready(call())
            ends.append(time.perf_counter())
        bare = min(bare, statistics.median(np.diff(ends)))
        loop = min(loop, statistics.median(np.diff(step_times(config, dataset, folder / f"run{turn}"))[5:-2]))
    say(f"the loop: {1e3 * loop:.2f} ms a step, {1e3 * bare:.2f} ms bare")
    return loop / bare - 1


def step_times(config: Config, dataset: Path, run: Path) -> list[float]:
    """Train, and return when each step asked for its batch."""
    times: list[float] = []
    following = TrainBatches.__next__

    def noted(self: TrainBatches) -> Any:
        times.append(time.perf_counter())
        return following(self)

    TrainBatches.__next__ = noted
    try:
        train(config, dataset, run)
    finally:
        TrainBatches.__next__ = following
    return times


def input_waits(dataset: Path, options: argparse.Namespace) -> dict[str, float]:
    """Measure how long steps of 50 ms, in which this process sleeps, wait for batches: share, and the longest in ms."""
    waits = []
    for form, fields in FORMS.items():
        batches = TrainBatches(ProteinDataset.open(dataset), BatchesConfig(**fields))
        # The first epoch is planned, and threads start.
        next(batches)
        found = []
        for _ in range(20 if options.tiny else 200):
            time.sleep(STEP_S)
            start = time.perf_counter()
            next(batches)
            found.append(time.perf_counter() - start)
        batches.close()
        say(f"{form}: a step of 50 ms waits {1e3 * statistics.mean(found):.2f} ms, at most {1e3 * max(found):.2f} ms")
        waits += found
    share = sum(waits) / (sum(waits) + STEP_S * len(waits))
    return {"input_wait_share_50_ms": share, "input_longest_wait_ms": 1e3 * max(waits)}


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two turns of each")
    parser.add_argument("--tiny", action="store_true", help="small sizes, one turn: to test this file")
    parser.add_argument("--remat", default="none", choices=("none", "dots", "full"), help="of the whole steps")
    options = parser.parse_args()
    options.repeats = 1 if options.tiny else 2 if options.quick else 5
    say(machine())
    ratios: dict[str, float] = step_ratios(options)
    ratios["compile_36_over_6"] = compile_ratio(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = write_dataset(folder, 5_000 if options.tiny else 20_000)
        ratios["loop_overhead"] = loop_ratio(dataset, folder, options)
        ratios |= input_waits(dataset, options)
    say(f"load average {os.getloadavg()[0]:.1f}")
    say(json.dumps(ratios))


if __name__ == "__main__":
    main()
