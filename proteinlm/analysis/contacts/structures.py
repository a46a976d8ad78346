"""Protein chains from PDB and mmCIF files, and their alignment to the sequence that a model reads."""

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
"""Smallest share of identical residues among the aligned ones, for a structure to be accepted as that of a protein."""
NUM_SHUFFLES, STANDING_OUT = 30, 8.0
"""The score of an alignment must exceed the mean score of this number of shuffled proteins by this number of standard
deviations. Gaps cost little, so that a third of the residues agree in nearly any two sequences."""
NEARLY_ALL = 0.9
"""Share of identical residues of the shorter sequence above which this test is skipped, since a short peptide cannot
pass it."""
FARTHEST_BONDED = 4.5
"""Largest distance in Å between C-alpha atoms of neighbours in a chain: 3.8 (cis: 2.9), with a margin for poor models.
"""


@dataclass(frozen=True)
class Chain:
    """One protein chain of the first model of a structure.

    Attributes:
        path: the file.
        name: identifier of the chain (in mmCIF, the one by the authors).
        chains: identifiers of all protein chains of the file.
        letters: the residues with coordinates, one letter each, in order.
        coordinates: float64 [n, 3], coordinates of C-beta in Å (C-alpha of glycine); NaN where the atom is missing.
        sequence: the sequence of the chain in the file, with unresolved residues (SEQRES, or pdbx_poly_seq_scheme in
            mmCIF); None if the file does not state it.
        gaps: (before, after), the residue numbers around each gap in the numbering that no peptide bond spans. Without
            `sequence` they are the only sign of missing residues.
    """

    path: str
    name: str
    chains: tuple[str, ...]
    letters: str
    coordinates: Float64[np.ndarray, "n 3"]
    sequence: str | None
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def label(self) -> str:
        """The name for messages: in old PDB files it can be blank."""
        return _label(self.name)


@dataclass(frozen=True)
class Alignment:
    """A chain aligned to a protein of L residues.

    Attributes:
        coordinates: float64 [L, 3], NaN for residues without coordinates.
        num_aligned: number of residues of the protein that are aligned to a residue of the structure.
        mismatches: (position in the protein from 1, its letter, the structure's letter).
        num_inserted: number of residues of the structure that are not aligned to the protein.
    """

    coordinates: Float64[np.ndarray, "L 3"]
    num_aligned: int
    mismatches: tuple[tuple[int, str, str], ...]
    num_inserted: int

    @property
    def resolved(self) -> Bool[np.ndarray, " L"]:
        """Bool [L], True for residues with coordinates. The others are left out of contacts."""
        return ~np.isnan(self.coordinates.sum(1))


def read_chain(path: str | os.PathLike, chain: str | None = None) -> Chain:
    """Read one protein chain of a PDB or mmCIF file. The format is detected from the content; .gz is decompressed.

    Residues need a C-alpha and must not be ligands: of HETATM records, modified amino acids are read (selenomethionine
    as M and so on). Of alternate locations the one with the highest occupancy is used.

    Args:
        path: the file.
        chain: name of the chain in the file; None means the first protein chain.

    Raises:
        InputError: the file cannot be read, has no protein chain or not this one, or the chain has no C-beta.
    """
    text = _text(Path(path))
    mmcif = _is_mmcif(text)
    model = _first_model(text, Path(path), mmcif)
    chains = {entity.id: _residues(entity) for entity in model}
    chains = {name: residues for name, residues in chains.items() if residues}
    if not chains:
        raise InputError(f"{path} has no protein chain: it has no amino acid with a C-alpha atom.")
    if chain is not None and chain not in chains:
        raise InputError(
            f"{path} has no protein chain {chain!r}; its protein chains are "
            f"{', '.join(name if name.strip() else repr(name) + ' (unnamed)' for name in chains)}."
        )
    name = next(iter(chains)) if chain is None else chain
    letters = "".join(residue.letter for residue in chains[name])
    coordinates = np.array([residue.coordinates for residue in chains[name]], np.float64)
    if not any(letter != "G" and np.isfinite(atom).all() for letter, atom in zip(letters, coordinates, strict=True)):
        raise InputError(
            f"chain {_label(name)} of {path} has no C-beta atom, by which contacts are defined: "
            "it seems to have C-alpha atoms only; use a structure with side chains."
        )
    sequence = _cif_sequence(text, name) if mmcif else _pdb_sequence(text, name)
    return Chain(os.fspath(path), name, tuple(chains), letters, coordinates, sequence or None, _gaps(chains[name]))


def align_chain(chain: Chain, protein: str, *, name: str = "the protein") -> Alignment:
    """Align a chain to a protein (global alignment, BLOSUM62, affine gaps, free ends).

    A residue at the edge of an unresolved region can be ambiguous; it is placed where the alignment has it.

    Args:
        chain: from `read_chain`.
        protein: the letters of the protein as the model reads them.
        name: the protein's name in messages.

    Raises:
        InputError: fewer than 30 % of the aligned residues are identical, too few residues are aligned, or the shuffled
            protein aligns nearly as well.
    """
    aligner = PairwiseAligner(mode="global")
    aligner.substitution_matrix = substitution_matrices.load("BLOSUM62")
    # Unresolved loops are often long: opening a gap is expensive, extending it costs almost nothing.
    aligner.open_gap_score, aligner.extend_gap_score = -11, -0.2
    aligner.end_gap_score = 0
    known = "ARNDCQEGHILKMFPSTWYVBZX"
    target, query = ("".join(c if c in known else "X" for c in letters) for letters in (protein, chain.letters))
    alignments = aligner.align(target, query)
    alignment = alignments[0]
    coordinates, mismatches, number = np.full((len(protein), 3), np.nan), [], 0
    for (start, stop), (first, _) in zip(*alignment.aligned, strict=True):
        for offset in range(stop - start):
            here, there = int(start + offset), int(first + offset)
            coordinates[here] = chain.coordinates[there]
            number += 1
            if protein[here] != chain.letters[there]:
                mismatches.append((here + 1, protein[here], chain.letters[there]))
    shorter, agree = min(len(protein), len(chain.letters)), number - len(mismatches)
    related = number >= shorter / 2 and agree >= SMALLEST_IDENTITY * number
    related = related and (agree >= NEARLY_ALL * shorter or _stands_out(aligner, target, query, alignments.score))
    if not related:
        raise InputError(
            f"chain {chain.label} does not look like a structure of {name}: of {len(protein)} and "
            f"{len(chain.letters)} residues {number} can be aligned and {agree} are identical, no more than expected "
            "by chance; choose another chain or protein."
        )
    return Alignment(coordinates, number, tuple(mismatches), len(chain.letters) - number)


def _stands_out(aligner, target, query, score):
    """Return whether a score is far above the scores of the shuffled target."""
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
        raise InputError(f"{path} is empty: name a PDB or mmCIF file.")
    parser = MMCIFParser(QUIET=True) if mmcif else PDBParser(QUIET=True)
    try:
        structure = parser.get_structure(path.name, io.StringIO(text))
        assert structure is not None
        return next(iter(structure))
    except StopIteration:
        raise InputError(f"{path} has no atoms: is it a PDB or mmCIF file?") from None
    # Biopython has no specific error for a broken file; the error depends on the file.
    except (ValueError, KeyError, IndexError, AttributeError, PDBConstruction) as error:
        kind = "mmCIF" if mmcif else "PDB"
        raise InputError(f"{path} cannot be read as {kind}: {error}.") from error


class _Residue(NamedTuple):
    """An amino acid of a chain.

    Attributes:
        letter: the amino acid.
        coordinates: [3], coordinates of C-beta (glycine: C-alpha) in Å; NaN if it is missing.
        number: the residue number in the file.
        alpha: [3], coordinates of C-alpha in Å.
    """

    letter: str
    coordinates: np.ndarray
    number: int
    alpha: np.ndarray


def _residues(entity):
    """Return the amino acids of a chain."""
    residues = []
    for residue in entity:
        kind, name = residue.id[0].strip(), residue.get_resname().strip()
        # A HETATM record with the name of a standard amino acid is a free amino acid, not a part of the chain.
        in_chain = not kind or (name in protein_letters_3to1_extended and name not in protein_letters_3to1)
        if not in_chain or "CA" not in residue or residue["CA"].element not in ("C", ""):
            continue
        letter = protein_letters_3to1_extended.get(name, "X")
        letter = letter if letter in alphabet.RESIDUES else "X"
        atom = "CA" if letter == "G" else "CB"
        coordinates = residue[atom].coord if atom in residue else np.full(3, np.nan)
        residues.append(_Residue(letter, coordinates, residue.id[1], residue["CA"].coord))
    return residues


def _gaps(residues):
    """Return the residue numbers around each gap. Some numbering schemes skip numbers where no residue is missing."""
    return tuple(
        (one.number, two.number)
        for one, two in itertools.pairwise(residues)
        if two.number > one.number + 1 and np.linalg.norm(two.alpha - one.alpha) > FARTHEST_BONDED
    )


def _label(name):
    return name if name.strip() else "(unnamed)"


def _pdb_sequence(text, chain):
    # Until 1996, columns 73 to 80 had the file's name and a line number, which would be read as residues.
    lines = [line[:70] + "\n" for line in text.splitlines() if line.startswith("SEQRES")]
    if not lines:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records = list(SeqIO.parse(io.StringIO("".join(lines)), "pdb-seqres"))
    return next((_known(str(r.seq)) for r in records if r.annotations["chain"] == chain), None)


def _cif_sequence(text, chain):
    """Read pdbx_poly_seq_scheme by the authors' chain names (the reader of Biopython uses the label names)."""
    table = MMCIF2Dict(io.StringIO(text))
    columns = [table.get(f"_pdbx_poly_seq_scheme.{name}", []) for name in ("pdb_strand_id", "seq_id", "mon_id")]
    # If several residues have the same number (a mixture), the first is used.
    residues = {}
    for strand, number, name in zip(*columns, strict=True):
        if strand == chain:
            residues.setdefault(number, protein_letters_3to1_extended.get(name, "X"))
    return _known("".join(residues.values()))


def _known(letters):
    """Return the letters with X for those outside the alphabet."""
    return "".join(letter if letter in alphabet.RESIDUES else "X" for letter in letters)
