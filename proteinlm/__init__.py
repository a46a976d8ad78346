"""Protein language models with linear attention: ingest, train, evaluate, analyze.

This is the public Python API. Its names are stable; the modules below may move. Importing it is instant: each name is
imported when it is first used (PEP 562).

Examples:
    >>> import proteinlm
    >>> run = proteinlm.load_run("runs/masked", step="best")
    >>> run.logits(["MKTAYIAKQR", "MSILVTRPSP"])[0].shape
    (10, 29)
"""

from typing import TYPE_CHECKING

import lazy_loader

from proteinlm.output.version import __version__ as __version__

if TYPE_CHECKING:
    from proteinlm.cli.python_api import analyze, evaluate, ingest, open_dataset, plan, report, train
    from proteinlm.config import Config, load_config
    from proteinlm.errors import InputError
    from proteinlm.inference.run import Run
    from proteinlm.runs.loading import load_run

_NAMES = {
    "cli.python_api": ["analyze", "evaluate", "ingest", "open_dataset", "plan", "report", "train"],
    "config": ["Config", "load_config"],
    "errors": ["InputError"],
    "inference.run": ["Run"],
    "runs.loading": ["load_run"],
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_NAMES)
