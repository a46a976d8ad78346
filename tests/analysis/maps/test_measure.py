import numpy as np

from proteinlm.analysis.maps import measure as protein_maps
from proteinlm.inference.probing import probe_protein
from proteinlm.inference.proteins import BPT1_BOVIN


def test_heads_that_are_few_are_all_shown_with_their_kinds(make_model):
    choice = protein_maps.choose_heads(probe_protein(make_model("identity"), BPT1_BOVIN[:40]), [1], [1, 0])
    assert choice.heads == [(1, 1), (1, 0)]
    assert choice.labels[0].startswith("layer 1, head 1: diagonal 0.9")
    assert choice.labels[0].endswith("offset 0")
    assert choice.how == protein_maps.ALL_GIVEN
    assert choice.to_list()[1] == {"layer": 1, "head": 0, "label": choice.labels[1]}


def test_a_short_protein_shows_the_first_heads(make_model):
    choice = protein_maps.choose_heads(probe_protein(make_model("identity"), b"MKV"), [0, 1], [0, 1])
    assert choice.heads == [(0, 0), (0, 1), (1, 0)]
    assert "fewer than 32 residues" in choice.how
    assert choice.labels[0] == "layer 0, head 0"


def test_what_stays_on_residues_and_what_rows_sum_to(make_model):
    probe = probe_protein(make_model("softmax"), BPT1_BOVIN[:40])
    found = protein_maps.measure_protein(probe, layers=[1, 0], heads=[1], chosen=[(0, 1)])
    np.testing.assert_allclose(found.on_residues, found.maps.sum(-1).mean(-1), atol=1e-5)
    assert found.on_residues.max() < 0.9999
    assert found.row_sums.shape == (2, 1, 40)
    np.testing.assert_array_equal(found.detail[0], found.maps[1, 0])
