"""The processes of the local engine: what each one holds, how tasks reach it, how it ends."""

import contextlib
import fcntl
import functools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

from proteinlm.data.dataset.datasheet import draw_figures
from proteinlm.data.families import profile_search
from proteinlm.data.families.table_counts import TableResult
from proteinlm.data.families.table_join import INDEX, SortTask, TableTask, sort_partition, spill_rows
from proteinlm.data.families.table_lookup import FamilyTables
from proteinlm.data.ingest import steps as stages
from proteinlm.data.sources.files import TextBlock
from proteinlm.data.sources.spill import cut_bucket
from proteinlm.data.splits.rules import SplitsConfig

_LOCK = "processes.lock"


class Worker:
    """What a process needs for each task; one for each process, made once.

    Args:
        work: scratch folder.
        num_buckets: a power of two.
        splits: how records are split.
        output: folder that shards and manifest are written to.
        name: of the dataset.
    """

    def __init__(self, work: Path, num_buckets: int, splits: SplitsConfig, output: Path, name: str):
        self.work, self.num_buckets, self.splits = work, num_buckets, splits
        self.output, self.name = output, name

    @functools.cached_property
    def tables(self) -> FamilyTables | None:
        """The joined tables of families; processes join them first, so they are opened when a block needs them."""
        folder = self.work / "families"
        return FamilyTables(folder) if (folder / INDEX).is_file() else None

    def table(self, task: TableTask) -> TableResult:
        """Read a block of a table of families."""
        return spill_rows(task)

    def sort(self, task: SortTask) -> int:
        """Sort a partition of the tables of families."""
        return sort_partition(task)

    def cut(self, task: tuple[int, int]) -> None:
        """Take out of a bucket what a killed run has left of a source and of later ones."""
        bucket, source = task
        cut_bucket(self.work, bucket, source)

    def map(self, task: tuple[int, TextBlock]) -> stages.MapResult:
        """Parse a block of source number so and so."""
        source, block = task
        return stages.map_block(block, self.work, self.num_buckets, self.tables, str(os.getpid()), source)

    def choose(self, task: tuple[int, bool]) -> profile_search.Chosen:
        """Choose what is searched in a bucket."""
        bucket, everything = task
        return profile_search.choose(bucket, self.work, everything)

    def search(self, piece: profile_search.Piece) -> int:
        """Search a piece of what was chosen."""
        return profile_search.search_piece(piece, self.work)

    def sequences(self, bucket: int) -> None:
        """Write the distinct sequences of a bucket for splits by identity."""
        stages.write_distinct(bucket, self.work, self.splits)

    def reduce(self, bucket: int) -> stages.ReduceResult:
        """Reduce a bucket."""
        return stages.reduce_bucket(bucket, self.work, self.splits)

    def write(self, task: stages.Shard | stages.Drawing | dict[str, list[int]]) -> str | None:
        """Write a shard, the figures, or the manifest, whose fingerprint is returned."""
        if isinstance(task, stages.Drawing):
            return draw_figures(self.output, task.statistics)
        if isinstance(task, dict):
            return stages.write_manifest(task, self.work, self.output)
        return stages.write_shard(task, self.work, self.output, self.name)


_worker: Worker | None = None
_held: Any = None


def _start_worker(work: Path, *arguments: Any) -> None:
    global _worker, _held
    # Ctrl-C reaches every process of the terminal; the first one decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _held = open(work / _LOCK, "a")  # noqa: SIM115 (as long as the process lives)
    fcntl.flock(_held, fcntl.LOCK_SH)
    _worker = Worker(work, *arguments)
    parent = multiprocessing.parent_process()
    if parent is not None:
        if connection.wait([parent.sentinel], 0):
            os._exit(1)
        threading.Thread(target=_leave_with, args=(parent.sentinel,), daemon=True).start()


def wait_for_processes(work: Path) -> None:
    """Wait for the processes of an ingest that was killed; they end with it, after what they are writing."""
    with open(work / _LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def _leave_with(sentinel: int) -> None:
    """End this process when the one that started it has ended, however that was."""
    connection.wait([sentinel])
    os._exit(1)


def _call(method: str, task: Any) -> Any:
    return getattr(_worker, method)(task)


Submit = Callable[..., Iterator[Any]]


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes that start meanwhile ignore Ctrl-C; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def pool(workers: int, arguments: tuple) -> Iterator[Submit]:
    """Give a function (method, tasks) that runs a worker's method on tasks and yields results in their order.

    With keyed=True a task is (key, load): the key stays here and comes back beside the result.

    Args:
        workers: 1 runs everything in this process.
        arguments: of `Worker`.
    """
    if workers == 1:
        alone = Worker(*arguments)

        def here(method: str, tasks: Iterable, keyed: bool = False) -> Iterator[Any]:
            call = getattr(alone, method)
            for task in tasks:
                yield (task[0], call(task[1])) if keyed else call(task)

        yield here
        return
    # Processes come from a server that is forked before anything else runs in it: a fork of this process
    # would copy its threads' locks in whatever state they are (JAX warns of it).
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "proteinlm.data.ingest.workers"])
    with _interrupts_ignored():
        # Processes have their signals from the server: a Ctrl-C must not reach one that is still importing.
        forkserver.ensure_running()
    executor = ProcessPoolExecutor(workers, context, _start_worker, arguments)

    def there(method: str, tasks: Iterable, keyed: bool = False) -> Iterator[Any]:
        waiting: deque = deque()
        for task in tasks:
            key, load = task if keyed else (None, task)
            waiting.append((key, executor.submit(_call, method, load)))
            # Enough that no process waits, few enough that the blocks in flight stay small.
            if len(waiting) > 2 * workers:
                yield _taken(waiting, keyed)
        while waiting:
            yield _taken(waiting, keyed)

    try:
        yield there
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _taken(waiting: deque, keyed: bool) -> Any:
    key, future = waiting.popleft()
    return (key, future.result()) if keyed else future.result()
