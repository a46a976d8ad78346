import gzip
import statistics as exact
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from proteinlm import alphabet
from proteinlm.data.dataset.statistics import (
    EmpiricalBaseline,
    SplitStatistics,
    concat_table,
    count_residues,
    family_table,
    frequencies,
    render,
    table,
    table_1,
)
from proteinlm.data.sources.uniprot import read_records

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


FAMILIES = st.lists(st.sampled_from(["PF00001", "PF00002", "PF00003"]), unique=True).map(";".join).map(str.encode)


@given(
    st.lists(st.tuples(st.text(alphabet.RESIDUES, min_size=1).map(str.encode), FAMILIES), max_size=8), st.integers(0, 8)
)
def test_sums_add_up_in_any_order_and_survive_json(records, cut):
    def counted(part):
        made = of(*(sequence for sequence, _ in part))
        made.add_families(families for _, families in part)
        return made

    sequences = [sequence for sequence, _ in records]
    whole, parts = counted(records), counted(records[cut:])
    parts.update(counted(records[:cut]))
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
    frame = concat_table({"train": of(b"AAA", b"AAAA"), "ood": of(b"A")}, 9)
    assert frame.loc["train"].tolist() == [1, 9, 9, 9, 0, 9]
    assert frame.loc["ood", "count"] == 0
    assert frame.loc["ood"].isna().sum() == 5


@pytest.mark.parametrize(("count", "mean", "published"), [(104_863_744, 353.09, 4_532_224), (102_400, 353.62, 4_096)])
def test_windows_as_the_paper_counts_them(count, mean, published):
    """Table 1 of the Performer paper: both forms agree with one <eos> a sequence and whole multiples of 512."""
    residues = round(count * mean)
    lengths = {residues // count: count - residues % count, residues // count + 1: residues % count}
    assert SplitStatistics(lengths).num_residues == residues
    # Residues are known to half a hundredth a sequence.
    doubt = round(count * 0.005 / 8192) + 1
    windows = SplitStatistics(lengths).windows(8192)
    assert (windows - doubt) // 512 * 512 == (windows + doubt) // 512 * 512 == published


def test_families_by_split():
    train, ood = of(b"AA", b"AC", b"AD", b"AE"), of(b"C")
    train.add_families([b"PF00001;PF00002", b"PF00001", b"", b"PF00001;PF00001"])
    ood.add_families([b"PF00002;PF00003"])
    assert train.families == {"PF00001": 3, "PF00002": 1}
    frame = family_table({"train": train, "valid": of(), "ood": ood})
    assert frame.loc["train"].to_dict() == {
        "sequences": 4, "with_families": 3, "families": 2, "largest": 3, "not_in_train": 0,
    }  # fmt: skip
    assert frame.loc["valid"].tolist() == [0, 0, 0, 0, 0]
    assert frame.loc["ood"].tolist() == [1, 1, 2, 1, 1]


def test_table_1_as_text():
    train = of(b"AAAA", b"A" * 1231)
    frame = table_1({"train": train, "ood": of()}, concat_length=100)
    assert frame.to_numpy().tolist() == [
        ["train", "2", "4", "1,231", "617.50", "613.50", "617.5"],
        ["ood", "0", "-", "-", "-", "-", "-"],
        ["train, concatenated", "12", "100", "100", "100.00", "0.00", "100"],
        ["ood, concatenated", "0", "-", "-", "-", "-", "-"],
    ]
    assert len(table_1({"train": train})) == 1


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
        pytest.skip("needs 20,000 records of UniProt: apt-get install mmseqs2-examples")
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
