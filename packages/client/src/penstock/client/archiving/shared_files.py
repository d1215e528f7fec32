"""Archives by reference: files that the realm has made of its sealed events become files of the
table, without a copy of the rows (SEM B8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.client.archiving.losses import ReadIds, id_set_of
from penstock.client.sync.sync import Channel
from penstock.tables import Table
from penstock.tables.files import ID_COLUMN
from penstock.tables.log import CannotShare, DataFile, SharedFile
from penstock_core.api.tables import SealedTableFile, SealedTableFiles
from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.files.archives import DAY
from penstock_core.columns.files.shared_columns import OtherColumns, SharedColumns
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import (
    Damaged,
    IllegalState,
    LimitReached,
    RemoteProtocolViolation,
    StorageFailed,
)

By = Literal["auto", "reference", "value"]
"""How events get into a table: in files of the realm, or in files of the archiver."""
ROWS_MIN: Final = 8_192
"""Number of rows below which a file is not shared: writing so few rows takes less time than syncing
another file and listing it in the table."""
SEARCHED: Final = 1_000_000
"""Number of ids among which a sealed file is searched for that this process can read."""
_PUBLISHED: Final = "published"


class NotShared(Exception):
    """Raised if events cannot be archived by reference. The text has the reason."""


class CommitFiles(Struct, frozen=True):
    """The files of one commit, with the events from the first id of a range to below ``end``."""

    files: tuple[DataFile, ...]
    columns: pa.Schema
    """The columns of the archive for these files."""
    read: ReadIds
    """The ids of the rows."""
    end: int


class ValueRange(Struct, frozen=True):
    """Events below ``end`` that are copied by value."""

    end: int
    reason: str = ""
    """Why they cannot be archived by reference; empty if the settings exclude it."""


class RealmFiles:
    """The files of the realm that the table of one channel shares."""

    def __init__(self, channel: Channel, table: Table, *, is_required: bool) -> None:
        """``is_required``: events are only copied by value if no sealed file has them as the table
        needs them, and not because the table and the realm cannot share files at all."""
        self._channel = channel
        self._table = table
        self._is_required = is_required
        self._is_readable = False
        """Whether a file of the realm was readable on this machine."""

    def take_over(
        self, span: Span, held: Callable[[Span], IdSet] | None
    ) -> CommitFiles | ValueRange:
        """Create files of the table for the first events of ``span``; the caller commits them. If
        the first events can only be copied by value, return their range instead.

        ``held`` returns the ids of a range that the archiver's durable has; None without a durable.
        Raises ``IllegalState`` with the reason if no events can be archived by reference, and that
        is required.
        """
        try:
            self._check_table()
            self._check_machine(span)
            located = self._locate(span)
            columns = SharedColumns(
                schema_from(located.columns),
                self._table.schema if self._table.exists else None,
                channel=self._channel.name,
                epoch=self._channel.epoch,
            )
            return self._take_over(span, located.files, columns, held=held)
        except NotShared as error:
            return self._by_value(span.end, str(error))
        except Damaged as error:  # the realm sets the events aside, so that they are lost
            return ValueRange(span.end, str(error))

    def _locate(self, span: Span) -> SealedTableFiles:
        """Have the realm make files of sealed events. Raises ``NotShared`` if it has no tables or
        no room for files, or does not know the request."""
        try:
            return self._channel.locate_sealed_table(*span, rows_min=ROWS_MIN)
        except (IllegalState, LimitReached, RemoteProtocolViolation, StorageFailed) as error:
            raise NotShared(str(error)) from error

    def _by_value(self, end: int, reason: str) -> ValueRange:
        """Return a range to copy by value, unless references are required."""
        if self._is_required:
            raise IllegalState(
                f"channel {self._channel.name} cannot be archived by reference: {reason}; pass "
                f"--by auto to copy its events by value"
            )
        return ValueRange(end, reason)

    def _check_table(self) -> None:
        """Raise ``NotShared`` if no file of the realm can be a file of the table."""
        table = self._table
        if table.format != "iceberg":
            raise NotShared(f"the table has the format {table.format}, not iceberg")
        if table.partition_by != (DAY,):
            # The files lack this column; readers take it from the partition of the file.
            raise NotShared(f"the table is not partitioned by {DAY}")

    def _check_machine(self, span: Span) -> None:
        """Raise ``NotShared`` if this process cannot read the sealed files of the realm. The realm
        would make files for nothing then."""
        if self._is_readable:
            return
        sealed = self._channel.locate(*span.clipped(Span(span.first, span.first + SEARCHED))).sealed
        self._is_readable = any(_is_readable(part.path) for part in sealed)
        if sealed and not self._is_readable:
            raise NotShared(
                f"this process cannot read the files of the realm, such as {sealed[0].path!r}, "
                f"because it runs on another machine or has no right to read them"
            )

    def _take_over(
        self,
        span: Span,
        located: tuple[SealedTableFile, ...],
        columns: SharedColumns,
        held: Callable[[Span], IdSet] | None,
    ) -> CommitFiles | ValueRange:
        if not located:
            return ValueRange(span.end, "the events are not in sealed files")
        if located[0].span.first > span.first:
            return ValueRange(located[0].span.first, "the events are not alone in sealed files")
        files: list[DataFile] = []
        schema, read, end = columns.columns, ReadIds(), span.first
        for file in located:
            if file.span.first != end:
                break
            try:
                data_file, programs, ids = self._share(file, columns, held)
            except NotInTable as error:
                if files:
                    break  # the next call has the reason
                return ValueRange(file.span.end, str(error))
            except (CannotShare, OtherColumns) as error:
                if files:
                    break
                return self._by_value(file.span.end, str(error))
            files.append(data_file)
            schema = pa.schema(
                [*schema, *(field for field in programs if field.name not in schema.names)]
            )
            if ids is None:
                read.add_span(file.span)
            else:
                read.add(ids)
            end = file.span.end
        return CommitFiles(tuple(files), schema, read, end=end)

    def _share(
        self,
        file: SealedTableFile,
        columns: SharedColumns,
        held: Callable[[Span], IdSet] | None,
    ) -> tuple[DataFile, list[pa.Field], Int64s | None]:
        """Create a file of the table with the content of ``file``. Return it, its columns for
        programs, and the ids of its rows; None if they are all ids of the range."""
        path = Path(file.path)
        if not file.path or not path.is_file() or path.stat().st_size != file.size:
            raise CannotShare(f"the file {file.path!r} of the realm is not on this machine")
        try:
            with pq.ParquetFile(path) as parquet:
                schema, day = parquet.schema_arrow, _day_of(parquet.metadata)
                programs = columns.check(schema)
                ids = _ids_of(parquet, file)
            row_ids = IdSet([file.span]) if ids is None else id_set_of(ids)
            if held is not None and row_ids.spans != held(file.span).overlap(row_ids).spans:
                raise NotInTable("the durable does not have all events of a sealed file")
            ends = row_ids.spans[0].first, row_ids.spans[-1].end - 1
            shared = SharedFile(file.rows, ends, {DAY: day.isoformat()})
            return self._table.share(path, shared, schema), programs, ids
        except FileNotFoundError:
            raise NotInTable("the realm has removed the file in the meantime") from None
        except PermissionError as error:
            raise CannotShare(
                f"this process has no right to read or add a file: {error}"
            ) from error
        except pa.ArrowException as error:
            raise CannotShare(f"{file.path!r} is not a Parquet file: {error}") from error


class NotInTable(Exception):
    """Raised if a file cannot become a file of the table, and others can. The text has the
    reason."""


def _ids_of(parquet: pq.ParquetFile, file: SealedTableFile) -> Int64s | None:
    """Return the ids of the rows of an opened file; None if they are all ids of its range.

    Raises ``CannotShare`` if the file does not have the rows that the realm has described. A realm
    that is not trusted could otherwise have any file of this machine added to the table.
    """
    lowest, highest = _bounds(parquet.metadata, ID_COLUMN)
    rows = parquet.metadata.num_rows
    if rows != file.rows or lowest < file.span.first or highest >= file.span.end:
        raise CannotShare(f"{file.path!r} does not have the events that the realm has described")
    if rows == file.span.size:
        return None
    ids: Int64s = parquet.read([ID_COLUMN]).column(0).to_numpy()
    return ids


def _is_readable(path: str) -> bool:
    return bool(path) and os.access(path, os.R_OK)


def _day_of(footer: pq.FileMetaData) -> date:
    """Return the day of publication of all rows of a file. Raises ``NotInTable`` if they are of
    several days."""
    first: date
    first, last = (bound.astimezone(UTC).date() for bound in _bounds(footer, _PUBLISHED))
    if first != last:
        raise NotInTable("a sealed file has events of several days")
    return first


def _bounds(footer: pq.FileMetaData, name: str) -> tuple[Any, Any]:
    """Return the smallest and the largest value of a column. Raises ``CannotShare`` if the file
    does not record them."""
    bounds = [
        column.statistics
        for group in map(footer.row_group, range(footer.num_row_groups))
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema == name
    ]
    if not bounds or not all(statistics and statistics.has_min_max for statistics in bounds):
        raise CannotShare(f"a file of the realm has no bounds of {name}")
    return min(part.min for part in bounds), max(part.max for part in bounds)
