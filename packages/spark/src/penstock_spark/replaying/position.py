"""The position of a replay in one file, from which a replay that was killed continues.

Before a portion is published, the file says which events are in it and what number it has; the
realm stores a publish of one producer and number once. So a portion whose end is not known is
published again, and is stored once all the same.
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
    """By channel, the latest original time of earlier portions, in microseconds since 1970."""

    count: int = 0
    """Events of the portion begun last."""

    published: int = 0
    """Events of earlier portions."""

    is_open: bool = False
    """Whether the portion begun last may not have been published."""


class PositionStore(Protocol):
    """The file or other store that keeps a position."""

    def read(self) -> bytes | None:
        """Read the text that was written last; None if nothing was."""
        ...

    def write(self, content: bytes) -> None:
        """Write atomically, whenever the process or the machine stops."""
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
            _write_aside(Path(self._path), content)
            return
        # An object store shows an object only when it is complete.
        with self._store.open_output_stream(self._path) as file:
            file.write(content)


def opened(place: PositionStore, replays: dict[str, str]) -> ReplayPosition:
    """The position that is kept, or the one to begin with.

    Raises ``InvalidArgument`` where it belongs to a replay of something else, ``IllegalState``
    where it cannot be read.
    """
    content = place.read()
    if content is None:
        return ReplayPosition(
            producer=f"{LASTING_PREFIX}replay/{uuid.uuid4().hex}", replays=replays
        )
    kept = decode_json(
        content,
        ReplayPosition,
        whole="the document",
        refuse=lambda why: IllegalState(
            f"the position of the replay in {FILE} cannot be read: {why}; move the file away "
            f"to start over, which publishes everything again"
        ),
    )
    if kept.format != FORMAT:
        raise IllegalState(
            f"the position of the replay is of format {kept.format}; this version knows {FORMAT}"
        )
    for key, text in replays.items():
        before = kept.replays.get(key, "")
        if before != text:
            raise InvalidArgument(
                f"{key} is {text!r}; this replay started with {before!r} and has published "
                f"{kept.published:,} events: change it back, or rename the step to start over"
            )
    return kept


def write(place: PositionStore, position: ReplayPosition) -> None:
    """Keep ``position``."""
    place.write(msgspec.json.format(msgspec.json.encode(position), indent=1))


def _write_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
