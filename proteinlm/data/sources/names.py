"""Names of records as this program writes them, whatever bytes a file has for them."""

import string

_PRINTED = (string.ascii_letters + string.digits + string.punctuation).encode()


def printed(name: bytes) -> str:
    r"""Return an accession as text that any terminal, table and file can hold: other bytes than printed ASCII as \xNN.

    Sources and tables of families write them alike, so that they are joined.
    """
    if not name.translate(None, _PRINTED):
        return name.decode("ascii")
    return "".join(chr(byte) if byte in _PRINTED else f"\\x{byte:02x}" for byte in name)


def protein_of(accession: bytes) -> bytes | None:
    """Return the accession of the protein if `accession` names one of its isoforms (P12345 of P12345-2), else None."""
    protein, _, number = accession.rpartition(b"-")
    return protein if protein and number.isdigit() else None


def all_printed(table: bytes) -> bool:
    """Tell whether every name of a table, cells separated by tabs, is its own `printed`."""
    return not table.translate(None, _PRINTED + b" \t\n")
