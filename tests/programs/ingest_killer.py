"""A program that ingests in children of its own, kills them at a file operation of a given number, and goes on.

Arguments: a folder with sources (*.fasta) and a table (families.tsv), and how many operations lie between two deaths.
One line of JSON tells what came of it (see `main`).
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

# Once, before the forks: slow to import.
import tensorflow_datasets  # noqa: F401
from rich.console import Console
from tensorflow_datasets.core.dataset_info import DatasetIdentity  # noqa: F401

from proteinlm.data.ingest import progress, steps
from proteinlm.data.ingest.ingest import IngestConfig, ingest
from proteinlm.data.sources import files as data_sources
from proteinlm.data.sources import record_buckets
from proteinlm.data.splits.rules import SplitsConfig

NEVER = 0
# File operations, enough for one source or some buckets.
LIFE = 150


class Child:
    """One ingest, killed at its file operation number `deadline`; where it spills records, in the middle of a chunk."""

    def __init__(self, place: Path, deadline: int):
        self.place, self.deadline = place, deadline
        self.operations = 0
        self.calls = {"map_block": 0, "reduce_bucket": 0, "write_shard": 0}

    def run(self, output: Path) -> None:
        progress.SAVE_SECONDS, data_sources._READ_BYTES = 0.0, 500
        # What a process has written outlives it without that; only a power cut needs it, and it takes time.
        progress.sync_file_system = lambda folder: None
        for name in self.calls:
            setattr(steps, name, self.counted(name, getattr(steps, name)))
        record_buckets.open = lambda path, mode: Torn(self, open(path, mode)) if mode == "ab" else open(path, mode)  # noqa: SIM115
        sys.addaudithook(self.hook)
        config = IngestConfig(
            SplitsConfig(0.1, 0.2, ("PF00001",)), (self.place / "families.tsv",),
            shards=2, workers=1, block_bytes=500, bucket_bytes=2000,
        )  # fmt: skip
        with open(os.devnull, "w") as nowhere:
            ingest(sorted(self.place.glob("*.fasta")), output, config, console=Console(file=nowhere))

    def counted(self, name, function):
        def call(*arguments, **settings):
            self.calls[name] += 1
            return function(*arguments, **settings)

        return call

    def hook(self, event, arguments):
        if event.split(".")[0] not in ("open", "os", "shutil") or str(self.place) not in str(arguments):
            return
        self.operations += 1
        spilling = event == "open" and arguments[1] == "ab" and "spill" in str(arguments[0])
        if self.deadline != NEVER and self.operations >= self.deadline + spilling:
            os.kill(os.getpid(), signal.SIGKILL)


class Torn:
    """A file whose writing is cut off when its process is to die at this operation."""

    def __init__(self, child, handle):
        self.child, self.handle = child, handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.handle.close()

    def write(self, data):
        if self.child.operations == self.child.deadline:
            self.handle.write(data[: len(data) // 2])
            self.handle.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.handle.write(data)


def run_child(place, output, deadline):
    """Return whether the child was killed, and its file operations and calls if it was not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child = Child(place, deadline)
            child.run(output)
            os.write(writing, json.dumps([child.operations, child.calls]).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    status = os.waitpid(pid, 0)[1]
    if status not in (0, signal.SIGKILL):
        sys.exit(f"a child left with {status}")
    return status == signal.SIGKILL, *(json.loads(text) if text else (0, {}))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def remove(folder):
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def main(place, step):
    output, left = place / "out", place / ".out.partial"
    _, total, whole = run_child(place, place / "whole", NEVER)
    right = contents(place / "whole")
    runs = []
    for deadline in range(1, total + 1, step):
        killed, _, _ = run_child(place, output, deadline)
        finished = output.exists()
        state = json.loads((left / progress.MARKER).read_text())["state"] if (left / progress.MARKER).exists() else {}
        again = {} if finished else run_child(place, output, NEVER)[2]
        runs.append(
            {
                "deadline": deadline, "killed": killed, "finished": finished, "again": again,
                "sources": len(state.get("intake", {}).get("sources", ())),
                "reduced": state.get("reduced", 0), "written": len(state.get("written", ())),
                "same": contents(output) == right, "clean": not left.exists(),
            }
        )  # fmt: skip
        remove(output)
    # One that is killed again and again comes to its end as well.
    deaths = 0
    while not output.exists() and deaths < 100:
        deaths += run_child(place, output, LIFE)[0]
    same = contents(output) == right
    print(json.dumps({"whole": whole, "runs": runs, "deaths": deaths, "same": same}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
