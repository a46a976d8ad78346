import json
from pathlib import Path

import numpy as np
import pytest
from structure_files import cif_text, hairpin, pdb_text, protein_atoms

from proteinlm.analysis.contacts import analyze as module
from proteinlm.analysis.contacts import measure as contacts
from proteinlm.analysis.contacts.analyze import analyze_structure
from proteinlm.analysis.contacts.structures import read_chain
from proteinlm.errors import InputError
from proteinlm.inference.probing import probe_protein

LETTERS = "MKVLATGWCDEFGHIKLMNPQRSTVWYARNDCEQ"


@pytest.fixture
def structure(tmp_path):
    path = tmp_path / "hairpin.pdb"
    path.write_text(pdb_text(protein_atoms(LETTERS, hairpin(LETTERS), missing=(3,)), {"A": LETTERS}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_precisions_are_those_of_the_whole_maps(make_model, structure, tmp_path, causal):
    model = make_model("softmax", causal=causal)
    output = tmp_path / "out"
    summary = analyze_structure(model, read_chain(structure), output)
    assert json.loads((output / "contacts.json").read_text()) == summary
    assert sorted(path.name for path in output.iterdir()) == [
        "contact_precision.pdf", "contact_precision.png", "contacts.json", "contacts.npz", "contacts.pdf",
        "contacts.png",
    ]  # fmt: skip
    saved = np.load(output / "contacts.npz")
    probe = probe_protein(model, LETTERS.encode(), name="p")
    maps = probe.maps()[:, 0, :, probe.protein.residues, probe.protein.residues]
    both = maps + maps.swapaxes(-1, -2)
    coordinates = np.array(hairpin(LETTERS))
    coordinates[2] = np.nan
    pairs = contacts.judged_pairs(coordinates)
    np.testing.assert_array_equal(saved["contacts"], contacts.contact_map(coordinates))
    np.testing.assert_allclose(saved["attention"], pairs.of(both), rtol=1e-5)
    corrected = pairs.of(contacts.average_product_corrected(both))
    np.testing.assert_allclose(saved["attention_apc"], corrected, atol=1e-6)
    for layer in range(2):
        for head in range(2):
            expected = contacts.precisions(saved["attention_apc"][layer, head], pairs)
            np.testing.assert_array_equal(saved["precision_apc"][layer, head], expected)
    best = summary["best_head"]
    by_head = saved["precision_apc"][:, :, 0, 0]
    assert by_head[best["layer"], best["head"]] == by_head.max()
    assert best["chosen_on"] == "this protein"
    assert summary["precision"]["chance"]["long"]["L"] == pytest.approx(contacts.chance(pairs)[0, 0], abs=1e-4)
    assert (summary["num_residues"], summary["num_resolved"], summary["num_residues_without_structure"]) == (34, 33, 1)
    shown = saved["shown_scores"]
    lowest = min(shown[(pairs.first == i) & (pairs.second == j)][0] for i, j in saved["predicted"])
    assert len(saved["predicted"]) == 33
    assert (shown > lowest).sum() < 33
    assert summary["training_structures"] == []
    assert "logistic regression" not in summary["precision"]


@pytest.mark.slow
def test_the_protein_may_be_another_than_the_chain(make_model, tmp_path):
    path = tmp_path / "a.cif"
    atoms = protein_atoms("GHIKLM", hairpin("GHIKLM")) + protein_atoms(LETTERS, hairpin(LETTERS), chain="B")
    path.write_text(cif_text(atoms))
    protein = "MSSQ" + LETTERS[:8] + "W" + LETTERS[9:]
    summary = analyze_structure(
        make_model(), read_chain(path, "B"), tmp_path / "out", name="mine", sequence=protein.encode()
    )
    assert (summary["protein"], summary["chain"], summary["chains"]) == ("mine (a.cif, chain B)", "B", ["A", "B"])
    assert Path(summary["structure"]).name == "a.cif"
    assert summary["mismatches"] == ["W13C"]
    assert (summary["num_aligned"], summary["num_residues_without_structure"]) == (34, 4)
    assert not summary["sequence_in_file"]
    with pytest.raises(InputError, match="no protein chain 'Z'"):
        read_chain(path, "Z")
    with pytest.raises(InputError, match=r"a\.cif, chain A: the structure has 0 pairs"):
        analyze_structure(make_model(), read_chain(path), tmp_path / "none")
    with pytest.raises(InputError, match=r"has 34 residues, but this model reads at most 32"):
        analyze_structure(make_model(max_length=32), read_chain(path, "B"), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_gap_that_no_sequence_opens_is_told(make_model, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(module, "save_figure", lambda figure, stem: drawn.update({stem.name: figure}) or (stem,))
    path, model = tmp_path / "gap.pdb", make_model()
    path.write_text(pdb_text(protein_atoms(LETTERS, hairpin(LETTERS), chain=" ", missing=(8, 9, 10, 11))))
    summary = analyze_structure(model, read_chain(path), tmp_path)
    assert summary["protein"] == "gap.pdb, chain (unnamed)"
    assert summary["gaps_closed_up"] == [{"after": 7, "before": 12, "missing": 4}]
    expected = (
        "the file states no sequence; 4 residues seem to be missing between 7 and 12: separations across it are too "
        "small; give the protein's own sequence."
    )
    assert summary["warnings"] == [expected]
    assert expected[1:] in drawn["contacts"].axes[0].get_title().replace("\n", " ")
    # The protein's own sequence opens it.
    summary = analyze_structure(model, read_chain(path), tmp_path, sequence=LETTERS.encode(), name="mine")
    assert (summary["gaps_closed_up"], summary["num_unresolved"]) == ([], 4)
    assert summary["warnings"] == [
        "4 of the protein's 34 residues are not resolved in the structure: pairs with them are not judged."
    ]
    whole = tmp_path / "whole.pdb"
    whole.write_text(pdb_text(protein_atoms(LETTERS, hairpin(LETTERS))))
    assert analyze_structure(model, read_chain(whole), tmp_path)["warnings"] == []
    assert drawn["contacts"].axes[0].get_title() == ""


def test_what_does_not_fit_the_protein_is_counted_and_told(make_model, tmp_path):
    path, model = tmp_path / "a.pdb", make_model()
    crystal = "GSHM" + LETTERS[:8] + "A" + LETTERS[9:]
    path.write_text(pdb_text(protein_atoms(crystal, hairpin(crystal))))
    summary = analyze_structure(
        model, read_chain(path), tmp_path / "out", sequence=(LETTERS + "HH").encode(), name="mine"
    )
    counts = ("num_mismatches", "num_structure_residues_without_place", "num_unresolved")
    assert [summary[count] for count in counts] == [1, 4, 2]
    assert summary["mismatches"] == ["C9A"]
    assert summary["warnings"] == [
        "1 of 34 aligned residues differs between protein and structure (C9A): the model read the protein's.",
        "4 residues of the structure have no counterpart in the protein and are left out.",
        "2 of the protein's 36 residues are not resolved in the structure: pairs with them are not judged.",
    ]
    with pytest.raises(InputError, match="chain A does not look like a structure of other"):
        analyze_structure(model, read_chain(path), tmp_path / "none", sequence=b"P" * 34, name="other")


def training_chains(tmp_path, number=3):
    rng = np.random.default_rng(2)
    chains = []
    for name in range(number):
        letters = "".join(rng.permutation(list(LETTERS)))
        path = tmp_path / f"train{name}.pdb"
        path.write_text(pdb_text(protein_atoms(letters, hairpin(letters))))
        chains.append(read_chain(path))
    return chains


def test_regression_is_fitted_on_other_structures(make_model, structure, tmp_path):
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install -e '.[analysis]'")
    model = make_model(num_heads=4)
    summary = analyze_structure(model, read_chain(structure), tmp_path / "out", training=training_chains(tmp_path))
    saved = np.load(tmp_path / "out" / "contacts.npz")
    scores = np.tensordot(saved["coefficients"], saved["attention_apc"], 2)
    np.testing.assert_allclose(saved["shown_scores"], scores, atol=1e-6)
    assert summary["best_head"]["chosen_on"] == "training structures (3)"
    assert summary["precision"]["logistic regression"]["short"]["L"] is not None
    assert len(summary["training_structures"]) == 3
    with pytest.raises(InputError, match="has the same sequence as the structure to judge"):
        analyze_structure(model, read_chain(structure), tmp_path / "none", training=[read_chain(structure)])


def test_without_scikit_learn_nothing_is_begun(make_model, structure, tmp_path, monkeypatch):
    def missing():
        raise InputError("scikit-learn")

    monkeypatch.setattr(contacts, "require_regression", missing)
    with pytest.raises(InputError, match="scikit-learn"):
        analyze_structure(make_model(), read_chain(structure), tmp_path / "none", training=training_chains(tmp_path, 1))
    assert not (tmp_path / "none").exists()
