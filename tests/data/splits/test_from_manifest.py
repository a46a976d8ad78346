import hashlib
import json
import random
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proteinlm.cli.main import main
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.ingest import ingest
from proteinlm.data.splits.assignments import look_up, save_unmatched
from proteinlm.data.splits.from_manifest import assign_from_manifest, write_unmatched
from proteinlm.data.splits.rules import LISTED, SplitsConfig
from proteinlm.errors import InputError

DIGESTS = [hashlib.md5(b"%d" % i).digest() for i in range(300)]
SPLITS = [LISTED[i % 5] for i in range(300)]


def manifest(path, **columns):
    given = {"digest": pa.array(DIGESTS, pa.binary(16)), "split": pa.array(SPLITS).dictionary_encode()}
    given.update(columns)
    pq.write_table(pa.table({name: column for name, column in given.items() if column is not None}), path)
    return path


def rows(values):
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, 16)


@pytest.mark.parametrize("num_buckets", [1, 16])
@pytest.mark.parametrize(
    "columns",
    [{}, {"digest": pa.array(DIGESTS, pa.binary())}, {"split": pa.array(SPLITS)}, {"more": pa.array(range(300))}],
    ids=["as written", "digest of any length", "plain text", "another column"],
)
def test_every_sequence_is_looked_up_in_the_manifest(tmp_path, columns, num_buckets, monkeypatch):
    monkeypatch.setattr("proteinlm.data.splits.from_manifest._BATCH", 7)
    path = manifest(tmp_path / "m.parquet", **columns)
    given = assign_from_manifest(path, tmp_path, num_buckets)
    assert given.to_json() == {
        "path": str(path), "bytes": path.stat().st_size, "md5": hashlib.md5(path.read_bytes()).hexdigest(),
        "sequences": 300,
    }  # fmt: skip
    wanted = dict(zip(DIGESTS, SPLITS, strict=True))
    found = {}
    for bucket in range(num_buckets):
        own = sorted(value for value in DIGESTS if value[0] * num_buckets >> 8 == bucket)
        looked_up = look_up(tmp_path, bucket, rows(own))
        assert looked_up is not None
        assert not len(looked_up.absent)
        found.update((value, LISTED[code]) for value, code in zip(own, looked_up.codes, strict=True))
    assert found == wanted


def test_what_only_one_side_has_is_listed(tmp_path):
    assign_from_manifest(manifest(tmp_path / "m.parquet"), tmp_path, 1)
    digests = rows(sorted([*DIGESTS[2:], b"new!" * 4]))
    found = look_up(tmp_path, 0, digests)
    assert found is not None
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    save_unmatched(folders[1], found, digests, [b"P%d" % i for i in range(len(digests))])
    assert write_unmatched(folders, tmp_path / "unmatched.tsv") == (1, 2)
    place = digests.tolist().index(list(b"new!" * 4))
    assert (tmp_path / "unmatched.tsv").read_text().splitlines() == [
        "side\taccession\tdigest",
        f"not in the published split\tP{place}\t{(b'new!' * 4).hex()}",
        *(f"not in the sources\t\t{value.hex()}" for value in sorted(DIGESTS[:2])),
    ]


def test_nothing_is_written_where_both_have_the_same(tmp_path):
    assert write_unmatched([tmp_path], tmp_path / "unmatched.tsv") == (0, 0)
    assert not (tmp_path / "unmatched.tsv").exists()


class TestRefusals:
    def check(self, path, message):
        with pytest.raises(InputError, match=message) as caught:
            assign_from_manifest(path, path.parent, 4)
        assert str(path) in str(caught.value)

    def test_no_file_or_a_folder(self, tmp_path):
        self.check(tmp_path / "absent.parquet", "there is no manifest")
        (tmp_path / "folder").mkdir()
        self.check(tmp_path / "folder", r"is a folder: give the manifest\.parquet in it")

    def test_no_parquet_and_half_of_one(self, tmp_path):
        path = manifest(tmp_path / "m.parquet")
        path.write_bytes(path.read_bytes()[:-100])
        self.check(path, "cannot be read as a manifest")
        path.write_text("accession\tsplit\n")
        self.check(path, "cannot be read as a manifest")

    def test_bytes_that_were_changed(self, tmp_path):
        path = manifest(tmp_path / "m.parquet")
        content = bytearray(path.read_bytes())
        content[8:200] = bytes(192)
        path.write_bytes(content)
        self.check(path, "cannot be read as a manifest")

    @pytest.mark.parametrize("column", ["digest", "split"])
    def test_a_missing_column(self, tmp_path, column):
        self.check(manifest(tmp_path / "m.parquet", **{column: None}), f"lacks the column {column}; it has ")

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"digest": pa.array([value.hex() for value in DIGESTS])}, "column digest of .* is string"),
            ({"digest": pa.array([*DIGESTS[:8], b"short", *DIGESTS[9:]])}, "row 8 of .* has 5 bytes for a digest"),
            ({"digest": pa.array([*DIGESTS[:8], None, *DIGESTS[9:]], pa.binary(16))}, "row 8 of .* has none for"),
            ({"split": pa.array(range(300))}, "column split of .* is int64"),
            (
                {"split": pa.array([*SPLITS[:200], "dev", *SPLITS[201:]])},
                "row 200 of .* has the split 'dev'; it must be one of",
            ),
            ({"split": pa.array([*SPLITS[:200], None, *SPLITS[201:]])}, "row 200 of .* has the split None"),
        ],
    )
    def test_columns_of_another_kind(self, tmp_path, columns, message):
        self.check(manifest(tmp_path / "m.parquet", **columns), message)

    def test_an_empty_one(self, tmp_path):
        empty = {"digest": pa.array([], pa.binary(16)), "split": pa.array([], pa.string())}
        self.check(manifest(tmp_path / "m.parquet", **empty), "lists no sequence")

    def test_identity_beside_a_manifest(self, tmp_path):
        with pytest.raises(InputError, match=re.escape("give one of the two")):
            SplitsConfig(identity=0.5, manifest=tmp_path / "m.parquet")


LETTERS = "ACDEFGHIKLMNPQRSTVWY"
CONFIG = IngestConfig(SplitsConfig(0.1, 0.2, ("PF00001",)), shards=2, workers=1, bucket_bytes=2000)


@pytest.fixture
def fasta(tmp_path):
    """Proteins, copies among them, a table of families, and the dataset that is made of both."""
    source = random.Random(0)
    some = ["".join(source.choices(LETTERS, k=source.randint(1, 60))) for _ in range(200)]
    records = [(f"P{i:05d}", letters) for i, letters in enumerate([*some, *some[:30]])]
    path = tmp_path / "a.fasta"
    path.write_text("".join(f">{name}\n{letters}\n" for name, letters in records))
    (tmp_path / "pfam.tsv").write_text("".join(f"P{i:05d}\tPF00001\n" for i in range(0, 200, 9)))
    return path


def with_table(config, fasta):
    return replace(config, families=(fasta.with_name("pfam.tsv"),))


def files(folder):
    """Every file but those that say how the splits were made."""
    says = ("provenance.json", "datasheet.md", "datasheet.html")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in says}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_published_split_is_rebuilt_byte_for_byte(fasta, tmp_path, workers):
    """With other fractions and another held-out list: what the manifest says is what counts."""
    ingest([fasta], tmp_path / "first", with_table(CONFIG, fasta))
    manifest = tmp_path / "first" / "manifest.parquet"
    splits = SplitsConfig(0.5, 0.5, ("PF00002",), manifest=manifest)
    summary = ingest([fasta], tmp_path / "again", with_table(replace(CONFIG, splits=splits, workers=workers), fasta))
    assert files(tmp_path / "again") == files(tmp_path / "first")
    assert (summary.unlisted, summary.absent, summary.warnings) == (0, 0, [])
    assert ProteinDataset.open(tmp_path / "again").how_split == "splits of a published dataset"
    assert ProteinDataset.open(tmp_path / "first").how_split == "test drawn at random; ood: held-out families"
    provenance = json.loads((tmp_path / "again" / "provenance.json").read_text())
    assert provenance["splits"] == {
        "manifest": {
            "path": str(manifest), "bytes": manifest.stat().st_size,
            "md5": hashlib.md5(manifest.read_bytes()).hexdigest(), "sequences": 200,
        },
        "unlisted": 0, "absent": 0,
    }  # fmt: skip


@pytest.mark.slow
def test_what_a_published_split_lacks_goes_nowhere(fasta, tmp_path, capsys):
    ingest([fasta], tmp_path / "first", CONFIG)
    text = fasta.read_text().splitlines()
    other = tmp_path / "other.fasta"
    # Without the first three, of which there are copies, and three that have none; with two new ones.
    gone = {*range(3), *range(50, 53), *range(200, 203)}
    kept = [line for i in range(230) if i not in gone for line in text[2 * i : 2 * i + 2]]
    other.write_text("\n".join([*kept, ">NEW1", "MKVW", ">NEW2", "WVKM"]) + "\n")
    splits = SplitsConfig(manifest=tmp_path / "first" / "manifest.parquet")
    arguments = ["ingest", str(other), "--output", str(tmp_path / "again"), "--splits", str(splits.manifest)]
    assert main([*arguments, "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "not in the published split, and so left out: 2 sequences, in unmatched.tsv" in said
    assert "in the published split and in none of the sources: 6 sequences, in unmatched.tsv" in said
    rows = [line.split("\t") for line in (tmp_path / "again" / "unmatched.tsv").read_text().splitlines()[1:]]
    assert {(side, name, value) for side, name, value in rows if name} == {
        ("not in the published split", name, hashlib.md5(letters).hexdigest())
        for name, letters in (("NEW1", b"MKVW"), ("NEW2", b"WVKM"))
    }
    letters = [text[2 * i + 1] for i in (0, 1, 2, 50, 51, 52)]
    assert {value for side, _, value in rows if side == "not in the sources"} == {
        hashlib.md5(sequence.encode()).hexdigest() for sequence in letters
    }
    first, again = (ProteinDataset.open(tmp_path / name).manifest().to_pandas() for name in ("first", "again"))
    before = dict(zip(first["digest"], first["split"], strict=True))
    assert len(again) == 194
    assert all(before[digest] == split for digest, split in zip(again["digest"], again["split"], strict=True))


def test_a_manifest_of_other_sequences(fasta, tmp_path):
    path = manifest(tmp_path / "m.parquet")
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"m\.parquet has none of the 200 sequences"):
        ingest([fasta], tmp_path / "out", replace(CONFIG, splits=SplitsConfig(manifest=path)))
    with pytest.raises(InputError, match=r"absent\.parquet"):
        ingest([fasta], tmp_path / "out", replace(CONFIG, splits=SplitsConfig(manifest=tmp_path / "absent.parquet")))
    assert set(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_a_manifest_with_a_digest_twice_is_refused_by_whichever_process(fasta, tmp_path):
    ingest([fasta], tmp_path / "first", CONFIG)
    table = pq.read_table(tmp_path / "first" / "manifest.parquet")
    pq.write_table(pa.concat_tables([table, table.slice(5, 1)]), tmp_path / "m.parquet")
    for workers in (1, 2):
        config = replace(CONFIG, splits=SplitsConfig(manifest=tmp_path / "m.parquet"), workers=workers)
        with pytest.raises(InputError, match=r"has the digest [0-9a-f]{32} twice"):
            ingest([fasta], tmp_path / "out", config)
