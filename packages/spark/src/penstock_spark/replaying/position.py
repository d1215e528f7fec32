"""The file with the position of a replay, from which a killed replay continues.

Before a portion is published, the ids of its events and its number are written to the file. The
realm stores a publish with an equal producer and number only once. Therefore a portion whose
outcome is unknown can be published again, and its events are still stored once.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final, Protocol

import msgspec
import pyarrow.fs as fs
from msgspec import Struct, field

from penstock_core.channel.producers import LASTING_PREFIX
from penstock_core.vocabulary.argument_errors import decode_json
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument

FORMAT: Final = 1
"""Version of the format of the file."""
FILE: Final = "position.json"
"""Name of the file in the folder of a replay."""


class ReplayPosition(Struct, frozen=True, kw_only=True):
    """The position of a replay. The newest portion is the one that was begun last."""

    format: int = FORMAT
    producer: str
    """Id of the replay as a producer. It belongs to the folder and does not change at a restart."""

    replays: dict[str, str]
    """Settings that must not change while the replay continues, by name."""

    number: int = 0
    """Number of the newest portion; 0 before the first."""

    next_ids: dict[str, int] = field(default_factory=dict)
    """Id after the last event of the portions before the newest one, by channel."""

    ends: dict[str, int] = field(default_factory=dict)
    """Id after the last event of the newest portion, by channel."""

    times: dict[str, int] = field(default_factory=dict)
    """Latest original time of the portions before the newest one, by channel, in microseconds since
    1970."""

    count: int = 0
    """Number of events in the newest portion."""

    published: int = 0
    """Number of events in all portions that are known to be published."""

    is_open: bool = False
    """Whether it is unknown if the newest portion was published."""


class PositionStore(Protocol):
    """Stores the position of a replay, as a file for example."""

    def read(self) -> bytes | None:
        """Return the content that was written last; None before the first write."""
        ...

    def write(self, content: bytes) -> None:
        """Replace the content atomically and durably: after a crash, either the old or the new
        content is there as a whole."""
        ...


class PositionFile:
    """The position of a replay as a file, in a local folder or in an object store."""

    def __init__(self, folder: str) -> None:
        """``folder`` is a path or the URI of an object store."""
        self._store: fs.FileSystem | None = None
        self._path = f"{folder.rstrip('/')}/{FILE}"
        if "://" in folder:
            self._store, self._path = fs.FileSystem.from_uri(self._path)

    def read(self) -> bytes | None:
        try:
            if self._store is None:
                return Path(self._path).read_bytes()
            with self._store.open_input_file(self._path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, content: bytes) -> None:
        if self._store is None:
            _write_atomically(Path(self._path), content)
            return
        # No temporary file is needed: an object store shows only complete objects.
        with self._store.open_output_stream(self._path) as file:
            file.write(content)


def open_position(place: PositionStore, replays: dict[str, str]) -> ReplayPosition:
    """Return the stored position of a replay; a new one before the first write.

    ``replays`` are the settings of the replay. Raises ``InvalidArgument`` if the position was
    stored with other settings, and ``IllegalState`` if it cannot be read.
    """
    content = place.read()
    if content is None:
        return ReplayPosition(
            producer=f"{LASTING_PREFIX}replay/{uuid.uuid4().hex}", replays=replays
        )
    position = decode_json(
        content,
        ReplayPosition,
        whole="the document",
        refuse=lambda why: IllegalState(
            f"the position of the replay in {FILE} cannot be read: {why}; move the file away "
            f"to start over, which publishes everything again"
        ),
    )
    if position.format != FORMAT:
        raise IllegalState(
            f"the position of the replay has format {position.format}; this version reads {FORMAT}"
        )
    for key, text in replays.items():
        original = position.replays.get(key, "")
        if original != text:
            raise InvalidArgument(
                f"{key} is {text!r}; this replay started with {original!r} and has published "
                f"{position.published:,} events: change it back, or rename the step to start over"
            )
    return position


def write(place: PositionStore, position: ReplayPosition) -> None:
    """Store ``position`` in ``place`` as JSON."""
    place.write(msgspec.json.format(msgspec.json.encode(position), indent=1))


def _write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at ``path``, and sync the new content to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        # Before the rename: otherwise a crash of the machine could leave an empty file.
        os.fsync(file.fileno())
    temporary.replace(path)
    # The rename is durable only after the folder is synced.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
