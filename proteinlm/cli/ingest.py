"""`proteinlm ingest`: the call of the ingest. Its options are in ingest_options.py."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from proteinlm.errors import InputError


def ingest(arguments: Sequence[str]) -> None:
    """Run `proteinlm ingest` and print a summary; the source `sample` is the proteins of the package."""
    # The page of help is printed here, before anything heavy is imported.
    from proteinlm.cli.ingest_options import parse_ingest

    options = parse_ingest(arguments)
    from rich.console import Console

    from proteinlm.data.ingest import ingest as data_ingest
    from proteinlm.data.ingest.config import IngestConfig
    from proteinlm.data.sources import releases
    from proteinlm.data.splits.rules import SplitsConfig

    sources, families = data_ingest.with_sample(options.sources, options.family.families)
    splits = SplitsConfig(**{**vars(options.split), "held_out": _held_out(options.split.held_out)})
    others = {**vars(options.family), **vars(options.engine), "families": tuple(families)}
    config = IngestConfig(splits, name=options.name, **others)
    for option, files in (("--families", config.families), ("--pfam-hmm", config.profiles)):
        if not sources and options.release.release is None and len(files) > 1:
            raise InputError(f"name files of sequences before the options: all words after {option} belong to it.")
    if options.release.release is not None:
        # Wrong inputs are reported before hours of downloading.
        data_ingest.check_inputs(sources, options.output, config)
    downloads, release = releases.from_arguments(SimpleNamespace(**vars(options.release), output=options.output))
    data_ingest.ingest([*sources, *downloads], options.output, config, release=release).print(Console())


def _held_out(text: str) -> tuple[str, ...]:
    """Return the Pfam ids of a value of --held-out."""
    from proteinlm.data.families.ids import PAPER_HELD_OUT_FAMILIES, check_families, read_held_out

    if text == "paper":
        return PAPER_HELD_OUT_FAMILIES
    if text == "none":
        return ()
    return read_held_out(text) if Path(text).is_file() else check_families(text.split(","), "--held-out")
