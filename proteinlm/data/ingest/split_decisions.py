"""Splits of one ingest that are decided before its buckets are reduced: taken over from a manifest, or by identity."""

import shutil
from pathlib import Path
from typing import Any

from rich.progress import Progress

from proteinlm.data.ingest.workers import Submit
from proteinlm.data.sources.locations import Location
from proteinlm.data.splits import by_identity
from proteinlm.data.splits.assignments import assigned_folder
from proteinlm.data.splits.from_manifest import UNMATCHED, Unmatched, refuse_no_manifest, take_over, write_unmatched
from proteinlm.data.splits.mmseqs import find_mmseqs
from proteinlm.data.splits.rules import SplitsConfig
from proteinlm.errors import InputError


class Decisions:
    """What is decided and what became of it.

    Args:
        config: of the splits; if it has neither an identity nor a manifest, digests and families decide later.
        work: scratch folder.
        num_buckets: of the records.
        progress: where a bar is shown.

    Attributes:
        made: what the provenance says of it, for JSON; None before `decide` or `restore`.
        unmatched: what only the sources or only the manifest has, after `finish`.

    Raises:
        InputError: MMseqs2 or the manifest is needed and not there.
    """

    def __init__(self, config: SplitsConfig, work: Path, num_buckets: int, progress: Progress):
        self.config, self.work, self.num_buckets, self.progress = config, work, num_buckets, progress
        self.made: dict[str, Any] | None = None
        self.unmatched = Unmatched(0, 0)
        if config.identity is not None:
            find_mmseqs()
        if config.manifest is not None:
            refuse_no_manifest(config.manifest)

    def inputs(self) -> dict[str, Any]:
        """Return which manifest it is, for the marker of the ingest."""
        manifest = self.config.manifest
        return {} if manifest is None else {f"manifest {manifest}": Location(manifest).stamp}

    def decide(self, submit: Submit, threads: int) -> dict[str, Any]:
        """Leave the splits for each bucket to look up; by identity, after all records are in the buckets.

        Raises:
            InputError: the manifest is none, or MMseqs2 has failed.
        """
        # What a killed ingest has left.
        for folder in (assigned_folder(self.work), by_identity.identity_folder(self.work), self._reports):
            shutil.rmtree(folder, ignore_errors=True)
        if self.config.manifest is not None:
            self.made = {"manifest": take_over(self.config.manifest, self.work, self.num_buckets).to_json()}
        else:
            self.made = {"identity": self._by_identity(submit, threads)}
        return self.made

    @property
    def _reports(self) -> Path:
        return self.work / "reports"

    def _by_identity(self, submit: Submit, threads: int) -> dict[str, Any]:
        bar = self.progress.add_task("distances", total=None, detail="sequences")
        by_identity.identity_folder(self.work).mkdir()
        for _ in submit("sequences", range(self.num_buckets)):
            pass

        def tell(text: str) -> None:
            self.progress.update(bar, detail=f"MMseqs2: {text}")

        found = by_identity.decide(self.work, self.num_buckets, self.config, threads, tell)
        self._reports.mkdir()
        # Drawing takes a second to import, and splits by identity alone need it.
        from proteinlm.data.splits.identity_report import write_identity_report

        report = write_identity_report(self._reports, found)
        self.progress.update(bar, total=1, completed=1, detail="")
        return {name: value for name, value in report.items() if name not in ("sequences", "nearest_in_train")}

    def finish(self, reduced: list[Path], output: Path, taken: int) -> None:
        """Write the reports into the dataset's folder.

        Args:
            reduced: the folders of the reduced buckets, in order.
            output: of the dataset.
            taken: number of sequences that have a split.

        Raises:
            InputError: none of the sequences is in the manifest.
        """
        if self._reports.is_dir():
            shutil.copytree(self._reports, output, dirs_exist_ok=True)
        if self.config.manifest is not None:
            self.unmatched = write_unmatched(reduced, output / UNMATCHED)
            if not taken:
                raise InputError(
                    f"{self.config.manifest} has none of the {self.unmatched.unlisted:,} sequences: name the manifest "
                    "of a dataset that was made of these sources."
                )

    def provenance(self) -> dict[str, Any]:
        """Return what the dataset's provenance says about how it was split."""
        if self.config.manifest is not None:
            return {**(self.made or {}), **self.unmatched._asdict()}
        fractions = {"valid": self.config.valid, "test": self.config.test, "held_out": list(self.config.held_out)}
        return {**fractions, **(self.made or {})}
