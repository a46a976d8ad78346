import pytest

from proteinlm.data.families.ids import PAPER_HELD_OUT_FAMILIES, check_families, read_held_out
from proteinlm.errors import InputError


def test_the_papers_families_are_twenty():
    assert len(set(PAPER_HELD_OUT_FAMILIES)) == 20
    assert check_families(PAPER_HELD_OUT_FAMILIES, "x") == PAPER_HELD_OUT_FAMILIES


def test_a_held_out_list(tmp_path):
    path = tmp_path / "list"
    path.write_text("# mine\nPF00002 # a comment\n\n PF00001.3\nPF00002\n")
    assert read_held_out(path) == ("PF00002", "PF00001")
    path.write_text("PF00002\nPF2\n")
    with pytest.raises(InputError, match=r"list line 2: 'PF2' is not a Pfam id"):
        read_held_out(path)
    path.write_text("# nothing\n")
    with pytest.raises(InputError, match="has no Pfam id"):
        read_held_out(path)
