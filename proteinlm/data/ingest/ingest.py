"""Ingest: turn files of protein sequences into a dataset, which appears whole or not at all."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rich.console import Console

from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.local import prepare_local
from proteinlm.data.ingest.progress import MARKER, anything_finished
from proteinlm.data.ingest.results import IngestResult, Summary
from proteinlm.data.sources.files import open_sources
from proteinlm.data.sources.locations import Location, expand
from proteinlm.data.splits.from_manifest import check_manifest_exists
from proteinlm.data.splits.mmseqs import find_mmseqs
from proteinlm.errors import InputError
from proteinlm.output.folders import output_folder, partial_folder, refuse_output

SAMPLE = Path(__file__).parents[1] / "sample"
"""Folder of the sample: 4,509 real proteins and their families, part of this package."""


def with_sample(
    sources: Sequence[str | os.PathLike[str]], families: Sequence[str | os.PathLike[str]]
) -> tuple[list[str], list[str]]:
    """Return sources and family tables as text, with the files of the package for the source "sample".

    A Path("sample") or the text ./sample still reaches a file of that name in the working folder.
    """
    proteins, pfam = os.fspath(SAMPLE / "proteins.fasta.gz"), os.fspath(SAMPLE / "pfam.tsv.gz")
    files = [proteins if source == "sample" else os.fspath(source) for source in sources]
    tables = [os.fspath(table) for table in families]
    return files, [*tables, pfam] if "sample" in sources else tables


def ingest(
    sources: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    config: IngestConfig | None = None,
    *,
    release: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> Summary:
    """Turn files of protein sequences into a dataset.

    The dataset depends on the contents and names of the files and on `config`. The number of workers and the order of
    the files do not change a byte of it.

    Args:
        sources: FASTA and UniProtKB flat files (see `files.SourceFile`), or patterns of names. A file that is named
            twice is an error, since its records would count as copies.
        output: folder of the dataset; it must not exist, or be empty. Unfinished work is in a hidden folder beside it.
        config: settings; the defaults are the splits of the Performer paper.
        release: provenance of the release of UniProt that the sources belong to (`releases.provenance`).
        console: terminal for messages and progress bars; standard error by default.

    Returns:
        Counts, warnings and times.

    Raises:
        InputError: a file or an argument is wrong, the disk is full, or a worker was killed. The output folder does
            not exist then. After an error that may be temporary, the hidden folder keeps the finished work.
    """
    config = config or IngestConfig()
    output = Path(output)
    prepare = _engine(config)
    files = open_sources(sources)
    run: Callable[[], IngestResult] | None = None

    def keep_unfinished(error: BaseException) -> bool:
        # The work of an earlier ingest is kept if this one cannot start.
        return anything_finished(partial_folder(output) / MARKER) and (run is None or _may_be_temporary(error))

    try:
        with output_folder(output, keep_unfinished):
            partial, console = partial_folder(output), console or Console(stderr=True)
            run = prepare(files, partial, config, release, console)
            return Summary.of(run(), output, config)
    except (InputError, OSError, BrokenProcessPool) as error:
        resumable = run is not None and keep_unfinished(error)
        message = _message(error, output)
        if message is None or (isinstance(error, InputError) and not resumable):
            raise
        if resumable:
            message += (
                f" The finished work is kept in {partial_folder(output)}: run the same command again to continue."
            )
        raise InputError(message) from error


def _engine(config: IngestConfig) -> Callable[..., Callable[[], IngestResult]]:
    """Return the function that prepares an ingest on the engine of the config."""
    if config.engine == "local":
        return prepare_local
    try:
        from proteinlm.data.ingest.beam import pipeline_options, prepare_beam
    except ImportError as error:
        raise InputError(
            "--engine beam needs Apache Beam: pip install 'proteinlm[beam]', in an environment of its own if another "
            f"package needs protobuf 7 ({error})."
        ) from error
    # Wrong options are reported before a folder is made.
    pipeline_options(config)
    return prepare_beam


def _may_be_temporary(error: BaseException) -> bool:
    """Return whether an error may pass by itself (a full disk, an unreachable server), unlike an error in the input."""
    cause = error.__cause__ if isinstance(error, InputError) else error
    return isinstance(cause, OSError | BrokenProcessPool | ImportError)


def _message(error: BaseException, output: Path) -> str | None:
    """Return the message for the user; None for an error that the user cannot fix."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, BrokenProcessPool):
        return "a worker process was killed, most likely because memory ran out: use fewer workers (--workers)."
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {output} is full: ingest needs room for the dataset and scratch files, together about three "
            "times the size of the sequences; make room or name a folder on another disk."
        )
    if code in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"{output} cannot be written ({os.strerror(code)}): name another output folder."
    return None


def check_inputs(sources: Sequence[str], output: Path, config: IngestConfig) -> None:
    """Raise the errors of `ingest` that do not depend on the contents of the files.

    Raises:
        InputError: a path or an option is wrong, or MMseqs2 or the manifest is missing.
    """
    refuse_output(output)
    _engine(config)
    if sources:
        open_sources(sources)
    for table in expand([*config.families, *config.profiles]):
        Location(table)
    if config.splits.identity is not None:
        find_mmseqs()
    if config.splits.manifest is not None:
        check_manifest_exists(config.splits.manifest)
