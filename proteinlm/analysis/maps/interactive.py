"""An HTML page that shows the attention of one protein in a browser, without network, server or framework.

The page (interactive.html) has menus of layers and heads, the map, a close-up with residue letters, the weight under
the pointer, and the lines of the Performer paper's figure 12. The address FILE#layer=1&head=2&at=3,7 opens it at the
weight from residue 3 to residue 7.
"""

import base64
import html
import json
import math
import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.output import figures
from proteinlm.output.files import whole_file

LARGEST = 64 * 2**20
"""Largest number of bytes of arrays in a page. Base64 adds a third, and browsers keep some arrays twice."""


class TooLargeError(InputError):
    """The arrays are too large for an interactive page."""


def interactive_map(
    maps: Float[np.ndarray, "layers H L L"],
    letters: str,
    path: str | os.PathLike,
    *,
    name: str,
    causal: bool,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Path:
    """Write an interactive attention map; the file appears complete or not at all.

    Weights are divided by a power of 2 that is not smaller than the largest weight, and stored in half precision. The
    relative error is at most 2^-11; for weights below 2^-14 of that power, the error is at most 2^-25 of it. For a
    causal model only the lower triangle is stored, and the rest is shown as hidden.

    Args:
        maps: attention weights [layers, heads, query, key] of residues.
        letters: the residues, one letter each.
        path: the HTML file; its folder is created if missing.
        name: name of the protein, for the title.
        causal: whether later residues are hidden.
        layers, heads: the numbers in the menus; None counts from 0.

    Returns:
        The path.

    Raises:
        InputError: a weight is not finite, or a letter is not that of a residue.
        TooLargeError: the arrays are larger than 64 MiB.
        ValueError: the shapes do not fit each other.
    """
    num_layers, num_heads, length, _ = maps.shape
    layers = list(range(num_layers) if layers is None else layers)
    heads = list(range(num_heads) if heads is None else heads)
    if (len(layers), len(heads), len(letters)) != (num_layers, num_heads, length) or not maps.size:
        raise ValueError(
            f"maps are {maps.shape}, but there are {len(layers)} layers, {len(heads)} heads and {len(letters)} letters"
        )
    alphabet.encode(letters)
    check_size(num_layers, num_heads, length, name=name, causal=causal)
    values = maps[..., *np.tril_indices(length)] if causal else maps.reshape(num_layers, num_heads, -1)
    if not np.isfinite(values).all():
        raise InputError(f"the attention of {name} contains weights that are not finite and cannot be drawn.")
    scale = scale_of(values)
    meta = {
        "name": name,
        "letters": letters,
        "causal": bool(causal),
        "layers": [int(layer) for layer in layers],
        "heads": [int(head) for head in heads],
        "scale": scale,
        "colours": (colormaps[figures.SEQUENTIAL](range(256))[:, :3] * 255).round().astype(np.uint8).tobytes().hex(),
    }
    parts = {
        "TITLE": html.escape(f"Attention of {name}"),
        # In a script element only the end of the element and the start of a comment are special.
        "META": json.dumps(meta).replace("<", "\\u003c"),
        "ARRAYS": base64.b64encode((values / scale).astype("<f2").tobytes()).decode(),
    }
    page = resources.files("proteinlm.analysis.maps").joinpath("interactive.html").read_text(encoding="utf-8")
    with whole_file(path) as handle:
        # In one pass, since a name can look like a placeholder.
        handle.write(re.sub("__(TITLE|META|ARRAYS)__", lambda match: parts[match[1]], page))
    return Path(path)


def check_size(num_layers: int, num_heads: int, length: int, *, name: str, causal: bool) -> None:
    """Raise TooLargeError if the arrays of a page are larger than LARGEST."""
    size = 2 * num_layers * num_heads * (length * (length + 1) // 2 if causal else length**2)
    if size > LARGEST:
        raise TooLargeError(
            f"an interactive map of {num_layers} layers and {num_heads} heads of {name} would need "
            f"{math.ceil(size / 2**20):,} MiB; the limit is {LARGEST // 2**20} MiB: choose fewer layers or heads."
        )


def scale_of(values: Float[np.ndarray, "..."]) -> float:
    """Return the smallest power of 2 that is at least the largest absolute weight, or 1 if all are 0.

    Division by a power of 2 is exact.
    """
    largest = float(np.abs(values).max())
    return 2.0 ** math.ceil(math.log2(largest)) if largest else 1.0
