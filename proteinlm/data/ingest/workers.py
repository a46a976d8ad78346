"""The process pool of the local engine: start of the processes, submission of tasks, and end of the processes."""

import contextlib
import fcntl
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

from proteinlm.data.families import profile_search, table_join
from proteinlm.data.ingest import steps

Submit = Callable[..., Iterator[Any]]
"""`submit(function, tasks, keyed=False)`, as `table_join.run_here`: the results of many calls, in the order of the
tasks. The function and the tasks are pickled. With `keyed=True` a task is (key, task); the key stays in this process
and is returned beside the result."""

PRELOADED = ("__main__", *(module.__name__ for module in (steps, profile_search, table_join)))
"""Modules that the fork server imports once for all processes. It ignores a name that it cannot import."""

_LOCK = "processes.lock"
_lock_file: Any = None


def _start_worker(work: Path) -> None:
    global _lock_file
    # A terminal sends Ctrl-C to every process; the first one alone handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _lock_file = open(work / _LOCK, "a")  # noqa: SIM115 (open until the process ends)
    fcntl.flock(_lock_file, fcntl.LOCK_SH)
    parent = multiprocessing.parent_process()
    if parent is not None:
        if connection.wait([parent.sentinel], 0):
            os._exit(1)
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()


def _exit_with_parent(sentinel: int) -> None:
    """End this process as soon as the process that started it has ended, for whatever reason."""
    connection.wait([sentinel])
    os._exit(1)


def wait_for_processes(work: Path) -> None:
    """Wait until the processes of an ingest that was killed have ended; each may still finish a write."""
    with open(work / _LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes started in this block ignore Ctrl-C; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def pool(num_workers: int, work: Path) -> Iterator[Submit]:
    """Start processes and give the function that submits tasks to them (see `Submit`).

    Args:
        num_workers: number of processes; with 1, tasks run in this process.
        work: scratch folder, which holds the lock file of the processes.
    """
    if num_workers == 1:
        try:
            yield table_join.run_here
        finally:
            steps.close_family_tables()
        return
    # A fork server starts the processes before other threads run in it. A fork of this process would copy the locks of
    # its threads in any state, which JAX warns about.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with _interrupts_ignored():
        # Processes inherit their signal handlers from the server, so Ctrl-C does not end one that is still importing.
        forkserver.ensure_running()
    executor = ProcessPoolExecutor(num_workers, context, _start_worker, (work,))

    def submit(function: Callable[[Any], Any], tasks: Iterable[Any], keyed: bool = False) -> Iterator[Any]:
        pending: deque = deque()

        def next_result() -> Any:
            key, future = pending.popleft()
            return (key, future.result()) if keyed else future.result()

        for task in tasks:
            key, task = task if keyed else (None, task)
            pending.append((key, executor.submit(function, task)))
            # Enough tasks that no process is idle, and few enough that the blocks in memory stay small.
            if len(pending) > 2 * num_workers:
                yield next_result()
        while pending:
            yield next_result()

    try:
        yield submit
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
