"""The command line: the table of commands, and the dispatch to them.

To add a command, write a function in a file of this folder that takes the arguments after the command's name, and add
one line to `COMMANDS`. A command that needs a trained model calls `load_run`:

    def embed(arguments: Sequence[str]) -> None:
        options = tyro.cli(Embed, args=arguments, prog="proteinlm embed")
        from proteinlm.runs.loading import load_run

        run = load_run(options.run, options.step)
        ...

    COMMANDS["embed"] = Command(embed, "a trained run + proteins -> one vector a protein")

Everything that is slow to import is imported inside the function, so that --help answers at once. Errors that the user
can fix are raised as InputError; `exit_code` prints them.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tyro

from proteinlm.cli import evaluate, ingest, plan, report, train
from proteinlm.cli.analyze_options import Analyze
from proteinlm.cli.errors import CLOSED_PIPE, exit_code, flush, is_closed_pipe
from proteinlm.output.version import __version__


@dataclass(frozen=True)
class Command:
    """A command: a function of the arguments after its name, and its line in the help."""

    run: Callable[[Sequence[str]], None]
    summary: str

    def __call__(self, arguments: Sequence[str]) -> None:
        """Run the command."""
        self.run(arguments)


def _analyze(arguments: Sequence[str]) -> None:
    options = tyro.cli(Analyze, args=arguments, prog="proteinlm analyze")
    from proteinlm.cli.analyze import analyze_command

    analyze_command(options)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "ingest": Command(ingest.ingest, "UniProt or FASTA files (+ Pfam families) -> a deduplicated, split dataset"),
    "train": Command(train.train, "a config + a dataset -> checkpoints and curves"),
    "evaluate": Command(evaluate.evaluate, "trained runs -> accuracy and perplexity per split, beside the baselines"),
    "analyze": Command(_analyze, "a trained run + proteins -> attention maps, amino-acid similarity versus BLOSUM"),
    "report": Command(report.report, "runs -> one page with tables, curves and figures"),
    "plan": Command(plan.plan, "a config -> memory, FLOPs and time of a step, for this machine or for absent TPUs"),
}

_HELP = """proteinlm {version}: protein language models with linear attention.

usage: proteinlm COMMAND ...

{commands}

`proteinlm COMMAND --help` prints the options of a command. A first run on real proteins, about five minutes on two
cores:

  proteinlm ingest sample --output runs/quickstart/dataset --valid 0.05 --test 0.1
  proteinlm train quickstart_causal --dataset runs/quickstart/dataset --run runs/quickstart/causal
  proteinlm evaluate runs/quickstart/causal
  proteinlm analyze runs/quickstart/causal
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The code is 0 on success, 2 for an error that the user can fix (one sentence on standard error), 141 if the reader
    of the output closed the pipe, 128 + the number of the signal after Ctrl-C or SIGTERM. Bugs raise.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(arguments)
    except (BrokenPipeError, SystemExit) as error:
        # tyro raises SystemExit after --help and after options that it cannot read.
        if flush() and not is_closed_pipe(error):
            raise
        return CLOSED_PIPE
    return code if flush() else CLOSED_PIPE


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        lines = [f"  {name:<10} {getattr(command, 'summary', '')}" for name, command in COMMANDS.items()]
        print(_HELP.format(version=__version__, commands="\n".join(lines)))
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"proteinlm {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        import difflib

        close = difflib.get_close_matches(arguments[0], COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}."
        print(f"proteinlm: there is no command {arguments[0]!r}; {hint}", file=sys.stderr)
        return 2
    # A machine with libtpu and no TPU would print warnings at every start.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # Orbax warns about every checkpoint that it opens to read only.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        COMMANDS[arguments[0]](arguments[1:])
    except SystemExit as error:
        if not is_closed_pipe(error):
            raise
        return exit_code(arguments[0], arguments[1:], error)
    except (Exception, KeyboardInterrupt) as error:
        return exit_code(arguments[0], arguments[1:], error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
