"""Settings of an ingest: everything that the dataset depends on besides the sources, and how the work is done."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from proteinlm.data.sources.files import BLOCK_BYTES
from proteinlm.data.splits.rules import SplitsConfig
from proteinlm.errors import InputError, check_range

_MAX_BUCKETS = 1 << 14


@dataclass(frozen=True)
class IngestConfig:
    """Settings of an ingest; the help of `proteinlm ingest` shows the descriptions of the fields.

    The fields after `shards` do not change the dataset.

    Attributes:
        splits: settings of the splits.
        families: tables of families, added to those of DR Pfam lines: accession <tab> PF ids separated by `;`,
            Pfam-A.regions.uniprot.tsv.gz (its CRC64 is checked against the sequence) or protein2ipr.dat.gz. The
            content of a table decides its format. A table may be larger than memory.
        profiles: Pfam-A.hmm or a part of it. Each distinct sequence without a family is searched, with the gathering
            cutoffs. Needs pyhmmer (pip install 'proteinlm[pfam]'). All of Pfam-A takes about 0.2 core seconds a
            sequence.
        search_all: search the sequences that have a family too.
        name: name of the dataset in TFDS: small letters, digits and _.
        shards: number of files of each split, equal parts in the order of the digests; 0 makes one for each 256 MiB.
        engine: processes of this machine (local), or Apache Beam, on a cluster or here (beam). Both write the same
            dataset, byte for byte. With Beam, all machines must reach the sources and OUTPUT, a folder of a shared file
            system, by the same names. Needs pip install 'proteinlm[beam]'.
        beam_args: pipeline options of Beam in quotes, such as "--runner=FlinkRunner --flink_master=HOST:8081". Workers
            need the same version of proteinlm, most simply in their container (--sdk_container_image).
        workers: number of processes of the local engine; 0 starts one for each core, 1 starts none. It may change
            when an interrupted ingest is continued.
        block_bytes: size in bytes of the text that one process parses at a time.
        bucket_bytes: intended size in bytes of the text of a bucket; a process holds one bucket, in about four times
            this memory.
    """

    splits: SplitsConfig = field(default_factory=SplitsConfig)
    families: tuple[str | Path, ...] = ()
    profiles: tuple[str | Path, ...] = ()
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
                f"the name {self.name!r} is no name of a TFDS dataset: use at most 100 small letters, digits and _, "
                "a letter first."
            )
        if self.search_all and not self.profiles:
            raise InputError("--pfam-hmm-all needs profiles: name them with --pfam-hmm.")
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
