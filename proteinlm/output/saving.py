"""JSON, CSV and NumPy files, each written whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from proteinlm.output.files import whole_file


def write_json(path: Path, content: Mapping[str, Any], *, indent: int = 2) -> None:
    """Write JSON that ends with a line break; the same content gives the same bytes.

    Raises:
        ValueError: a number is NaN or infinite, which JSON does not have. Write None instead.
    """
    with whole_file(path) as handle:
        json.dump(content, handle, indent=indent, allow_nan=False)
        handle.write("\n")


def write_csv(path: Path, table: pd.DataFrame, *, float_format: str | None = None) -> None:
    """Write the columns of a table as CSV, without its index.

    Args:
        path: the file.
        table: the table.
        float_format: format of the floats, such as "%.6g"; None writes all their digits.
    """
    with whole_file(path) as handle:
        table.to_csv(handle, index=False, float_format=float_format)


def write_arrays(path: Path, arrays: Mapping[str, Any], *, compress: bool = True) -> None:
    """Write arrays by name as a .npz file."""
    with whole_file(path, "wb") as handle:
        (np.savez_compressed if compress else np.savez)(handle, **arrays)


def save_summary(stem: Path, summary: Mapping[str, Any]) -> str:
    """Write STEM.json and return its path; errors as for `write_json`."""
    path = stem.with_suffix(".json")
    write_json(path, summary)
    return str(path)


def save_table(stem: Path, table: pd.DataFrame) -> str:
    """Write STEM.csv, floats with six significant digits, and return its path."""
    path = stem.with_suffix(".csv")
    write_csv(path, table, float_format="%.6g")
    return str(path)


def save_arrays(stem: Path, arrays: Mapping[str, Any]) -> str:
    """Write STEM.npz, compressed, and return its path."""
    path = stem.with_suffix(".npz")
    write_arrays(path, arrays)
    return str(path)


def rounded(values: Any, digits: int = 4) -> Any:
    """Return numbers for JSON: nested lists for an array, rounded; None for NaN, which JSON does not have."""
    if np.ndim(values):
        return [rounded(value, digits) for value in values]
    return None if np.isnan(values) else round(float(values), digits)
