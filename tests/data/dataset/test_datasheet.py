"""The page against pandas on the manifest and against the files beside it; test_pages.py has the form."""

import hashlib
import json
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from proteinlm import alphabet
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.dataset.datasheet import draw_figures, write_datasheet
from proteinlm.data.ingest.ingest import SAMPLE, IngestConfig, ingest
from proteinlm.data.splits.rules import SPLITS, SplitsConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The sample, and a file with two records that are rejected, one of them with a name that is a tag."""
    place = tmp_path_factory.mktemp("datasheet")
    (place / "<b>_mine_|.fasta").write_text(">A1\nACDE1\n>A2\nACDEFG\n>A3\n\n")
    config = IngestConfig(SplitsConfig(0.05, 0.1), (SAMPLE / "pfam.tsv.gz",), workers=1)
    ingest([SAMPLE / "proteins.fasta.gz", place / "<b>_mine_|.fasta"], place / "dataset", config)
    return place / "dataset"


@pytest.fixture(scope="module")
def tables(folder):
    """The tables of the HTML page, by the name of their first column."""
    root = ET.fromstring((folder / "datasheet.html").read_text(encoding="utf-8").removeprefix("<!DOCTYPE html>\n"))
    found = {}
    for table in root.iter("table"):
        columns, *rows = [[cell.text or "" for cell in row] for row in table.iter("tr")]
        found.setdefault((columns[0], len(columns)), pd.DataFrame(rows, columns=columns).set_index(columns[0]))
    return found


@pytest.fixture(scope="module")
def manifest(folder):
    return ProteinDataset.open(folder).manifest().to_pandas()


def number(text):
    return float(text.replace(",", ""))


def test_table_1_against_pandas(tables, manifest):
    frame = tables["split", 7]
    for split, lengths in manifest.groupby("split", observed=True)["length"]:
        expected = [len(lengths), lengths.min(), lengths.max(), lengths.mean(), lengths.std(ddof=0), lengths.median()]
        assert [number(text) for text in frame.loc[split]] == pytest.approx(expected, abs=0.005)
        windows = (lengths + 1).sum() // 8192
        shown = [number(text) for text in frame.loc[f"{split}, concatenated"] if text != "-"]
        assert shown == ([windows, 8192, 8192, 8192, 0, 8192] if windows else [0])


def test_amino_acids_against_letters(folder, tables):
    dataset = ProteinDataset.open(folder)
    frame = tables["residue", 7]
    assert frame.index.tolist() == list(alphabet.RESIDUES)
    for split in SPLITS:
        letters = b"".join(dataset.sequences(split, np.arange(dataset.counts[split]))).decode()
        expected = [100 * letters.count(letter) / len(letters) for letter in alphabet.RESIDUES]
        assert frame[split].astype(float).tolist() == pytest.approx(expected, abs=0.0005)
    assert frame.loc["W", "TrEMBL 2023_04"] == "1.30"
    assert frame.loc["X", "TrEMBL 2023_04"] == "-"


def test_families_against_pandas(folder, tables, manifest):
    frame, largest = tables["split", 6], tables["split", 2]
    rows = manifest.explode("families").dropna(subset="families")
    in_train = set(rows[rows["split"] == "train"]["families"])
    for split in SPLITS:
        here, own = manifest[manifest["split"] == split], rows[rows["split"] == split]
        with_family = own["accession"].nunique()
        assert [number(text) for text in frame.loc[split]] == pytest.approx(
            [
                len(here), with_family, round(100 * with_family / len(here), 1), own["families"].nunique(),
                len(set(own["families"]) - in_train),
            ]
        )  # fmt: skip
        counts = own["families"].value_counts()
        first = largest.loc[split].item().split(", ")
        assert [int(text.split("(")[1].rstrip(")")) for text in first] == counts.head(10).tolist()
        assert all(f"({counts[text.split()[0]]})" in text for text in first)
    assert json.loads((folder / "statistics.json").read_bytes())["splits"]["ood"]["families"] == (
        rows[rows["split"] == "ood"]["families"].value_counts().sort_index().to_dict()
    )


def test_provenance_and_rejects(folder, tables, manifest):
    frame = tables["source", 5]
    for path, row in frame.iterrows():
        with open(path, "rb") as file:
            assert hashlib.file_digest(file, "md5").hexdigest() == row["MD5"]
            assert file.tell() == number(row["bytes"])
    assert sorted(frame["records"]) == ["3", "4,509"]
    rejects = pd.read_csv(folder / "rejects.tsv", sep="\t")
    assert {reason: int(text) for reason, text in tables["rejected", 2]["records"].items()} == (
        rejects["reason"].value_counts().to_dict()
    )
    assert len(rejects) == 2
    held_out = tables["held-out family", 2]["sequences"].astype(int)
    assert len(held_out) == 20
    found = manifest.explode("families")["families"].value_counts()
    assert held_out.to_dict() == {family: found.get(family, 0) for family in held_out.index}
    assert held_out.sum() > 100


def test_the_markdown_says_the_same(folder, tables):
    text = (folder / "datasheet.md").read_text(encoding="utf-8")
    for frame in tables.values():
        for row in frame.itertuples(index=False):
            assert " | ".join(row[-2:]) in text
    assert "CC BY 4.0" in text
    assert "4,509" in text
    assert r"\<b\>\_mine\_\|.fasta" in text


def test_figures_lie_beside_it(folder):
    for name in ("amino-acids", "lengths", "families"):
        with Image.open(folder / f"datasheet-{name}.png") as image:
            assert image.size[0] > 1000
        assert (folder / f"datasheet-{name}.pdf").read_bytes().startswith(b"%PDF")
        assert f"](datasheet-{name}.png)" in (folder / "datasheet.md").read_text(encoding="utf-8")


def test_a_dataset_with_next_to_nothing_has_one_too(tmp_path):
    (tmp_path / "one.fasta").write_text(">P1\nA\n")
    ingest([tmp_path / "one.fasta"], tmp_path / "out", IngestConfig(SplitsConfig(0, 0, ()), workers=1))
    text = (tmp_path / "out" / "datasheet.md").read_text(encoding="utf-8")
    assert "No family is held out." in text
    assert "| ood | 0 | - | - | - | - | - |" in text


def page(folder, place, **changes):
    """The Markdown of a datasheet whose provenance differs from that of the sample."""
    dataset = ProteinDataset.open(folder)
    draw_figures(place, dataset.statistics)
    write_datasheet(place, "mine", dataset.statistics, {**dataset.provenance, **changes})
    return (place / "datasheet.md").read_text(encoding="utf-8")


def test_splits_that_were_decided_otherwise(folder, tmp_path):
    text = page(
        folder, tmp_path, sequences={"train": 3, "near": 1234},
        splits={
            "valid": 0.05, "test": 0.1, "held_out": [],
            "identity": {"threshold": 0.5, "moved_by_search": [30, 2], "too_short_to_be_searched": 17},
        },
    )  # fmt: skip
    assert "| threshold | 0.5 |" in text
    assert "| moved by search | 30, 2 |" in text
    assert "depend on nothing but" not in text
    assert "`test`, clusters of similar sequences, drawn at random, for reported results" in text
    assert "below 50 % identity a sequence of `test` may have relatives" in text
    assert "`identity.md` beside this page" in text
    assert "1,234 of them are in no split" in text
    assert "too similar to evaluated ones, or (17 of them) below 30 residues" in text
    assert "is `ood`, unless it is below 30 residues." in text
    published = {"manifest": {"path": "old.parquet", "sequences": 5000}, "absent": 7}
    text = page(folder, tmp_path, splits=published)
    assert "drawn at random" not in text
    assert "may have close relatives" not in text
    assert "| manifest path | old.parquet |\n| manifest sequences | 5,000 |\n| absent | 7 |" in text


def test_releases_and_profiles(folder, tmp_path):
    file = {"bytes": 1234, "md5": "0123"}
    text = page(
        folder, tmp_path,
        release={"release": "2019_01", "files": [{"url": "https://x.org/a.gz", **file}]},
        family_profiles=[{"path": "Pfam-A.hmm", **file, "profiles": 3}], family_search={"found": 17},
    )  # fmt: skip
    assert "release 2019_01" in text
    assert "| https://x.org/a.gz | 0123 | 1,234 |" in text
    assert "| Pfam-A.hmm | 0123 | 1,234 |" in text
    assert "| found | 17 |" in text
