"""MD5 digests of sequences, by which copies of a sequence are recognised."""

import hashlib


def digest(sequence: bytes) -> bytes:
    """Return the MD5 digest of a canonical sequence, 16 bytes.

    UniParc and Pfam-A.regions have the same digest, so that a published manifest can be joined with them. MD5 serves
    for identification here, not for security.
    """
    return hashlib.md5(sequence, usedforsecurity=False).digest()
