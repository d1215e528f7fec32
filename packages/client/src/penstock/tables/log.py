"""The interface of a table's log: a sequence of atomic commits, for Delta, Iceberg and plain
Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, Protocol

import pyarrow as pa
from msgspec import Struct, field

Format = Literal["delta", "iceberg", "parquet"]

CONTENTS_MAX: Final = 64
"""Fewest versions of a writer whose content is remembered."""

UNCOMMITTED_HOURS: Final = 24
"""Hours for which an uncommitted file is kept, as a writer may still commit it."""


class DataFile(Struct, frozen=True):
    """A Parquet file of a table."""

    path: str
    """Path inside the table, with slashes; of an Iceberg table its URI."""
    rows: int
    size: int
    """Size in bytes."""
    partition: Mapping[str, str | None]
    """Values of the partition columns, which are in the file only in an Iceberg table."""
    ids: tuple[int, int] | None = None
    """Smallest and largest ``event_id``; None without such a column."""


class State(Struct, frozen=True):
    """The state of a table after a commit."""

    version: int
    """Number of the last commit; -1 if the table does not exist yet."""
    schema: pa.Schema | None = None
    partition_by: tuple[str, ...] = ()
    files: tuple[DataFile, ...] = ()
    apps: Mapping[str, int] = field(default_factory=dict)
    """For each writer, the last version that it has stored. Only for plain Parquet: see
    :meth:`Log.last_of`."""
    contents: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """For each writer, :attr:`Commit.content` of its last versions, by version. Only for plain
    Parquet: see :meth:`Log.contents`."""


class Commit(Struct, frozen=True):
    """An atomic change of a table."""

    schema: pa.Schema
    """The columns of the table after the commit."""
    partition_by: tuple[str, ...]
    add: Sequence[DataFile] = ()
    remove: Sequence[DataFile] = ()
    app: str = ""
    """Name of the writer; empty for maintenance, such as compaction."""
    version: int = 0
    changes_data: bool = True
    """False if only files change and not rows, as in a compaction."""
    content: str = ""
    """Identifies the content of this version; empty if unknown."""


class CommitConflict(Exception):
    """Raised if another program has committed since the state was read. Nothing was changed."""


class Log(Protocol):
    """The commits of a table."""

    uri: str
    keeps_empty_partitions: bool
    """False if a partition value that is an empty text is read again as null."""
    keeps_partition_columns: bool
    """Whether data files contain the columns that the table is partitioned by."""

    @property
    def location(self) -> str:
        """The folder of the table, as a path or URI."""
        ...

    def state(self) -> State:
        """Read and return the current state. Raises ``Damaged``, and ``InvalidArgument`` if the
        place contains anything but a table."""
        ...

    def last_of(self, app: str) -> int | None:
        """Return the last version stored by a writer, in the state read last."""
        ...

    def contents(self, app: str) -> Mapping[int, str]:
        """Return :attr:`Commit.content` of the versions of the writer ``app``, by version, as far
        as the state that was read last has them."""
        ...

    def commit(self, based_on: State, commit: Commit) -> None:
        """Commit a change on top of the state ``based_on``. Raises ``CommitConflict``."""
        ...

    def new_file(self, partition: str) -> AbstractContextManager[NewFile]:
        """Create a data file to write to. It is not visible before a commit adds it."""
        ...

    def open(self, file: DataFile) -> Any:
        """Open a data file for Arrow's Parquet reader.

        Raises ``FileNotFoundError`` if a commit replaced the file and it was removed since.
        """
        ...

    def locations(self, files: Sequence[DataFile]) -> Iterator[str]:
        """Yield the paths or URIs at which other programs find these files."""
        ...

    def settle(self) -> None:
        """Move the files of the last commit to their places, if a crash prevented it."""
        ...

    def clean(self, keep_hours: int) -> int:
        """Remove files replaced at least ``keep_hours`` ago, and return their number.

        Files not committed within ``UNCOMMITTED_HOURS`` are also removed.
        """
        ...


class NewFile:
    """A file that is being written."""

    def __init__(self, path: str, sink: Any) -> None:
        self.path = path
        """Path of the file inside the table."""
        self.sink = sink
        """The sink that Arrow writes to."""
        self.size = 0
        """Size in bytes, set when the file is finished."""
