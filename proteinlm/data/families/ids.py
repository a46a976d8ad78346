"""Pfam ids, and which families are held out.

Where families come from: DR lines (uniprot.py), tables (pfam_formats.py reads them, pfam_join.py sorts them,
pfam_table.py looks accessions up), profiles that sequences are searched with (hmm.py).
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
"""The 20 Pfam families of the Performer paper's out-of-distribution split (appendix C.1)."""

SHOWN = 5
"""How many malformed rows and unknown accessions of family tables are kept for showing."""

FAMILY = re.compile(rb"(PF\d{5})(?:\.\d+)?")
"""A Pfam id, and the version that may follow it."""


def united(texts: Iterable[bytes]) -> bytes:
    """Return the families of several texts, PF ids joined by `;` in each and in the result, each id once, sorted."""
    return b";".join(sorted({family for text in texts for family in text.split(b";") if family}))


def check_families(families: Iterable[str], what: str) -> tuple[str, ...]:
    """Return Pfam ids, each once, in the given order, without versions.

    Raises:
        InputError: one is no Pfam id; `what` says where it stands.
    """
    checked = {}
    for family in families:
        match = FAMILY.fullmatch(family.strip().encode())
        if match is None:
            raise InputError(f"{what}: {family!r} is no Pfam id; one reads PF00001.")
        checked[match[1].decode()] = None
    return tuple(checked)


def read_held_out(path: str | os.PathLike) -> tuple[str, ...]:
    """Read a list of held-out families: one PF id a line, the rest of a line after # is a comment.

    Raises:
        InputError: the file cannot be read, holds no id, or a line that is none.
    """
    families: dict[str, None] = {}
    for number, line in enumerate(b"".join(SourceFile(path).lines()).split(b"\n"), 1):
        text = line.split(b"#", 1)[0].strip().decode("ascii", "backslashreplace")
        if text:
            families.update(dict.fromkeys(check_families([text], f"{path} line {number}")))
    if not families:
        raise InputError(f"{path} holds no Pfam id: write one a line, or use --held-out none.")
    return tuple(families)
