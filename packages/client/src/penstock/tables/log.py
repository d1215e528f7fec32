"""The interface of a table's log, a sequence of atomic commits. Delta, Iceberg and plain Parquet
tables implement it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import pyarrow as pa
from msgspec import Struct, field

Format = Literal["delta", "iceberg", "parquet"]

PARQUET_DEPRECATED: Final = (
    "the format parquet, plain Parquet files with a list of commits, is deprecated: the next minor "
    "release reads such tables and no longer writes them; write a table of the format delta or "
    "iceberg"
)
"""Advice for programs that write tables of plain Parquet files."""

CONTENTS_MAX: Final = 64
"""Number of the newest versions of a writer whose content identity a table records."""

UNCOMMITTED_HOURS: Final = 24
"""Hours before an uncommitted file is removed. Until then, a writer may still commit it."""


class DataFile(Struct, frozen=True):
    """A Parquet file of a table."""

    path: str
    """Path inside the table, with slashes; for an Iceberg table, the URI of the file."""
    rows: int
    """Number of rows."""
    size: int
    """Size in bytes."""
    partition: Mapping[str, str | None]
    """Values of the partition columns, as texts. The file itself contains these columns only in an
    Iceberg table."""
    ids: tuple[int, int] | None = None
    """Smallest and largest ``event_id``; None if the file does not have this column."""


class SharedFile(Struct, frozen=True):
    """The rows of a Parquet file on this machine that never changes."""

    rows: int
    ids: tuple[int, int]
    """Smallest and largest ``event_id``."""
    partition: Mapping[str, str]
    """Values of the partition columns, which the file does not contain, as texts."""


class State(Struct, frozen=True):
    """The state of a table after a commit."""

    version: int
    """Number of the last commit; -1 if the table does not exist yet."""
    schema: pa.Schema | None = None
    """The columns; None if the table does not exist yet."""
    partition_by: tuple[str, ...] = ()
    """Names of the partition columns."""
    files: tuple[DataFile, ...] = ()
    """The data files that contain the rows of the table."""
    apps: Mapping[str, int] = field(default_factory=dict)
    """The last stored version of each writer. Only plain Parquet tables use this field;
    :meth:`Log.last_of` works for all."""
    contents: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """:attr:`Commit.content` by writer and version, for the newest versions of each writer. Only
    plain Parquet tables use this field; :meth:`Log.contents` works for all."""


class Commit(Struct, frozen=True):
    """An atomic change of a table."""

    schema: pa.Schema
    """The columns of the table after the commit."""
    partition_by: tuple[str, ...]
    add: Sequence[DataFile] = ()
    """New files of the table."""
    remove: Sequence[DataFile] = ()
    """Files that the commit removes from the table."""
    app: str = ""
    """Name of the writer; empty for maintenance, such as compaction."""
    version: int = 0
    """The writer's version of this commit; each version is stored once."""
    changes_data: bool = True
    """False if the commit changes files but no rows, as in a compaction."""
    content: str = ""
    """Text that identifies the rows of this version, so that a retry with other rows is detected;
    empty if unknown."""


class CommitConflict(Exception):
    """Raised if another program has committed since the state was read. Nothing was changed."""


class CommitUnconfirmed(Exception):
    """Raised if it is not known whether a commit is stored or will still be stored: its answer was
    lost, or the catalog has failed. The text has the reason."""


class CannotShare(Exception):
    """Raised if a table cannot share a file of a realm. The text has the reason."""


class FileMaker(Protocol):
    """The part of a log that creates data files. Reading the table is not part of it, so that tasks
    on other machines can create files."""

    uri: str
    keeps_empty_partitions: bool
    """False if a partition value that is an empty text is read again as null."""
    keeps_partition_columns: bool
    """Whether data files contain the columns that the table is partitioned by."""

    def new_file(self, partition: str) -> AbstractContextManager[NewFile]:
        """Create a data file to write to. It is not visible before a commit adds it."""
        ...


class Log(FileMaker, Protocol):
    """The commits of a table."""

    @property
    def location(self) -> str:
        """The folder of the table, as a path or URI."""
        ...

    def state(self) -> State:
        """Read the current state of the table and return it.

        Raises ``Damaged`` if the log cannot be read, and ``InvalidArgument`` if the location
        contains something other than a table of this format.
        """
        ...

    def last_of(self, app: str) -> int | None:
        """Return the last stored version of the writer ``app`` in the last read state; None if it
        has stored none."""
        ...

    def contents(self, app: str) -> Mapping[int, str]:
        """Return the recorded :attr:`Commit.content` of the newest versions of the writer ``app``,
        by version, from the last read state."""
        ...

    def commit(self, based_on: State, commit: Commit) -> None:
        """Commit a change of the state ``based_on``.

        Raises ``CommitConflict`` if another program has committed since that state was read, and
        ``CommitUnconfirmed`` if it is unknown whether the commit is stored.
        """
        ...

    def file_maker(self) -> FileMaker:
        """Return an object that creates data files for the last read state. It can be pickled."""
        ...

    def open(self, file: DataFile) -> Any:
        """Open a data file for Arrow's Parquet reader.

        Raises ``FileNotFoundError`` if a later commit replaced the file and it has been removed.
        """
        ...

    def locations(self, files: Sequence[DataFile]) -> Iterator[str]:
        """Yield the paths or URIs at which other programs find these files."""
        ...

    def sync(self) -> None:
        """Sync the commits of the last read state to disk. The program that made one may have been
        killed before, or its disk may have failed."""
        ...

    def settle(self) -> None:
        """Move the files of the last commit to their final paths, if a crash prevented it."""
        ...

    def clean(self, keep_hours: int) -> int:
        """Remove the files that were replaced at least ``keep_hours`` ago, and the files that were
        not committed within ``UNCOMMITTED_HOURS``. Return the number of removed files."""
        ...


@runtime_checkable
class SharingLog(Protocol):
    """A log whose table can share Parquet files of a realm."""

    def share(self, source: Path, file: SharedFile) -> DataFile:
        """Create a data file with the content of ``source``.

        The file is not visible before a commit adds it. Raises ``CannotShare``, and
        ``FileNotFoundError`` and ``PermissionError`` if ``source`` cannot be read.
        """
        ...


class NewFile:
    """A data file that is being written."""

    def __init__(self, path: str, sink: Any) -> None:
        self.path = path
        """Path of the file inside the table."""
        self.sink = sink
        """The output stream that Arrow writes to."""
        self.size = 0
        """Size in bytes, set when the file is finished."""
