"""What an evaluation found of each sequence, beside what the dataset knows of it; one row each, as Parquet."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from proteinlm.data.dataset.dataset import MANIFEST, MANIFEST_SCHEMA, ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation.metrics import Sums
from proteinlm.output.files import whole_file

SEQUENCES_FILE = "sequences.parquet"
_IDENTITY_FILE = "identity.parquet"
_KNOWN = ("accession", "digest", "length", "families")


def sequence_facts(dataset: ProteinDataset, split: str) -> pa.Table:
    """Return what a dataset knows of a split's sequences, in its order: accession, digest, length, families, identity.

    `identity`, a fraction (float32), is that to the nearest sequence of train, null where no alignment counts; the
    column is there if the dataset was split by identity, and not for train.
    """
    facts = pq.read_table(
        dataset.path / MANIFEST, schema=MANIFEST_SCHEMA, columns=list(_KNOWN), filters=[("split", "=", split)]
    )
    if len(facts) != dataset.counts[split]:
        raise InputError(
            f"{dataset.path} is damaged: its manifest has {len(facts)} sequences of {split}, its statistics "
            f"{dataset.counts[split]}; ingest it again."
        )
    if split == "train" or not (dataset.path / _IDENTITY_FILE).is_file():
        return facts
    found = pq.read_table(dataset.path / _IDENTITY_FILE, columns=["digest", "after"], filters=[("split", "=", split)])
    index_in = pc.index_in  # pyright: ignore[reportAttributeAccessIssue] (made when the module is imported)
    place = index_in(facts["digest"].combine_chunks(), found["digest"].combine_chunks())
    if place.null_count:
        raise InputError(
            f"{dataset.path} is damaged: {_IDENTITY_FILE} lacks {place.null_count} of its {len(facts)} sequences of "
            f"{split}; ingest it again."
        )
    return facts.append_column("identity", found["after"].combine_chunks().take(place))


def write_sequences(
    path: Path,
    results: Mapping[str, tuple[np.ndarray, Sums]],
    facts: Mapping[str, pa.Table],
    about: Mapping[str, object],
) -> None:
    """Write one row a sequence: split, row in it, what `sequence_facts` gives, nll (nats), correct and count.

    Args:
        path: of the file.
        results: of each split, the sequences' numbers in it, int [N], and their sums over residues, fields [N].
        facts: of each split.
        about: of the run; kept as the file's metadata, with what the sums are of.
    """
    parts = []
    for split, (rows, sums) in results.items():
        order = np.argsort(rows)
        columns = {
            "split": pa.array([split] * len(rows), pa.string()),
            "row": pa.array(rows[order], pa.int64()),
            **{name: facts[split][name].take(pa.array(rows[order])) for name in facts[split].column_names},
            "nll": pa.array(np.asarray(sums.nll)[order], pa.float64()),
            "correct": pa.array(np.asarray(sums.correct)[order].astype(np.int32)),
            "count": pa.array(np.asarray(sums.count)[order].astype(np.int32)),
        }
        parts.append(pa.table(columns))
    if not parts:
        return
    table = pa.concat_tables(parts, promote_options="default")
    kept = {str(k): str(v) for k, v in about.items()}
    with whole_file(path, "wb") as handle:
        pq.write_table(table.replace_schema_metadata(kept), handle)
