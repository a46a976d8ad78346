"""The identity of a sequence: the MD5 digest of its letters."""

import hashlib


def digest(sequence: bytes) -> bytes:
    """Return the identity of a canonical sequence: MD5 of its letters, 16 bytes.

    MD5 because UniParc and Pfam-A.regions carry it, so that a published manifest joins to them. It guards
    nothing.
    """
    return hashlib.md5(sequence, usedforsecurity=False).digest()
