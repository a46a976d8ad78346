"""Splits of an ingest that are decided before its buckets are reduced: by a published manifest, or by identity."""

import functools
import shutil
from pathlib import Path
from typing import Any

from rich.progress import Progress

from proteinlm.data.ingest import steps
from proteinlm.data.ingest.workers import Submit
from proteinlm.data.sources.locations import Location
from proteinlm.data.splits import by_identity
from proteinlm.data.splits.assignments import assigned_folder
from proteinlm.data.splits.from_manifest import UNMATCHED, Unmatched, refuse_no_manifest, take_over, write_unmatched
from proteinlm.data.splits.mmseqs import find_mmseqs
from proteinlm.data.splits.rules import SplitsConfig
from proteinlm.errors import InputError


class SplitDecisions:
    """Splits that are decided in advance, and their provenance.

    Without an identity and a manifest nothing is decided in advance: `steps.reduce_bucket` assigns splits by digests
    and families.

    Args:
        config: settings of the splits.
        work: scratch folder.
        num_buckets: number of buckets of the records.

    Attributes:
        details: entries of provenance.json, for JSON; None before `decide`.
        unmatched: number of sequences that only the sources or only the manifest has; set by `finish`.

    Raises:
        InputError: MMseqs2 or the manifest is needed and missing.
    """

    def __init__(self, config: SplitsConfig, work: Path, num_buckets: int):
        self._config, self._work, self._num_buckets = config, work, num_buckets
        self.details: dict[str, Any] | None = None
        self.unmatched = Unmatched(0, 0)
        if config.identity is not None:
            find_mmseqs()
        if config.manifest is not None:
            refuse_no_manifest(config.manifest)

    def inputs(self) -> dict[str, Any]:
        """Return name and stamp of the manifest, for the marker of the ingest."""
        manifest = self._config.manifest
        return {} if manifest is None else {f"manifest {manifest}": Location(manifest).stamp}

    def decide(self, submit: Submit, threads: int, progress: Progress) -> dict[str, Any]:
        """Write the splits of each bucket to the scratch folder; by identity, all records must be in the buckets.

        Raises:
            InputError: the manifest cannot be read, or MMseqs2 failed.
        """
        # An ingest that was killed may have left files there.
        for folder in (assigned_folder(self._work), by_identity.identity_folder(self._work), self._reports):
            shutil.rmtree(folder, ignore_errors=True)
        if self._config.manifest is not None:
            self.details = {"manifest": take_over(self._config.manifest, self._work, self._num_buckets).to_json()}
        else:
            self.details = {"identity": self._by_identity(submit, threads, progress)}
        return self.details

    @property
    def _reports(self) -> Path:
        return self._work / "reports"

    def _by_identity(self, submit: Submit, threads: int, progress: Progress) -> dict[str, Any]:
        bar = progress.add_task("distances", total=None, detail="sequences")
        by_identity.identity_folder(self._work).mkdir()
        write_distinct = functools.partial(steps.write_distinct, work=self._work, config=self._config)
        for _ in submit(write_distinct, range(self._num_buckets)):
            pass

        def show(text: str) -> None:
            progress.update(bar, detail=f"MMseqs2: {text}")

        splits = by_identity.decide(self._work, self._num_buckets, self._config, threads, show)
        self._reports.mkdir()
        # The import of matplotlib takes a second, and only splits by identity need it here.
        from proteinlm.data.splits.identity_report import write_identity_report

        report = write_identity_report(self._reports, splits)
        progress.update(bar, total=1, completed=1, detail="")
        return {name: value for name, value in report.items() if name not in ("sequences", "nearest_in_train")}

    def finish(self, folder: Path, listed: int) -> None:
        """Write the reports into the folder of the dataset, after all buckets are reduced.

        Args:
            folder: folder of the dataset.
            listed: number of sequences in the manifest of the dataset.

        Raises:
            InputError: none of the sequences is in the published manifest.
        """
        if self._reports.is_dir():
            shutil.copytree(self._reports, folder, dirs_exist_ok=True)
        if self._config.manifest is not None:
            reduced = [steps.reduced_folder(self._work, bucket) for bucket in range(self._num_buckets)]
            self.unmatched = write_unmatched(reduced, folder / UNMATCHED)
            if not listed:
                raise InputError(
                    f"{self._config.manifest} has none of the {self.unmatched.unlisted:,} sequences: name the manifest "
                    "of a dataset that was made of these sources."
                )

    def provenance(self) -> dict[str, Any]:
        """Return the entry of provenance.json about the splits."""
        if self._config.manifest is not None:
            return {**(self.details or {}), **self.unmatched._asdict()}
        fractions = {"valid": self._config.valid, "test": self._config.test, "held_out": list(self._config.held_out)}
        return {**fractions, **(self.details or {})}
