"""What ingest costs beside Biopython's parsers alone, on one core and two, and how much memory it takes.

    python benchmarks/ingest.py --quick     under 5 minutes on 2 cores
    python benchmarks/ingest.py             five times the records

Files are synthetic (synthetic.py), every time is of one run in a process of its own, after its imports; Biopython's
parsers read the same file in a process of their own, held to one core as the ingest is. The last line is JSON.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from synthetic import write
from timing import machine


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

        from proteinlm.data.ingest import IngestConfig, ingest

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


def compare(folder: Path, records: int) -> dict[str, Any]:
    """Measure everything on files of so many records."""
    flat = write(folder / "trembl.dat.gz", records // 4)
    fasta = write(folder / "trembl.fasta", records)
    larger = write(folder / "larger.fasta", 5 * records)
    times: dict[str, dict[str, float]] = {
        "Bio.SwissProt.parse, .dat.gz": measure("biopython_dat", str(flat), cores=1),
        "ingest, .dat.gz, one core": measure("ingest", str(flat), str(folder / "a"), "1", cores=1),
        "SimpleFastaParser, .fasta": measure("biopython_fasta", str(fasta), cores=1),
        "ingest, .fasta, one core": measure("ingest", str(fasta), str(folder / "b"), "1", cores=1),
        "ingest, 5 x the .fasta, one core": measure("ingest", str(larger), str(folder / "c"), "1", cores=1),
        "ingest, 5 x the .fasta, two workers": measure("ingest", str(larger), str(folder / "d"), "2", cores=2),
    }
    sizes = [records // 4] * 2 + [records] * 2 + [5 * records] * 2
    for (name, found), size in zip(times.items(), sizes, strict=True):
        print(
            f"{name:<38}{size:>10,} records {found['seconds']:8.1f} s {size / found['seconds']:>9,.0f} records/s "
            f"{found['peak_mb']:6.0f} MB",
            flush=True,
        )
    flat_alone, flat_ingest, fasta_alone, fasta_ingest, one, two = times.values()
    return {
        "dat_vs_biopython": flat_alone["seconds"] / flat_ingest["seconds"],
        "fasta_vs_simplefastaparser": fasta_alone["seconds"] / fasta_ingest["seconds"],
        "two_workers_over_one": one["seconds"] / two["seconds"],
        "peak_memory_5x_over_1x": one["peak_mb"] / fasta_ingest["peak_mb"],
        "peak_memory_mb": max(found["peak_mb"] for name, found in times.items() if name.startswith("ingest")),
        "records": records,
    }


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 records instead of 500,000")
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
        print(json.dumps(compare(Path(folder), 100_000 if options.quick else 500_000)))


if __name__ == "__main__":
    main()
