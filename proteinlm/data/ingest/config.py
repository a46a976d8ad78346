"""What a dataset is made of besides its sources."""

import os
import re
from dataclasses import dataclass, field
from typing import Literal

from proteinlm.data.sources.files import BLOCK_BYTES
from proteinlm.data.splits.rules import SplitsConfig
from proteinlm.errors import InputError, check_range

_MAX_BUCKETS = 1 << 14


@dataclass(frozen=True)
class IngestConfig:
    """What a dataset is made of besides its sources; what follows `shards` changes nothing of it.

    Attributes:
        splits: fractions and held-out families.
        families: tables of families (see pfam_formats.py), added to those of DR lines.
        profiles: files of Pfam's profiles that sequences without a family are searched with (hmm.py).
        search_all: search those that have one as well.
        name: the dataset's name in TFDS.
        shards: files a split is cut into (at most one a sequence); 0 takes one for each 256 MiB.
        engine: "local", the processes of this machine, or "beam", Apache Beam (ingest_beam.py).
        beam_args: Beam's pipeline options, as on a command line; empty for this machine's memory.
        workers: processes of the local engine; 0 takes one a core, 1 starts none.
        block_bytes: text that one process parses at a time.
        bucket_bytes: text that a bucket is meant for; a process holds one bucket at a time, in about four
            times this.
    """

    splits: SplitsConfig = field(default_factory=SplitsConfig)
    families: tuple[str | os.PathLike, ...] = ()
    profiles: tuple[str | os.PathLike, ...] = ()
    search_all: bool = False
    name: str = "proteins"
    shards: int = 0
    engine: Literal["local", "beam"] = "local"
    beam_args: str = ""
    workers: int = 0
    block_bytes: int = BLOCK_BYTES
    bucket_bytes: int = 32 << 20

    def __post_init__(self):
        if not re.fullmatch(r"[a-z][a-z0-9_]{,99}", self.name):
            raise InputError(
                f"the name {self.name!r} is no TFDS name: small letters, digits and _, a letter first, at most 100."
            )
        if self.search_all and not self.profiles:
            raise InputError("--pfam-hmm-all needs profiles to search with: name them with --pfam-hmm.")
        if self.beam_args and self.engine != "beam":
            raise InputError("--beam-args needs --engine beam.")
        for name, least in (("shards", 0), ("workers", 0), ("block_bytes", 1), ("bucket_bytes", 1)):
            check_range(name, getattr(self, name), at_least=least)

    def num_buckets(self, text_bytes: int) -> int:
        """Return the number of buckets, a power of two, for `text_bytes` bytes of uncompressed sources."""
        buckets = max(1, -(-text_bytes // self.bucket_bytes))
        return min(1 << (buckets - 1).bit_length(), _MAX_BUCKETS)

    @property
    def num_workers(self) -> int:
        """Number of processes to start."""
        return self.workers or len(os.sched_getaffinity(0))
