"""Options of `proteinlm analyze`. Nothing heavy is imported here: the help is read from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

DEFAULT_PROTEIN = "BPT1_BOVIN"
Part = Literal["maps", "kinds", "similarity", "windows", "structure"]
"""What can be drawn; see `Analyze.parts`."""


@dataclass(frozen=True)
class Analyze:
    """Draw what attention learned. All of it is measured by one-hot V probing, which is exact for every mechanism.

    Writes PNG, PDF and the arrays behind each figure into the run's folder:

    maps: attention.png (Figure 10 of the Performer paper: layers x heads), heads.png (Figure 11: a few heads in
    detail), lines.png (Figure 12: the first 25 residues as lines), attention.html (pick a head, read every weight).

    kinds: head_kinds.png and .csv, which heads are diagonal, vertical, block, scattered or diffuse.

    similarity: similarity.png (Figure 13: amino acids as attention sees them, beside BLOSUM), tables by layer and head.

    windows: windows_shares.png and windows_pairs.png, attention within and across the proteins of concatenated windows.

    structure: contacts.png and contact_precision.png, attention against the contacts of a PDB or mmCIF file.

    analysis.json says of each part which run, step, dataset and split it is of.

    Examples: proteinlm analyze runs/masked --protein my.fasta --sequences 800

    proteinlm analyze runs/masked --parts structure --structure 1abc.cif --chain A

    proteinlm analyze runs/concat --parts windows --windows 4
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run."""
    parts: tuple[Part, ...] = ()
    """Which of the above; by default maps, kinds and similarity, windows for a run on concatenated sequences, structure
    where one is given."""
    protein: str = DEFAULT_PROTEIN
    """Protein of the maps: BPT1_BOVIN (P00974, as in the paper), a FASTA file (its first record), or an accession of
    the dataset. Named with --structure, it is what the structure is laid on; else the structure's own sequence is."""
    layers: tuple[int, ...] = ()
    """Layers of the maps, counted from 0; by default the first 4, and all in attention.html."""
    heads: tuple[int, ...] = ()
    """Heads of the maps, counted from 0; by default the first 8, and all in attention.html."""
    sequences: int = 800
    """Sequences of `split` that kinds (at most 100 of them) and similarity are aggregated over; 0 leaves both out."""
    split: str = "test"
    """Split that they come from, in the dataset's order, windows too."""
    blosum: str = "BLOSUM62"
    """Matrix beside the similarity: BLOSUM45, 50, 62, 80 or 90."""
    order: Literal["classes", "clustered"] = "classes"
    """Order of the amino acids in its figure: by class, or by clustering."""
    windows: int = 2
    """Concatenated windows; each is read several times, for the shuffled control too."""
    structure: Path | None = None
    """PDB or mmCIF file."""
    chain: str | None = None
    """Its chain; by default the first that is a protein."""
    training_structures: tuple[Path, ...] = ()
    """Other structures, to fit the regression over heads on."""
    dataset: Path | None = None
    """Another dataset than the one that the run was trained on."""
    step: int | Literal["best", "last"] = "last"
    """Checkpoint to analyze: a step, best (lowest loss on valid of those kept) or last (the newest)."""
    output: Path | None = None
    """Folder for the figures; RUN/analysis by default."""


def analyze(arguments: Sequence[str]) -> None:
    """Run `proteinlm analyze`."""
    options = tyro.cli(Analyze, args=arguments, prog="proteinlm analyze")
    from proteinlm.cli.analyze import analyze_command

    analyze_command(options)
