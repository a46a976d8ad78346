"""What a run would take: counted against what training makes, against formulas, and searched for what fits."""

import dataclasses

import jax
import pytest
from sweeps import sweep

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    FavorConfig,
    IdentityConfig,
    MeshConfig,
    ModelConfig,
    load_config,
    named_configs,
)
from proteinlm.devices.sharding import one_device
from proteinlm.errors import InputError
from proteinlm.training import planning
from proteinlm.training.flops import Work
from proteinlm.training.planning import ROWS, Plan, describe_plan, describe_trial, fit, plan, step_work
from proteinlm.training.step import TrainStep, count_parameters

MODEL = ModelConfig(
    vocab_size=VOCAB_SIZE, num_layers=2, num_heads=2, embed_dim=16, mlp_dim=32, max_length=48, dropout=0.0,
    attention=FavorConfig(num_features=8),
)  # fmt: skip
SMALL = Config(model=MODEL, batches=BatchesConfig(length=48, batch_size=4, buckets=(24, 48)), num_steps=20)


def test_plan_counts_what_training_makes():
    found = plan(SMALL)
    state = TrainStep(SMALL).init()
    assert found.num_parameters == count_parameters(state["model"])
    assert found.state_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert found.shapes == [(4, 24), (4, 48)]
    assert (found.rows, found.length, found.tokens, found.num_devices) == (4, 48, 192, 1)
    assert found.total_bytes == found.state_bytes + found.temporary_bytes
    assert found.fits
    assert found.work.unknown_loops == 0
    # More rows need more room for activations, and more work.
    more = plan(SMALL, rows_per_device=40)
    assert (more.rows, more.rows_per_device, more.state_bytes) == (40, 40, found.state_bytes)
    assert more.temporary_bytes > 4 * found.temporary_bytes
    assert more.model_flops == pytest.approx(10 * found.model_flops, rel=0.01)
    text = describe_plan(found)
    for words in (f"{found.num_parameters:,}", "4 x 24", "4 x 48", "192", "MiB", "1 x cpu", ": fits"):
        assert words in text


def test_flops_of_the_model_are_six_for_each_weight_and_token():
    """Where attention returns V, products with weights are all; the embedding is looked up, not multiplied."""
    model = dataclasses.replace(MODEL, attention=IdentityConfig(), dropout=0.0)
    rows, length, width = 4, 48, MODEL.embed_dim
    layer = 4 * width * width + 2 * width * MODEL.mlp_dim
    weights = MODEL.num_layers * layer + width * VOCAB_SIZE
    found = {}
    for remat in ("none", "full"):
        config = dataclasses.replace(SMALL, model=dataclasses.replace(model, remat=remat))
        work, found[remat] = step_work(TrainStep(config, one_device()), rows, length)
        assert found[remat] == 6 * weights * rows * length
        # What is computed: not queries and keys, which nobody reads; under "full" again what is needed for gradients.
        unread = 6 * MODEL.num_layers * 2 * width * width
        again = 2 * MODEL.num_layers * (2 * width * width + width * MODEL.mlp_dim) if remat == "full" else 0
        assert work.flops == found[remat] + (again - unread) * rows * length


@pytest.mark.parametrize("name", sweep(named_configs(), ["quickstart_masked", "trembl_performer_relu_causal"]))
def test_every_recipe_passes_plan_but_for_the_compiler(name):
    """Traced at full size, for one row."""
    config = load_config(name)
    config = dataclasses.replace(config, batches=dataclasses.replace(config.batches, batch_size=config.accumulate))
    rows, length = config.batches.batch_size, config.batches.length
    train_step = TrainStep(config, one_device())
    work, model_flops = step_work(train_step, rows, length)
    parameters = count_parameters(train_step.abstract_state["model"])
    embedded = length * config.model.embed_dim if config.model.positions == "learned" else 0
    assert work.flops >= model_flops / 3 > 2 * 0.9 * (parameters - embedded) * rows * length
    assert work.unknown_loops == 0


def test_attention_is_that_of_the_target_and_not_of_this_machine():
    on_cpu, on_tpu = (planning._as_on(platform, SMALL).model.attention.chunk_size for platform in ("cpu", "tpu"))
    assert (on_cpu, on_tpu) == (64, 256)
    exact = load_config("trembl_transformer_causal")
    assert planning._as_on("tpu", exact).model.attention.implementation == "blocks"
    assert planning._as_on("cpu", exact) == exact


STATE, LIMIT = 100, 1000


def imagined(needed, says=True, limit=LIMIT):
    """A `plan` whose program needs `needed(rows)` bytes, and XLA's refusal says so or not."""
    asked = []

    def plan(config, topology, rows):
        asked.append(rows)
        total = needed(rows)
        fits = total <= LIMIT
        return Plan(
            num_parameters=1, device_kind="TPU v0", num_devices=8, shapes=[(8 * rows, 64)], rows=8 * rows, length=64,
            rows_per_device=rows, state_bytes=STATE, temporary_bytes=total - STATE if fits else None,
            total_bytes=total if fits or says else None, limit_bytes=limit, work=Work(), model_flops=0,
            xla_bytes=None, seconds=None, compile_seconds=0.0,
        )  # fmt: skip

    return plan, asked


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("start", [1, 8, 300, 5000])
def test_fit_finds_the_largest_batch(monkeypatch, says, start):
    needs = (
        lambda rows: STATE + 14 * rows,
        lambda rows: STATE + 3 * rows,
        lambda rows: STATE + 0.7 * rows,
        lambda rows: STATE + 900 * rows,
        # As XLA does it: beyond 70 % of the memory it computes again what it would else keep.
        lambda rows: STATE + min(14 * rows, 600 + 3 * max(0, rows - 40)),
        lambda rows: STATE + 200 + 7 * -(-rows // 8) * 8,
    )
    for needed in needs:
        made, asked = imagined(needed, says)
        monkeypatch.setattr(planning, "plan", made)
        told = []
        largest, beyond = fit(SMALL, "v0:2x2", told.append, start)
        place = ROWS.index(largest.rows_per_device)
        assert needed(ROWS[place]) <= LIMIT < needed(ROWS[place + 1])
        assert beyond.rows_per_device == ROWS[place + 1]
        assert len(asked) == len(set(asked)) == len(told) <= 10


def test_fit_says_what_is_wrong(monkeypatch):
    monkeypatch.setattr(planning, "plan", imagined(lambda rows: 2000)[0])
    with pytest.raises(
        InputError, match="smallest batch, 1 rows a device of 64 tokens each, does not fit the .* TPU v0"
    ):
        fit(SMALL)
    monkeypatch.setattr(planning, "plan", imagined(lambda rows: 200, limit=None)[0])
    with pytest.raises(InputError, match="give --rows-per-device"):
        fit(SMALL)


def test_fit_takes_rows_that_divide_into_the_parts(monkeypatch):
    made, asked = imagined(lambda rows: STATE + 14 * rows)
    monkeypatch.setattr(planning, "plan", made)
    parts = dataclasses.replace(SMALL, accumulate=4)
    assert fit(parts)[0].rows_per_device == 64
    assert not any(rows % 4 for rows in asked)


def test_fit_takes_multiples_where_no_usual_size_divides(monkeypatch):
    made, asked = imagined(lambda rows: STATE + 14 * rows)
    monkeypatch.setattr(planning, "plan", made)
    parts = dataclasses.replace(SMALL, accumulate=17, batches=BatchesConfig(length=48, batch_size=17))
    assert fit(parts)[0].rows_per_device == 51
    assert not any(rows % 17 for rows in asked)


def test_rows_below_one_are_refused(monkeypatch):
    for rows in (0, -3):
        with pytest.raises(InputError, match=f"--rows-per-device is {rows}; it must be at least 1"):
            plan(SMALL, rows_per_device=rows)
        with pytest.raises(InputError, match=f"--rows-per-device is {rows}; it must be at least 1"):
            fit(SMALL, start=rows)


def test_labels_say_whose_rows_and_which_memory():
    made, _ = imagined(lambda rows: STATE + 2**20 * rows, limit=None)
    fitting = dataclasses.replace(made("", "", 0), rows_per_device=2, temporary_bytes=2**22)
    lines = describe_plan(fitting).splitlines()
    assert lines[2].endswith("; 2 rows a device")
    assert "4.0 MiB a device (XLA's count; largest batch)" in lines[5]
    assert lines[6].endswith("a device: fits (state and temporaries)")
    shared = dataclasses.replace(fitting, group=8, is_peak=True)
    lines = describe_plan(shared).splitlines()
    assert lines[2].endswith("; 2 rows a group of 8 devices")
    assert "4.0 MiB a device (sum, although not all are in memory at the same time; largest batch)" in lines[5]
    assert lines[6].endswith("a device: fits (XLA's peak, state included)")
    assert describe_trial(shared).startswith("2 rows a group of 8 devices")
    refused = made("", "", 5)
    assert "DOES NOT FIT (what XLA asked for)" in describe_plan(refused)
    assert describe_plan(dataclasses.replace(refused, total_bytes=None)).splitlines()[5].endswith("DOES NOT FIT")


class TestWithLibtpu:
    @pytest.fixture(autouse=True)
    def libtpu(self):
        pytest.importorskip("libtpu", reason="needs libtpu: pip install -e '.[tpu]'")

    def test_a_plan_for_tpus_that_are_elsewhere(self):
        """Eight cores with a share of the state each: the real train step, compiled for them."""
        shared = dataclasses.replace(SMALL, mesh=MeshConfig(data=1, fsdp=4, tensor=2))
        found = plan(shared, "v2:2x2", rows_per_device=2)
        assert (found.device_kind, found.num_devices, found.rows) == ("TPU v2", 8, 8)
        assert (found.rows_per_device, found.group) == (2, 2)
        assert found.fits
        assert found.is_peak
        assert found.state_bytes < found.total_bytes <= found.state_bytes + found.temporary_bytes
        assert found.limit_bytes == pytest.approx(7.48 * 2**30, rel=0.01)
        whole = sum(leaf.nbytes for leaf in jax.tree.leaves(TrainStep(SMALL).init()))
        assert found.state_bytes < 0.4 * whole
        assert found.seconds > 0
        assert "8 x TPU v2" in describe_plan(found)

    def test_what_does_not_fit_is_no_error(self):
        longer = dataclasses.replace(SMALL, batches=BatchesConfig(length=48, batch_size=8))
        found = plan(longer, "v2:2x2", rows_per_device=2**21)
        assert not found.fits
        assert found.total_bytes > found.limit_bytes
        assert "DOES NOT FIT" in describe_plan(found)
