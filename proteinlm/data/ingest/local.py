"""The local engine: an ingest by the processes of this machine, phase by phase; it continues an interrupted ingest."""

import functools
import importlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from proteinlm.data.dataset.dataset import MANIFEST, REJECTS
from proteinlm.data.dataset.shard_plan import plan_files
from proteinlm.data.families.profile_search import Searched
from proteinlm.data.ingest import steps
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.family_sources import FAMILY_REJECTS, FamilySources
from proteinlm.data.ingest.progress import MARKER, SCRATCH, Marker
from proteinlm.data.ingest.results import IngestResult, check_not_empty, shard_lengths, timed, write_description
from proteinlm.data.ingest.source_counts import SourceCounts
from proteinlm.data.ingest.split_decisions import SplitDecisions
from proteinlm.data.ingest.workers import Submit, pool, wait_for_processes
from proteinlm.data.sources.files import SourceFile, TextBlock
from proteinlm.data.sources.record_buckets import bucket_folder, delete_bucket, truncate_bucket
from proteinlm.output.folders import DATASET
from proteinlm.output.version import __version__

_SCRATCH_FORMAT = 1
"""Version of the format of the scratch files. Scratch files of another version are not read."""


@dataclass(frozen=True)
class _Ingest:
    """One ingest on this machine.

    Attributes:
        files: sources, sorted.
        config: settings.
        release: provenance of the release of UniProt that the sources belong to.
        folder: folder of the dataset.
        work: scratch folder.
        num_buckets: number of buckets.
        marker: record of the finished work.
        progress: progress bars on the terminal.
        result: result so far.
    """

    files: list[SourceFile]
    config: IngestConfig
    release: Mapping[str, Any] | None
    folder: Path
    work: Path
    num_buckets: int
    marker: Marker
    progress: Progress
    result: IngestResult


def prepare_local(
    files: list[SourceFile],
    folder: Path,
    config: IngestConfig,
    release: Mapping[str, Any] | None,
    console: Console,
) -> Callable[[], IngestResult]:
    """Check the inputs of an ingest, and return the function that writes the dataset on this machine.

    Args:
        files: sources, sorted.
        folder: partial folder. The dataset is written to DATASET in it; an interrupted ingest in it is continued.
        config: settings of the dataset.
        release: provenance of the release of UniProt that the sources belong to.
        console: terminal for progress bars and messages.

    Raises:
        InputError: the folder holds an unfinished ingest of other sources or with other options; or a table, a file of
            profiles, a manifest or MMseqs2 is missing.
    """
    dataset, work = folder / DATASET, folder / SCRATCH
    # Known before a source is read, and independent of the number of workers.
    num_buckets = config.num_buckets(sum(file.text_size for file in files))
    families = FamilySources(config, work, dataset)
    splits = SplitDecisions(config.splits, work, num_buckets)
    if not dataset.is_dir():
        # A finished ingest was killed while it removed its scratch files, and its dataset has been removed since.
        (folder / MARKER).unlink(missing_ok=True)
    inputs = {
        "version": __version__,
        "scratch files": _SCRATCH_FORMAT,
        "buckets": num_buckets,
        "name": config.name,
        "shards": config.shards,
        **asdict(config.splits),
        "search of all sequences": config.search_all,
        "release": release,
        **{f"source {file.path}": file.stamp for file in files},
        **families.inputs(),
        **splits.inputs(),
    }
    marker = Marker(folder / MARKER, inputs)
    progress = Progress(
        TextColumn("{task.description:<9}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[detail]}"), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    result = IngestResult(SourceCounts(files, dataset, families), families, splits)
    run = _Ingest(files, config, release, dataset, work, num_buckets, marker, progress, result)
    return functools.partial(_run, run)


def _run(run: _Ingest) -> IngestResult:
    """Write the dataset, or the rest of it."""
    config, result, families = run.config, run.result, run.result.families
    _prepare_folders(run)
    with run.progress, pool(config.num_workers, run.work) as submit:
        with timed(result.seconds, "families"):
            families.read_profiles()
            families.read_tables(submit, run.progress, run.marker.state.get("families", False))
            run.marker.note(families=True)
        if config.splits.manifest is not None:
            with timed(result.seconds, "manifest"):
                _decide_splits(run, submit)
        with timed(result.seconds, "map"):
            _map_sources(run, submit)
        if config.profiles:
            with timed(result.seconds, "search"):
                _search(run, submit)
        if config.splits.identity is not None:
            with timed(result.seconds, "identity"):
                _decide_splits(run, submit)
        with timed(result.seconds, "reduce"):
            counts = reduce_buckets(run, submit)
        with timed(result.seconds, "write"):
            _write_files(run, submit, counts)
            result.splits.finish(run.folder, result.listed)
            write_description(result, run.folder, config, run.release)
    return result


def _prepare_folders(run: _Ingest) -> None:
    """Make the folders of a new ingest; or restore the accounts of an interrupted one and remove unfinished files."""
    marker, result = run.marker, run.result
    show = functools.partial(run.progress.console.print, markup=False, highlight=False, soft_wrap=True)
    if run.work.is_dir():
        wait_for_processes(run.work)
    if not marker.resumes:
        if marker.differences:
            show(f"an unfinished ingest differs in {marker.differences}; it had finished nothing and is removed.")
        for folder in (run.folder, run.work):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for bucket in range(run.num_buckets):
            bucket_folder(run.work, bucket).mkdir(parents=True)
        marker.save()
        return
    state = marker.state
    finished_files = {*state.get("written", ()), *((REJECTS, FAMILY_REJECTS) if "intake" in state else ())}
    for path in run.folder.iterdir():
        if path.name not in finished_files:
            path.unlink()
    if "intake" in state:
        result.accounts.restore(state["intake"])
    result.resumed = (
        f"{len(result.accounts.sources):,} of {len(run.files):,} sources were read, {state.get('reduced', 0):,} of "
        f"{run.num_buckets:,} buckets sorted, {len(state.get('written', ())):,} files written"
    )
    show(f"continuing an interrupted ingest: {result.resumed}.")


def _decide_splits(run: _Ingest, submit: Submit) -> None:
    """Decide splits by identity or by a manifest, unless the interrupted ingest has done so."""
    splits = run.result.splits
    splits.details = run.marker.state.get("decided")
    if splits.details is None:
        run.marker.note(decided=splits.decide(submit, run.config.num_workers, run.progress))


def _map_sources(run: _Ingest, submit: Submit) -> None:
    """Append the records of all sources to the buckets."""
    accounts = run.result.accounts
    first = len(accounts.sources)
    if first < len(run.files):
        with accounts:
            if run.marker.resumes:
                cut = functools.partial(truncate_bucket, run.work, source=first)
                for _ in submit(cut, range(run.num_buckets)):
                    pass
            _read_sources(run, submit, first)
        accounts.check()
    run.result.families.count_unknown()


def _read_sources(run: _Ingest, submit: Submit, first: int) -> None:
    """Map the blocks of the sources from index `first` on."""
    files, marker, accounts = run.files, run.marker, run.result.accounts
    finished = sum(file.size for file in files[:first])
    bar = run.progress.add_task("reading", total=sum(file.size for file in files), completed=finished, detail="")
    start, records = time.perf_counter(), accounts.records
    map_block = functools.partial(steps.map_block, work=run.work, num_buckets=run.num_buckets)
    for (form, ended), result in submit(map_block, _blocks(run, first), keyed=True):
        accounts.add(form, result)
        if ended is not None:
            accounts.end_source()
            finished += ended.size
            # For thousands of small files, writing the accounts after each would take longer than reading the files.
            if marker.due:
                marker.note(intake=accounts.state())
        rate = (accounts.records - records) / (time.perf_counter() - start)
        bytes_read = files[len(accounts.sources)].read if len(accounts.sources) < len(files) else 0
        detail = f"{accounts.records:,} records, {rate:,.0f}/s"
        run.progress.update(bar, completed=finished + bytes_read, detail=detail)
    marker.note(intake=accounts.state())


def _blocks(run: _Ingest, first: int) -> Iterator[tuple[tuple[str, SourceFile | None], tuple[int, TextBlock]]]:
    """Yield each block with the index of its source; the key is its format, and the source if the block is its last."""
    for index, file in enumerate(run.files[first:], first):
        for block in file.blocks(run.config.block_bytes):
            yield (block.format, file if block.last else None), (index, block)


def _search(run: _Ingest, submit: Submit) -> None:
    """Search sequences with profiles, unless the interrupted ingest has done so."""
    families, state = run.result.families, run.marker.state
    if "searched" in state:
        families.searched = Searched(**state["searched"])
    else:
        run.marker.note(searched=asdict(families.search(run.num_buckets, submit, run.progress)))


def reduce_buckets(run: _Ingest, submit: Submit) -> dict[str, list[int]]:
    """Reduce all buckets and return the number of manifest rows of each bucket, for each split."""
    run.result.reduced, counts = steps.sum_buckets(_reduced(run, submit))
    check_not_empty(run.result.reduced)
    return counts


def _reduced(run: _Ingest, submit: Submit) -> Iterator[steps.ReduceResult]:
    finished = run.marker.state.get("reduced", 0)
    dropped = 0
    bar = run.progress.add_task("sorting", total=run.num_buckets, completed=finished, detail="")
    for bucket in range(finished):
        yield steps.load_reduced(bucket, run.work)
    reduce_bucket = functools.partial(steps.reduce_bucket, work=run.work, config=run.config.splits)
    for bucket, result in enumerate(submit(reduce_bucket, range(finished, run.num_buckets)), finished):
        yield result
        run.progress.advance(bar)
        # The records of a bucket are removed only after the marker on disk says that the bucket is reduced.
        if run.marker.note(reduced=bucket + 1):
            for done in range(dropped, bucket + 1):
                delete_bucket(run.work, done)
            dropped = bucket + 1


def _write_files(run: _Ingest, submit: Submit, counts: dict[str, list[int]]) -> None:
    """Write shards, manifest and figures, except the shards and the manifest that the marker lists."""
    config, marker = run.config, run.marker
    files = plan_files(config.name, counts, run.result.reduced.example_bytes, config.shards)
    written = list(marker.state.get("written", ()))
    bar = run.progress.add_task("writing", total=len(files) + 1, completed=len(written), detail="")
    tasks = [(file, task) for file, task in files.items() if file not in written]
    figures = (None, steps.Drawing(run.result.reduced.statistics))
    # Drawing takes longest. With several processes it starts first; alone it comes last, since an interrupted ingest
    # draws again.
    tasks = [figures, *tasks] if config.num_workers > 1 else [*tasks, figures]
    if config.num_workers > 1:
        # The import takes a second, and this process only waits for the others.
        threading.Thread(target=importlib.import_module, args=("tensorflow_datasets",), daemon=True).start()
    write_file = functools.partial(steps.write_file, work=run.work, folder=run.folder, name=config.name)
    for file, fingerprint in submit(write_file, tasks, keyed=True):
        run.progress.advance(bar)
        if file is None:
            continue
        written.append(file)
        if file == MANIFEST:
            marker.state["fingerprint"] = fingerprint
        marker.note(written=written)
    run.result.fingerprint = marker.state["fingerprint"]
    run.result.shard_lengths = shard_lengths(files.values())
