import importlib
import operator
import os

import pytest

from proteinlm.data.ingest import workers
from proteinlm.data.ingest.workers import PRELOADED, pool


def test_each_preloaded_module_can_be_imported():
    """The fork server ignores a name that it cannot import, and then each process imports the module by itself."""
    assert len(PRELOADED) > 1
    for name in PRELOADED[1:]:
        assert importlib.import_module(name).__name__ == name
    assert importlib.import_module("proteinlm.data.ingest.steps").__name__ in PRELOADED


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_are_in_the_order_of_the_tasks_and_keys_stay_here(tmp_path, num_workers):
    with pool(num_workers, tmp_path) as submit:
        assert list(submit(operator.neg, range(10))) == [-i for i in range(10)]
        # A lambda cannot be pickled, so a key does not travel to another process.
        keys = [lambda: None, lambda: None]
        results = list(submit(operator.neg, [(keys[0], 1), (keys[1], 2)], keyed=True))
        assert results == [(keys[0], -1), (keys[1], -2)]
        pids = set(submit(eval, ["__import__('os').getpid()"] * 4))
    assert (os.getpid() in pids) == (num_workers == 1)


def test_an_error_of_a_task_reaches_the_caller(tmp_path):
    with pool(2, tmp_path) as submit, pytest.raises(ZeroDivisionError):
        list(submit(eval, ["1 / 0"]))
    workers.wait_for_processes(tmp_path)
