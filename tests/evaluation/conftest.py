"""What several tests of evaluation need."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proteinlm.data.dataset.dataset import ProteinDataset


def _with_identities(folder, source, *, leave_out=0):
    shutil.copytree(source, folder)
    dataset = ProteinDataset.open(folder)
    digests, splits, after = [], [], []
    for split in ("ood", "valid", "test"):
        for row, digest in enumerate(dataset.digests(split)[::-1]):
            digests.append(digest.tobytes())
            splits.append(split)
            after.append(None if row % 3 == 0 else (row % 10) / 10)
    table = pa.table(
        {
            "digest": pa.array(digests, pa.binary(16)), "split": splits,
            "before": pa.array(after, pa.float32()), "after": pa.array(after, pa.float32()),
        }
    )  # fmt: skip
    pq.write_table(table.slice(leave_out), folder / "identity.parquet")
    return dataset, dict(zip(digests, after, strict=True))


@pytest.fixture(scope="session")
def with_identities():
    """A function that copies a dataset and adds an identity.parquet as ingest --split-identity writes it, in another
    order. It returns the dataset and the identities by digest."""
    return _with_identities
