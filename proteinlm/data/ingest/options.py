"""The options of `proteinlm ingest`, in the groups that its help shows; nothing heavy is imported here."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar

import docstring_parser
import tyro

# tyro keeps the break before a line that begins with a space.
_PAGE = """Turn protein sequences into a deduplicated, split dataset that plain TFDS opens.

Sources
  FASTA files (UniProt, UniRef, isoforms, any other) and UniProtKB flat files,
  plain, .gz or .zst, in any mixture; told apart by what is in them, not by
  their names. Several files and quoted patterns ('up/*.fasta.gz',
  '**/*.dat.gz') are taken, gs:// and s3:// URLs (after
  pip install 'proteinlm[cloud]'), and tar://MEMBER::ARCHIVE for one file of a
  tar archive, which is read without being unpacked. --release downloads from
  UniProt. The word sample stands for 4,509 real proteins that come along.

What becomes of them
  Copies of one sequence become one record with all their accessions and
  families. A record whose families meet the held-out list is ood; every other
  is put into train, valid or test by the digest of its sequence, unless the
  options of splits decide. The dataset depends on the content of the files and
  on the options, neither on their order nor on the number of workers.

Splits by distance
  With --split-identity 0.5 no sequence of train is 50 % identical, or more, to
  one of valid, test or ood. MMseqs2 makes clusters, each goes whole to one
  side; then all of valid, test and ood is searched against all of train, and
  what is that near leaves train, until a search finds nothing. The manifest
  lists it as near; it is in no split. Identity is that of MMseqs2's local
  alignment: identical columns over all columns, gaps included (--seq-id-mode
  0). An alignment counts if it covers 80 % of one of its two sequences
  (--cov-mode 1 or 2, -c 0.8), whatever its E-value. Sequences below 30 residues
  cannot be searched for well enough and are near too.

What is wrong
  A record with a letter that is no residue, or with another length or CRC64
  than its entry says, is rejected, counted, and listed in rejects.tsv with its
  number and the reason. A file that is cut short, damaged, named twice or no
  file of proteins stops the ingest with one sentence.

What is stopped
  OUTPUT appears whole or not at all; .OUTPUT.partial beside it holds what is
  unfinished. An ingest that was killed, or had no room or memory left, goes on
  with the same command: sources that were read to their end, sorted buckets and
  written files are kept, but for the last seconds. With other sources or
  options it is refused until you remove that folder. Ctrl-C removes it. With
  --engine beam a job that was stopped begins anew.

What it needs
  Disk, on that of OUTPUT: about three times the text of the sequences, of which
  two thirds are given back at the end. Memory does not grow with the sources.
  While MMseqs2 works, --split-identity takes four times the text more, memory
  for its index, and an hour on two cores for half a million sequences.

OUTPUT holds
  *.array_record-*, dataset_info.json, features.json   the dataset, for TFDS
  datasheet.md .html      what it holds, where it comes from, how it is split
  manifest.parquet        accessions, families, split, length of every sequence
  statistics.json         counts, lengths and residues of every split
  provenance.json         sources and tables with MD5, release, count of rejects
  rejects.tsv             records that were not taken, and why
  identity.md .json .png .pdf .parquet   with --split-identity: how near train
                          is to each other split, before and after
  unmatched.tsv           with --splits: what only one side has
  families_rejects.tsv    proteins of which a table knows another version

Exit status
  0; 2 for what you can mend, after one sentence; 130 after Ctrl-C.

Examples
  The proteins that come along:
    proteinlm ingest sample --output data/sample --valid 0.05 --test 0.1
  Swiss-Prot as downloaded, families from its DR lines:
    proteinlm ingest uniprot_sprot.dat.gz --output data/sprot
  The Performer paper's dataset:
    proteinlm ingest --release 2019_01 --section trembl --output data/trembl
  UniRef50 in parts, families from Pfam's own table:
    proteinlm ingest 'gs://bucket/uniref50/*.fasta.zst' --output data/uniref50 \\
        --families Pfam-A.regions.uniprot.tsv.gz
  No protein of train within 50 % of one that is evaluated:
    proteinlm ingest uniprot_sprot.dat.gz --output data/sprot50 \\
        --split-identity 0.5
  The same splits again, from another's manifest:
    proteinlm ingest uniprot_sprot.dat.gz --output data/again \\
        --splits published/manifest.parquet
  Your own proteins, families by search, two of them held out:
    proteinlm ingest mine/*.fasta --pfam-hmm Pfam-A.hmm.gz --output data/mine \\
        --held-out PF04420,PF03938
  On a cluster, into a folder that all its machines have mounted:
    proteinlm ingest 'gs://bucket/trembl/*.dat.gz' --output /mnt/shared/trembl \\
        --engine beam --beam-args "--runner=DataflowRunner --region=..."
"""

_NONE = "(default: none)"

Options = TypeVar("Options", bound=type)


def described(options: Options) -> Options:
    """Give tyro each field's text as one paragraph; it would keep the line breaks of the source."""
    for parameter in docstring_parser.parse_from_object(options).params:
        text = " ".join((parameter.description or "").split())
        kind = options.__annotations__[parameter.arg_name]
        options.__annotations__[parameter.arg_name] = Annotated[kind, tyro.conf.arg(help=text)]
    return options


@described
@dataclass(frozen=True)
class ReleaseOptions:
    """Download a release of UniProtKB: with resume, checked against the release's own list of MD5 checksums."""

    release: Annotated[str | None, tyro.conf.arg(metavar="current|YYYY_MM", help_behavior_hint=_NONE)] = None
    """`current`, or YYYY_MM. UniProt keeps the releases of two years, and the first one of every year (2019_01, the
    one of the Performer paper). What is downloaded is a source beside those that are named."""
    section: Annotated[
        tuple[Literal["sprot", "trembl"], ...],
        tyro.conf.arg(metavar="sprot|trembl ...", help_behavior_hint="(needed with --release)"),
    ] = ()
    """Part of UniProtKB: sprot (Swiss-Prot, below 1 GB), trembl (some 100 GB), or both."""
    format: Literal["dat", "fasta"] = "dat"
    """dat: flat file, with Pfam families. fasta: smaller, without; an archived release is one archive of both."""
    downloads: Annotated[
        Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: uniprot_downloads beside OUTPUT)")
    ] = None
    """Folder that keeps the downloads, so that a broken one goes on and a second ingest asks for nothing."""
    release_url: Annotated[str, tyro.conf.arg(metavar="URL")] = "https://ftp.uniprot.org/pub/databases/uniprot"
    """Mirror: the folder that holds current_release. https://ftp.ebi.ac.uk/pub/databases/uniprot and
    https://ftp.expasy.org/databases/uniprot are others; file:///DIR is read where it is."""


@described
@dataclass(frozen=True)
class FamilyOptions:
    """Pfam families of the proteins; those of DR lines in flat files are read without being asked for."""

    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint=_NONE)] = ()
    """Tables of families, added to those of DR Pfam lines: accession <tab> PF ids separated by `;`,
    Pfam-A.regions.uniprot.tsv.gz (its CRC64 is checked against the sequence) or protein2ipr.dat.gz, told apart by
    what they hold. They may be larger than memory."""
    pfam_hmm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint=_NONE)] = ()
    """Pfam-A.hmm or a part of it: each distinct sequence without a family is searched with gathering cutoffs. Needs
    pyhmmer (pip install 'proteinlm[pfam]'). All of Pfam-A takes about 0.2 core seconds a sequence."""
    pfam_hmm_all: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: no)")] = False
    """Search the sequences that have a family as well."""


@described
@dataclass(frozen=True)
class SplitOptions:
    """Which proteins are train, valid, test and ood (out of distribution). No sequence is on two sides."""

    held_out: Annotated[str, tyro.conf.arg(metavar="paper|none|PF00001,...|FILE")] = "paper"
    """Families whose proteins are `ood`: `paper` (the 20 of the Performer paper), `none`, PF ids separated by commas,
    or a file with one PF id a line (the rest of a line after # is a comment)."""
    valid: Annotated[float, tyro.conf.arg(metavar="FRACTION")] = 0.001
    """Fraction, from 0 to 1, of the other sequences that is put into valid."""
    test: Annotated[float, tyro.conf.arg(metavar="FRACTION")] = 0.01
    """Fraction, from 0 to 1, of the other sequences that is put into test."""
    split_identity: Annotated[
        float | None, tyro.conf.arg(metavar="FRACTION", help_behavior_hint="(default: splits by digest)")
    ] = None
    """Splits by distance: no sequence of train is this identical, above 0 to 1, or more, to one of another split; see
    above. At 0.3 MMseqs2 overlooks some 0.3 % of the pairs. Needs MMseqs2 (apt-get install mmseqs2, or conda)."""
    splits: Annotated[Path | None, tyro.conf.arg(metavar="MANIFEST", help_behavior_hint=_NONE)] = None
    """manifest.parquet of a published dataset: each sequence gets the split that it has there, found by its digest;
    the other options of this group do not count. A sequence that the manifest lacks gets none: it is left out, counted
    and listed in unmatched.tsv, like what the manifest has and the sources have not."""


@described
@dataclass(frozen=True)
class EngineOptions:
    """How the work is done; nothing of this changes the dataset, except into how many files it is cut."""

    engine: Literal["local", "beam"] = "local"
    """local: the processes of this machine. beam: Apache Beam, on a cluster or here, with the same dataset, byte for
    byte. All of its machines must reach the sources and OUTPUT, a folder of a shared file system, by the same names.
    Needs pip install 'proteinlm[beam]'."""
    beam_args: Annotated[str, tyro.conf.arg(metavar="ARGS", help_behavior_hint="(default: here, in memory)")] = ""
    """Beam's pipeline options in quotes, as "--runner=FlinkRunner --flink_master=HOST:8081". Workers need the same
    proteinlm, most simply in their container (--sdk_container_image)."""
    workers: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Processes of the local engine; 0 means one a core, 1 starts none. It may change from one start to the next."""
    shards: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Files a split is cut into, equal parts in the order of the digests; 0 makes one for each 256 MiB."""


@described
@dataclass(frozen=True)
class Ingest:
    """Turn protein sequences into a deduplicated, split dataset."""

    output: Annotated[Path, tyro.conf.arg(metavar="OUTPUT")]
    """Folder to write; it must not exist, or be empty."""
    sources: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SOURCE ...]", help_behavior_hint="")
    ] = ()
    """Files, quoted patterns, gs:// or s3:// URLs, tar://MEMBER::ARCHIVE, or sample. May be left out with --release."""
    name: Annotated[str, tyro.conf.arg(metavar="NAME")] = "proteins"
    """Name of the dataset, as TFDS shows it: small letters, digits and _."""
    release: ReleaseOptions = field(default_factory=ReleaseOptions)
    family: FamilyOptions = field(default_factory=FamilyOptions)
    split: SplitOptions = field(default_factory=SplitOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)


def parse_ingest(arguments: Sequence[str]) -> SimpleNamespace:
    """Return the fields of `Ingest` and of its groups, all on one level, as `ingest_command` takes them."""
    given = tyro.cli(
        Ingest,
        args=_glued(arguments),
        prog="proteinlm ingest",
        description=_PAGE,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    return SimpleNamespace(**_flat(given))


def _glued(arguments: Sequence[str]) -> list[str]:
    """Write `--beam-args VALUE` as one argument: a value that begins with -- would be taken for an option."""
    glued: list[str] = []
    for argument in arguments:
        if glued and glued[-1] in ("--beam-args", "--beam_args"):
            glued[-1] += f"={argument}"
        else:
            glued.append(argument)
    return glued


def _flat(options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in dataclasses.fields(options):
        value = getattr(options, entry.name)
        found.update(_flat(value) if dataclasses.is_dataclass(value) else {entry.name: value})
    return found
