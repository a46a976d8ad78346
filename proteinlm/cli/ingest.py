"""`proteinlm ingest`: its options are in data/ingest/options.py."""

from collections.abc import Sequence


def ingest(arguments: Sequence[str]) -> None:
    """Run `proteinlm ingest`."""
    # The page of help is printed here; it needs none of the libraries of an ingest.
    from proteinlm.data.ingest.options import parse_ingest

    options = parse_ingest(arguments)
    from proteinlm.data.ingest.ingest import ingest_command

    ingest_command(options)
