"""What the papers' models take on TPUs, by compiling their train steps: plan_table.csv, one row a compilation.

Resumable: rows that the file has are not done again. The most telling come first, and with --minutes no new one begins
after so many. `--show` prints the tables of docs/tpu.md from the file.

usage: python benchmarks/plan_table.py [--minutes 60] [--only TEXT] [--show]
Needs libtpu (pip install '.[tpu]'); set JAX_PLATFORMS=cpu.
"""

import argparse
import csv
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteinlm.config import (
    Config,
    FavorConfig,
    GeneralizedConfig,
    IdentityConfig,
    SoftmaxConfig,
    load_config,
)
from proteinlm.errors import InputError
from proteinlm.training.planning import Plan, fit, plan

FILE = Path(__file__).with_name("plan_table.csv")
ATTENTION: dict[str, Any] = {
    "relu": GeneralizedConfig(function="relu", num_features=256),
    "softmax features": FavorConfig(num_features=256),
    "exact": SoftmaxConfig(),
    "identity": IdentityConfig(),
    # As the paper's Transformer: every score of a layer at once, and all layers' kept for the backward pass.
    "exact, whole matrix": SoftmaxConfig(block_size=2**20),
}
COLUMNS = [
    "config", "attention", "length", "topology", "rows_per_device", "fits", "total_gib", "state_gib", "limit_gib",
    "num_devices", "device_kind", "num_parameters", "tokens", "flops", "model_flops", "product_bytes", "seconds",
    "compile_seconds", "wanted", "peak_gib",
]  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """A compilation, or with `fit` a search for the largest batch that begins with `rows` a device."""

    config: str
    rows: int
    topology: str = "v2:16x16"
    fit: bool = False
    attention: str | None = None
    length: int | None = None

    @property
    def name(self) -> str:
        """What the file calls it."""
        kind = "fit" if self.fit else f"rows {self.rows}"
        return f"{self.config}, {self.attention or 'own'}, {self.length or 'own'}, {self.topology}, {kind}"

    def changed(self) -> Config:
        """The config with the attention and the length that are wanted."""
        config = load_config(self.config)
        model, batches = config.model, config.batches
        if self.attention:
            remat = "none" if self.attention == "exact, whole matrix" else model.remat
            model = dataclasses.replace(model, attention=ATTENTION[self.attention], remat=remat)
        if self.length:
            model = dataclasses.replace(model, max_length=self.length)
            batches = dataclasses.replace(batches, length=self.length, buckets=())
        return dataclasses.replace(config, model=model, batches=batches)


POD = "v2:16x16"
SINGLE = (
    "trembl_performer_relu_masked", "trembl_transformer_masked", "trembl_performer_relu_causal",
    "trembl_transformer_causal", "trembl_performer_softmax_masked",
)  # fmt: skip


def wanted() -> list[Wanted]:
    """Return all compilations, the most telling first."""
    regular = "concat_performer_relu"
    first = [
        # Does the 36-layer model fit at 1,024, does the regular Performer fit 8,192 with 8, what does exact need?
        Wanted(SINGLE[0], 64),
        Wanted(regular, 8),
        Wanted("concat_transformer", 8),
        Wanted(SINGLE[1], 56),
        Wanted(SINGLE[2], 64),
        Wanted("concat_identity", 8),
        Wanted("concat_transformer", 1, attention="exact, whole matrix"),
        # The largest: each with the next size that `fit` would try.
        Wanted(SINGLE[0], 72),
        Wanted(regular, 26),
        Wanted(SINGLE[1], 60),
        Wanted(SINGLE[2], 72),
        Wanted(SINGLE[0], 80),
        Wanted(regular, 28),
        Wanted("concat_transformer_small", 8),
    ]
    sweep = [
        Wanted(regular, 1, topology, attention=attention, length=length)
        for lengths, attentions in (
            ((65_536, 8_192), ("relu", "exact", "identity")),
            ((1_024, 16_384, 32_768, 2_048, 4_096), ("relu", "exact", "identity")),
            ((65_536, 8_192, 1_024, 16_384, 32_768, 2_048, 4_096), ("softmax features",)),
        )
        for topology in (POD, "v5e:16x16", "v4:8x8x4")
        for length in lengths
        for attention in attentions
    ]
    elsewhere = [
        Wanted(config, rows, topology, fit=True)
        for topology, rows in (("v5e:16x16", 128), ("v4:8x8x4", 256))
        for config in SINGLE
    ]
    others = [
        Wanted(config, rows)
        for config, rows in (
            ("trembl_transformer_causal", 48), ("trembl_performer_softmax_masked", 64),
            ("trembl_performer_softmax_causal", 64), ("trembl_linformer_masked", 48), ("trembl_reformer_causal", 32),
            ("trembl_transformerpp_causal", 16), ("trembl_polysketch_causal", 16), ("concat_transformerpp", 1),
            ("concat_polysketch", 1),
        )
    ]  # fmt: skip
    return [*first, *sweep, Wanted(SINGLE[0], 96, fit=True), *others, *elsewhere]


def row_of(asked: Wanted, found: Plan) -> dict[str, Any]:
    """Return a plan as a row of the file."""

    def gib(number: int | None) -> str:
        return "" if number is None else f"{number / 2**30:.3f}"

    return {
        "config": asked.config,
        "attention": asked.attention or "own",
        "length": found.length,
        "topology": asked.topology,
        "rows_per_device": found.rows_per_device,
        "fits": found.fits,
        "total_gib": gib(
            found.total_bytes if found.temporary_bytes is None else found.state_bytes + found.temporary_bytes
        ),
        "peak_gib": gib(found.total_bytes),
        "state_gib": gib(found.state_bytes),
        "limit_gib": gib(found.limit_bytes),
        "num_devices": found.num_devices,
        "device_kind": found.device_kind,
        "num_parameters": found.num_parameters,
        "tokens": found.tokens,
        "flops": f"{found.work.flops:.4e}",
        "model_flops": f"{found.model_flops:.4e}",
        "product_bytes": f"{found.work.product_bytes:.4e}",
        "seconds": "" if found.seconds is None else f"{found.seconds:.4f}",
        "compile_seconds": f"{found.compile_seconds:.0f}",
        "wanted": asked.name,
    }


def read() -> list[dict[str, str]]:
    if not FILE.exists():
        return []
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append(row: dict[str, Any]) -> None:
    new = not FILE.exists()
    with FILE.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(
        {name: row[name] for name in ("wanted", "rows_per_device", "fits", "total_gib", "seconds", "compile_seconds")},
        flush=True,
    )


def done(asked: Wanted, rows: list[dict[str, str]]) -> bool:
    mine = [row for row in rows if row["wanted"] == asked.name]
    # A search that was broken off lacks one of the two rows between which the answer lies.
    return bool(mine) and (not asked.fit or {"True", "False"} <= {row["fits"] for row in mine})


def run(minutes: float, only: str) -> None:
    end = time.monotonic() + 60 * minutes
    for asked in wanted():
        if only not in asked.name or done(asked, read()):
            continue
        if time.monotonic() > end:
            return
        try:
            if asked.fit:
                fit(
                    asked.changed(), asked.topology, lambda found, asked=asked: append(row_of(asked, found)), asked.rows
                )
            else:
                append(row_of(asked, plan(asked.changed(), asked.topology, asked.rows)))
        except InputError as error:
            print(f"{asked.name}: {error}", flush=True)


def show() -> None:
    rows = read()
    sweep = {
        (row["topology"], int(row["length"]), row["attention"]): row
        for row in rows
        if row["attention"] in SWEPT and row["rows_per_device"] == "1"
    }
    print("| topology | L |", *(f"{SWEPT[name]}: GiB | s |" for name in SWEPT), "exact over ReLU |")
    print("|---|---|", "---|" * (2 * len(SWEPT) + 1), sep="")
    for topology in dict.fromkeys(topology for topology, _, _ in sweep):
        for length in sorted({length for place, length, _ in sweep if place == topology}):
            found = [sweep.get((topology, length, name)) for name in SWEPT]
            cells = [cell for row in found for cell in (_gib(row), _seconds(row))]
            relu, exact = (sweep.get((topology, length, name)) for name in ("relu", "exact"))
            ratio = f"{float(exact['seconds']) / float(relu['seconds']):.2f}" if relu and exact else ""
            print(f"| {topology} | {length:,} | {' | '.join(cells)} | {ratio} |")
    print("\n| config | L | topology | rows a device | GiB | limit | s | tokens/s a device | fits |")
    print("|---|---|---|---|---|---|---|---|---|")
    order = [asked.config for asked in wanted()]
    for row in sorted(rows, key=lambda row: _place(row, order)):
        if (row["topology"], int(row["length"]), row["attention"]) in sweep:
            continue
        rate = f"{int(row['tokens']) / int(row['num_devices']) / float(row['seconds']):,.0f}" if row["seconds"] else ""
        name = row["config"] if row["attention"] == "own" else f"{row['config']}, {row['attention']}"
        print(
            f"| {name} | {int(row['length']):,} | {row['topology']} | {row['rows_per_device']} | {_gib(row)} | "
            f"{float(row['limit_gib']):.2f} | {_seconds(row)} | {rate} | {'yes' if row['fits'] == 'True' else 'no'} |"
        )
    missing = [asked.name for asked in wanted() if not done(asked, rows)]
    print(f"\nnot done, {len(missing)} of {len(wanted())}:", *missing, sep="\n- ")


SWEPT = {"relu": "Performer-ReLU", "softmax features": "Performer-softmax", "exact": "exact", "identity": "identity"}


def _place(row: dict[str, str], order: list[str]) -> tuple:
    return order.index(row["config"]), row["topology"] != POD, row["topology"], int(row["rows_per_device"])


def _gib(row: dict[str, str] | None) -> str:
    """Return the peak; of the rows that were made before it was read, what is never more: state and temporaries."""
    if row is None:
        return ""
    return f"{float(row['peak_gib']):.2f}" if row["peak_gib"] else f"< {float(row['total_gib']):.2f}"


def _seconds(row: dict[str, str] | None) -> str:
    return f"{float(row['seconds']):.3g}" if row and row["seconds"] else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    show() if given.show else run(given.minutes, given.only)
