"""Draw benchmarks/attention.png and .pdf from attention.csv: time and memory over length."""

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt

from proteinlm.output.figures import PAGE, PALETTE, save_figure, style

HERE = Path(__file__).parent
# Colour says which mechanism, the line whether its cost is quadratic (dashed): readable in greyscale as well.
LOOKS = {
    "relu": ("Performer ReLU", PALETTE[0], "-", "o"),
    "favor": ("Performer softmax", PALETTE[5], "-", "s"),
    "polysketch_32": ("Polysketch r = 32", PALETTE[1], "-", "^"),
    "polysketch_64": ("Polysketch r = 64", PALETTE[4], "-", "v"),
    "linformer": ("Linformer (bidirectional)", PALETTE[2], "-", "D"),
    "reformer": ("Reformer", PALETTE[3], "-", "P"),
    "softmax": ("exact softmax, ours", PALETTE[6], "--", "o"),
    "torch": ("exact softmax, PyTorch", "0.55", "--", "x"),
    "polynomial": ("exact polynomial", "0.35", ":", "*"),
}


def main() -> None:
    """Draw."""
    lines = defaultdict(list)
    with open(HERE / "attention.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["backward"] == "True":
                memory = float(row["temporary_bytes"]) / 2**20 if row["temporary_bytes"] else None
                lines[row["mechanism"]].append((int(row["length"]), float(row["seconds"]), memory))
    with style():
        figure, (time, memory) = plt.subplots(1, 2, figsize=(PAGE, 3.4), sharex=True)
        for name, (label, colour, dash, marker) in LOOKS.items():
            lengths = [length for length, _, _ in lines[name]]
            look = {"label": label, "color": colour, "linestyle": dash, "marker": marker, "markersize": 3.5}
            time.plot(lengths, [seconds for _, seconds, _ in lines[name]], **look)
            kept = [(length, used) for length, _, used in lines[name] if used]
            memory.plot([length for length, _ in kept], [used for _, used in kept], **look)
        for axes, words in ((time, "forward and backward, seconds"), (memory, "temporary memory, MiB")):
            axes.set(xscale="log", yscale="log", xlabel="length L, residues", ylabel=words)
            ticks = [512, 2048, 8192, 32_768]
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
            axes.grid(alpha=0.3, linewidth=0.5)
        figure.legend(*time.get_legend_handles_labels(), loc="outside right center")
        time.set_title("Time", loc="left")
        memory.set_title("Memory", loc="left")
        save_figure(figure, HERE / "attention")


if __name__ == "__main__":
    main()
