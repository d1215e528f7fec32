"""The state of a pipeline's steps, stored in files in the folder of checkpoints.

The folder contains a folder for each pipeline, with a folder for each step; ``query`` in a step's
folder is Spark's checkpoint. The file ``<step>.json`` next to a step's folder is the status that
the step's last run wrote. On an object store, only Spark's checkpoints are stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import Struct, field

from penstock_core.vocabulary.errors import IllegalState
from penstock_core.wire.positions import positions_in
from penstock_spark.pipelines.definition import Pipeline
from penstock_spark.pipelines.step import Progress
from penstock_spark.session.cache import cache_directory

QUERY: Final = "query"
"""Name of Spark's checkpoint in the folder of a step."""

_LOCK: Final = "lock"
_URI: Final = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Status(Struct, kw_only=True):
    """The content of the status file of a step, which its last run wrote."""

    state: str = "starts"
    """``starts``, ``runs``, ``restarts``, ``stopped``, ``done`` or ``failed``."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """The time at which the status was written."""

    pid: int = field(default_factory=os.getpid)
    """Id of the process of the run."""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    """The time at which the run started."""
    restarts: int = 0
    """Number of times that this run has started the step again."""

    progress: Progress | None = None
    """The last progress of the run."""

    error: str = ""
    """The last failure of the run. A successful restart does not clear it."""

    text: str = ""
    """The result of work that ends by itself."""


class Positions(Struct, kw_only=True):
    """The position of a query, read from Spark's checkpoint."""

    batch: int | None = None
    """Number of the last finished micro-batch; None before the first."""

    channels: dict[str, int] = field(default_factory=dict)
    """The id of the next event to read, by channel."""


class StepFiles:
    """Reads and writes the files of one step."""

    def __init__(self, pipeline: Pipeline, step: str) -> None:
        self.is_local = _URI.match(pipeline.place) is None
        """Whether the files are on this machine, and not in an object store."""
        self._place = pipeline.place.removeprefix("file://")
        self._step = step

    @property
    def checkpoint(self) -> str:
        """Path or URI of the folder of the step."""
        return f"{self._place}/{self._step}"

    def prepare(self) -> None:
        """Create the folder of the step, if the files are on this machine."""
        if self.is_local:
            Path(self.checkpoint).mkdir(parents=True, exist_ok=True)

    def write(self, status: Status) -> None:
        """Write the status file atomically; do nothing on an object store."""
        if not self.is_local:
            return
        status.at = datetime.now(UTC)
        path = self._file
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(status)))
        temporary.replace(path)

    def status(self) -> Status | None:
        """Return the status that the step's last run wrote; None before the first run."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Status)
        except (OSError, msgspec.DecodeError, RecursionError):
            return None

    def positions(self) -> Positions:
        """Return the positions of the step's query; empty before its first micro-batch."""
        folder = Path(self.checkpoint) / QUERY
        done = _newest(folder / "commits")
        if not self.is_local or done is None:
            return Positions()
        return Positions(batch=done, channels=_channels(folder / "offsets" / str(done)))

    @property
    def _file(self) -> Path:
        return Path(f"{self.checkpoint}.json")


def _newest(folder: Path) -> int | None:
    """Return the highest number that is the name of a file in a log of Spark; None if the log is
    empty or does not exist."""
    try:
        numbers = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except OSError:
        return None
    return max(numbers, default=None)


def _channels(path: Path) -> dict[str, int]:
    """Return the next event id of each channel, from an entry of Spark's log of offsets. The entry
    has a JSON line for each source."""
    next_ids: dict[str, int] = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return next_ids
    for line in lines:
        next_ids |= positions_in(line)
    return next_ids


@contextlib.contextmanager
def pipeline_locked(pipeline: Pipeline) -> Iterator[None]:
    """Lock a pipeline while the ``with`` block runs, so that no other process runs the pipeline.

    The lock also ends with the process. For checkpoints on an object store, it covers this machine
    only. Raises ``IllegalState`` if another process has the lock; the text names the process.
    """
    path = _lock(pipeline)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if not _try_lock(file):
            file.seek(0)
            raise IllegalState(
                f"pipeline {pipeline.name} is already running "
                f"({file.read().strip() or 'elsewhere'}); "
                "two runs would do the work twice: stop the other one first, or give this one "
                "another name and other checkpoints"
            )
        file.truncate(0)
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()}, since {now} UTC")
        file.flush()
        yield


def _try_lock(file: IO[str]) -> bool:
    """Lock the file exclusively; return False if another process keeps it locked."""
    for wait_s in (0.02, 0.1, 0.2):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        # `runner_of` in another process locks the file for a moment, which is not a run.
        threading.Event().wait(wait_s)
    return False


def is_running(pipeline: Pipeline) -> bool:
    """Return whether a process is running the pipeline."""
    return runner_of(pipeline) is not None


def runner_of(pipeline: Pipeline) -> int | None:
    """Return the id of the process that is running the pipeline, or some of its steps.

    0 means that the process has not written its id yet; None means that no process runs it.
    """
    try:
        with _lock(pipeline).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = re.match(r"process (\d+)", file.read())
                return int(holder[1]) if holder is not None else 0
    except OSError:
        return None
    return None


def _lock(pipeline: Pipeline) -> Path:
    """Return the path of the lock file. For checkpoints on an object store, the file is in this
    machine's cache directory."""
    if _URI.match(pipeline.place) is None:
        return Path(pipeline.place.removeprefix("file://")) / _LOCK
    digest = sha256(pipeline.place.encode()).hexdigest()[:16]
    return cache_directory() / "pipelines" / digest
