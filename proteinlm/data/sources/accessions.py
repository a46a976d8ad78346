"""Accessions of records: printable text for any bytes, and the protein of an isoform."""

import string

_PRINTED = (string.ascii_letters + string.digits + string.punctuation).encode()


def printed(name: bytes) -> str:
    r"""Return an accession as printable ASCII; other bytes, and spaces, become \xNN.

    Accessions of sources and of family tables are both converted by this function, so that they can be joined.
    """
    if not name.translate(None, _PRINTED):
        return name.decode("ascii")
    return "".join(chr(byte) if byte in _PRINTED else f"\\x{byte:02x}" for byte in name)


def protein_of(accession: bytes) -> bytes | None:
    """Return the accession of the protein if `accession` names one of its isoforms (P12345 of P12345-2), else None."""
    protein, _, number = accession.rpartition(b"-")
    return protein if protein and number.isdigit() else None


def all_printed(table: bytes) -> bool:
    """Return whether `printed` leaves every accession of a table unchanged. Tabs separate the cells of the table."""
    return not table.translate(None, _PRINTED + b" \t\n")
