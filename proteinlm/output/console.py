"""The terminal: where progress, messages and tables are printed."""

import sys

from rich.console import Console
from rich.table import Table

# Plain lines in notebooks, which say that they are terminals: what moves there wants a widget.
console = Console(stderr=True, force_jupyter=False, force_terminal=False if "ipykernel" in sys.modules else None)


def print_table(table: Table) -> None:
    """Print a table on standard output; where that is no terminal, wide enough that nothing is cut."""
    Console(width=None if sys.stdout.isatty() else 200).print(table)
