"""What ingest costs beside Biopython's parsers alone, on one core and two, and how much memory it takes.

    python benchmarks/ingest.py --quick     under 5 minutes on 2 cores
    python benchmarks/ingest.py             four times the records

Flat files are of two kinds: entries annotated as those of well-known proteins (14 kB), and TrEMBL's short ones
(2.4 kB), which Biopython parses ten times as fast. Files are synthetic (synthetic.py), every time is of one run in a
process of its own, after its imports; Biopython's parsers read the same file in a process of their own, held to one
core as the ingest is. The last line is JSON.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from synthetic import write
from timing import machine

FILES = {
    "annotated": ("annotated.dat.gz", 50_000),
    "short": ("trembl.dat.gz", 60_000),
    "fasta": ("trembl.fasta", 400_000),
    "larger": ("larger.fasta", 2_000_000),
}
"""Files and their records at scale 1; the last one has five times those of the third."""


def measure(what: str, *arguments: str, cores: int) -> dict[str, float]:
    """Run one measurement in a process of its own; return its seconds and the largest resident set of any, in MB."""
    command = [sys.executable, __file__, "--cores", str(cores), "--measure", what, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            peak[0] = max(peak[0], *(resident(pid) for pid in [process.pid, *descendants(process.pid)]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    said, _ = process.communicate()
    over.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return {"seconds": float(said.splitlines()[-1]), "peak_mb": peak[0] / 1e6}


def descendants(pid: int) -> list[int]:
    """Return the processes below one, at this moment."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                below.setdefault(parent, []).append(int(entry.name))
        except OSError:
            continue
    found, rest = [], [pid]
    while rest:
        children = below.get(rest.pop(), [])
        found += children
        rest += children
    return found


def resident(pid: int) -> int:
    """Return the largest resident set that a process has had, in bytes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def run(what: str, path: str, *rest: str) -> float:
    """Do what is measured, in this process, and return its seconds."""
    if what == "ingest":
        from rich.console import Console

        from proteinlm.data.ingest.ingest import IngestConfig, ingest

        output, workers = rest
        config = IngestConfig(workers=int(workers))
        start = time.perf_counter()
        ingest([path], output, config, console=Console(stderr=True, quiet=True))
        return time.perf_counter() - start
    from Bio import SwissProt
    from Bio.SeqIO.FastaIO import SimpleFastaParser

    parse = SwissProt.parse if what == "biopython_dat" else SimpleFastaParser
    start = time.perf_counter()
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="ascii") as handle:
        for _ in parse(handle):
            pass
    return time.perf_counter() - start


def compare(folder: Path, scale: int) -> dict[str, Any]:
    """Measure everything; 1 is --quick, files and times grow with the scale."""
    sizes = {kind: scale * number for kind, (_, number) in FILES.items()}
    files = {
        kind: write(folder / name, sizes[kind], annotated=kind == "annotated") for kind, (name, _) in FILES.items()
    }
    times: dict[tuple[str, str], dict[str, float]] = {}
    for key, what, workers in (
        ("annotated", "biopython_dat", 0),
        ("annotated", "ingest", 1),
        ("short", "biopython_dat", 0),
        ("short", "ingest", 1),
        ("fasta", "biopython_fasta", 0),
        ("fasta", "ingest", 1),
        ("larger", "ingest", 1),
        ("larger", "ingest", 2),
    ):
        name = f"{what}_{workers}" if workers else what
        rest = [str(folder / f"{key}_{workers}"), str(workers)] if workers else []
        found = times[key, name] = measure(what, str(files[key]), *rest, cores=max(1, workers))
        print(
            f"{files[key].name:<18}{name:<17}{sizes[key]:>10,} records {found['seconds']:8.1f} s "
            f"{sizes[key] / found['seconds']:>9,.0f} records/s {found['peak_mb']:6.0f} MB",
            flush=True,
        )
        shutil.rmtree(folder / f"{key}_{workers}", ignore_errors=True)

    def ratio(key: str, one: str, other: str) -> float:
        return round(times[key, one]["seconds"] / times[key, other]["seconds"], 3)

    peaks = {name: found["peak_mb"] for name, found in times.items() if name[1].startswith("ingest")}
    return {
        "dat_vs_biopython": ratio("annotated", "biopython_dat", "ingest_1"),
        "dat_trembl_vs_biopython": ratio("short", "biopython_dat", "ingest_1"),
        "fasta_vs_simplefastaparser": ratio("fasta", "biopython_fasta", "ingest_1"),
        "two_workers_over_one": ratio("larger", "ingest_1", "ingest_2"),
        "peak_memory_5x_over_1x": round(peaks["larger", "ingest_1"] / peaks["fasta", "ingest_1"], 3),
        "peak_memory_mb": round(max(peaks.values())),
        "records": sizes,
    }


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the records")
    parser.add_argument("--folder", type=Path, help="where files are written; a temporary folder by default")
    parser.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        print(run(*options.measure))
        return
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(compare(Path(folder), 1 if options.quick else 4)))


if __name__ == "__main__":
    main()
