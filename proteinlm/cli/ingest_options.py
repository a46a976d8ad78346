"""Options of `proteinlm ingest`, read from the dataclasses of its settings, and its page of help."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import docstring_parser
import tyro

from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.splits.rules import SplitsConfig

# tyro keeps the break before a line that begins with a space.
_PAGE = """Turn protein sequences into a deduplicated, split dataset that plain TFDS opens.

Sources
  FASTA files (UniProt, UniRef, isoforms, any other) and UniProtKB flat files,
  plain, .gz or .zst, in any mixture. The content of a file decides its format,
  not its name. A source is a file, a quoted pattern ('up/*.fasta.gz',
  '**/*.dat.gz'), a gs:// or s3:// URL (after pip install 'proteinlm[cloud]'),
  or tar://MEMBER::ARCHIVE for one file of a tar archive, which is read without
  unpacking. --release downloads from UniProt. The word sample stands for 4,509
  real proteins that are part of the package.

Deduplication and splits
  Copies of one sequence become one record with all their accessions and
  families. A record with a family of the held-out list is ood. The digest of
  its sequence puts any other record into train, valid or test, unless an option
  says otherwise. The dataset depends on the content of the files and on the
  options, but not on the order of the files or the number of workers.

Splits by distance
  With --split-identity 0.5 no sequence of train is 50 % or more identical to a
  sequence of valid, test or ood. MMseqs2 clusters the sequences, and each
  cluster goes to one split. Then all of valid, test and ood is searched against
  all of train, and the sequences of train that are too similar are removed,
  until a search finds none. The manifest lists them as near; they are in no
  split. Identity is that of the local alignment of MMseqs2: identical columns
  over all columns, gaps included (--seq-id-mode 0). An alignment counts if it
  covers 80 % of one of its two sequences (--cov-mode 1 or 2, -c 0.8), whatever
  its E-value. Sequences below 30 residues are too short for the search and are
  near too.

Errors in the sources
  A record is rejected if it has a letter that is no residue, or another length
  or CRC64 than its entry says. Rejected records are counted, and listed in
  rejects.tsv with their number and the reason. A file that is truncated,
  damaged, named twice or no file of proteins ends the ingest with a message.

Interruption
  OUTPUT appears only when it is complete. Unfinished work is in .OUTPUT.partial
  beside it. If an ingest is killed or runs out of disk space or memory, the
  same command continues it: sources that were read to their end, sorted buckets
  and written files are kept, except those of the last seconds. With other
  sources or options the command fails until you remove that folder. Ctrl-C
  removes it. With --engine beam an interrupted job starts from the beginning.

Resources
  Disk space where OUTPUT is: about three times the text of the sequences; two
  thirds of it are free again at the end. Memory does not grow with the sources.
  --split-identity takes four times the text more while MMseqs2 runs, memory for
  its index, and an hour on two cores for half a million sequences.

OUTPUT holds
  *.array_record-*, dataset_info.json, features.json   the dataset, for TFDS
  datasheet.md .html      content, origin and splits of the dataset
  manifest.parquet        accessions, families, split, length of every sequence
  statistics.json         counts, lengths and residues of every split
  provenance.json         sources and tables with MD5, release, count of rejects
  rejects.tsv             rejected records, with reasons
  identity.md .json .png .pdf .parquet   with --split-identity: identity of each
                          split to train, before and after the removal
  unmatched.tsv           with --splits: sequences that only the sources or only
                          the manifest has
  families_rejects.tsv    proteins of which a table has another version

Exit status
  0; 2 after an error that you can fix, with a message; 130 after Ctrl-C.

Examples
  The proteins of the package:
    proteinlm ingest sample --output data/sample --valid 0.05 --test 0.1
  Swiss-Prot as downloaded, families from its DR lines:
    proteinlm ingest uniprot_sprot.dat.gz --output data/sprot
  The Performer paper's dataset:
    proteinlm ingest --release 2019_01 --section trembl --output data/trembl
  UniRef50 in parts, families from Pfam's own table:
    proteinlm ingest 'gs://bucket/uniref50/*.fasta.zst' --output data/uniref50 \\
        --families Pfam-A.regions.uniprot.tsv.gz
  No protein of train 50 % or more identical to an evaluated one:
    proteinlm ingest uniprot_sprot.dat.gz --output data/sprot50 \\
        --split-identity 0.5
  The splits of a published dataset, from its manifest:
    proteinlm ingest uniprot_sprot.dat.gz --output data/again \\
        --splits published/manifest.parquet
  Your own proteins, families by search, two of them held out:
    proteinlm ingest mine/*.fasta --pfam-hmm Pfam-A.hmm.gz --output data/mine \\
        --held-out PF04420,PF03938
  On a cluster, into a folder that all its machines mount:
    proteinlm ingest 'gs://bucket/trembl/*.dat.gz' --output /mnt/shared/trembl \\
        --engine beam --beam-args "--runner=DataflowRunner --region=..."
"""

_NONE = "(default: none)"
_NO_PREFIX = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)

Options = TypeVar("Options", bound=type)


def _descriptions(options: type) -> dict[str, str]:
    """Return the description of each field of a dataclass, from its docstrings, as one paragraph."""
    parameters = docstring_parser.parse_from_object(options).params
    return {one.arg_name: " ".join((one.description or "").split()) for one in parameters}


def _described(options: Options) -> Options:
    """Give tyro the descriptions of the fields; by itself it would keep the line breaks of the source."""
    for name, text in _descriptions(options).items():
        options.__annotations__[name] = Annotated[options.__annotations__[name], tyro.conf.arg(help=text)]
    return options


def _group(config: type, title: str, arguments: dict[str, dict[str, Any]]) -> Any:
    """Return a group of options: fields of a config, with its types, defaults and descriptions.

    Args:
        config: a dataclass.
        title: first line of the group in the help.
        arguments: for each field, what its option has besides: arguments of `tyro.conf.arg`, or another `type` and
            `default`.
    """
    descriptions, types = _descriptions(config), get_type_hints(config)
    defaults = {entry.name: entry.default for entry in fields(config)}
    options = []
    for name, argument in arguments.items():
        kind, default = argument.pop("type", types[name]), argument.pop("default", defaults[name])
        text = descriptions[name][:1].upper() + descriptions[name][1:]
        options.append((name, Annotated[kind, tyro.conf.arg(help=text, **argument)], default))
    return make_dataclass(config.__name__, options, namespace={"__doc__": title}, frozen=True)


_FAMILIES = _group(
    IngestConfig,
    "Pfam families of the proteins. Families in DR lines of flat files are always read.",
    {
        "families": {"metavar": "FILE ...", "help_behavior_hint": _NONE},
        "profiles": {"name": "pfam-hmm", "metavar": "FILE ...", "help_behavior_hint": _NONE},
        "search_all": {"name": "pfam-hmm-all", "help_behavior_hint": "(default: no)"},
    },
)
_SPLITS = _group(
    SplitsConfig,
    "Which proteins are train, valid, test and ood (out of distribution). No sequence is in two splits.",
    {
        "held_out": {"metavar": "paper|none|PF00001,...|FILE", "type": str, "default": "paper"},
        "valid": {"metavar": "FRACTION"},
        "test": {"metavar": "FRACTION"},
        "identity": {
            "name": "split-identity", "metavar": "FRACTION", "help_behavior_hint": "(default: splits by digest)",
        },
        "manifest": {"name": "splits", "metavar": "MANIFEST", "help_behavior_hint": _NONE},
    },
)  # fmt: skip
_ENGINE = _group(
    IngestConfig,
    "How the work is done. The dataset stays the same, except for its number of files.",
    {
        "engine": {},
        "beam_args": {"metavar": "ARGS", "help_behavior_hint": "(default: this machine, in memory)"},
        "workers": {"metavar": "N"},
        "shards": {"metavar": "N"},
    },
)


@_described
@dataclass(frozen=True)
class ReleaseOptions:
    """Download a release of UniProtKB. A broken download is resumed; files are checked against the list of MD5s."""

    release: Annotated[str | None, tyro.conf.arg(metavar="current|YYYY_MM", help_behavior_hint=_NONE)] = None
    """`current`, or YYYY_MM. UniProt keeps the releases of the last two years, and the first one of every year (2019_01
    is that of the Performer paper). The download is added to the named sources."""
    section: Annotated[
        tuple[Literal["sprot", "trembl"], ...],
        tyro.conf.arg(metavar="sprot|trembl ...", help_behavior_hint="(needed with --release)"),
    ] = ()
    """Part of UniProtKB: sprot (Swiss-Prot, below 1 GB), trembl (some 100 GB), or both."""
    format: Literal["dat", "fasta"] = "dat"
    """dat: flat file, with Pfam families. fasta: smaller, without families. An archived release is one archive that
    holds both."""
    downloads: Annotated[
        Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: uniprot_downloads beside OUTPUT)")
    ] = None
    """Folder that keeps the downloads, to resume a broken download and to reuse a complete one."""
    release_url: Annotated[str, tyro.conf.arg(metavar="URL")] = "https://ftp.uniprot.org/pub/databases/uniprot"
    """Mirror: the folder that holds current_release, such as https://ftp.ebi.ac.uk/pub/databases/uniprot or
    https://ftp.expasy.org/databases/uniprot. The files of file:///DIR are read in place."""


@_described
@dataclass(frozen=True)
class Ingest:
    """Turn protein sequences into a deduplicated, split dataset."""

    output: Annotated[Path, tyro.conf.arg(metavar="OUTPUT")]
    """Folder of the dataset; it must not exist, or be empty."""
    sources: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SOURCE ...]", help_behavior_hint="")
    ] = ()
    """Files, quoted patterns, gs:// or s3:// URLs, tar://MEMBER::ARCHIVE, or sample. Optional with --release."""
    name: Annotated[str, tyro.conf.arg(metavar="NAME")] = IngestConfig.name
    """Name of the dataset in TFDS: small letters, digits and _."""
    release: ReleaseOptions = field(default_factory=ReleaseOptions)
    family: _FAMILIES = field(default_factory=_FAMILIES)
    split: _SPLITS = field(default_factory=_SPLITS)
    engine: _ENGINE = field(default_factory=_ENGINE)


def parse_ingest(arguments: Sequence[str]) -> Ingest:
    """Return the options of the command line, in their groups."""
    return tyro.cli(Ingest, args=_joined(arguments), prog="proteinlm ingest", description=_PAGE, config=_NO_PREFIX)


def _joined(arguments: Sequence[str]) -> list[str]:
    """Join `--beam-args VALUE` to one argument, since tyro would read a value that begins with -- as an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in ("--beam-args", "--beam_args"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
