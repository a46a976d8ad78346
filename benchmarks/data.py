"""What reading costs: a dataset on disk to ready batches of tokens, single sequences and concatenated windows.

    python benchmarks/data.py --quick      40,000 sequences, under 2 minutes
    python benchmarks/data.py              400,000 sequences

Makes its own dataset in a temporary folder, of the packaged proteins with random mutations, so lengths are real ones
(248 residues on average, where TrEMBL has 353: more reads a token). Each figure is a process of its own; for one core,
it is bound to it with all its threads. Tokens are residues and <eos>, not padding. The last line is JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FORMS: dict[str, dict[str, Any]] = {
    "single": {"form": "single", "length": 1024, "batch_size": 32},
    "concat": {"form": "concat", "length": 8192, "batch_size": 8},
}
SHARDS = 64
"""As many as 16 GB of proteins have: a batch meets nearly as many files as it has rows."""
STRETCHES, SECONDS = 12, 0.25
"""Many short ones: the best of them is one in which the machine did little else."""


def write_dataset(folder: Path, count: int) -> Path:
    """Ingest `count` mutated copies of the packaged proteins, and return the dataset's folder."""
    from proteinlm.alphabet import STANDARD_RESIDUES
    from proteinlm.data.ingest.ingest import SAMPLE, IngestConfig, ingest
    from proteinlm.data.sources.uniprot import read_records

    letters = np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)
    generator = np.random.default_rng(0)
    proteins = [np.frombuffer(record.sequence, np.uint8) for record in read_records(SAMPLE / "proteins.fasta.gz")]
    with open(folder / "proteins.fasta", "wb") as file:
        for index in range(count):
            sequence = proteins[index % len(proteins)].copy()
            places = generator.integers(0, len(sequence), 1 + len(sequence) // 10)
            sequence[places] = generator.choice(letters, len(places))
            file.write(b">P%07d\n%s\n" % (index, sequence.tobytes()))
    ingest([folder / "proteins.fasta"], folder / "dataset", IngestConfig(shards=SHARDS))
    return folder / "dataset"


def measure(dataset: str, form: str, threads: int, device: float) -> dict[str, float]:
    """Return tokens/s of training batches, the best of several stretches; and by CPU time, of all of them.

    Args:
        dataset: its folder.
        form: one of FORMS.
        threads: that read ahead.
        device: seconds that an accelerator would take for each batch, during which this process waits.
    """
    from proteinlm.data.batches.batches import BatchesConfig, TrainBatches
    from proteinlm.data.dataset.dataset import ProteinDataset

    batches = TrainBatches(ProteinDataset.open(dataset), BatchesConfig(num_threads=threads, **FORMS[form]))
    for _ in range(8):
        next(batches)
    best: dict[str, float] = {"tokens_per_s": 0.0}
    all_tokens, cpu = 0, time.process_time()
    for _ in range(STRETCHES):
        start, tokens, steps = time.perf_counter(), 0, 0
        while (taken := time.perf_counter() - start) < SECONDS:
            tokens += np.count_nonzero(next(batches)["tokens"])
            steps += 1
            if device:
                time.sleep(device)
        all_tokens += tokens
        if tokens / taken > best["tokens_per_s"]:
            best = {"tokens_per_s": tokens / taken, "seconds_per_batch": taken / steps}
    best["tokens_per_cpu_s"] = all_tokens / (time.process_time() - cpu)
    batches.close()
    return best


def in_a_process(dataset: Path, form: str, threads: int, *, one_core: bool = False, device: float = 0.0) -> Any:
    """Call `measure` in a new process, bound to one core if asked."""
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, __file__, "--measure", str(dataset), form, str(threads), str(device)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores[-1:] if one_core else cores),
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sequences")
    parser.add_argument("--dataset", type=Path, help="measure this dataset instead of making one")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        dataset, form, threads, device = options.measure
        print(json.dumps(measure(dataset, form, int(threads), float(device))))
        return
    with tempfile.TemporaryDirectory() as folder:
        dataset = options.dataset or write_dataset(Path(folder), 40_000 if options.quick else 400_000)
        print(json.dumps(table(dataset)))


def table(dataset: Path) -> dict[str, float]:
    """Measure every form, print a row of each, and return the figures."""
    figures: dict[str, float] = {}
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    print(f"{'':20}{'a core':>12}{'1 thread':>12}{'2 threads':>12}   of no thread; beside a device: 1, 2 threads")
    for form in FORMS:
        core = in_a_process(dataset, form, 0, one_core=True)
        figures[f"{form}_tokens_per_s_core"] = core["tokens_per_s"]
        figures[f"{form}_tokens_per_cpu_s"] = core["tokens_per_cpu_s"]
        rates = {threads: in_a_process(dataset, form, threads)["tokens_per_s"] for threads in (0, 1, 2)}
        # A device that is as fast as reading: without threads each waits for the other.
        busy = {
            threads: in_a_process(dataset, form, threads, device=core["seconds_per_batch"])["tokens_per_s"]
            for threads in (0, 1, 2)
        }
        for threads in (1, 2):
            figures[f"{form}_{threads}_threads_over_none"] = rates[threads] / rates[0]
            figures[f"{form}_{threads}_threads_over_none_beside_a_device"] = busy[threads] / busy[0]
        ratios = [
            figures[f"{form}_{threads}_threads_over_none{beside}"]
            for beside in ("", "_beside_a_device")
            for threads in (1, 2)
        ]
        print(
            f"{form:20}{core['tokens_per_s'] / 1e6:>10.2f} M{ratios[0]:>12.2f}{ratios[1]:>12.2f}"
            f"{'':33}{ratios[2]:.2f}, {ratios[3]:.2f}",
            flush=True,
        )
    return figures


if __name__ == "__main__":
    main()
