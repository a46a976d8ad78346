"""Arrays, tables and JSON as files, each written whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from proteinlm.output.files import whole_file


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON that is the same for the same content."""
    with whole_file(path) as handle:
        json.dump(content, handle, indent=1)
        handle.write("\n")


def save_arrays(stem: Path, arrays: dict[str, Any]) -> str:
    """Write STEM.npz, compressed, and return its path."""
    path = stem.with_suffix(".npz")
    with whole_file(path, "wb") as handle:
        np.savez_compressed(handle, **arrays)
    return str(path)


def save_table(stem: Path, table: pd.DataFrame) -> str:
    """Write STEM.csv, numbers with six digits, and return its path."""
    path = stem.with_suffix(".csv")
    with whole_file(path) as handle:
        table.to_csv(handle, index=False, float_format="%.6g")
    return str(path)


def save_summary(stem: Path, summary: dict[str, Any]) -> str:
    """Write STEM.json, in which NaN and infinities are refused, and return its path."""
    path = stem.with_suffix(".json")
    with whole_file(path) as handle:
        json.dump(summary, handle, indent=2, allow_nan=False)
        handle.write("\n")
    return str(path)
