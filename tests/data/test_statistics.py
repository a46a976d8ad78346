import gzip
import statistics as exact
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from proteinlm.data import alphabet
from proteinlm.data.statistics import (
    EmpiricalBaseline,
    SplitStatistics,
    concat_table,
    count_residues,
    frequencies,
    render,
    table,
)
from proteinlm.data.uniprot import read_records

MMSEQS2 = Path("/usr/share/doc/mmseqs2/example-data")


def of(*sequences):
    made = SplitStatistics()
    if sequences:
        made.add(np.array([len(s) for s in sequences]), count_residues(sequences))
    return made


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_rows_are_exact(lengths):
    row = of(*(b"A" * n for n in lengths)).row()
    assert row["count"] == len(lengths)
    assert (row["min"], row["max"], row["median"]) == (min(lengths), max(lengths), exact.median(lengths))
    assert row["mean"] == pytest.approx(exact.mean(lengths))
    assert row["std"] == pytest.approx(exact.pstdev(lengths), abs=1e-9)


@given(st.lists(st.text(alphabet.RESIDUES, min_size=1).map(str.encode), max_size=8), st.integers(0, 8))
def test_sums_add_up_in_any_order_and_survive_json(sequences, cut):
    whole = of(*sequences)
    parts = of(*sequences[cut:])
    parts.update(of(*sequences[:cut]))
    assert parts.to_json() == whole.to_json()
    assert SplitStatistics.from_json(whole.to_json()).to_json() == whole.to_json()
    assert [int(n) for n in whole.residues] == [b"".join(sequences).decode().count(x) for x in alphabet.RESIDUES]


def test_counting_in_pieces():
    sequence = b"ACDU" * 600_000
    assert count_residues([sequence]).sum() == len(sequence)
    assert count_residues([sequence])[alphabet.RESIDUES.index("U")] == 600_000


def test_windows_have_an_eos_after_each_protein():
    assert of(b"AAA", b"AAAA").windows(3) == 3
    assert of(b"AAA", b"AAAA").windows(10) == 0
    assert concat_table({"train": of(b"AAA", b"AAAA")}, 9).loc["train"].tolist() == [1, 9]


def test_table_with_an_empty_split():
    frame = table({"train": of(b"AAC", b"A"), "ood": of()})
    assert frame.columns.tolist() == ["count", "min", "max", "mean", "std", "median"]
    assert frame.loc["train"].tolist() == [2, 1, 3, 2, 1, 2]
    assert frame.loc["ood", "count"] == 0
    assert frame.loc["ood"].isna().sum() == 5
    shares = frequencies({"train": of(b"AAC", b"A"), "ood": of()})
    assert shares["train"]["A"] == 0.75
    assert shares["ood"].isna().all()


def test_rendered_tables_show_figures_and_dashes():
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115 (closed with the console)
    for each in render({"train": of(b"A" * 1234, b"CC"), "ood": of()}):
        console.print(each)
    text = console.export_text()
    console.file.close()
    assert "1,234" in text
    assert "618.00" in text
    assert "99.84" in text
    assert "-" in text


def test_a_baseline_by_hand():
    counts = np.zeros(25, np.int64)
    counts[[0, 1]] = 5, 3
    baseline = EmpiricalBaseline.fit(counts)
    assert np.exp(baseline.log_probs).sum() == pytest.approx(1)
    assert np.exp(baseline.log_probs[:3]) == pytest.approx(np.array([6, 4, 1]) / 33)
    seen = np.zeros(25, np.int64)
    seen[[0, 2]] = 1, 3
    assert baseline.argmax == 0
    assert baseline.accuracy(seen) == 0.25
    assert baseline.perplexity(seen) == pytest.approx((33 / 6) ** 0.25 * 33**0.75)


def test_a_uniform_world_has_a_perplexity_of_25():
    baseline = EmpiricalBaseline.fit(np.full(25, 10))
    assert baseline.perplexity(np.arange(25)) == pytest.approx(25)


def test_no_residues_have_no_score():
    baseline = EmpiricalBaseline.fit(np.zeros(25, np.int64))
    assert np.isnan(baseline.accuracy(np.zeros(25, np.int64)))
    assert np.isnan(baseline.perplexity(np.zeros(25, np.int64)))


def test_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"residue_counts has shape \(20,\)"):
        EmpiricalBaseline.fit(np.zeros(20))


def test_the_papers_baseline_on_real_proteins():
    """The paper has 9.92 % and 17.80 on TrEMBL's test set; these 20,000 are a sample of UniProt, mostly TrEMBL."""
    path = MMSEQS2 / "DB.fasta.gz"
    if not path.is_file():
        pytest.skip(f"needs Debian's mmseqs2-examples (apt-get install mmseqs2-examples): no {path}")
    sequences = [record.sequence[:1024] for record in read_records(path)]
    counts = count_residues(sequences)
    baseline = EmpiricalBaseline.fit(counts)
    assert len(sequences) == 20_000
    with gzip.open(path, "rt") as handle:
        letters = "".join(str(record.seq)[:1024] for record in SeqIO.parse(handle, "fasta"))
    assert counts.tolist() == [letters.count(letter) for letter in alphabet.RESIDUES]
    assert alphabet.RESIDUES[baseline.argmax] == "L"
    assert 100 * baseline.accuracy(counts) == pytest.approx(9.57, abs=0.005)
    assert baseline.perplexity(counts) == pytest.approx(18.12, abs=0.005)
