"""The datasheet of a dataset: contents, origin, splits, preprocessing, and licence.

It answers the questions of Gebru et al., Datasheets for Datasets (2021). Every number comes from statistics.json or
provenance.json beside it; nothing depends on the date or the machine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proteinlm import alphabet
from proteinlm.data.dataset.statistics import (
    CONCAT_LENGTH,
    PUBLISHED,
    SplitStatistics,
    family_table,
    frequencies,
    table_1,
)
from proteinlm.data.splits.mmseqs import SHORTEST
from proteinlm.output.files import whole_file
from proteinlm.output.pages import Block, Code, Figure, Heading, Table, Text, html_page, markdown_page

DATASHEET = "datasheet"
"""Stem of the files of the page; the figures are DATASHEET-NAME."""

_LARGEST = 10
_FILES = 50
_PURPOSE = {
    "train": "for training", "valid": "for validation during training",
    "test": "for reported results", "ood": "for reported results",
}  # fmt: skip
_DRAWN = {"valid": "drawn at random, ", "test": "drawn at random, ", "ood": "all proteins of the held-out families, "}
_BY_IDENTITY = {
    "valid": "clusters of similar sequences, drawn at random, ",
    "test": "clusters of similar sequences, drawn at random, ",
    "ood": "the proteins of the held-out families, ",
}


def draw_figures(folder: Path, statistics: Mapping[str, SplitStatistics]) -> None:
    """Draw the figures of the datasheet (PNG and PDF).

    Args:
        folder: folder of the dataset.
        statistics: statistics of each split.
    """
    # The import of matplotlib takes longer than a small ingest, and only the last step needs it.
    from proteinlm.data.dataset import charts
    from proteinlm.output.figures import save_figure

    for figure, draw in (
        ("amino-acids", charts.amino_acid_figure),
        ("lengths", charts.length_figure),
        ("families", charts.family_figure),
    ):
        save_figure(draw(statistics), folder / f"{DATASHEET}-{figure}")


def write_datasheet(
    folder: Path, name: str, statistics: Mapping[str, SplitStatistics], provenance: Mapping[str, Any]
) -> None:
    """Write datasheet.md and datasheet.html; the HTML includes the figures.

    Args:
        folder: folder of the dataset, which holds the figures.
        name: name of the dataset.
        statistics: statistics of each split.
        provenance: content of provenance.json.
    """
    blocks = [
        *_composition(statistics, provenance["splits"]),
        *_amino_acids(statistics),
        *_families(statistics),
        *_splits(provenance),
        *_collection(provenance),
        *_preprocessing(provenance),
        *_use(provenance),
        *_licence(),
    ]
    title = f"Datasheet of {name}"
    with whole_file(folder / f"{DATASHEET}.md") as handle:
        handle.write(markdown_page(title, blocks))
    with whole_file(folder / f"{DATASHEET}.html") as handle:
        handle.write(html_page(title, blocks, folder))


def _composition(statistics: Mapping[str, SplitStatistics], splits: Mapping[str, Any]) -> list[Block]:
    # The splits of a published dataset are described in its own datasheet.
    drawn = {} if "held_out" not in splits else _BY_IDENTITY if splits.get("identity") else _DRAWN
    sequences = sum(s.count for s in statistics.values())
    residues = sum(s.num_residues for s in statistics.values())
    frame = table_1(statistics, concat_length=CONCAT_LENGTH)
    return [
        Text(
            f"{sequences:,} different protein sequences, {residues:,} residues, in {len(statistics)} splits: "
            + "; ".join(f"`{split}`, {drawn.get(split, '')}{_PURPOSE[split]}" for split in statistics)
            + ". No sequence is in two of them."
        ),
        Heading("What it holds"),
        Text(
            "Lengths in residues, as in Table 1 of the Performer paper; std is that of the whole population. "
            f"Concatenated, a split is one stream, `<eos>` after each sequence, cut into windows of {CONCAT_LENGTH:,} "
            "tokens; what fills no window at the end is not counted. (The paper also leaves out what fills no "
            "multiple of 512.)"
        ),
        Table(list(frame.columns), frame.to_numpy().tolist()),
        Figure(f"{DATASHEET}-lengths.png", "Lengths of the sequences of each split, in bins of a third of a doubling."),
        Text(
            "A record holds the accession, the MD5 of the sequence, its Pfam families and the sequence as text, one "
            "letter for each residue. The manifest adds the accessions of all copies and the taxon. The families are "
            "the only labels. There is no personal data."
        ),
    ]


def _amino_acids(statistics: Mapping[str, SplitStatistics]) -> list[Block]:
    shares = 100 * frequencies(statistics)
    rows = [
        [
            letter,
            *(_dash(value, ".3f") for value in row),
            *(_dash(figures.get(letter), ".2f") for figures in PUBLISHED.values()),
        ]
        for letter, row in zip(alphabet.RESIDUES, shares.to_numpy().tolist(), strict=True)
    ]
    return [
        Heading("Amino acids"),
        Figure(
            f"{DATASHEET}-amino-acids.png",
            "Frequency of each amino acid in all splits together, coloured by class (figure 9 of the Performer "
            f"paper). Markers: {' and '.join(PUBLISHED)}, as published.",
        ),
        Text("Per cent of the residues of each split, and as published for UniProtKB/TrEMBL and Swiss-Prot."),
        Table(["residue", *statistics, *PUBLISHED], rows),
    ]


def _families(statistics: Mapping[str, SplitStatistics]) -> list[Block]:
    frame = family_table(statistics)
    rows = [
        [
            str(split), f"{row['sequences']:,}", f"{row['with_families']:,}",
            _dash(100 * row["with_families"] / row["sequences"] if row["sequences"] else None, ".1f"),
            f"{row['families']:,}", f"{row['not_in_train']:,}",
        ]
        for split, row in frame.to_dict("index").items()
    ]  # fmt: skip
    largest = [
        [split, ", ".join(f"{family} ({count:,})" for family, count in _by_size(s)[:_LARGEST]) or "-"]
        for split, s in statistics.items()
    ]
    return [
        Heading("Families"),
        Text(
            "Pfam families by split. A sequence with several domains counts for each of its families. A sequence "
            "without a family may have one that the sources do not name."
        ),
        Table(["split", "sequences", "with a family", "%", "families", "of these not in train"], rows),
        Figure(
            f"{DATASHEET}-families.png",
            "Left: share of the sequences of each split that have a family. Right: the families of each split from "
            "the largest to the smallest, by the number of their sequences.",
        ),
        Table(["split", f"largest families (sequences), at most {_LARGEST}"], largest, left=2),
    ]


def _by_size(statistics: SplitStatistics) -> list[tuple[str, int]]:
    return sorted(statistics.families.items(), key=lambda item: (-item[1], item[0]))


def _splits(provenance: Mapping[str, Any]) -> list[Block]:
    splits, held_out = provenance["splits"], provenance["held_out_sequences"]
    blocks: list[Block] = [Heading("How it is split")]
    if "held_out" not in splits:
        return [*blocks, Text("The splits are those of a published dataset."), _settings(splits)]
    but = f", unless it is below {SHORTEST} residues" if splits.get("identity") else ""
    blocks.append(Text(f"A sequence that has a held-out family is `ood`{but}."))
    valid, test = f"{splits['valid']:g}", f"{splits['test']:g}"
    if splits.get("identity"):
        blocks += [
            Text(
                f"Of the other sequences, a fraction of {valid} is intended for `valid` and {test} for `test`. A "
                "cluster of similar sequences is in one split. Then sequences near to one of `valid`, `test` or `ood` "
                "were removed from `train`, by the rule below. `identity.md` beside this page shows the identity of "
                "each split to `train` before and after."
            ),
            _settings(splits["identity"]),
        ]
    else:
        blocks.append(
            Text(
                "The MD5 of each other sequence, read as a number from 0 to 1, decides its split: `test` below "
                f"{test}, `valid` for the next {valid}, `train` above. So the splits depend on nothing but the "
                "sequences and their families."
            )
        )
    if splits["held_out"]:
        rows = [[family, f"{held_out.get(family, 0):,}"] for family in splits["held_out"]]
        blocks.append(Table(["held-out family", "sequences"], rows))
    else:
        blocks.append(Text("No family is held out."))
    return blocks


def _settings(settings: Mapping[str, Any]) -> Table:
    """Return a table of names and values; entries of a nested mapping have its name before theirs."""
    rows: list[list[str]] = []
    for name, value in settings.items():
        entries = value.items() if isinstance(value, Mapping) else [("", value)]
        rows += [[f"{name} {key}".strip().replace("_", " "), _plain(each)] for key, each in entries]
    return Table(["setting", "value"], rows, left=2)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)


def _collection(provenance: Mapping[str, Any]) -> list[Block]:
    release = provenance.get("release")
    blocks: list[Block] = [Heading("Where it comes from"), _files("source", provenance["sources"], "format", "records")]
    if release:
        blocks.append(Text(f"Downloaded from UniProt, release {release['release']}."))
        blocks.append(_files("address", [{**file, "path": file["url"]} for file in release["files"]]))
    if provenance["family_tables"]:
        about = provenance["family_rows"]
        blocks += [
            Text("Families also come from these tables."),
            _files("table of families", provenance["family_tables"]),
            Text(
                f"Their rows: {about['read']:,} read, {about['malformed']:,} could not be read, "
                f"{about['unknown_accession']:,} accessions are in none of the sources."
            ),
        ]
    if provenance.get("family_profiles"):
        blocks += [
            Text("Families also come from a search with these profiles."),
            _files("profiles", provenance["family_profiles"]),
            _settings(provenance.get("family_search", {})),
        ]
    return blocks


def _files(what: str, files: Sequence[Mapping[str, Any]], kind: str = "", number: str = "") -> Table:
    """Return a table of files with their checksums, and with the entries named `kind` and `number`, if given."""
    columns = [name for name in ("path", kind, "md5", "bytes", number) if name]
    rows = [[_plain(file.get(name)) for name in columns] for file in files[:_FILES]]
    if len(files) > _FILES:
        rows.append([f"and {len(files) - _FILES:,} more, in provenance.json", *[""] * (len(columns) - 1)])
    return Table([what, *({"md5": "MD5"}.get(name, name) for name in columns[1:])], rows, left=3 if kind else 2)


def _preprocessing(provenance: Mapping[str, Any]) -> list[Block]:
    records = provenance["records"]
    sequences = sum(provenance["sequences"].values())
    rejected = records["rejected"]
    blocks: list[Block] = [
        Heading("What was done to it"),
        Text(
            f"{records['read']:,} records were read; {sum(rejected.values()):,} were rejected. The "
            f"{records['taken']:,} others have {sequences:,} different sequences: copies became one record, which has "
            "the families of all. Letters were converted to upper case, J (leucine or isoleucine) to X, and a stop (*) "
            "at the end was removed. The sequences are in the order of their MD5."
        ),
    ]
    if provenance["sequences"].get("near"):
        near = f"{provenance['sequences']['near']:,}"
        blocks.append(Text(f"{near} of them are in no split (`near` in the manifest): {_near(provenance['splits'])}."))
    if rejected:
        rows = [[reason, f"{count:,}"] for reason, count in rejected.items()]
        blocks += [Table(["rejected", "records"], rows), Text("`rejects.tsv` lists each of them.")]
    return blocks


def _use(provenance: Mapping[str, Any]) -> list[Block]:
    return [
        Heading("How to read it"),
        Code(
            "import tensorflow_datasets as tfds\n\n"
            "train = tfds.builder_from_directory('this/folder').as_data_source('train')\n"
            "train[0]['sequence']"
        ),
        Text(
            "`manifest.parquet` has a row for each sequence; `statistics.json` and `provenance.json` have the numbers "
            "of this page and more. The dataset is for training and comparing protein language models. It is not a "
            "random sample of nature: some species and families were sequenced far more than others, "
            + _relatives(provenance["splits"])
            + " and of the families in `ood` only the held-out ones are certain to be absent from `train`."
        ),
        Text(f"Written by {provenance['written_by']}; fingerprint `{provenance['fingerprint']}`."),
    ]


def _near(splits: Mapping[str, Any]) -> str:
    if not splits.get("identity"):
        return "as in the published dataset"
    short = splits["identity"].get("too_short_to_be_searched", 0)
    return f"too similar to evaluated ones, or ({short:,} of them) below {SHORTEST} residues, too short for a search"


def _relatives(splits: Mapping[str, Any]) -> str:
    if "held_out" not in splits:
        return "the published dataset determines how near `test` is to `train`,"
    if splits.get("identity"):
        threshold = f"{100 * splits['identity']['threshold']:g} %"
        return f"below {threshold} identity a sequence of `test` may have relatives in `train`,"
    return "a sequence of `test` may have close relatives in `train`,"


def _licence() -> list[Block]:
    return [
        Heading("Licence"),
        Text(
            "Sequences and annotation of UniProt are under Creative Commons Attribution 4.0 (CC BY 4.0), "
            "<https://creativecommons.org/licenses/by/4.0/>: pass them on with credit to the UniProt Consortium, "
            "<https://www.uniprot.org/help/license>. Pfam is under CC0. This dataset is a changed version of its "
            "sources (copies united, split). What is not from UniProt keeps the licence under which you have it."
        ),
    ]


def _dash(value: float | None, form: str) -> str:
    return "-" if value is None or value != value else format(value, form)
