"""A protein's chain from a PDB or mmCIF file, and its C-beta atoms laid on the sequence that a model reads."""

import gzip
import io
import itertools
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from Bio import SeqIO
from Bio.Align import PairwiseAligner, substitution_matrices
from Bio.Data.PDBData import protein_letters_3to1, protein_letters_3to1_extended
from Bio.PDB.MMCIF2Dict import MMCIF2Dict
from Bio.PDB.MMCIFParser import MMCIFParser
from Bio.PDB.PDBExceptions import PDBConstructionException as PDBConstruction
from Bio.PDB.PDBParser import PDBParser
from jaxtyping import Bool, Float64

from proteinlm import alphabet
from proteinlm.errors import InputError

SMALLEST_IDENTITY = 0.3
"""Share of aligned residues that must be the same for a structure to count as that of a protein."""
NUM_SHUFFLES, STANDING_OUT = 30, 8.0
"""Standard deviations by which an alignment must score above those of the protein's residues in random order: with gaps
that cost little, a third of the residues agree in nearly any two sequences."""
NEARLY_ALL = 0.9
"""Share of the shorter one's residues that, where the same, need no such test: a peptide cannot stand out."""
FARTHEST_BONDED = 4.5
"""Å between C-alpha atoms of neighbours in a chain: 3.8 or, cis, 2.9, and room for poor models."""


@dataclass(frozen=True)
class Chain:
    """One protein chain of a structure's first model.

    Attributes:
        path: the file.
        name: its identifier (of mmCIF: the authors').
        chains: the identifiers of all protein chains of the file.
        letters: the residues that have coordinates, one letter each, in order.
        places: float64 [n, 3], C-beta of each in Å, C-alpha of glycine; NaN where the atom is missing.
        sequence: the whole chain, unresolved residues too, as the file states it (SEQRES, or mmCIF's
            pdbx_poly_seq_scheme); None where it does not.
        gaps: the numbers of the residues on either side of each stretch that the numbering leaves out and that no
            peptide bond closes. Without `sequence` nothing else tells of them.
    """

    path: str
    name: str
    chains: tuple[str, ...]
    letters: str
    places: Float64[np.ndarray, "n 3"]
    sequence: str | None
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def label(self) -> str:
        """What to call it: old PDB files have chains whose name is blank."""
        return _called(self.name)


@dataclass(frozen=True)
class Placement:
    """A chain laid on a protein of L residues.

    Attributes:
        places: float64 [L, 3], NaN for residues without coordinates.
        num_aligned: residues of the protein that face one of the structure.
        mismatches: (residue of the protein from 1, its letter, the structure's letter).
        num_inserted: residues of the structure that the protein has no place for.
    """

    places: Float64[np.ndarray, "L 3"]
    num_aligned: int
    mismatches: tuple[tuple[int, str, str], ...]
    num_inserted: int

    @property
    def resolved(self) -> Bool[np.ndarray, " L"]:
        """Which residues have a place; the others take no part in contacts."""
        return ~np.isnan(self.places.sum(1))


def read_chain(path: str | os.PathLike, chain: str | None = None) -> Chain:
    """Read one protein chain of a PDB or mmCIF file, told apart by their contents; .gz is unpacked.

    A residue counts if it has a C-alpha and is no ligand: of HETATM records those that are modified amino acids
    (selenomethionine as M and so on). Of alternate places the most occupied is taken.

    Args:
        path: the file.
        chain: which chain, as the file calls it; None means its first protein chain.

    Raises:
        InputError: the file cannot be read, holds no protein chain or not this one, or its chain has no C-beta.
    """
    text = _text(Path(path))
    mmcif = _is_mmcif(text)
    model = _first_model(text, Path(path), mmcif)
    found = {entity.id: _residues(entity) for entity in model}
    found = {name: residues for name, residues in found.items() if residues}
    if not found:
        raise InputError(f"{path} holds no protein chain: no residue of it is an amino acid with a C-alpha atom.")
    if chain is not None and chain not in found:
        raise InputError(
            f"{path} has no protein chain {chain!r}; its protein chains are "
            f"{', '.join(name if name.strip() else repr(name) + ' (unnamed)' for name in found)}."
        )
    name = next(iter(found)) if chain is None else chain
    letters = "".join(residue.letter for residue in found[name])
    places = np.array([residue.place for residue in found[name]], np.float64)
    if not any(letter != "G" and np.isfinite(place).all() for letter, place in zip(letters, places, strict=True)):
        raise InputError(
            f"chain {_called(name)} of {path} has no C-beta atom, by which contacts are defined: "
            "it seems to hold a trace of C-alpha alone; take a structure with side chains."
        )
    sequence = _cif_sequence(text, name) if mmcif else _pdb_sequence(text, name)
    return Chain(os.fspath(path), name, tuple(found), letters, places, sequence or None, _gaps(found[name]))


def place_chain(chain: Chain, protein: str, *, name: str = "the protein") -> Placement:
    """Lay a chain on a protein by global alignment (BLOSUM62, affine gaps, free ends).

    At the edge of an unresolved stretch a residue that could stand on either side is put where the alignment puts it.

    Args:
        chain: from `read_chain`.
        protein: its letters as the model reads them.
        name: what to call it in messages.

    Raises:
        InputError: fewer than 30 % of the aligned residues agree, too few are aligned to say, or the protein's residues
            in random order align nearly as well.
    """
    aligner = PairwiseAligner(mode="global")
    aligner.substitution_matrix = substitution_matrices.load("BLOSUM62")
    # Unresolved loops are long and no rarer for it: a gap costs to open, next to nothing to go on with.
    aligner.open_gap_score, aligner.extend_gap_score = -11, -0.2
    aligner.end_gap_score = 0
    known = "ARNDCQEGHILKMFPSTWYVBZX"
    target, query = ("".join(c if c in known else "X" for c in letters) for letters in (protein, chain.letters))
    alignments = aligner.align(target, query)
    alignment = alignments[0]
    places, mismatches, number = np.full((len(protein), 3), np.nan), [], 0
    for (start, stop), (first, _) in zip(*alignment.aligned, strict=True):
        for offset in range(stop - start):
            mine, theirs = int(start + offset), int(first + offset)
            places[mine] = chain.places[theirs]
            number += 1
            if protein[mine] != chain.letters[theirs]:
                mismatches.append((mine + 1, protein[mine], chain.letters[theirs]))
    shorter, agree = min(len(protein), len(chain.letters)), number - len(mismatches)
    related = number >= shorter / 2 and agree >= SMALLEST_IDENTITY * number
    related = related and (agree >= NEARLY_ALL * shorter or _stands_out(aligner, target, query, alignments.score))
    if not related:
        raise InputError(
            f"chain {chain.label} does not look like a structure of {name}: of {len(protein)} and "
            f"{len(chain.letters)} residues {number} can be aligned and {agree} agree, which is no more than chance "
            "gives; choose another chain or protein."
        )
    return Placement(places, number, tuple(mismatches), len(chain.letters) - number)


def _stands_out(aligner, target, query, score):
    """Tell whether a score is far above those of the target's letters in random order."""
    generator = np.random.default_rng(0)
    scores = [aligner.score("".join(generator.permutation(list(target))), query) for _ in range(NUM_SHUFFLES)]
    return score > np.mean(scores) + STANDING_OUT * np.std(scores)


def _text(path):
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8", "replace")
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the structure {path} cannot be read: {reason}; name a PDB or mmCIF file.") from error


def _is_mmcif(text):
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return next(lines, "").lower().startswith("data_")


def _first_model(text, path, mmcif):
    if not text.strip():
        raise InputError(f"{path} is empty: it should be a PDB or mmCIF file.")
    parser = MMCIFParser(QUIET=True) if mmcif else PDBParser(QUIET=True)
    try:
        structure = parser.get_structure(path.name, io.StringIO(text))
        assert structure is not None
        return next(iter(structure))
    except StopIteration:
        raise InputError(f"{path} holds no atoms: is it a PDB or mmCIF file?") from None
    # Biopython has no error of its own for a broken file; what it trips over differs from file to file.
    except (ValueError, KeyError, IndexError, AttributeError, PDBConstruction) as error:
        kind = "mmCIF" if mmcif else "PDB"
        raise InputError(f"{path} cannot be read as {kind}: {error}.") from error


class _Residue(NamedTuple):
    """An amino acid with its number in the file; `place` is of C-beta (glycine: C-alpha), NaN where it is missing."""

    letter: str
    place: np.ndarray
    number: int
    alpha: np.ndarray


def _residues(entity):
    """Return the amino acids of a chain."""
    found = []
    for residue in entity:
        kind, name = residue.id[0].strip(), residue.get_resname().strip()
        # HETATM with the name of a common amino acid is one that was dissolved in the crystal, not part of the chain.
        in_chain = not kind or (name in protein_letters_3to1_extended and name not in protein_letters_3to1)
        if not in_chain or "CA" not in residue or residue["CA"].element not in ("C", ""):
            continue
        letter = protein_letters_3to1_extended.get(name, "X")
        letter = letter if letter in alphabet.RESIDUES else "X"
        atom = "CA" if letter == "G" else "CB"
        place = residue[atom].coord if atom in residue else np.full(3, np.nan)
        found.append(_Residue(letter, place, residue.id[1], residue["CA"].coord))
    return found


def _gaps(residues):
    """Return the numbers about each jump of the numbering; some schemes jump over residues that never were."""
    return tuple(
        (one.number, two.number)
        for one, two in itertools.pairwise(residues)
        if two.number > one.number + 1 and np.linalg.norm(two.alpha - one.alpha) > FARTHEST_BONDED
    )


def _called(name):
    return name if name.strip() else "(unnamed)"


def _pdb_sequence(text, chain):
    # Until 1996 files had their name and the line's number in columns 73 to 80, which would be read as residues.
    lines = [line[:70] + "\n" for line in text.splitlines() if line.startswith("SEQRES")]
    if not lines:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records = list(SeqIO.parse(io.StringIO("".join(lines)), "pdb-seqres"))
    return next((_legal(str(r.seq)) for r in records if r.annotations["chain"] == chain), None)


def _cif_sequence(text, chain):
    """Read pdbx_poly_seq_scheme by the authors' chain names (Biopython's own reader goes by the label's)."""
    table = MMCIF2Dict(io.StringIO(text))
    columns = [table.get(f"_pdbx_poly_seq_scheme.{name}", []) for name in ("pdb_strand_id", "seq_id", "mon_id")]
    # Where several residues share a number (a mixture), the first stands for it.
    residues = {}
    for strand, number, name in zip(*columns, strict=True):
        if strand == chain:
            residues.setdefault(number, protein_letters_3to1_extended.get(name, "X"))
    return _legal("".join(residues.values()))


def _legal(letters):
    return "".join(letter if letter in alphabet.RESIDUES else "X" for letter in letters)
