"""Synthetic UniProtKB files of any size: entries as TrEMBL's, real amino-acid frequencies and lengths, copies included.

    python benchmarks/synthetic.py trembl.dat.gz --records 5_000_000
    python benchmarks/synthetic.py sprot.dat.gz --records 20_000 --annotated
    python benchmarks/synthetic.py trembl.fasta --records 100_000

A flat entry of TrEMBL has 2.4 kB. With --annotated it has 14 kB: references, comments, cross-references and features as
a reviewed one has (real ones in test packages: 16 kB on average, half of them above 12 kB).

A record is a function of the seed and its number, so that a file can be made again anywhere.
"""

import argparse
import gzip
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import track

from proteinlm import alphabet
from proteinlm.data.dataset.statistics import TREMBL_2023_04
from proteinlm.data.sources.crc64 import crc64

LETTERS = np.frombuffer(alphabet.STANDARD_RESIDUES.encode(), np.uint8)
SHARES = np.array([TREMBL_2023_04[letter] for letter in alphabet.STANDARD_RESIDUES])
BATCH = 10_000
# Share of the records that repeat a sequence of their batch: TrEMBL 2019 had 139 M records of 106 M sequences.
COPIES = 0.24
ENTRY = """\
ID   {name:<24}Unreviewed;{length:>12} AA.
AC   {name};
DT   05-JUL-2017, integrated into UniProtKB/TrEMBL.
DT   05-JUL-2017, sequence version 1.
DT   16-JAN-2019, entry version 9.
DE   SubName: Full=Uncharacterized protein {{ECO:0000313|EMBL:OQK16285.1}};
GN   ORFNames=B5F37_{number:05} {{ECO:0000313|EMBL:OQK16285.1}};
OS   Drancourtella sp. An{number}.
OC   Bacteria; Firmicutes; Clostridia; Clostridiales; Ruminococcaceae;
OC   Drancourtella.
OX   NCBI_TaxID={taxon} {{ECO:0000313|EMBL:OQK16285.1, ECO:0000313|Proteomes:UP000195897}};
{references}{comments}CC   -----------------------------------------------------------------------
CC   Copyrighted by the UniProt Consortium, see https://www.uniprot.org/terms
CC   Distributed under the Creative Commons Attribution (CC BY 4.0) License
CC   -----------------------------------------------------------------------
{cross_references}DR   Proteomes; UP000195897; Unassembled WGS sequence.
DR   GO; GO:0016021; C:integral component of membrane; IEA:UniProtKB-KW.
DR   InterPro; IPR0{family:05}; Domain_of_something.
DR   Pfam; PF{family:05}; Domain; 1.
PE   4: Predicted;
KW   Complete proteome {{ECO:0000313|Proteomes:UP000195897}};
KW   Membrane {{ECO:0000256|SAM:Phobius}};
{features}SQ   SEQUENCE{length:>6} AA;{weight:>8} MW;  {crc:016X} CRC64;
{lines}//
"""
REFERENCE = """\
RN   [{n}] {{ECO:0000313|Proteomes:UP000195897}}
RP   NUCLEOTIDE SEQUENCE [LARGE SCALE GENOMIC DNA].
RC   STRAIN=An{number} {{ECO:0000313|Proteomes:UP000195897}};
RX   PubMed=283{number:03}77; DOI=10.1371/journal.pone.0{number:03}{n:03};
RA   Medvecky M., Cejkova D., Polansky O., Karasova D., Kubasova T.,
RA   Cizek A., Rychlik I.;
RT   "Function of individual gut microbiota members based on whole genome
RT   sequencing of pure cultures obtained from chicken caecum.";
RL   Submitted (APR-2017) to the EMBL/GenBank/DDBJ databases.
"""
COMMENT = """\
CC   -!- CAUTION: The sequence shown here is derived from an EMBL/GenBank/DDBJ
CC       whole genome shotgun (WGS) entry which is preliminary data.
"""
CROSS_REFERENCES = """\
DR   EMBL; NFHM01000{n:03}; OQK16285.1; -; Genomic_DNA.
DR   RefSeq; WP_087182{number:03}.1; NZ_NFHM01000{n:03}.1.
"""
FEATURE = """\
FT   DOMAIN          1..{length}
FT                   /note="Domain of something"
FT                   /evidence="ECO:0000255|PROSITE-ProRule:PRU00{number:03}"
"""
# How often each is there: (references, comments, pairs of cross-references, features).
UNREVIEWED, ANNOTATED = (1, 1, 1, 0), (10, 10, 25, 20)


def sequences(number: int, count: int, seed: int = 0) -> list[bytes]:
    """Return the sequences of one batch of records: lengths log-normal, mean 353 and median 289 as in Jan 2019."""
    generator = np.random.default_rng([seed, number])
    lengths = np.clip(np.exp(generator.normal(np.log(289), 0.633, count)), 8, 35_000).astype(int)
    ends = np.cumsum(lengths)
    letters = LETTERS[generator.choice(20, ends[-1], p=SHARES / SHARES.sum())].tobytes()
    made = [b"M" + letters[end - length + 1 : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    again = np.flatnonzero(generator.random(count) < COPIES)
    for place, other in zip(again.tolist(), generator.integers(0, count, len(again)).tolist(), strict=True):
        made[place] = made[other]
    return made


def accession(number: int) -> str:
    """Return an accession of UniProt's grammar with ten letters, A0A..., different for each number."""
    digits, letters = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    both, found = digits + letters, ""
    for choice in (digits, both, both, letters, digits, both, both):
        number, rest = divmod(number, len(choice))
        found = choice[rest] + found
    return f"A0A{found}"


def flat_entries(records: int, seed: int = 0, repeats: tuple[int, ...] = UNREVIEWED) -> Iterator[bytes]:
    """Yield UniProtKB entries, a batch at a time."""
    for start in range(0, records, BATCH):
        made = sequences(start // BATCH, min(BATCH, records - start), seed)
        text = []
        for place, (sequence, crc) in enumerate(zip(made, crc64(made).tolist(), strict=True)):
            letters = sequence.decode()
            lines = "".join(
                "     " + " ".join(letters[i : i + 60][j : j + 10] for j in range(0, 60, 10)).rstrip() + "\n"
                for i in range(0, len(letters), 60)
            )
            number = start + place
            fields = {"number": number % 1000, "length": len(letters)}
            references, comments, cross_references, features = (
                "".join([part.format(n=n, **fields) for n in range(1, count + 1)])
                for part, count in zip((REFERENCE, COMMENT, CROSS_REFERENCES, FEATURE), repeats, strict=True)
            )
            text.append(
                ENTRY.format(
                    name=accession(number), **fields, taxon=number % 100_000 + 1, family=number % 17_000 + 1,
                    weight=110 * len(letters), crc=crc, lines=lines, references=references, comments=comments,
                    cross_references=cross_references, features=features,
                )
            )  # fmt: skip
        yield "".join(text).encode()


def fasta_entries(records: int, seed: int = 0) -> Iterator[bytes]:
    """Yield FASTA entries as UniProt writes them, a batch at a time."""
    for start in range(0, records, BATCH):
        text = []
        for place, sequence in enumerate(sequences(start // BATCH, min(BATCH, records - start), seed)):
            name, letters = accession(start + place), sequence.decode()
            lines = "\n".join(letters[i : i + 60] for i in range(0, len(letters), 60))
            text.append(
                f">tr|{name}|{name}_9FIRM Uncharacterized protein OS=Drancourtella sp. OX=1 PE=4 SV=1\n{lines}\n"
            )
        yield "".join(text).encode()


def write(path: Path, records: int, seed: int = 0, progress: bool = False, annotated: bool = False) -> Path:
    """Write a file whose name says what it is: .dat or .fasta, with .gz or without; `annotated` is for .dat alone."""
    name = path.name.removesuffix(".gz")
    repeats = ANNOTATED if annotated else UNREVIEWED
    entries = flat_entries(records, seed, repeats) if name.endswith(".dat") else fasta_entries(records, seed)
    with open(path, "wb") as raw:
        handle: io.IOBase = gzip.GzipFile("", "wb", 4, raw, mtime=0) if path.suffix == ".gz" else raw  # pyright: ignore
        for text in track(entries, total=-(-records // BATCH), disable=not progress, description=path.name):
            handle.write(text)
        if handle is not raw:
            handle.close()
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--annotated", action="store_true", help="flat entries as well-known proteins have, 14 kB each")
    options = parser.parse_args()
    write(options.path, options.records, options.seed, progress=True, annotated=options.annotated)
