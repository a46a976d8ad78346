"""Options of `proteinlm analyze`; this file imports no library that is slow to load, so that --help answers at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

DEFAULT_PROTEIN = "BPT1_BOVIN"
Part = Literal["maps", "kinds", "similarity", "windows", "structure"]
"""Names of the parts; see the docstring of `Analyze`."""


@dataclass(frozen=True)
class Analyze:
    """Draw what attention learned, measured by one-hot V probing, which is exact for every attention mechanism.

    Writes PNG, PDF and the arrays behind each figure into the run's folder:

    maps: attention.png (Figure 10 of the Performer paper: layers x heads), heads.png (Figure 11: a few heads in
    detail), lines.png (Figure 12: the first 25 residues as lines), attention.html (pick a head, read every weight).

    kinds: head_kinds.png and .csv: the heads that are diagonal, vertical, block, scattered or diffuse.

    similarity: similarity.png (Figure 13: similarity of amino acids, beside BLOSUM), and tables by layer and head.

    windows: windows_shares.png and windows_pairs.png, attention within and across the proteins of concatenated windows.

    structure: contacts.png and contact_precision.png, attention against the contacts of a PDB or mmCIF file.

    analysis.json has the run, step, dataset, split and numbers of each part.

    Examples: proteinlm analyze runs/masked --protein my.fasta --sequences 800

    proteinlm analyze runs/masked --parts structure --structure 1abc.cif --chain A

    proteinlm analyze runs/concat --parts windows --windows 4
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run."""
    parts: tuple[Part, ...] = ()
    """Parts to draw; by default maps, kinds and similarity, windows for a run on concatenated sequences, and structure
    if --structure is given."""
    protein: str = DEFAULT_PROTEIN
    """Protein of the maps: BPT1_BOVIN (P00974, as in the paper), a FASTA file (its first record), or an accession of
    the dataset. With --structure: the protein that the model reads, instead of the sequence in the structure file."""
    layers: tuple[int, ...] = ()
    """Layers of the maps, counted from 0; by default the first 4, and all in attention.html."""
    heads: tuple[int, ...] = ()
    """Heads of the maps, counted from 0; by default the first 8, and all in attention.html."""
    sequences: int = 800
    """Number of sequences of the split for kinds (at most 100) and similarity; 0 leaves both out."""
    split: str = "test"
    """Split of the sequences and windows, taken in the order of the dataset."""
    blosum: str = "BLOSUM62"
    """Substitution matrix beside the similarity: BLOSUM45, 50, 62, 80 or 90."""
    order: Literal["classes", "clustered"] = "classes"
    """Order of the amino acids in the similarity figure: by class, or by clustering."""
    windows: int = 2
    """Number of concatenated windows; each is read several times, also with shuffled residues as a control."""
    structure: Path | None = None
    """PDB or mmCIF file."""
    chain: str | None = None
    """Chain of the structure file; by default the first that is a protein."""
    training_structures: tuple[Path, ...] = ()
    """Other structures, on which the regression over heads is fitted."""
    dataset: Path | None = None
    """Folder of another dataset than the one of training."""
    step: int | Literal["best", "last"] = "last"
    """Checkpoint to analyze: a step, best (lowest loss on valid of those kept) or last (the newest)."""
    output: Path | None = None
    """Folder for the figures; RUN/analysis by default."""


def analyze(arguments: Sequence[str]) -> None:
    """Run `proteinlm analyze`."""
    options = tyro.cli(Analyze, args=arguments, prog="proteinlm analyze")
    from proteinlm.cli.analyze import analyze_command

    analyze_command(options)
