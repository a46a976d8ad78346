"""Report on splits by identity: similarity of train to each evaluation split, as JSON, Markdown, figure and table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from proteinlm.data.splits.by_identity import IDENTITY_RULE, NO_ALIGNMENT, IdentitySplits, is_near
from proteinlm.data.splits.mmseqs import SHORTEST
from proteinlm.data.splits.rules import LISTED, NEAR, SPLITS
from proteinlm.output.figures import PAGE, PALETTE, save_figure, style
from proteinlm.output.files import whole_file
from proteinlm.output.saving import write_json

STEM = "identity"
EVALUATED = SPLITS[1:]
_BINS = np.arange(0, 1001, 50)
_QUANTILES = (0.25, 0.5, 0.75)


def describe(splits: IdentitySplits) -> dict[str, Any]:
    """Return the content of identity.json: the method, and the distribution of identities of each evaluation split.

    `histogram` counts sequences by the identity to the most similar sequence of train, in 20 equal bins from 0 to 1
    (1 is in the last bin). `no_alignment` counts sequences without an alignment that counts; quantiles exclude them.
    """
    return {
        "threshold": splits.threshold,
        "rule": IDENTITY_RULE,
        "program": f"MMseqs2 {splits.version}",
        "sequences": {name: int((splits.codes == code).sum()) for code, name in enumerate(LISTED)},
        "clusters": splits.num_clusters,
        "moved_out_of_train_by_search": list(splits.moved),
        "too_short_to_be_searched": splits.num_short,
        "nearest_in_train": {
            name: {
                "before": _distribution(splits.before[splits.codes == SPLITS.index(name)], splits.threshold),
                "after": _distribution(splits.after[splits.codes == SPLITS.index(name)], splits.threshold),
            }
            for name in EVALUATED
        },
    }


def _distribution(permille: np.ndarray, threshold: float) -> dict[str, Any]:
    aligned = permille[permille != NO_ALIGNMENT]
    quantiles = (
        (np.quantile(aligned, _QUANTILES) / 1000).round(4).tolist() if len(aligned) else [None] * len(_QUANTILES)
    )
    return {
        "sequences": len(permille),
        "no_alignment": len(permille) - len(aligned),
        "within_threshold": int(is_near(aligned, threshold).sum()),
        **{f"quantile_{q}": value for q, value in zip(_QUANTILES, quantiles, strict=True)},
        "largest": int(aligned.max()) / 1000 if len(aligned) else None,
        "histogram": np.histogram(aligned, _BINS)[0].tolist(),
    }


def to_markdown(report: Mapping[str, Any]) -> str:
    """Return the report as a Markdown page: the definition of identity, a table, and the figure."""
    threshold, sequences = f"{100 * report['threshold']:g} %", report["sequences"]
    searches = report["moved_out_of_train_by_search"]
    lines = [
        f"# Splits at {threshold} identity\n",
        f"No sequence of train has {threshold} identity or more to a sequence of valid, test or ood. {IDENTITY_RULE} "
        f"Identities are truncated to three digits; up to 0.001 below the threshold counts as reaching it.\n",
        f"{report['program']} made {report['clusters']:,} clusters, each of which is in one split, and searched all of "
        f"valid, test and ood against all of train {len(searches) + 1} times, without a limit on hits. Sequences of "
        f"train that reached the threshold left train ({', then '.join(f'{n:,}' for n in (*searches, 0))} sequences). "
        f"A search does not reliably find sequences below {SHORTEST} residues, which are in no split either "
        f"({report['too_short_to_be_searched']:,}). In total {sequences['near']:,} sequences are `near`: they are in "
        "the manifest but not in the dataset.\n",
        "| | " + " | ".join(sequences) + " |",
        "|---" * (1 + len(sequences)) + "|",
        "| sequences | " + " | ".join(f"{n:,}" for n in sequences.values()) + " |\n",
        "Identity to the most similar sequence of train, before and after near sequences left train. Quantiles and the "
        "largest value are of sequences with an alignment that counts:\n",
        "| split | when | sequences | no alignment | within threshold | 25 % | median | 75 % | largest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for split, both in report["nearest_in_train"].items():
        for when, distribution in both.items():
            numbers = [f"{distribution[key]:,}" for key in ("sequences", "no_alignment", "within_threshold")]
            shares = [distribution[key] for key in (*(f"quantile_{q}" for q in _QUANTILES), "largest")]
            cells = [split, when, *numbers, *("-" if share is None else f"{share:.3f}" for share in shares)]
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"![Identity to the most similar sequence of train]({STEM}.png)", ""]
    return "\n".join(lines)


def plot(report: Mapping[str, Any]):
    """Return a figure of the distributions, one panel for each evaluation split that is not empty."""
    from matplotlib.figure import Figure

    drawn = {split: both for split, both in report["nearest_in_train"].items() if both["before"]["sequences"]}
    with style():
        figure = Figure(figsize=(PAGE, 2.4))
        panels = np.atleast_1d(figure.subplots(1, max(1, len(drawn)), sharey=True))
        for panel, (split, both) in zip(panels, drawn.items(), strict=False):
            _draw(panel, both, report["threshold"])
            panel.set_title(f"{split} (n = {both['before']['sequences']:,})")
        panels[0].set_ylabel("Share of the split (%)")
        if drawn:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _draw(panel, both: Mapping[str, Any], threshold: float) -> None:
    edges = _BINS / 1000
    for (when, distribution), colour in zip(both.items(), (PALETTE[1], PALETTE[0]), strict=True):
        look = {"color": colour, "fill": when == "after", "alpha": 0.5 if when == "after" else 1}
        look["zorder"] = 1 if when == "after" else 2
        shares = 100 * np.array(distribution["histogram"]) / distribution["sequences"]
        panel.stairs(shares, edges, label="before near sequences left train" if when == "before" else "after", **look)
        # Sequences without an alignment have no identity: their bar is separate, left of the axis.
        panel.stairs([100 * distribution["no_alignment"] / distribution["sequences"]], [-0.25, -0.15], **look)
    panel.axvline(threshold, color="black", linewidth=0.8, linestyle="--", label=f"threshold {threshold:g}")
    panel.set_xticks([-0.2, 0, 0.25, 0.5, 0.75, 1], ["none", "0", "0.25", "0.5", "0.75", "1"])
    panel.set_xlabel("Identity to the nearest of train")


def write_identity_report(folder: Path, splits: IdentitySplits) -> dict[str, Any]:
    """Write identity.json, .md, .png, .pdf and .parquet into the folder of the dataset; return the content of the JSON.

    The Parquet file has a row for each sequence of valid, test and ood, in the order of the digests, with the columns
    digest, split, before and after. `before` and `after` are fractions, null without an alignment that counts.
    """
    report = describe(splits)
    save_figure(plot(report), folder / STEM)
    with whole_file(folder / f"{STEM}.md") as handle:
        handle.write(to_markdown(report))
    rows = np.flatnonzero((splits.codes != SPLITS.index("train")) & (splits.codes != NEAR))
    identities = {
        name: pa.array((values[rows] / 1000).astype(np.float32), mask=values[rows] == NO_ALIGNMENT)
        for name, values in (("before", splits.before), ("after", splits.after))
    }
    raw = np.ascontiguousarray(splits.digests[rows]).tobytes()
    digests = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(rows), [None, pa.py_buffer(raw)])
    names = pa.array([LISTED[code] for code in splits.codes[rows]], pa.string())
    pq.write_table(pa.table({"digest": digests, "split": names, **identities}), folder / f"{STEM}.parquet")
    write_json(folder / f"{STEM}.json", report, indent=1)
    return report
