"""Long errors of TensorStore become a code and a file; noise of its threads is dropped, and nothing else."""

import sys
import types
from pathlib import Path

import pytest

from proteinlm.runs.storage_errors import quiet_callbacks, reason_of


def test_the_code_and_the_last_file_are_what_matters():
    text = (
        'DATA_LOSS: Error opening "zarr" driver: Error reading "a" in OCDBT database at local file "/r/20/rest/": '
        'Error decoding local file "/r/20/rest/manifest.ocdbt": Length in header'
    )
    assert reason_of(ValueError(text), Path("/r/20")) == "DATA_LOSS in rest/manifest.ocdbt"
    assert reason_of(KeyError("a"), Path("/r/20")) == "KeyError: 'a'"
    assert reason_of(ValueError(), Path("/r/20")) == "ValueError: "


def test_only_the_noise_of_closed_loops_is_dropped(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(f"{unraisable.exc_value}"))
    before = sys.unraisablehook
    with quiet_callbacks():
        pass
    assert sys.unraisablehook is before
    with pytest.raises(ValueError, match="bad"), quiet_callbacks():
        raise ValueError("bad")
    for text in ("Event loop is closed", "another"):
        sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(text)))  # pyright: ignore[reportArgumentType]
    assert seen == ["another"]
