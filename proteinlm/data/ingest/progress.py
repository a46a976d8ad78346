"""The marker of an ingest: a file that lists the finished work, so that an interrupted ingest can be continued.

Finished work is on the disk before the marker that lists it, so the marker is right even after a power cut. Some
seconds pass between two markers; an interrupted ingest repeats the work of that time.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proteinlm.errors import InputError
from proteinlm.output.files import sync, sync_file_system, whole_file

SCRATCH = "scratch"
"""Scratch folder, in the partial folder of the dataset."""
MARKER = Path(SCRATCH) / "marker.json"
"""The marker, in the partial folder of the dataset."""
SAVE_SECONDS = 10.0
"""Time between two markers."""
_SHOWN = 3


class Marker:
    """The marker of one ingest.

    Args:
        path: the file; an interrupted ingest may have left it.
        inputs: everything that the dataset depends on, for JSON: one value for each file and each option.

    Attributes:
        state: finished work, for JSON; empty if there is none.
        resumes: whether the file was there, with the same inputs.
        differences: names of the inputs that differ, if the file was there with other inputs and without finished work.

    Raises:
        InputError: the file was there with other inputs and with finished work.
    """

    def __init__(self, path: Path, inputs: Mapping[str, Any]):
        self._path = path
        # The inputs as they are after writing and reading JSON: tuples become lists, paths become text.
        self._inputs = json.loads(json.dumps(inputs, default=os.fspath))
        self._saved = time.monotonic()
        self.state: dict[str, Any] = {}
        self.resumes, self.differences = False, ""
        marker = _read(path)
        if marker is None:
            return
        if marker["inputs"] == self._inputs:
            self.state, self.resumes = marker["state"], True
            return
        self.differences = _differences(marker["inputs"], self._inputs)
        if marker["state"]:
            raise InputError(
                f"{path.parent.parent} is an unfinished ingest that differs in {self.differences}: give the same "
                "sources and options to continue it, or remove that folder."
            )

    @property
    def due(self) -> bool:
        """Whether `note` would save the marker now."""
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def save(self) -> None:
        """Write the marker, after all other files of its file system are on the disk."""
        if self.state:
            sync_file_system(self._path.parent)
        with whole_file(self._path) as handle:
            json.dump({"inputs": self._inputs, "state": self.state}, handle)
        # The caller may now remove files that only an older marker needs.
        sync(self._path.parent)
        self._saved = time.monotonic()

    def note(self, **finished: Any) -> bool:
        """Update the state, save it if the last save is SAVE_SECONDS ago, and return whether it was saved."""
        self.state.update(finished)
        if not self.due:
            return False
        self.save()
        return True


def anything_finished(path: Path) -> bool:
    """Return whether there is a marker with finished work."""
    marker = _read(path)
    return bool(marker and marker["state"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        marker = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return marker if isinstance(marker, dict) and {"inputs", "state"} <= marker.keys() else None


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the names of the inputs that differ, with short values."""
    texts = []
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if before != now:
            short = not isinstance(before, list | dict) and not isinstance(now, list | dict)
            texts.append(f"{name} ({before}, now {now})" if short else name)
    return ", ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
