"""In which order batches come, where they stop and go on; test_plans.py has their rows."""

import json
import threading
from collections import Counter

import numpy as np
import pytest
from in_memory import (
    CONCAT,
    FORMS,
    ISOLATED,
    SINGLE,
    InMemory,
    dataset,
    epoch_of,
    proteins,
    row_tokens,
    same,
    single_row,
)

from proteinlm import alphabet
from proteinlm.data.batches.batches import BatchesConfig, TrainBatches, batch_arrays, batch_shapes, evaluation_batches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.ingest.ingest import IngestConfig, ingest
from proteinlm.errors import InputError


@FORMS
def test_epochs_differ_and_seeds_differ(config):
    data = dataset(48, longest=40)
    batches = TrainBatches(data, config)
    first, second = epoch_of(batches, 0), epoch_of(batches, 1)
    assert not any(same(a, b) for a, b in zip(first, second, strict=True))
    other = TrainBatches(data, BatchesConfig(config.form, config.length, config.batch_size, config.buckets, seed=4))
    assert not any(same(a, b) for a, b in zip(first, epoch_of(other, 0), strict=True))
    again = epoch_of(TrainBatches(data, config), 0)
    assert all(same(a, b) for a, b in zip(first, again, strict=True))


def test_an_epoch_holds_each_sequence_once():
    data = dataset(48)
    for epoch in range(3):
        keys = np.concatenate([b["keys"] for b in epoch_of(TrainBatches(data, SINGLE), epoch)])
        assert sorted(keys.tolist()) == sorted(
            data.digests("train")[:, :8].copy().view(">u4").astype(np.uint32).tolist()
        )


def test_what_an_epoch_drops_differs():
    data = dataset(50)
    everything = {tuple(k) for k in data.digests("train")[:, :8].copy().view(">u4").tolist()}
    batches = TrainBatches(data, SINGLE)
    dropped = []
    for epoch in range(4):
        seen = {tuple(k) for b in epoch_of(batches, epoch) for k in b["keys"].tolist()}
        dropped.append(frozenset(everything - seen))
        assert len(dropped[-1]) == 2
    assert len(set(dropped)) > 1


def test_the_shuffle_reaches_over_the_whole_split():
    # Sequence i has a length of its own; with one padded length its place in the epoch is anywhere.
    data = InMemory(train=proteins([10] * 1024))
    index = {tuple(k): i for i, k in enumerate(data.digests("train")[:, :8].copy().view(">u4").tolist())}
    batches = TrainBatches(data, BatchesConfig(length=16, batch_size=4))
    order = [index[tuple(k)] for b in epoch_of(batches, 0) for k in b["keys"].tolist()]
    assert abs(np.corrcoef(order, np.arange(1024))[0, 1]) < 0.15
    halves = np.array(order[:512]) < 512
    assert 200 < halves.sum() < 312


@FORMS
@pytest.mark.parametrize("process_count", [2, 4])
def test_processes_share_each_batch(config, process_count):
    data = dataset(60, longest=70)
    whole = TrainBatches(data, config)
    parts = [TrainBatches(data, config, process_index=p, process_count=process_count) for p in range(process_count)]
    for batch, *shares in zip(epoch_of(whole, 0), *(epoch_of(p, 0) for p in parts), strict=True):
        assert {s["tokens"].shape for s in shares} == {(4 // process_count, batch["tokens"].shape[1])}
        assert same(batch, {k: np.concatenate([s[k] for s in shares]) for k in batch})
    evaluations = [
        list(evaluation_batches(data, config, "valid", process_index=p, process_count=process_count))
        for p in range(process_count)
    ]
    for batch, *shares in zip(evaluation_batches(data, config, "valid"), *evaluations, strict=True):
        assert same(batch, {k: np.concatenate([s[k] for s in shares]) for k in batch})


# Position


@FORMS
@pytest.mark.parametrize("stop", ["start", "middle", "last batch", "end", "second epoch"])
def test_a_restored_position_goes_on_alike(config, stop):
    data = dataset(60, longest=70)
    batches = TrainBatches(data, config)
    size = batches.batches_per_epoch
    steps = {"start": 0, "middle": size // 2, "last batch": size - 1, "end": size, "second epoch": size + 2}[stop]
    for _ in range(steps):
        next(batches)
    state = json.loads(json.dumps(batches.get_state()))
    ahead = [next(batches) for _ in range(2 * size)]
    restored = TrainBatches(data, config)
    next(restored)  # it has read ahead elsewhere
    restored.set_state(state)
    assert restored.get_state() == state
    assert all(same(a, next(restored)) for a in ahead)
    # An iterator goes back, too.
    batches.set_state(state)
    assert same(next(batches), ahead[0])
    batches.close()
    restored.close()


@FORMS
def test_threads_change_nothing(config):
    data = dataset(60, longest=70)
    runs = []
    for num_threads in (0, 1, 5):
        settings = BatchesConfig(
            config.form, config.length, config.batch_size, config.buckets, config.seed, num_threads
        )
        batches = TrainBatches(data, settings)
        runs.append([next(batches) for _ in range(3 * batches.batches_per_epoch)])
        batches.close()
        evaluated = list(evaluation_batches(data, settings, "train"))
        runs[-1] += evaluated
    for other in runs[1:]:
        assert all(same(a, b) for a, b in zip(runs[0], other, strict=True))


def test_a_position_goes_on_with_other_processes_and_threads():
    data = dataset(60)
    batches = TrainBatches(data, SINGLE)
    for _ in range(5):
        next(batches)
    state = batches.get_state()
    expected = next(batches)
    config = BatchesConfig(SINGLE.form, SINGLE.length, 4, SINGLE.buckets, SINGLE.seed, num_threads=0)
    halves = [TrainBatches(data, config, process_index=p, process_count=2) for p in range(2)]
    for half in halves:
        half.set_state(state)
    shares = [next(half) for half in halves]
    assert same(expected, {k: np.concatenate([s[k] for s in shares]) for k in expected})


def test_a_position_in_another_plan_is_refused():
    data = dataset(60)
    state = TrainBatches(data, SINGLE).get_state()
    with pytest.raises(InputError, match="seed 3, now it is 9"):
        TrainBatches(data, BatchesConfig(length=32, batch_size=4, buckets=(8, 16, 32), seed=9)).set_state(state)
    with pytest.raises(InputError, match="batch_size 4, now it is 5"):
        TrainBatches(data, BatchesConfig(length=32, batch_size=5, buckets=(8, 16, 32), seed=3)).set_state(state)
    with pytest.raises(InputError, match="dataset"):
        TrainBatches(dataset(60, seed=1), SINGLE).set_state(state)


def test_many_threads_plan_an_epoch_once():
    planned = []

    class Watched(InMemory):
        def sequences(self, split, indices):
            planned.append(threading.get_ident())
            return super().sequences(split, indices)

    data = Watched(train=proteins([5] * 64))
    batches = TrainBatches(data, BatchesConfig(length=8, batch_size=2, num_threads=8))
    shuffles = []
    original = batches._examples.shuffled
    batches._examples.shuffled = lambda generator: shuffles.append(1) or original(generator)
    seen = [next(batches) for _ in range(4 * batches.batches_per_epoch - 1)]
    batches.close()
    assert len(set(planned)) > 1
    assert len(seen) == 127
    assert 4 <= len(shuffles) <= 5  # the threads may have begun the fifth


@FORMS
def test_an_epoch_is_planned_once_where_two_meet_and_forgotten_later(config):
    batches = TrainBatches(dataset(60, longest=70), config)
    size = batches.batches_per_epoch
    shuffles = []
    original = batches._examples.shuffled
    batches._examples.shuffled = lambda generator: shuffles.append(1) or original(generator)
    for step in (size, size - 1, size + 1, size - 2, 2 * size, size):
        batches.batch(step)
    assert len(shuffles) == 3
    batches.batch(20 * size)
    assert list(batches._plans) == [20]


# Evaluation


@FORMS
def test_evaluation_is_every_example_once_in_one_order(config):
    data = dataset(53, longest=70)
    batches = list(evaluation_batches(data, config, "train"))
    rows = np.concatenate([b["rows"] for b in batches])
    assert rows.dtype == np.int32
    real = rows[rows >= 0]  # of isolated rows, one number for each place
    assert len(real) == len(set(real.tolist()))
    assert set(real.tolist()) == set(range(len(real)))
    if config.form != "concat":
        assert len(real) == 53
    for batch in batches:
        assert batch["tokens"].shape in batch_shapes(config)
        filler = batch["rows"].reshape(config.batch_size, -1).max(axis=1) < 0
        assert not batch["tokens"][filler].any()
        assert not batch["keys"][filler].any()
        assert (batch["tokens"][~filler] != 0).any(axis=1).all()
    # At most one batch of each shape has fillers.
    filled = Counter(b["tokens"].shape for b in batches if not b["tokens"].any(axis=1).all())
    assert max(filled.values(), default=0) <= 1
    assert all(same(a, b) for a, b in zip(batches, evaluation_batches(data, config, "train"), strict=True))


def test_single_evaluation_goes_by_length_and_then_by_place():
    data = dataset(53, longest=60)
    lengths = np.minimum(data.lengths("train") + 1, 32)
    batches = list(evaluation_batches(data, SINGLE, "train"))
    order = [r for b in batches for r in b["rows"].tolist() if r >= 0]
    assert order == sorted(range(53), key=lambda i: (lengths[i], i))
    for batch in batches:
        for row, tokens in zip(batch["rows"], batch["tokens"], strict=True):
            if row >= 0:
                assert row_tokens(tokens) == single_row(data.sequences("train", [row])[0], 32)
                assert tokens.size == min(b for b in SINGLE.buckets if b >= lengths[row])


@FORMS
def test_a_limit_takes_the_first_in_dataset_order(config):
    data = dataset(53, longest=70)
    batches = list(evaluation_batches(data, config, "train", limit=10))
    rows = np.concatenate([b["rows"] for b in batches])
    assert sorted(rows[rows >= 0].tolist()) == list(range(10))
    assert list(evaluation_batches(data, config, "train", limit=0)) == []
    everything = list(evaluation_batches(data, config, "train", limit=10**6))
    assert all(same(a, b) for a, b in zip(everything, evaluation_batches(data, config, "train"), strict=True))


@FORMS
def test_an_empty_split_yields_nothing_and_a_small_one_a_filled_batch(config):
    data = dataset()
    assert list(evaluation_batches(data, config, "test")) == []
    (batch,) = evaluation_batches(data, config, "ood")
    assert batch["rows"].reshape(4, -1)[:, 0].tolist() == [0, -1, -1, -1]
    assert row_tokens(batch["tokens"][0]) == [*alphabet.encode("ACD").tolist(), alphabet.EOS]


def test_an_evaluation_left_early_stops_its_threads():
    data = dataset(60)
    before = set(threading.enumerate())
    batches = evaluation_batches(data, BatchesConfig(length=16, batch_size=2, num_threads=4), "train")
    next(batches)
    started = set(threading.enumerate()) - before
    assert started
    batches.close()
    for thread in started:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in started)


# Bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 1}, "batches.length is 1"),
        ({"batch_size": 0}, "batches.batch_size is 0"),
        ({"seed": -1}, "batches.seed is -1"),
        ({"num_threads": -1}, "batches.num_threads is -1"),
        ({"form": "packed"}, "'packed'"),
        ({"length": 64, "buckets": (32, 16, 64)}, "must ascend"),
        ({"length": 64, "buckets": (32, 32, 64)}, "must ascend"),
        ({"length": 64, "buckets": (0, 64)}, "must ascend"),
        ({"length": 64, "buckets": (16, 32)}, "end with length, 64"),
        (
            {"length": 64, "buckets": (32, 64), "form": "concat"},
            "'concat' are all batches.length .*leave buckets empty",
        ),
        ({"length": 64, "buckets": (32, 64), "form": "isolated"}, "'isolated' are all .*leave buckets empty"),
    ],
)
def test_a_wrong_config_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        BatchesConfig(**fields)


def test_what_cannot_be_trained_on_is_refused():
    data = dataset(50)
    with pytest.raises(InputError, match="'test' is empty"):
        TrainBatches(data, SINGLE, split="test")
    with pytest.raises(InputError, match="has no split 'dev'; it has train, valid, test, ood"):
        TrainBatches(data, SINGLE, split="dev")
    with pytest.raises(InputError, match="has no split 'dev'"):
        evaluation_batches(data, SINGLE, "dev")
    with pytest.raises(InputError, match="50 sequences, not enough for one batch of 64"):
        TrainBatches(data, BatchesConfig(length=32, batch_size=64))
    with pytest.raises(InputError, match="0 windows of 32 tokens, not enough for one batch of 1"):
        TrainBatches(data, BatchesConfig("concat", length=32, batch_size=1), split="ood")
    for make in (TrainBatches, lambda *a, **k: evaluation_batches(*a, "valid", **k)):
        with pytest.raises(InputError, match="batch_size is 4, which 3 processes cannot share"):
            make(data, SINGLE, process_count=3)
        with pytest.raises(ValueError, match="process_index is 2; it must be at least 0 and below 2"):
            make(data, SINGLE, process_index=2, process_count=2)


def test_a_dataset_that_disagrees_with_its_manifest_is_named():
    class Damaged(InMemory):
        def sequences(self, split, indices):
            return [s[:-1] if i == 3 else s for i, s in zip(indices, super().sequences(split, indices), strict=True)]

    data = Damaged(train=proteins([10] * 8))
    for config in (BatchesConfig(length=16, batch_size=8), BatchesConfig("concat", length=16, batch_size=5)):
        with pytest.raises(InputError, match="sequence 3 of split 'train' has 9 residues, its manifest says 10"):
            next(TrainBatches(data, config))


def test_batch_shapes():
    assert batch_shapes(SINGLE) == [(4, 8), (4, 16), (4, 32)]
    assert batch_shapes(BatchesConfig(length=64, batch_size=3)) == [(3, 64)]
    assert batch_shapes(CONCAT) == [(4, 16)]
    assert batch_shapes(ISOLATED) == [(4, 64)]


@FORMS
def test_batch_arrays_are_those_of_a_batch(config):
    batch = TrainBatches(dataset(60, longest=70), config).batch(0)
    found = {name: (array.shape, array.dtype) for name, array in batch.items()}
    assert found == batch_arrays(config, *batch["tokens"].shape)


# The dataset on disk


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory) -> ProteinDataset:
    folder = tmp_path_factory.mktemp("dataset")
    lines = [b">p%d\n%s\n" % (i, s) for i, s in enumerate(proteins(np.random.default_rng(5).integers(5, 90, 300)))]
    (folder / "proteins.fasta").write_bytes(b"".join(lines))
    ingest([folder / "proteins.fasta"], folder / "dataset", IngestConfig(workers=1, shards=3))
    return ProteinDataset.open(folder / "dataset")


@pytest.mark.few(2)
@FORMS
def test_the_dataset_on_disk_gives_the_same_batches(on_disk, config):
    assert on_disk.counts["train"] > 200
    in_memory = InMemory(
        **{split: on_disk.sequences(split, np.arange(count)) for split, count in on_disk.counts.items()}
    )
    np.testing.assert_array_equal(on_disk.digests("train"), in_memory.digests("train"))
    read, expected = TrainBatches(on_disk, config), TrainBatches(in_memory, config)
    for _ in range(2 * read.batches_per_epoch):
        assert same(next(read), next(expected))
    read.close()
    for split in on_disk.counts:
        pairs = zip(
            evaluation_batches(on_disk, config, split),
            evaluation_batches(in_memory, config, split),
            strict=True,
        )
        assert all(same(a, b) for a, b in pairs)
    other = TrainBatches(ProteinDataset.open(on_disk.path), config)
    other.set_state(json.loads(json.dumps(TrainBatches(on_disk, config).get_state())))
    with pytest.raises(InputError, match="dataset"):
        expected.set_state(other.get_state())
