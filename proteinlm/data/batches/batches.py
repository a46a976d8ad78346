"""Token batches from a dataset: single sequences, concatenated windows or isolated rows, for training and evaluation.

The batches follow a plan of the epoch (plans.py). It needs the lengths of a split only (four bytes a sequence), so the
examples of batch number `step` are a pure function of (dataset, config, step), for all processes together, and each
process reads its rows. A resumed run skips and repeats no example, with any number of processes or threads, and all
processes have the same padded length at the same step. Grain reads ahead with threads and keeps the position.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from proteinlm.data.batches.plans import Batch, EpochPlan, Isolated, Proteins, Singles, Windows
from proteinlm.errors import InputError, check_range

__all__ = ["Batch", "BatchesConfig", "Proteins", "TrainBatches", "batch_arrays", "batch_shapes", "evaluation_batches"]

Form = Literal["single", "concat", "isolated"]


@dataclass(frozen=True)
class BatchesConfig:
    """Settings of the batches.

    Attributes:
        form: "single" (a row is one sequence, clipped to `length`), "concat" (a row is a window of `length` tokens of
            the stream of all sequences, with <eos> after each) or "isolated" (a row of `length` tokens holds several
            sequences, each clipped as in single, and attention stays within a sequence).
        length: L, number of tokens in the longest row. A sequence of n residues is n residues and <eos> if n < L, else
            its first L residues without <eos>.
        batch_size: B, number of rows of all processes together.
        buckets: padded lengths for the form single, ascending, the last one `length`; a batch is padded to the smallest
            one that holds its longest row. () means `length` alone.
        seed: seed of the order of the training examples.
        num_threads: number of threads that read ahead in each process; 0 reads each batch when it is needed.
    """

    form: Form = "single"
    length: int = 1024
    batch_size: int = 8
    buckets: tuple[int, ...] = ()
    seed: int = 0
    num_threads: int = 2

    def __post_init__(self):
        if self.form not in get_args(Form):
            raise InputError(f"batches.form is {self.form!r}; it must be 'single', 'concat' or 'isolated'.")
        for name, least in (("length", 2), ("batch_size", 1), ("seed", 0), ("num_threads", 0)):
            check_range(f"batches.{name}", getattr(self, name), at_least=least)
        if self.form != "single" and self.padded_lengths != (self.length,):
            raise InputError(
                f"batches.buckets is {self.buckets}, but rows of form {self.form!r} are all batches.length "
                f"({self.length}) tokens long: leave buckets empty."
            )
        ascending = all(a < b for a, b in zip((0, *self.buckets), self.buckets, strict=False))
        if not ascending or self.padded_lengths[-1] != self.length:
            raise InputError(f"batches.buckets is {self.buckets}; it must ascend and end with length, {self.length}.")

    @property
    def padded_lengths(self) -> tuple[int, ...]:
        """Possible lengths of a batch, ascending."""
        return tuple(self.buckets) or (self.length,)


def batch_shapes(config: BatchesConfig) -> list[tuple[int, int]]:
    """Return the possible shapes (rows, tokens) of a batch of all processes together, shortest first."""
    return [(config.batch_size, length) for length in config.padded_lengths]


def batch_arrays(config: BatchesConfig, rows: int, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
    """Return shape and dtype of each array of a training batch with this number of rows and tokens, by name."""
    arrays = {"tokens": ((rows, length), np.uint8), "keys": ((rows, 2), np.uint32)}
    if config.form == "isolated":
        arrays |= {"keys": ((rows, length // 2, 2), np.uint32), "segments": ((rows, length), np.int32)}
    return arrays


_EXAMPLES = {"single": "sequences", "concat": "windows of {} tokens", "isolated": "rows of {} tokens"}


class TrainBatches:
    """An endless iterator over training batches; it yields the rows of one process.

    Batch `step` belongs to epoch step // batches_per_epoch. Each epoch shuffles the whole split anew, by (seed, epoch).
    Examples that do not fill its last batch (and, for concat, tokens that do not fill its last window) are dropped;
    each epoch drops others.

    The random bits come from NumPy's SeedSequence and Philox, which never change. The permutation that NumPy makes of
    them is fixed for one version of NumPy.

    Args:
        dataset: a `ProteinDataset`.
        config: settings of the batches.
        split: split to train on.
        process_index: p; this process has the rows p B/P to (p + 1) B/P (exclusive) of each batch.
        process_count: P.

    Raises:
        InputError: the split is unknown, empty or too small for one batch, or P does not divide B.
    """

    def __init__(
        self,
        dataset: Proteins,
        config: BatchesConfig,
        *,
        split: str = "train",
        process_index: int = 0,
        process_count: int = 1,
    ):
        self._rows = _process_rows(config, process_index, process_count)
        if not _count(dataset, split):
            raise InputError(f"the split {split!r} is empty: there is nothing to train on.")
        self._examples = _examples(dataset, config, split)
        self.batches_per_epoch = self._examples.count // config.batch_size
        """Number of steps in an epoch."""
        if not self.batches_per_epoch:
            what = _EXAMPLES[config.form].format(config.length)
            raise InputError(
                f"the split {split!r} has {self._examples.count} {what}, not enough for one batch of "
                f"{config.batch_size}: lower batches.batch_size or train on more proteins."
            )
        self._seed = config.seed
        self._plans: dict[int, EpochPlan] = {}
        self._lock = threading.Lock()
        self._identity = {
            "dataset": dataset.fingerprint,
            "split": split,
            **{name: value for name, value in asdict(config).items() if name != "num_threads"},
            "buckets": list(config.padded_lengths),
        }
        self._iterator = _read_ahead(_Source(sys.maxsize, self.batch), config.num_threads)

    def batch(self, step: int) -> Batch:
        """Return this process's rows of batch number `step` (from 0), independent of the position of the iterator."""
        epoch, index = divmod(step, self.batches_per_epoch)
        plan = self._plan(epoch)
        return plan.read(plan.table[index], self._rows)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """Return the position, for JSON: the number of the next batch, and the settings that the plan depends on."""
        return {"step": self._iterator.get_state()["next_index"], "plan": dict(self._identity)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a position of `get_state`.

        Raises:
            InputError: the position belongs to another plan (another dataset, length, batch size, seed, ...), in which
                the same number is another batch.
        """
        for name, value in self._identity.items():
            if state["plan"][name] != value:
                raise InputError(
                    f"the saved position belongs to {name} {state['plan'][name]!r}, now it is {value!r}: "
                    "resume with the same dataset and batches, or start a new run."
                )
        self._iterator.set_state({"next_index": int(state["step"])})

    def close(self) -> None:
        """Stop the threads that read ahead."""
        self._iterator.close()

    def _plan(self, epoch: int) -> EpochPlan:
        # Under the lock, so that threads that need the plan of the same epoch wait for it and do not compute it again.
        with self._lock:
            if epoch not in self._plans:
                # Threads that read ahead pass from one epoch to the next in any order, so neighbours are kept.
                self._plans = {other: plan for other, plan in self._plans.items() if abs(other - epoch) == 1}
                generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([self._seed, epoch])))
                self._plans[epoch] = self._examples.shuffled(generator)
            return self._plans[epoch]


def evaluation_batches(
    dataset: Proteins,
    config: BatchesConfig,
    split: str,
    *,
    limit: int | None = None,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Batch]:
    """Yield every example of a split once, in a fixed order.

    The entry "rows" of a batch is the number of each example, -1 on filler rows (all padding); for isolated rows the
    number of each sequence, -1 where there is none.

    Single sequences are sorted by length, shortest first, and then by dataset order, to save padding. Windows are in
    the order of the stream, the last one padded. Isolated rows are sorted, fullest first. Each shape is one of
    `batch_shapes` (with the rows of one process): the last batch of a length is filled up with filler rows.

    Args:
        dataset: a `ProteinDataset`.
        config: settings of the batches; the seed is not used.
        split: name of the split; an empty split yields nothing.
        limit: number of examples (isolated: sequences), the first ones in dataset order. This is the order of the
            digests, so they are a random sample, the same each time.
        process_index: as for `TrainBatches`; all processes yield the same number of batches, of the same shapes.
        process_count: likewise.

    Raises:
        InputError: the split is unknown, or process_count does not divide batch_size.
    """
    process_rows = _process_rows(config, process_index, process_count)
    if not _count(dataset, split) or limit == 0:
        return iter(())
    plan = _examples(dataset, config, split).in_order(limit)

    def read(step: int) -> Batch:
        return {**plan.read(plan.table[step], process_rows), "rows": plan.sequences(plan.table[step], process_rows)}

    def batches() -> Iterator[Batch]:
        iterator = _read_ahead(_Source(len(plan.table), read), config.num_threads)
        try:
            yield from iterator
        finally:
            iterator.close()

    return batches()


def _examples(dataset: Proteins, config: BatchesConfig, split: str) -> Singles | Windows | Isolated:
    if config.form == "single":
        return Singles(dataset, split, config.length, config.batch_size, config.padded_lengths)
    kind = Windows if config.form == "concat" else Isolated
    return kind(dataset, split, config.length, config.batch_size)


def _count(dataset: Proteins, split: str) -> int:
    if split not in dataset.counts:
        raise InputError(f"the dataset has no split {split!r}; it has {', '.join(dataset.counts)}.")
    return dataset.counts[split]


def _process_rows(config: BatchesConfig, process_index: int, process_count: int) -> slice:
    if not 0 <= process_index < process_count:
        raise ValueError(f"process_index is {process_index}; it must be at least 0 and below {process_count}")
    rows, rest = divmod(config.batch_size, process_count)
    if rest:
        raise InputError(
            f"batches.batch_size is {config.batch_size}, which {process_count} processes cannot share: "
            "make it a multiple of their number."
        )
    return slice(process_index * rows, (process_index + 1) * rows)


class _Source:
    """Batches by number: a random access data source for Grain."""

    def __init__(self, length: int, read: Callable[[int], Batch]):
        self._length, self._read = length, read

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        return self._read(int(index))


def _read_ahead(source: _Source, num_threads: int) -> Any:
    """Return Grain's iterator over a source; threads read ahead and keep the order."""
    # Grain takes seconds to import, and a config does not need it.
    import grain

    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
    return iter(grain.MapDataset.source(source).to_iter_dataset(options))
