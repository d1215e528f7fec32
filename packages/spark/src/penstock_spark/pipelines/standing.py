"""The state of a pipeline's steps, read from files in the folder of checkpoints.

Each pipeline has a folder there, with a folder for each step, which contains Spark's checkpoint,
``query``. The file ``<step>.json`` next to a step's folder is the status that its last run wrote.
On an object store, only Spark's checkpoint is kept.
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
"""Spark's checkpoint in the folder of a step."""

_LOCK: Final = "lock"
_URI: Final = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Status(Struct, kw_only=True):
    """The status that a step's last run wrote."""

    state: str = "starts"
    """``starts``, ``runs``, ``restarts``, ``stopped``, ``done`` or ``failed``."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """The time at which the status was written."""

    pid: int = field(default_factory=os.getpid)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    restarts: int = 0
    """Number of times that this run has started the step again."""

    progress: Progress | None = None
    """The last progress of the run."""

    error: str = ""
    """The last failure; kept after a successful restart."""

    text: str = ""
    """The result of work that ends."""


class Positions(Struct, kw_only=True):
    """The position of a query, from its checkpoint."""

    batch: int | None = None
    """Number of the last finished micro-batch."""

    channels: dict[str, int] = field(default_factory=dict)
    """The id of the next event to read, by channel."""


class StepFiles:
    """The files of one step."""

    def __init__(self, pipeline: Pipeline, step: str) -> None:
        self.is_local = _URI.match(pipeline.place) is None
        self._place = pipeline.place.removeprefix("file://")
        self._step = step

    @property
    def checkpoint(self) -> str:
        """The folder of the step, or its URI."""
        return f"{self._place}/{self._step}"

    def prepare(self) -> None:
        """Create the folder."""
        if self.is_local:
            Path(self.checkpoint).mkdir(parents=True, exist_ok=True)

    def write(self, status: Status) -> None:
        """Write the status atomically."""
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
    try:
        numbers = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except OSError:
        return None
    return max(numbers, default=None)


def _channels(path: Path) -> dict[str, int]:
    """Return the positions in an entry of Spark's offset log, which has a JSON line per source."""
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
    """Hold the lock of a pipeline, so that no other process runs it; the end of the process
    releases it. For checkpoints on an object store, the lock covers this machine only. Raises
    ``IllegalState``, which names the holder."""
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
    for wait_s in (0.02, 0.1, 0.2):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        threading.Event().wait(wait_s)  # `runner_of` in another process holds the lock for a moment
    return False


def is_running(pipeline: Pipeline) -> bool:
    """Return whether a process runs the pipeline now."""
    return runner_of(pipeline) is not None


def runner_of(pipeline: Pipeline) -> int | None:
    """Return the id of the process that runs the pipeline, or some of its steps; 0 if it has not
    written its id yet; None without such a process."""
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
    if _URI.match(pipeline.place) is None:
        return Path(pipeline.place.removeprefix("file://")) / _LOCK
    digest = sha256(pipeline.place.encode()).hexdigest()[:16]
    return cache_directory() / "pipelines" / digest
