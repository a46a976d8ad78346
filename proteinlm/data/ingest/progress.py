"""What of an ingest is finished, so that one that was killed goes on: a file that is replaced as a whole.

What a marker speaks of is on the disk before the marker is, so that it holds after a power cut as well. Between two
markers lie some seconds of work, which is what a killed ingest does again.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proteinlm.errors import InputError
from proteinlm.output.files import sync, sync_file_system, whole_file

SAVE_SECONDS = 10.0
"""Of work between two markers."""
_SHOWN = 3


class Marker:
    """The marker of one ingest.

    Args:
        path: of the file; what an ingest that was killed has left there is taken up.
        inputs: what the dataset is made of and with, for JSON: one value for each file and each option.

    Attributes:
        state: what is finished, for JSON; empty where nothing is.
        old: whether it was there, with the same inputs.
        other: the inputs in which one that was there differed, in words; nothing of it was finished.

    Raises:
        InputError: an ingest with other inputs is there, and something of it is finished.
    """

    def __init__(self, path: Path, inputs: Mapping[str, Any]):
        self._path = path
        # As JSON gives it back.
        self._inputs = json.loads(json.dumps(inputs, default=os.fspath))
        self._saved = time.monotonic()
        self.state: dict[str, Any] = {}
        self.old, self.other = False, ""
        found = _read(path)
        if found is None:
            return
        if found["inputs"] == self._inputs:
            self.state, self.old = found["state"], True
            return
        self.other = _differences(found["inputs"], self._inputs)
        if found["state"]:
            raise InputError(
                f"{path.parent.parent} is an unfinished ingest that differs in {self.other}: give the same sources and "
                "options and it goes on, or remove that folder."
            )

    @property
    def due(self) -> bool:
        """Whether `note` would save now."""
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def save(self) -> None:
        """Write the marker, after everything else that was written to its disk."""
        if self.state:
            sync_file_system(self._path.parent)
        with whole_file(self._path) as handle:
            json.dump({"inputs": self._inputs, "state": self.state}, handle)
        # What is removed next must not be missed by an older marker.
        sync(self._path.parent)
        self._saved = time.monotonic()

    def note(self, **finished: Any) -> bool:
        """Change the state, save it unless that was done less than SAVE_SECONDS ago, and return whether it was."""
        self.state.update(finished)
        if not self.due:
            return False
        self.save()
        return True


def anything_finished(path: Path) -> bool:
    """Tell whether a marker is there and speaks of something."""
    found = _read(path)
    return bool(found and found["state"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) and {"inputs", "state"} <= found.keys() else None


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    said = []
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if before != now:
            short = not isinstance(before, list | dict) and not isinstance(now, list | dict)
            said.append(f"{name} ({before}, now {now})" if short else name)
    return ", ".join(said[:_SHOWN]) + (f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else "")
