"""Pfam ids: the pattern of an id, sets of ids as text, and lists of held-out families.

Families come from DR lines of flat files (uniprot.py), from family tables (table_formats.py reads them, table_join.py
sorts them, table_lookup.py finds accessions) and from a search with profile HMMs (profile_search.py).
"""

import os
import re
from collections.abc import Iterable

from proteinlm.data.sources.files import SourceFile
from proteinlm.errors import InputError

PAPER_HELD_OUT_FAMILIES = (
    "PF18369", "PF04680", "PF17988", "PF12325", "PF03272", "PF03938", "PF17724", "PF10696", "PF11968",
    "PF04153", "PF06173", "PF12378", "PF04420", "PF10841", "PF06917", "PF03492", "PF06905", "PF15340",
    "PF17055", "PF05318",
)  # fmt: skip
"""The 20 Pfam families of the out-of-distribution split of the Performer paper (appendix C.1)."""

SHOWN = 5
"""Number of malformed rows, and of unknown accessions of family tables, that are kept for messages."""

FAMILY = re.compile(rb"(PF\d{5})(?:\.\d+)?")
"""A Pfam id (group 1), with or without a version."""


def united(texts: Iterable[bytes]) -> bytes:
    """Return the union of sets of families. A set is a text of Pfam ids joined by `;`; the result is sorted."""
    return b";".join(sorted({family for text in texts for family in text.split(b";") if family}))


def check_families(families: Iterable[str], where: str) -> tuple[str, ...]:
    """Return Pfam ids without versions, each once, in the given order.

    Args:
        families: ids with or without version.
        where: origin of the ids for messages, such as "--held-out".

    Raises:
        InputError: a text is not a Pfam id.
    """
    checked = {}
    for family in families:
        match = FAMILY.fullmatch(family.strip().encode())
        if match is None:
            raise InputError(f"{where}: {family!r} is not a Pfam id such as PF00001.")
        checked[match[1].decode()] = None
    return tuple(checked)


def read_held_out(path: str | os.PathLike) -> tuple[str, ...]:
    """Read a list of held-out families: one Pfam id in each line; text after # is a comment.

    Raises:
        InputError: the file cannot be read, has no id, or has a line that is not an id.
    """
    families: dict[str, None] = {}
    for number, line in enumerate(b"".join(SourceFile(path).lines()).split(b"\n"), 1):
        text = line.split(b"#", 1)[0].strip().decode("ascii", "backslashreplace")
        if text:
            families.update(dict.fromkeys(check_families([text], f"{path} line {number}")))
    if not families:
        raise InputError(f"{path} has no Pfam id: write one id in each line, or use --held-out none.")
    return tuple(families)
