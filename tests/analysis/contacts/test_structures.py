import gzip
from pathlib import Path

import numpy as np
import pytest
from Bio.PDB.PDBParser import PDBParser
from structure_files import cif_text, hairpin, pdb_text, protein_atoms

from proteinlm.alphabet import STANDARD_RESIDUES
from proteinlm.analysis.contacts import structures
from proteinlm.analysis.contacts.measure import contact_map
from proteinlm.errors import InputError

LETTERS = "MKVLATGWCDEFGHIKLMNPQRSTVWYA"
COORDINATES = hairpin(LETTERS)

# Written by hand, column by column as the format's description has it: an alternate place, a ligand with a CA atom
# (calcium), a free glycine, water, selenomethionine, DNA, and a second model.
BY_HAND = """\
HEADER    TEST
MODEL        1
ATOM      1  N   ALA A   1      11.104   6.134  -6.504  1.00  0.00           N
ATOM      2  CA  ALA A   1      11.639   6.071  -5.147  1.00  0.00           C
ATOM      3  CB  ALA A   1      10.000   1.000  -1.500  1.00  0.00           C
ATOM      4  CA  GLY A   2      12.000   2.000  -2.500  1.00  0.00           C
HETATM    5  CA  MSE A   3      13.000   3.000  -3.500  1.00  0.00           C
HETATM    6  CB AMSE A   3      13.000   4.000  -3.500  0.30  0.00           C
HETATM    7  CB BMSE A   3      13.500   4.500  -3.500  0.70  0.00           C
ATOM      8  CA  TRP A   4      14.000   3.000  -3.500  1.00  0.00           C
TER       9      TRP A   4
ATOM     10  P    DA B   1      20.000   3.000  -3.500  1.00  0.00           P
HETATM   11 CA    CA A 101      30.000   3.000  -3.500  1.00  0.00          CA
HETATM   12  CA  GLY A 102      31.000   3.000  -3.500  1.00  0.00           C
HETATM   13  O   HOH A 201      32.000   3.000  -3.500  1.00  0.00           O
ENDMDL
MODEL        2
ATOM     14  CA  ALA A   1      91.639   6.071  -5.147  1.00  0.00           C
ATOM     15  CB  ALA A   1      90.000   1.000  -1.500  1.00  0.00           C
ENDMDL
END
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="structure.pdb"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_pdb_file_written_by_hand(written):
    chain = structures.read_chain(written(BY_HAND))
    assert (chain.name, chain.chains, chain.letters, chain.sequence) == ("A", ("A",), "AGMW", None)
    expected = [(10, 1, -1.5), (12, 2, -2.5), (13.5, 4.5, -3.5), (np.nan,) * 3]
    np.testing.assert_allclose(chain.coordinates, expected)


@pytest.mark.parametrize("form", [pdb_text, cif_text])
def test_pdb_and_mmcif_give_the_same_chain(written, form):
    atoms = protein_atoms(LETTERS, COORDINATES, chain="A", missing=(4, 5)) + protein_atoms(
        "GHIK", COORDINATES[:4], chain="B"
    )
    path = written(form(atoms, {"A": LETTERS, "B": "GHIK"}))
    chain = structures.read_chain(path)
    assert (chain.name, chain.chains) == ("A", ("A", "B"))
    assert chain.letters == LETTERS[:3] + LETTERS[5:]
    assert chain.sequence == LETTERS
    np.testing.assert_allclose(chain.coordinates, np.delete(COORDINATES, (3, 4), 0), atol=1e-3)
    other = structures.read_chain(path, "B")
    assert (other.letters, other.sequence) == ("GHIK", "GHIK")
    assert structures.read_chain(written(form(atoms))).sequence is None


def test_gaps_of_the_numbering_are_those_that_no_bond_closes(written):
    atoms = protein_atoms(LETTERS, COORDINATES, missing=(4, 5, 9))
    assert structures.read_chain(written(pdb_text(atoms))).gaps == ((3, 6), (8, 10))
    assert structures.read_chain(written(cif_text(atoms))).gaps == ((3, 6), (8, 10))
    # A numbering that jumps though the chain goes on, as those of antibodies do: 3.8 Å from one C-alpha to the next.
    jumping = [
        ("ATOM", atom, "ALA", "A", 10 * i, (3.8 * i, y, 0)) for i in range(1, 9) for atom, y in (("CA", 0), ("CB", 1.5))
    ]
    assert structures.read_chain(written(pdb_text(jumping))).gaps == ()
    broken = [row if row[4] < 50 else (*row[:5], (row[5][0] + 1, *row[5][1:])) for row in jumping]
    assert structures.read_chain(written(pdb_text(broken))).gaps == ((40, 50),)


def test_a_chain_without_a_name_is_called_so(written):
    path = written(pdb_text(protein_atoms(LETTERS, COORDINATES, chain=" ")))
    assert structures.read_chain(path).label == "(unnamed)"
    with pytest.raises(InputError, match=r"its protein chains are ' ' \(unnamed\)\."):
        structures.read_chain(path, "A")


def test_mmcif_goes_by_the_authors_chains(written):
    atoms = protein_atoms(LETTERS, COORDINATES, chain="H") + protein_atoms("GHIK", COORDINATES[:4], chain="L")
    path = written(cif_text(atoms, {"H": LETTERS, "L": "GHIK"}, label={"H": "A", "L": "H"}), "a.cif")
    assert structures.read_chain(path, "H").sequence == LETTERS
    assert structures.read_chain(path, "L").sequence == "GHIK"


def test_packed_files(tmp_path):
    path = tmp_path / "a.pdb.gz"
    path.write_bytes(gzip.compress(pdb_text(protein_atoms(LETTERS, COORDINATES)).encode()))
    assert structures.read_chain(path).letters == LETTERS
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"a\.pdb\.gz cannot be read"):
        structures.read_chain(path)


@pytest.mark.parametrize(
    ("text", "chain", "message"),
    [
        (BY_HAND, "C", "has no protein chain 'C'; its protein chains are A"),
        (BY_HAND, "B", "has no protein chain 'B'"),
        (
            "\n".join(line for line in BY_HAND.splitlines() if " CB " not in line and "CB " not in line),
            None,
            "no C-beta",
        ),
        ("\n".join(line for line in BY_HAND.splitlines() if " DA " in line), None, "no protein chain"),
        ("", None, r"structure\.pdb is empty"),
        ("MKVLA\n>not a structure\n", None, "has no atoms"),
        ("data_X\nloop_\n_atom_site.id\n1\n2\n", None, "cannot be read as mmCIF"),
        ("data_X\n_entry.id X\n", None, "cannot be read as mmCIF|has no atoms"),
        (BY_HAND.replace("  10.000", "  1x.000", 1), None, "cannot be read as PDB"),
    ],
)
def test_files_that_cannot_be_used(written, text, chain, message):
    with pytest.raises(InputError, match=message):
        structures.read_chain(written(text), chain)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.pdb cannot be read: No such file"):
        structures.read_chain(tmp_path / "nowhere.pdb")
    with pytest.raises(InputError, match="Is a directory"):
        structures.read_chain(tmp_path)


def chain_of(letters, coordinates=None):
    coordinates = np.array(hairpin(letters) if coordinates is None else coordinates, np.float64)
    return structures.Chain("a.pdb", "A", ("A",), letters, coordinates, None)


def test_a_structure_is_laid_on_a_longer_protein():
    protein = "MSSQ" + LETTERS + "HHHHHH"
    chain = chain_of(LETTERS)
    aligned = structures.align_chain(chain, protein)
    np.testing.assert_array_equal(aligned.coordinates[4:-6], chain.coordinates)
    assert not aligned.resolved[:4].any()
    assert not aligned.resolved[-6:].any()
    assert (aligned.num_aligned, aligned.mismatches, aligned.num_inserted) == (len(LETTERS), (), 0)


def test_mismatches_gaps_and_tags_are_reported():
    # The crystal has a tag, one mutation, and lacks a loop of the protein.
    crystal = "GSHM" + LETTERS[:6] + "A" + LETTERS[7:12] + LETTERS[17:]
    aligned = structures.align_chain(chain_of(crystal), LETTERS)
    assert aligned.mismatches == ((7, "G", "A"),)
    assert aligned.num_inserted == 4
    assert aligned.num_aligned == len(LETTERS) - 5
    np.testing.assert_array_equal(np.flatnonzero(~aligned.resolved), range(12, 17))


def test_missing_atoms_leave_a_residue_unresolved():
    chain = chain_of(LETTERS)
    chain.coordinates[3] = np.nan
    aligned = structures.align_chain(chain, LETTERS)
    np.testing.assert_array_equal(np.flatnonzero(~aligned.resolved), [3])
    assert aligned.num_aligned == len(LETTERS)


def test_letters_outside_blosum_are_aligned():
    letters = LETTERS.replace("C", "U") + "O"
    assert structures.align_chain(chain_of(letters), letters).num_aligned == len(letters)


def test_another_proteins_structure_is_refused():
    with pytest.raises(InputError, match="chain A does not look like a structure of mine: of 28 and 28 residues"):
        structures.align_chain(chain_of("P" * 28), LETTERS, name="mine")


# Debian's pymol-data has three entries of the PDB.
PYMOL = Path("/usr/share/pymol/data")
HIV_PROTEASE = "PQITLWQRPLVTIKIGGQLKEALLDTGADDTVLEEMSLPGRWKPKMIGGIGGFIKVRQYDQILIEICGHKAIGTVLVGPTPVNIIGRNLLTQIGCTLNF"


@pytest.mark.skipif(not PYMOL.is_dir(), reason="needs real structures: apt-get install pymol-data")
def test_real_structures():
    protease = structures.read_chain(PYMOL / "tut" / "1hpv.pdb")
    # A file of 1994, with its name behind each line.
    assert (protease.name, protease.chains) == ("A", ("A", "B"))
    assert protease.letters == protease.sequence == HIV_PROTEASE
    found = contact_map(protease.coordinates)
    # The catalytic triad's neighbours, the flap's hairpin, the ends of the four-stranded sheet's first strand.
    assert all(found[i - 1, j - 1] for i, j in ((25, 28), (45, 56), (10, 23), (75, 33)))
    # Two of one strand, far apart.
    assert not found[43 - 1, 49 - 1]
    # What a plain loop over Biopython's atoms finds.
    chain = PDBParser(QUIET=True).get_structure("x", PYMOL / "tut" / "1hpv.pdb")[0]["A"]
    atoms = [residue["CA" if residue.get_resname() == "GLY" else "CB"] for residue in chain if residue.id[0] == " "]
    expected = [[i is not j and a - b < 8 for j, b in enumerate(atoms)] for i, a in enumerate(atoms)]
    np.testing.assert_array_equal(found | np.eye(99, dtype=bool), np.array(expected) | np.eye(99, dtype=bool))

    subunit = structures.read_chain(PYMOL / "demo" / "1tii.pdb", "A")
    # A loop of it was not resolved.
    assert (len(subunit.letters), len(subunit.sequence)) == (186, 190)
    aligned = structures.align_chain(subunit, subunit.sequence)
    assert (aligned.num_aligned, aligned.mismatches, aligned.num_inserted) == (186, (), 0)
    # A file without names of chains and without SEQRES.
    interleukin = structures.read_chain(PYMOL / "demo" / "il2.pdb")
    assert interleukin.gaps == ((78, 83),)
    assert interleukin.sequence is None
    assert interleukin.letters.startswith("SSSTKKTQLQLEHLLLDLQMILNGINNYKNPKLTRML")


def test_unrelated_sequences_are_refused_and_distant_relatives_are_not():
    """The gaps of unresolved loops cost little, with which a third of any two sequences agrees."""
    generator = np.random.default_rng(0)
    letters = "".join(generator.choice(list(STANDARD_RESIDUES), 100))
    chain = chain_of(letters)
    for length in (30, 100, 300):
        other = "".join(generator.choice(list(letters), length))
        with pytest.raises(InputError, match="no more than expected"):
            structures.align_chain(chain, other)
    changed = list(letters)
    for place in generator.permutation(100)[:60]:
        changed[place] = generator.choice(list(STANDARD_RESIDUES))
    assert structures.align_chain(chain, "".join(changed)).num_aligned > 90
    # A peptide of the chain: nothing short can score far above chance.
    assert structures.align_chain(chain, letters[40:46]).mismatches == ()
