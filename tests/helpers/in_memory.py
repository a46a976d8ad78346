"""A dataset in memory, a second implementation of what batches read, and plain ways to look at batches."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from proteinlm import alphabet
from proteinlm.data.batches.batches import BatchesConfig, TrainBatches


class InMemory:
    """The same questions answered from lists."""

    def __init__(self, **splits: list[bytes]):
        self._splits = splits
        self.counts = {split: len(sequences) for split, sequences in splits.items()}
        content = b"|".join(b",".join(sequences) for sequences in splits.values())
        self.fingerprint = hashlib.md5(content, usedforsecurity=False).hexdigest()
        self.calls = 0

    def lengths(self, split):
        return np.array([len(sequence) for sequence in self._splits[split]], np.int32)

    def digests(self, split):
        digests = b"".join(digest(sequence) for sequence in self._splits[split])
        return np.frombuffer(digests, np.uint8).reshape(-1, 16)

    def sequences(self, split, indices):
        self.calls += 1
        return [self._splits[split][i] for i in indices]


def digest(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def proteins(lengths, seed=0) -> list[bytes]:
    letters = np.frombuffer(alphabet.RESIDUES.encode(), np.uint8)
    generator = np.random.default_rng(seed)
    return [generator.choice(letters, n).tobytes() for n in lengths]


def dataset(n=50, seed=0, longest=40) -> InMemory:
    lengths = np.random.default_rng(seed).integers(5, longest + 1, n)  # long enough for no two to be equal
    return InMemory(train=proteins(lengths, seed), valid=proteins(lengths[:7], seed + 1), test=[], ood=[b"ACD"])


def single_row(sequence: bytes, length: int) -> list[int]:
    """One row without padding, residue by residue."""
    row = [alphabet.TOKENS.index(chr(letter)) for letter in sequence]
    return [*row, alphabet.EOS] if len(row) < length else row[:length]


def row_tokens(row: np.ndarray) -> list[int]:
    """A row less its padding, which must all be on the right."""
    kept = row[row != alphabet.PAD]
    np.testing.assert_array_equal(row[: len(kept)], kept)
    return kept.tolist()


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def epoch_of(batches: TrainBatches, epoch: int) -> list[dict]:
    size = batches.batches_per_epoch
    return [batches.batch(epoch * size + i) for i in range(size)]


def contents(batches) -> Counter:
    return Counter(tuple(row_tokens(row)) for batch in batches for row in batch["tokens"])


SINGLE = BatchesConfig(length=32, batch_size=4, buckets=(8, 16, 32), seed=3)
CONCAT = BatchesConfig(form="concat", length=16, batch_size=4, seed=3)
ISOLATED = BatchesConfig(form="isolated", length=64, batch_size=4, seed=3)
FORMS = pytest.mark.parametrize("config", [SINGLE, CONCAT, ISOLATED], ids=["single", "concat", "isolated"])
