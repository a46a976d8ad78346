"""Ingest: files of sequences in, a dataset out that appears whole or not at all."""

import errno
import os
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rich.console import Console

from proteinlm.data.families.ids import PAPER_HELD_OUT_FAMILIES, check_families, read_held_out
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.local import MARKER, LocalEngine
from proteinlm.data.ingest.progress import anything_finished
from proteinlm.data.ingest.summary import Summary
from proteinlm.data.sources import releases
from proteinlm.data.sources.files import open_sources
from proteinlm.data.sources.locations import Location, expand
from proteinlm.data.splits.from_manifest import refuse_no_manifest
from proteinlm.data.splits.mmseqs import find_mmseqs
from proteinlm.data.splits.rules import SplitsConfig
from proteinlm.errors import InputError
from proteinlm.output.folders import partial_folder, refuse_output, workplace


def ingest(
    sources: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    config: IngestConfig | None = None,
    *,
    release: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> Summary:
    """Turn files of sequences into a dataset.

    The dataset is a function of the files' contents and names and of `config`, of which the number of workers changes
    no byte; neither does the order of the files.

    Args:
        sources: FASTA and UniProtKB flat files (see `sources.SourceFile`) or patterns of names; the same file twice is
            refused, since it would look like copies.
        output: folder to make; it must not exist or be empty. A hidden folder beside it holds what is
            unfinished.
        config: the defaults are the paper's splits.
        release: of UniProt that the sources are of (`releases.provenance`), for the dataset's provenance.
        console: where progress is shown if it is a terminal; standard error by default.

    Raises:
        InputError: something in the files or the arguments is wrong, the disk is full, or a worker was
            killed. The output folder is then not there; after troubles that may pass, what is finished is kept in the
            hidden folder.
    """
    config = config or IngestConfig()
    output = Path(output)
    start = _engine(config)
    files = open_sources(sources)
    engine: LocalEngine | None = None

    def kept(error: BaseException) -> bool:
        # What an earlier ingest has finished stays when this one cannot even begin.
        return anything_finished(partial_folder(output) / MARKER) and (engine is None or _may_pass(error))

    try:
        with workplace(output, kept):
            engine = start(files, partial_folder(output), output, config, release, console or Console(stderr=True))
            return engine.run()
    except (InputError, OSError, BrokenProcessPool) as error:
        goes_on = engine is not None and kept(error)
        sentence = _sentence(error, output)
        if sentence is None or (isinstance(error, InputError) and not goes_on):
            raise
        if goes_on:
            sentence += f" What is finished is kept in {partial_folder(output)}: the same command goes on from there."
        raise InputError(sentence) from error


def _engine(config: IngestConfig) -> type[LocalEngine]:
    if config.engine == "local":
        return LocalEngine
    try:
        from proteinlm.data.ingest.beam import BeamEngine, pipeline_options
    except ImportError as error:
        raise InputError(
            "--engine beam needs Apache Beam: pip install 'proteinlm[beam]', in an environment of its own if another "
            f"package needs protobuf 7 ({error})."
        ) from error
    # Before anything is made.
    pipeline_options(config)
    return BeamEngine


def _may_pass(error: BaseException) -> bool:
    """Tell a full disk, a server that does not answer and the like from what is wrong in files and options."""
    cause = error.__cause__ if isinstance(error, InputError) else error
    return isinstance(cause, OSError | BrokenProcessPool | ImportError)


def _sentence(error: BaseException, output: Path) -> str | None:
    """Return what the user is told of an error, None for one that is not his."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, BrokenProcessPool):
        return "a worker process was killed, most likely because memory ran out: use fewer workers (--workers)."
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {output} is full: ingest needs room for the dataset and scratch files, together about three "
            "times the sequences; make room or name a folder on another disk."
        )
    if code in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"{output} cannot be written ({os.strerror(code)}): name another output folder."
    return None


SAMPLE = Path(__file__).parents[1] / "sample"
"""4,509 real proteins and their families, part of this package."""


def ingest_command(arguments: Any) -> None:
    """Run `proteinlm ingest` and print what it wrote.

    Args:
        arguments: as `ingest_options.parse_ingest` returns them; the source `sample` stands for the proteins of this
            package.
    """
    output = Path(arguments.output)
    families, sources = tuple(arguments.families), [*arguments.sources]
    # A file of that name in the working folder is still reached as ./sample.
    if "sample" in sources:
        sources[sources.index("sample")] = os.fspath(SAMPLE / "proteins.fasta.gz")
        families = (*families, os.fspath(SAMPLE / "pfam.tsv.gz"))
    splits = SplitsConfig(
        arguments.valid, arguments.test, _held_out(arguments.held_out), arguments.split_identity, arguments.splits
    )
    config = IngestConfig(
        splits,
        families,
        profiles=arguments.pfam_hmm,
        search_all=arguments.pfam_hmm_all,
        name=arguments.name,
        shards=arguments.shards,
        engine=arguments.engine,
        beam_args=arguments.beam_args,
        workers=arguments.workers,
    )
    for option, files in (("--families", families), ("--pfam-hmm", arguments.pfam_hmm)):
        if not sources and arguments.release is None and len(files) > 1:
            raise InputError(f"name files of sequences before the options: all that follows {option} belongs to it.")
    if arguments.release is not None:
        # Before hours of downloading.
        _check(sources, output, config)
    downloaded, release = releases.from_arguments(arguments)
    ingest([*sources, *downloaded], output, config, release=release).print(Console())


def _check(sources: Sequence[str], output: Path, config: IngestConfig) -> None:
    """Refuse what `ingest` would refuse, as far as it can be told before the files are read."""
    refuse_output(output)
    _engine(config)
    if sources:
        open_sources(sources)
    for table in expand([*config.families, *config.profiles]):
        Location(table)
    if config.splits.identity is not None:
        find_mmseqs()
    if config.splits.manifest is not None:
        refuse_no_manifest(config.splits.manifest)


def _held_out(text: str) -> tuple[str, ...]:
    if text == "paper":
        return PAPER_HELD_OUT_FAMILIES
    if text == "none":
        return ()
    return read_held_out(text) if Path(text).is_file() else check_families(text.split(","), "--held-out")
