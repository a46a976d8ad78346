"""Results of each sequence, one row each, beside the dataset's columns of it, as a Parquet file."""

from collections.abc import Mapping, Sequence
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
_COLUMNS = ("accession", "digest", "length", "families")


def sequence_facts(dataset: ProteinDataset, split: str, columns: Sequence[str] = ()) -> pa.Table:
    """Return a dataset's columns of the sequences of a split, in the split's order.

    They are accession, digest, length, families and identity. `identity` is a fraction (float32): that to the nearest
    sequence of train, null where there is no alignment. It is there if the dataset was split by identity, and not for
    train.

    Args:
        dataset: the dataset.
        split: name of the split.
        columns: further columns of the manifest, such as taxon; others are ignored.

    Raises:
        InputError: files of the dataset do not fit each other.
    """
    chosen = dict.fromkeys((*_COLUMNS, *(name for name in columns if name in MANIFEST_SCHEMA.names)))
    facts = pq.read_table(
        dataset.path / MANIFEST, schema=MANIFEST_SCHEMA, columns=list(chosen), filters=[("split", "=", split)]
    )
    if len(facts) != dataset.counts[split]:
        raise InputError(
            f"{dataset.path} is damaged: its manifest has {len(facts)} sequences of {split}, its statistics "
            f"{dataset.counts[split]}; ingest it again."
        )
    if split == "train" or not (dataset.path / _IDENTITY_FILE).is_file():
        return facts
    identities = pq.read_table(
        dataset.path / _IDENTITY_FILE, columns=["digest", "after"], filters=[("split", "=", split)]
    )
    index_in = pc.index_in  # pyright: ignore[reportAttributeAccessIssue] (pyarrow defines it when it is imported)
    rows = index_in(facts["digest"].combine_chunks(), identities["digest"].combine_chunks())
    if rows.null_count:
        raise InputError(
            f"{dataset.path} is damaged: {_IDENTITY_FILE} lacks {rows.null_count} of its {len(facts)} sequences of "
            f"{split}; ingest it again."
        )
    return facts.append_column("identity", identities["after"].combine_chunks().take(rows))


def write_sequences(
    path: Path,
    results: Mapping[str, tuple[np.ndarray, Sums]],
    facts: Mapping[str, pa.Table],
    about: Mapping[str, object],
) -> None:
    """Write one row a sequence: split, row in the split, columns of `sequence_facts`, nll (nats), correct and count.

    Args:
        path: path of the file.
        results: by split: rows of the sequences in the split, int [N], and their sums over residues, fields [N].
        facts: by split: from `sequence_facts`.
        about: the run and the definition of the sums, kept as the file's metadata.
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
    metadata = {str(k): str(v) for k, v in about.items()}
    with whole_file(path, "wb") as handle:
        pq.write_table(table.replace_schema_metadata(metadata), handle)
