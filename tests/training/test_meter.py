"""Tokens per second between two log lines, on simulated devices; sums that travel with a checkpoint."""

import math

import pytest
from small_runs import small

from proteinlm.training import meter as module
from proteinlm.training.meter import Meter

COMPILATION, EVALUATION, FETCH, HANDLING = 50.0, 100.0, 0.25, 0.001


class Device:
    """A clock, and steps that end when the host waits (immediate) or some time after they were sent off."""

    def __init__(self, *, immediate):
        self.now, self.free, self.immediate = 0.0, 0.0, immediate

    def send(self, cost, compiles):
        self.now += FETCH + (COMPILATION if compiles else 0.0)
        self.free = max(self.now, self.free) + cost
        if self.immediate:
            self.now = self.free
        return Number(self, self.free)

    def get(self, metrics):
        self.now = max(self.now, metrics["loss"].ends) + HANDLING
        return metrics


class Number:
    def __init__(self, device, ends):
        self.device, self.ends = device, ends

    def is_ready(self):
        return self.device.now >= self.ends

    def __float__(self):
        return 2.0


class Recorder:
    """What a meter writes to: log, line on the terminal and checkpoints in one."""

    def __init__(self):
        self.lines, self.skipped, self.shown = [], [], []

    def write(self, kind, step, **values):
        self.lines.append({"kind": kind, "step": step, **values})

    def update(self, step, loss, accuracy, rate):
        self.shown.append(rate)

    def steps(self):
        return []


def make(log_every=1, unfinished=None):
    recorder = Recorder()
    return Meter(small(num_steps=12, log_every=log_every), recorder, recorder, recorder, unfinished or {}), recorder  # pyright: ignore[reportArgumentType]


def metrics(loss, tokens):
    return {"loss": loss, "nll": 4.0, "correct": 1.0, "count": 2.0, "gradient_norm": 1.0, "parameter_norm": 1.0,
            "tokens": tokens}  # fmt: skip


def simulate(monkeypatch, log_every, *, immediate, costs):
    """Twelve steps of two shapes; an evaluation after steps 5 and 6, one straight after the other, and at the end."""
    device = Device(immediate=immediate)
    monkeypatch.setattr(module.time, "monotonic", lambda: device.now)
    monkeypatch.setattr(module.jax, "device_get", device.get)
    meter, recorder = make(log_every)
    seen = set()
    for step in range(1, 13):
        tokens = 30 if step % 3 == 0 else 10
        meter.announce(tokens)
        compiles = tokens not in seen
        seen.add(tokens)
        meter.add(step, step - 1, metrics(device.send(costs[tokens], compiles), tokens))
        if step in (5, 6, 12):
            with meter.paused():
                device.now += EVALUATION
    return recorder


@pytest.mark.parametrize("log_every", [1, 2, 4])
@pytest.mark.parametrize(
    ("immediate", "costs"),
    [(True, {10: 2.0, 30: 6.0}), (False, {10: 2.0, 30: 6.0}), (False, {10: 0.02, 30: 0.06})],
    ids=["a CPU", "an accelerator", "an accelerator that waits for the host"],
)
def test_no_rate_is_false(monkeypatch, log_every, immediate, costs):
    recorder = simulate(monkeypatch, log_every, immediate=immediate, costs=costs)
    for line in recorder.lines:
        steps = range(line["step"] - log_every + 1, line["step"] + 1)
        rate = line["tokens_per_second"]
        # The programs of steps 1 and 3 are compiled.
        if {1, 3} & set(steps):
            assert math.isnan(rate)
            continue
        tokens = sum(30 if n % 3 == 0 else 10 for n in steps)
        device = sum(costs[30 if n % 3 == 0 else 10] for n in steps)
        # Each step runs on the device, and its batch is fetched, one after the other or both at the same time.
        most, least = max(device, FETCH * len(steps)), device + FETCH * len(steps) + 0.02 * len(steps)
        assert tokens / least <= rate <= tokens / most * 1.02, (line["step"], rate, tokens / most)
    assert len(recorder.lines) == 12 // log_every
    shown = [rate for rate in recorder.shown if not math.isnan(rate)]
    assert max(shown) <= 30 / max(costs[30], FETCH) * 1.02


def test_sums_of_an_unfinished_line_travel(monkeypatch):
    device = Device(immediate=True)
    monkeypatch.setattr(module.jax, "device_get", device.get)
    meter, recorder = make(4)
    assert meter.unfinished() == {}
    for step in (1, 2):
        meter.add(step, 0, metrics(device.send(1.0, False), 7))
    meter.settle()
    saved = meter.unfinished()
    assert saved == {"steps": 2, "tokens": 14, "nll": 8.0, "correct": 2.0, "count": 4.0}
    again, recorder = make(4, saved)
    for step in (3, 4):
        again.add(step, 0, metrics(device.send(1.0, False), 7))
    again.settle()
    (line,) = recorder.lines
    assert (line["steps"], line["tokens"], line["loss"], line["counted_tokens"]) == (4, 28, 2.0, 8)
    assert again.unfinished() == {}
