"""What both kinds of tables have in common: a log of commits, each of which is there or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, Protocol

import pyarrow as pa
from msgspec import Struct, field

from penstock.tables.files import DataFile

Format = Literal["delta", "parquet"]

UNCOMMITTED_HOURS: Final = 24
"""How long a file that no commit has may still be in the hands of a writer who is to commit it."""


class State(Struct, frozen=True):
    """A table as it is after a commit."""

    version: int
    """Of the last commit; -1: the table does not exist yet."""
    schema: pa.Schema | None = None
    partition_by: tuple[str, ...] = ()
    files: tuple[DataFile, ...] = ()
    apps: Mapping[str, int] = field(default_factory=dict)
    """What each writer has stored last; a Delta table is asked for each of them."""


class Commit(Struct, frozen=True):
    """One step: all of it or nothing."""

    schema: pa.Schema
    """The table's columns from now on."""
    partition_by: tuple[str, ...]
    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    app: str = ""
    """Who stores it; empty for what is no writer's, such as compaction."""
    version: int = 0
    changes_data: bool = True
    """False for compaction: the same rows in other files."""


class Conflict(Exception):
    """Somebody else has committed since the state was read; nothing was done."""


class Log(Protocol):
    """Where the commits of a table are."""

    uri: str

    def state(self) -> State:
        """The table as it is now. Raises ``Damaged`` or ``InvalidArgument`` for what is none."""
        ...

    def last_of(self, app: str) -> int | None:
        """The version this writer has stored last, in the state that was read last."""
        ...

    def commit(self, based_on: State, commit: Commit) -> None:
        """Raises ``Conflict``."""
        ...

    def new_file(self, partition: str) -> AbstractContextManager[NewFile]:
        """A data file in the making; nobody sees it before a commit adds it."""
        ...

    def open(self, file: DataFile) -> Any:
        """A data file, for Arrow's Parquet reader. Raises ``FileNotFoundError`` when a commit has
        replaced it and it is gone by now."""
        ...

    def locations(self, files: Sequence[DataFile]) -> Iterator[str]:
        """Where other programs find these files."""
        ...

    def settle(self) -> None:
        """Put the files of the last commit in their places, if a crash has prevented it."""
        ...

    def clean(self, keep_hours: int) -> int:
        """Remove files that have been replaced for so long, and those of writers who have not
        committed them within ``UNCOMMITTED_HOURS``; gives how many."""
        ...


class NewFile(Protocol):
    """A file that is being written."""

    path: str
    """What it is called in the table."""
    sink: Any
    """What Arrow writes to."""
    size: int
    """Bytes, once it is done."""
