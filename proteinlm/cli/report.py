"""`proteinlm report`: options, and the call that writes the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from proteinlm.errors import InputError


@dataclass(frozen=True)
class Report:
    """Write one page about runs: the dataset's table, training curves in one figure, scores, figures, conclusions.

    Example: proteinlm report runs/causal runs/masked --output comparison
    """

    folders: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Folders of runs, or folders that contain runs."""
    output: Path | None = None
    """Folder of report.md, curves.png and curves.pdf; by default the named folder, or the one that contains all named
    folders."""


def report(arguments: Sequence[str]) -> None:
    """Run `proteinlm report`."""
    options = tyro.cli(Report, args=arguments, prog="proteinlm report")
    from proteinlm.runs.report import write_report

    if not options.folders:
        raise InputError("name at least one run: proteinlm report RUN...")
    print(write_report(*options.folders, output=options.output))
