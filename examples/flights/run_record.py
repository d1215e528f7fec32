"""The files of a run, and whether the next run resumes or replaces them."""

from __future__ import annotations

import enum
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

PIPELINE = Path(__file__).with_name("flights.toml")
"""The pipeline that Spark runs."""

State = Literal["clearing", "running", "finished"]


class Beginning(enum.Enum):
    """How a run begins."""

    FIRST = "nothing was there"
    RESUMED = "an interrupted run goes on"
    REPLACED = "a run was there, and this one takes its place"


class CannotBegin(Exception):
    """The content of the directory prevents this run. The text names the remedy."""


class Entry(msgspec.Struct, kw_only=True):
    """The file ``run.json``."""

    state: State
    rows: int
    started: datetime


class RunRecord:
    """The directory of a run, and the file in it that records the progress of the run.

    Outside of the folder ``flights``, only the files named here are written or removed. The realm
    may have other channels.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.realm = directory / "realm"
        self.work = directory / "flights"
        self.pipeline = self.work / PIPELINE.name
        """The pipeline of this run; its tables and checkpoints are beside it."""
        self.checkpoints = self.work / "checkpoints"
        self.lake = self.work / "lake"
        """The tables."""
        self.archive = self.lake / "flights"
        self.delays = self.lake / "delays"
        self.aircraft = self.lake / "aircraft"
        self.report_text = directory / "report.md"
        self.report_json = directory / "report.json"
        self.picture = directory / "delays.png"
        self._file = self.work / "run.json"
        self.entry = self._read()

    def _read(self) -> Entry | None:
        """Read the file; return None if it does not exist. Raises ``CannotBegin`` if it is
        damaged."""
        if not self._file.is_file():
            return None
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Entry)
        except msgspec.DecodeError as error:
            raise CannotBegin(
                f"{self._file} cannot be read ({error}); delete {self.work}"
            ) from error

    def beginning(self, rows: int | None, *, fresh: bool) -> Beginning:
        """Return how a run of ``rows`` flights begins in this directory; None means as many as
        before. Raises ``CannotBegin``."""
        entry = self.entry
        if entry is None:
            return Beginning.FIRST
        if fresh or entry.state != "running":
            return Beginning.REPLACED
        if rows is not None and rows != entry.rows:
            raise CannotBegin(
                f"an interrupted run of {entry.rows:,} flights is in {self.directory}; leave out "
                "--rows to resume it, or add --fresh to start again"
            )
        return Beginning.RESUMED

    @property
    def has_output(self) -> bool:
        """Whether the directory has files of a run."""
        return any(folder.exists() for folder in self._folders)

    @property
    def _folders(self) -> tuple[Path, ...]:
        return (self.checkpoints, self.lake)

    def clear(self, rows: int) -> None:
        """Remove the files of the previous run; the caller deletes its channels."""
        # The state is written first: if this run is interrupted here, the next one clears again.
        self._write(Entry(state="clearing", rows=rows, started=datetime.now(UTC)))
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        logs = self.work.glob("*.log")
        for file in (self.report_text, self.report_json, self.picture, self.pipeline, *logs):
            file.unlink(missing_ok=True)

    def record_start(self, rows: int) -> None:
        """Record the start. From now on, an interrupted run is resumed, with this pipeline."""
        self.work.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PIPELINE, self.pipeline)
        self._write(Entry(state="running", rows=rows, started=datetime.now(UTC)))

    def record_end(self) -> None:
        """Record that the report is written, so that the next run replaces this one."""
        assert self.entry is not None, "a run that finishes was running"
        self._write(msgspec.structs.replace(self.entry, state="finished"))

    def _write(self, entry: Entry) -> None:
        """Replace the file in one step, so that it is never half-written."""
        self.work.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(entry)))
        new.replace(self._file)
        self.entry = entry
