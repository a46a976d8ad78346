"""What stands in the rows; test_batches.py has their order."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import (
    CONCAT,
    ISOLATED,
    SINGLE,
    InMemory,
    contents,
    dataset,
    digest,
    epoch_of,
    proteins,
    row_tokens,
    single_row,
)

from proteinlm import alphabet
from proteinlm.data.batches.batches import BatchesConfig, TrainBatches, batch_shapes, evaluation_batches
from proteinlm.errors import InputError


@pytest.mark.parametrize(("n", "residues", "ends"), [(9, 9, True), (10, 10, False), (11, 10, False), (1, 1, True)])
def test_residues_and_eos_at_the_limit(n, residues, ends):
    (sequence,) = proteins([n])
    batches = TrainBatches(InMemory(train=[sequence]), BatchesConfig(length=10, batch_size=1))
    tokens = next(batches)["tokens"]
    want = [*alphabet.encode(sequence[:residues]), *([alphabet.EOS] if ends else [])]
    assert tokens.tolist() == [want + [alphabet.PAD] * (10 - len(want))]
    assert tokens.dtype == np.uint8


def test_single_rows_against_a_plain_loop():
    data = dataset()
    for batch in epoch_of(TrainBatches(data, SINGLE), 0):
        assert batch["tokens"].dtype == np.uint8
        assert batch["tokens"].shape[0] == 4
        assert batch["keys"].shape == (4, 2)
        longest = max(len(row_tokens(row)) for row in batch["tokens"])
        assert batch["tokens"].shape[1] == min(b for b in SINGLE.buckets if b >= longest)
        assert batch["tokens"].shape in batch_shapes(SINGLE)
    # Rows are those of the sequences, none twice: 50 sequences give 12 batches of 4.
    got = contents(epoch_of(TrainBatches(data, SINGLE), 0))
    want = Counter(tuple(single_row(s, 32)) for s in data.sequences("train", range(50)))
    assert got.total() == 48
    assert got <= want


def test_keys_are_the_digest_of_the_whole_sequence():
    data = InMemory(train=proteins(range(20, 40)))
    expected = data.digests("train")[:, :8].copy().view(">u4").astype(np.uint32)
    config = BatchesConfig(length=25, batch_size=5)  # clips most of them
    batches = list(evaluation_batches(data, config, "train"))
    for batch in batches:
        assert batch["keys"].dtype == np.uint32
        np.testing.assert_array_equal(batch["keys"], expected[batch["rows"]])
    trained = {tuple(key) for batch in epoch_of(TrainBatches(data, config), 0) for key in batch["keys"].tolist()}
    assert trained == {tuple(key) for key in expected.tolist()}


def test_a_batch_is_one_read():
    data = dataset()
    for config in (SINGLE, CONCAT, ISOLATED):
        batches = TrainBatches(data, config)
        before = data.calls
        batches.batch(0)
        assert data.calls == before + 1


def test_buckets_save_padding_and_change_no_row():
    data = dataset(400, longest=200)
    plain = BatchesConfig(length=128, batch_size=8)
    bucketed = BatchesConfig(length=128, batch_size=8, buckets=(32, 64, 96, 128))

    def padding(batches):
        return sum((b["tokens"] == 0).sum() for b in batches) / sum(b["tokens"].size for b in batches)

    without, with_buckets = (epoch_of(TrainBatches(data, c), 0) for c in (plain, bucketed))
    assert contents(without) == contents(with_buckets)
    # Lengths are spread evenly, so a bucket of 32 wastes 16 of it.
    assert padding(without) > 0.25
    assert padding(with_buckets) < 0.15
    # Batches of one length do not come one after another.
    shapes = [b["tokens"].shape[1] for b in with_buckets]
    assert shapes != sorted(shapes)


# Concat


def test_windows_rejoined_are_the_stream():
    data = dataset(41, longest=60)
    batches = list(evaluation_batches(data, CONCAT, "train"))
    rows = np.concatenate([b["rows"] for b in batches])
    tokens = np.concatenate([b["tokens"] for b in batches])[rows >= 0]
    np.testing.assert_array_equal(rows[rows >= 0], np.arange((rows >= 0).sum()))
    stream = []
    for sequence in data.sequences("train", range(41)):
        stream += [*alphabet.encode(sequence).tolist(), alphabet.EOS]
    assert tokens[:-1].reshape(-1).tolist() + row_tokens(tokens[-1]) == stream
    assert (tokens[:-1] != alphabet.PAD).all()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    length=st.integers(2, 40),
    seed=st.integers(0, 1000),
)
def test_no_token_of_a_training_epoch_is_lost_or_repeated(lengths, length, seed):
    data = InMemory(train=proteins(lengths, seed))
    total = sum(lengths) + len(lengths)
    config = BatchesConfig("concat", length=length, batch_size=1, seed=seed, num_threads=0)
    if total < length:
        with pytest.raises(InputError, match="not enough for one batch"):
            TrainBatches(data, config)
        return
    windows = [b["tokens"][0].tolist() for b in epoch_of(TrainBatches(data, config), 0)]
    assert len(windows) == total // length
    # The stream in the order of the epoch, token by token.
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 0])))
    order = generator.permutation(np.arange(len(lengths), dtype=np.int32))
    stream = [t for i in order for t in [*alphabet.encode(data.sequences("train", [i])[0]).tolist(), alphabet.EOS]]
    expected = [stream[i : i + length] for i in range(0, total - length + 1, length)]
    assert sorted(windows) == sorted(expected)


def test_window_keys_are_of_their_content():
    data = dataset(41, longest=60)
    seen = {}
    for batch in [*epoch_of(TrainBatches(data, CONCAT), 0), *evaluation_batches(data, CONCAT, "train")]:
        for row, key in zip(batch["tokens"], batch["keys"], strict=True):
            content = bytes(row_tokens(row))
            if content:
                expected = [int.from_bytes(digest(content)[i : i + 4], "big") for i in (0, 4)]
                assert key.tolist() == expected
                seen[content] = tuple(expected)
    assert len(set(seen.values())) == len(seen) > 20


def test_a_protein_longer_than_many_windows_is_whole():
    long = proteins([1000])
    data = InMemory(train=long)
    config = BatchesConfig("concat", length=16, batch_size=3)
    tokens = np.concatenate([b["tokens"] for b in evaluation_batches(data, config, "train")])
    assert row_tokens(tokens.reshape(-1)) == [*alphabet.encode(long[0]).tolist(), alphabet.EOS]


# Isolated


def proteins_of(batch, length):
    """Each protein of a batch of isolated rows: (its number, its key, its tokens); its row must be in order."""
    found = []
    for i, (tokens, segments) in enumerate(zip(batch["tokens"], batch["segments"], strict=True)):
        np.testing.assert_array_equal(segments > 0, tokens != alphabet.PAD)
        count = segments.max(initial=0)
        # 1, 2, ... one after another, padding behind the last.
        assert (np.diff(segments[segments > 0], prepend=0) <= 1).all()
        np.testing.assert_array_equal(np.unique(segments[segments > 0]), np.arange(1, count + 1))
        row_tokens(tokens)
        assert not batch["keys"][i, count:].any()
        assert batch["keys"].shape[1] == length // 2
        for n in range(count):
            number = int(batch["rows"][i, n]) if "rows" in batch else None
            found.append((number, tuple(batch["keys"][i, n].tolist()), tuple(tokens[segments == n + 1].tolist())))
        assert "rows" not in batch or (batch["rows"][i, count:] == -1).all()
    return found


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    length=st.integers(2, 40),
    batch_size=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_isolated_rows_hold_every_sequence_once_as_single_rows_do(lengths, length, batch_size, seed):
    data = InMemory(train=proteins(lengths, seed))
    config = BatchesConfig("isolated", length=length, batch_size=batch_size, seed=seed, num_threads=0)
    digests = data.digests("train")[:, :8].copy().view(">u4").astype(np.uint32)
    expected = [
        (i, tuple(digests[i].tolist()), tuple(single_row(sequence, length)))
        for i, sequence in enumerate(data.sequences("train", range(len(lengths))))
    ]
    found = [p for b in evaluation_batches(data, config, "train") for p in proteins_of(b, length)]
    assert sorted(found) == expected
    # Training drops the rows of the last batch that is not full, and nothing else.
    one = BatchesConfig("isolated", length=length, batch_size=1, seed=seed, num_threads=0)
    epoch = [p[1:] for b in epoch_of(TrainBatches(data, one), seed % 3) for p in proteins_of(b, length)]
    assert sorted(epoch) == sorted(p[1:] for p in expected)


def test_isolated_rows_are_new_in_every_epoch_and_keep_their_lengths():
    data = dataset(400, longest=50)
    batches = TrainBatches(data, BatchesConfig("isolated", length=64, batch_size=1))
    epochs = [[frozenset(p[1] for p in proteins_of(b, 64)) for b in epoch_of(batches, epoch)] for epoch in range(2)]
    assert len(set(epochs[0]) & set(epochs[1])) < 0.3 * len(epochs[0])
    lengths = [
        sorted(tuple(len(p[2]) for p in proteins_of(b, 64)) for b in epoch_of(batches, epoch)) for epoch in range(2)
    ]
    assert lengths[0] == lengths[1]
