"""The console, on which progress, messages and tables are printed."""

import sys

from rich.console import Console
from rich.table import Table

# A notebook claims to be a terminal, but needs a widget for output that moves; it gets plain lines.
console = Console(stderr=True, force_jupyter=False, force_terminal=False if "ipykernel" in sys.modules else None)


def print_table(table: Table) -> None:
    """Print a table on standard output; outside a terminal it is wide enough for all columns."""
    Console(width=None if sys.stdout.isatty() else 200).print(table)
