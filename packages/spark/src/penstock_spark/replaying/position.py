"""The file with the position of a replay, from which a killed replay continues.

Before a portion is published, its events and its number are written to the file. The realm stores a
publish of one producer and number once. So a portion with an unknown outcome is published again,
and is still stored once.
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
FILE: Final = "position.json"


class ReplayPosition(Struct, frozen=True, kw_only=True):
    """The position of a replay."""

    format: int = FORMAT
    producer: str
    """The producer's id: one for each folder, unchanged after a restart."""

    replays: dict[str, str]
    """The replayed channels and their targets; a replay cannot continue with others."""

    number: int = 0
    """Number of the portion begun last; 0: none."""

    next_ids: dict[str, int] = field(default_factory=dict)
    """The first id, by channel, that is in no earlier portion."""

    ends: dict[str, int] = field(default_factory=dict)
    """The first id, by channel, after the portion that was begun last."""

    times: dict[str, int] = field(default_factory=dict)
    """The latest original time of earlier portions, by channel, in microseconds since 1970."""

    count: int = 0
    """Events of the portion begun last."""

    published: int = 0
    """Events of earlier portions."""

    is_open: bool = False
    """True while it is uncertain whether the portion begun last was published."""


class PositionStore(Protocol):
    """The file or other store that keeps a position."""

    def read(self) -> bytes | None:
        """Return the content written last; None before the first write."""
        ...

    def write(self, content: bytes) -> None:
        """Write atomically and durably: a crash leaves the old or the new content."""
        ...


class PositionFile:
    """The file of a position: in a folder, or in a store that an URI names."""

    def __init__(self, folder: str) -> None:
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
    """Return the stored position, or the initial one.

    Raises ``InvalidArgument`` if it belongs to a replay with other settings, ``IllegalState`` if it
    cannot be read.
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
    """Store ``position``."""
    place.write(msgspec.json.format(msgspec.json.encode(position), indent=1))


def _write_atomically(path: Path, content: bytes) -> None:
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
