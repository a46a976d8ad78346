"""analysis.json: the run, the data and the summary of each part that was drawn into a folder."""

import json
from pathlib import Path
from typing import Any

from proteinlm.output.console import console
from proteinlm.output.saving import write_json


class Record:
    """The file {"parts": {part: its run, its data and its summary}}, complete at every moment."""

    def __init__(self, path: Path):
        """Read the record of an earlier analysis; an unreadable file is replaced, with a warning."""
        self._path, self._parts = path, {}
        try:
            parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
            self._parts = {part: entry for part, entry in parts.items() if isinstance(entry, dict)}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            console.print(f"{path} cannot be read as a record of figures: it is replaced", soft_wrap=True)

    def remove(self, part: str) -> None:
        """Remove the entry of a part, if there is one."""
        if self._parts.pop(part, None) is not None:
            self._write()

    def add(self, part: str, entry: dict[str, Any]) -> None:
        """Add or replace the entry of a part."""
        self._parts[part] = entry
        self._write()

    def _write(self) -> None:
        write_json(self._path, {"parts": self._parts})
