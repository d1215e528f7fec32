"""Tables with exactly-once appends, merges by key, compaction and reading."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.tables.attempts import Attempts, MachineClock, PausingClock
from penstock.tables.disk import (
    committing,
    filesystem_of,
    format_of,
    is_iceberg,
    is_local,
    local_path,
    storing,
)
from penstock.tables.files import (
    ID_COLUMN,
    RowWriter,
    batches_of,
    check_partitions,
    record_batches,
)
from penstock.tables.kinds import columns_of, conform, extend_columns
from penstock.tables.log import (
    PARQUET_DEPRECATED,
    CannotShare,
    Commit,
    CommitConflict,
    CommitUnconfirmed,
    DataFile,
    Format,
    Log,
    SharedFile,
    SharingLog,
    State,
)
from penstock_core.columns.files.shared_columns import is_part_of
from penstock_core.vocabulary.errors import (
    DifferentContent,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
    Unavailable,
)
from penstock_core.vocabulary.uris import shown

if TYPE_CHECKING:
    import pyarrow.dataset as ds

COMPACT_BYTES: Final = 128 << 20
"""Default size in bytes of compacted files. A file of half this size or more is not rewritten."""
NO_VERSION: Final = -1
"""Stands for the version before the first version of a writer."""
KEEP_HOURS: Final = 168
"""Default number of hours before replaced files are removed. Until then, programs may still read
them."""


class Compacted(Struct, frozen=True):
    """The result of a compaction."""

    removed: int
    """Number of small files that were replaced."""
    added: int
    """Number of new files that contain the rows of the replaced files."""
    cleaned: int
    """Number of unused files that were deleted."""


class Table:
    """A Delta table, an Iceberg table, or a folder of Parquet files, with exactly-once appends::

        table = Table.open("lake/prices", partition_by=["day"])
        table.append(rows, app="prices", version=1)

    Each writer has a name, ``app``, and numbers its writes by ``version``. A version that is not
    above the writer's last stored one is not stored again, so that a writer can repeat a write
    whose outcome it does not know.

    Several programs may write to one table. An object is not thread-safe.
    """

    def __init__(
        self,
        log: Log,
        format: Format,
        partition_by: tuple[str, ...],
        clock: PausingClock | None = None,
    ) -> None:
        """``clock`` is for the pauses between attempts of a commit; None means the machine's."""
        self._log = log
        self._clock = clock or MachineClock()
        self.format = format
        self._partition_by = partition_by
        self._state: State | None = None

    @classmethod
    def open(
        cls,
        uri: str,
        format: Format = "delta",
        partition_by: Sequence[str] = (),
        *,
        clock: PausingClock | None = None,
    ) -> Self:
        """Return the table at a path or URI. If it does not exist, the first append creates it.

        ``format`` is ``"delta"``, ``"iceberg"`` or ``"parquet"``. The URI of an Iceberg table is
        ``iceberg://CATALOG/NAMESPACE/TABLE``, with the name of a catalog that pyiceberg finds in
        its configuration. ``partition_by`` has the partition columns of a new table; for an
        existing table, it must match. The format ``"parquet"`` is deprecated: the next minor
        release only reads it. ``clock`` is for the pauses between attempts of a commit; None means
        the machine's. Raises ``InvalidArgument``, and ``Unavailable`` if ``deltalake`` or
        ``pyiceberg`` is not installed.
        """
        if format == "parquet":
            warnings.warn(PARQUET_DEPRECATED, DeprecationWarning, stacklevel=2)
        return cls._opened(uri, format, partition_by, clock=clock)

    @classmethod
    def _opened(
        cls,
        uri: str,
        format: Format,
        partition_by: Sequence[str] = (),
        clock: PausingClock | None = None,
    ) -> Self:
        """Return the table at ``uri`` with the log of its format. Raises ``InvalidArgument`` if the
        URI and the format do not match."""
        log: Log
        if format_of(uri, format) == "iceberg":
            log = _iceberg_log(uri)
        elif format == "delta":
            from penstock.tables.delta import DeltaLog

            log = DeltaLog(uri)
        elif format == "parquet":
            from penstock.tables.parquet import ParquetLog

            log = ParquetLog(uri)
        else:
            raise InvalidArgument(
                f'format is {format!r}; allowed are "delta", "iceberg" and "parquet"'
            )
        return cls(log, format, tuple(partition_by), clock=clock)

    @classmethod
    def found(cls, uri: str) -> Self:
        """Return the existing table at a path or URI, in any format. Raises
        ``NameDoesNotExist``."""
        table = cls._opened(uri, _existing_format(uri))
        if table.exists:
            return table
        if table.format == "iceberg":
            raise NameDoesNotExist(f"the catalog of {shown(uri)} has no such table")
        raise NameDoesNotExist(f"{shown(uri)} is not a table, neither Delta nor Parquet")

    # --- state ---------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        return self._log.uri

    @property
    def state(self) -> State:
        """The last read state of the table; :meth:`refresh` reads it again."""
        if self._state is None:
            self.refresh()
        assert self._state is not None, "refresh has set it"
        return self._state

    def refresh(self) -> State:
        """Read the current state, including the commits of other programs, and return it.

        Raises ``InvalidArgument`` if the table has other partition columns than this object, and
        ``Damaged`` if its log cannot be read.
        """
        state = self._log.state()
        if state.version >= 0 and self._partition_by not in ((), state.partition_by):
            raise InvalidArgument(
                f"the table at {shown(self.uri)} is partitioned by "
                f"{_names_text(state.partition_by)}, not by {_names_text(self._partition_by)}; "
                f"give the same columns, or leave partition_by out"
            )
        self._state = state
        return state

    @property
    def exists(self) -> bool:
        return self.state.version >= 0

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table. Raises ``NameDoesNotExist`` if it does not exist yet."""
        state = self.state
        if state.schema is None:
            raise NameDoesNotExist(
                f"the table at {shown(self.uri)} does not exist yet; append rows to create it"
            )
        return state.schema

    @property
    def partition_by(self) -> tuple[str, ...]:
        return self.state.partition_by if self.exists else self._partition_by

    def files(self) -> tuple[DataFile, ...]:
        """Return the committed data files."""
        return self.state.files

    def last_of(self, app: str) -> int | None:
        """Return the last stored version of the writer ``app``; None if it has stored none."""
        self.refresh()
        return self._log.last_of(app)

    def content_of(self, app: str, version: int) -> str | None:
        """Return the recorded content identity of a version of the writer ``app``, from the last
        read state; None if it is not recorded."""
        return self._log.contents(app).get(version)

    # --- writing -------------------------------------------------------------------------

    def is_stored(self, app: str, version: int, content: str = "") -> bool:
        """Return whether the writer ``app`` has stored this version or a later one.

        ``content`` identifies the content that the writer wants to store. Raises
        ``DifferentContent`` if the table has other content under this version, or no longer records
        which content it has.
        """
        check_version(app, version)
        last_version = self.last_of(app)
        if last_version is None or last_version < version:
            return False
        contents = self._log.contents(app) if content else {}
        stored_content = contents.get(version)
        if stored_content is None and (version == last_version or not contents):
            # A version of Penstock that did not record contents has stored it.
            return True
        if stored_content != content:
            raise DifferentContent(
                f"the table at {shown(self.uri)} has version {version} of {app} with the content "
                f"{stored_content or 'of an earlier time'}, not {content}; use a new version for "
                f"other content"
            )
        return True

    def sync(self) -> None:
        """Sync the commits of the last read state to disk, if it is on this machine. A program that
        finds its version stored calls this before it relies on it: the program that stored the
        version may have been killed before.

        Raises ``Unavailable`` if the disk fails.
        """
        with committing(self.uri):
            self._log.sync()

    def append(self, rows: Any, app: str, version: int, content: str = "") -> bool:
        """Add rows exactly once. Return False if the table already has this version of ``app``.

        ``rows`` are an Arrow table or record batches, or a pandas or polars table. New columns are
        added to the table. A column of another type is cast if that changes no value. ``content``
        may identify the rows, for example by the positions from which they were read: other
        ``content`` under the same version raises ``DifferentContent``. Raises ``InvalidArgument``
        for values that the table cannot store, ``StorageFailed`` if the disk is full or failing,
        and ``Unavailable`` if other writers commit all the time, or if the table may have the rows
        but not safely on disk.
        """
        if self.is_stored(app, version, content):
            self.sync()
            return False
        writer = self.writer()
        try:
            for batch in record_batches(rows):
                writer.add(batch)
            files = writer.close()
        finally:
            writer.abandon()
        return self.commit(writer.schema, files, app=app, version=version, content=content)

    def writer(self) -> RowWriter:
        """Return a writer of data files. The files become part of the table when any program passes
        them to :meth:`commit`."""
        return self.writer_of(self.state.schema, self.partition_by)

    def writer_of(self, schema: pa.Schema | None, partition_by: Sequence[str]) -> RowWriter:
        """Return a writer for a table with the given columns. Unlike :meth:`writer`, it does not
        read the table; the program that commits the files has read it."""
        return RowWriter(self._log, schema, tuple(partition_by))

    def share(self, source: Path, file: SharedFile, columns: pa.Schema) -> DataFile:
        """Create a data file with the content of a Parquet file on this machine that never changes:
        by a hard link or, if the disk or the owner of the file does not allow one, by a copy.

        ``columns`` are the columns of the file. The file becomes part of the table when any program
        passes it to :meth:`commit`. Raises ``CannotShare`` if the table cannot have the file as it
        is, ``FileNotFoundError`` and ``PermissionError`` if ``source`` cannot be read, and
        ``StorageFailed`` if the disk is full.
        """
        log = self._log
        if not isinstance(log, SharingLog):
            raise CannotShare(f"the table has the format {self.format}, not iceberg")
        if self.exists:
            # Readers find the columns of a file by their names, with upper and lower case.
            kinds = {column.name: column.type for column in extend_columns(self.schema, columns)}
            for column in columns:
                kind = kinds.get(column.name)
                if kind is None or not is_part_of(column.type, kind):
                    raise CannotShare(
                        f"column {column.name!r} has another name or type in the table than in the "
                        f"file, where its type is {column.type}"
                    )
        with storing(self.uri):
            return log.share(source, file)

    def commit(
        self,
        schema: pa.Schema,
        files: Sequence[DataFile],
        *,
        app: str,
        version: int,
        content: str = "",
        after: int | None = None,
    ) -> bool:
        """Add files of writers to the table exactly once. Return False if the table already has
        this version of ``app``.

        ``after`` is the version that must be the last one of ``app``, :data:`NO_VERSION` if
        ``version`` is its first; otherwise raises ``IllegalState``. None means that any version may
        be the last one.
        """

        def attempt() -> None:
            if after is not None:
                self._check_last(app, after)
            self._commit(schema, files, (), app=app, version=version, content=content)

        return self._store(attempt, app, version, content=content)

    def _store(self, attempt: Callable[[], None], app: str, version: int, content: str) -> bool:
        """Call ``attempt``, which commits a version of ``app``, until the table has the version.
        Return False if the table already has it.

        The table is read before each attempt, because the previous attempt may have been stored
        although it has failed. Raises ``Unavailable`` after too many attempts, and the other errors
        of ``attempt``.
        """
        attempts = Attempts(self._clock, uuid.uuid4().hex)
        failure: CommitConflict | CommitUnconfirmed | None = None
        while True:
            try:
                is_stored = self.is_stored(app, version, content)
            except Unavailable as error:
                if attempts.unconfirmed is None:
                    raise
                if attempts.are_over:
                    raise self._unconfirmed(attempts) from error
            else:
                if is_stored:
                    self.sync()
                    return False
                if failure is not None and attempts.are_over:
                    raise self._unconfirmed(attempts) from failure
                try:
                    attempt()
                except (CommitConflict, CommitUnconfirmed) as error:
                    failure = error
                else:
                    return True
            attempts.pause_after(failure)

    def _unconfirmed(self, attempts: Attempts) -> Unavailable:
        """Return the error for a write that was attempted too often."""
        if attempts.unconfirmed is not None:
            return Unavailable(
                f"{shown(self.uri)}: the catalog has confirmed none of {attempts.count} attempts "
                f"of this write ({attempts.unconfirmed}); the table did not have it when it was "
                f"read last, but the catalog may still store it; repeat it under the same app and "
                f"version, and it is stored once"
            )
        # Another commit has followed the state that each attempt was based on, so that none of
        # them can still be stored.
        return Unavailable(
            f"{shown(self.uri)}: other writers committed to this table during each of "
            f"{attempts.count} attempts of this write; nothing was stored; try again"
        )

    def _check_last(self, app: str, version: int) -> None:
        """Raise ``IllegalState`` unless ``version`` is the last stored version of ``app``."""
        last_version = self._log.last_of(app)
        if version != (NO_VERSION if last_version is None else last_version):
            raise IllegalState(
                f"the table at {shown(self.uri)} has version {last_version} of {app} as the last "
                f"one, not {version}: another program writes as {app}, or the table was replaced"
            )

    def _commit(
        self,
        schema: pa.Schema,
        add: Sequence[DataFile],
        remove: Sequence[DataFile],
        app: str = "",
        version: int = 0,
        content: str = "",
    ) -> None:
        """Commit a change of the last read state.

        Raises ``CommitConflict`` if another program has committed since the state was read, or has
        already replaced a file of ``remove``.
        """
        state = self.state
        if not self._has_files(remove):
            raise CommitConflict  # its rows are in other files by now, or were deleted
        columns = extend_columns(state.schema or pa.schema([]), schema)
        check_partitions(columns, self.partition_by)
        # Only maintenance commits without a writer, and it does not change rows.
        changes_data = bool(app)
        commit = Commit(
            columns,
            self.partition_by,
            add,
            remove=remove,
            app=app,
            version=version,
            changes_data=changes_data,
            content=content,
        )
        with committing(self.uri):
            self._log.commit(state, commit)
        # The commit is stored. If the table cannot be read now, the next use of its state reads it.
        self._state = None
        with suppress(Unavailable):
            self.refresh()

    def _has_files(self, files: Sequence[DataFile]) -> bool:
        """Return whether all of ``files`` are in the last read state."""
        return not files or {file.path for file in files} <= {file.path for file in self.files()}

    def merge(
        self, rows: Any, key: str | Sequence[str], app: str, version: int, content: str = ""
    ) -> bool:
        """Replace the rows whose keys are in ``rows``, and add rows with new keys, exactly once as
        :meth:`append` does.

        ``key`` names the column or columns of the key. Columns that ``rows`` does not have become
        null in the replaced rows. Files that contain any of the keys are rewritten. Raises
        ``InvalidArgument`` for a key that is null or occurs twice in ``rows``, and the errors of
        :meth:`append`.
        """
        check_version(app, version)
        keys = (key,) if isinstance(key, str) else tuple(key)
        new_rows = pa.Table.from_batches(list(record_batches(rows)))

        def attempt() -> None:
            writer = self.writer()
            try:
                replaced = self._rewrite(writer, new_rows, keys)
                self._commit(
                    writer.schema,
                    writer.close(),
                    replaced,
                    app=app,
                    version=version,
                    content=content,
                )
            except FileNotFoundError as error:  # another program has changed the table
                raise CommitConflict from error
            finally:
                writer.abandon()

        return self._store(attempt, app, version, content=content)

    def _rewrite(self, writer: RowWriter, rows: pa.Table, keys: tuple[str, ...]) -> list[DataFile]:
        """Write ``rows``, and the rows with other keys of each file that contains one of their
        keys. Return these files, which the commit must replace."""
        columns = extend_columns(self.state.schema or pa.schema([]), rows.schema)
        row_columns = columns_of(columns, rows.schema.names)
        # Converted first, so that keys are compared in the types of the table.
        new_rows = pa.Table.from_batches(
            [conform(batch, row_columns) for batch in rows.to_batches()], row_columns
        )
        check_keys(new_rows, keys)
        replaced = []
        for file in self.files() if new_rows.num_rows else ():
            table = self.rows_of(file)
            if any(name not in table.column_names for name in keys):
                continue
            remaining = rows_without_keys(table, new_rows, keys)
            if remaining.num_rows < table.num_rows:
                replaced.append(file)
                for batch in remaining.to_batches():
                    writer.add(batch)
        for batch in new_rows.to_batches():
            writer.add(batch)
        return replaced

    @staticmethod
    def with_columns(schema: pa.Schema, more: pa.Schema) -> pa.Schema:
        """Return ``schema`` extended by the columns of another writer."""
        return extend_columns(schema, more)

    # --- compaction ----------------------------------------------------------------------

    def compact(
        self,
        target_bytes: int = COMPACT_BYTES,
        *,
        keep_hours: int = KEEP_HOURS,
        rows_enough: int | None = None,
    ) -> Compacted:
        """Join small files of each partition into files of up to ``target_bytes`` bytes. Return the
        numbers of replaced, new and deleted files.

        A file is small if it has less than half of ``target_bytes`` and fewer than ``rows_enough``
        rows. The rows of a new file are sorted by ``event_id`` if the table has this column.
        Afterwards files that were replaced at least ``keep_hours`` ago are deleted, and so are
        uncommitted files that are at least this old and at least a day old. Rows and versions of
        writers stay the same. Other programs may append during the compaction.
        """
        removed_count = added_count = 0
        candidates = [
            file for file in self.refresh().files if rows_enough is None or file.rows < rows_enough
        ]
        for files in small_files(candidates, target_bytes):
            if not self._has_files(files):
                continue  # another program has replaced some of them
            writer = self.writer()
            try:
                rows = pa.concat_tables([self.rows_of(file) for file in files])
                for batch in in_id_order(rows).to_batches():
                    writer.add(batch)
                new_files = writer.close()
                self._commit(self.schema, new_files, files)
            except (CommitConflict, CommitUnconfirmed, FileNotFoundError):
                self.refresh()
                continue  # the next compaction joins these files
            finally:
                writer.abandon()
            removed_count += len(files)
            added_count += len(new_files)
        return Compacted(removed_count, added_count, self._log.clean(keep_hours))

    # --- reading -------------------------------------------------------------------------

    def rows_of(self, file: DataFile) -> pa.Table:
        """Return the rows of a file in the current columns of the table."""
        schema = self.schema
        return pa.Table.from_batches(batches_of(file, self._log.open(file), schema), schema)

    def open_file(self, file: DataFile) -> Any:
        """Open a file for Arrow's Parquet reader.

        Raises ``FileNotFoundError`` if a later commit has replaced the file, and it was removed.
        """
        return self._log.open(file)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows as an Arrow table, with only ``columns`` if given.

        Raises ``InvalidArgument`` for unknown columns.

        In an archive, integers and floats of a property share one column (SEM E10);
        ``price::int`` and ``price::float`` name the exact columns. :meth:`dataset` has the columns
        as they are stored.
        """
        table = pa.concat_tables(
            [self.rows_of(file) for file in self.files()] or [self.schema.empty_table()]
        )
        from penstock_core.columns.files.archives import is_archive, shown_rows

        if is_archive(table.schema):
            return shown_rows(table, columns, on_typed=_warn_of_types)
        if columns is None:
            return table
        unknown = [name for name in columns if name not in table.column_names]
        if unknown:
            raise InvalidArgument(
                f"unknown column {', '.join(unknown)}; the table has "
                f"{', '.join(table.column_names)}"
            )
        return table.select(list(columns))

    @property
    def root(self) -> str:
        """The folder of the table, or its URI in an object store."""
        location = self._log.location
        return str(local_path(location)) if is_local(location) else location

    def settle(self) -> None:
        """Move the files of an interrupted commit to their final paths, so that programs that list
        the folder find them."""
        self._log.settle()

    def locations(self) -> list[str]:
        """Return the paths or URIs of the files, for programs that accept a list of Parquet
        files."""
        return list(self._log.locations(self.files()))

    def dataset(self) -> ds.Dataset:
        """Return the committed files as an Arrow dataset, for Arrow, DuckDB or polars."""
        import pyarrow.dataset as ds

        parts = []
        filesystem, _ = filesystem_of(self._log.location)
        for file, location in zip(self.files(), self.locations(), strict=True):
            path = local_path(location) if is_local(location) else location.partition("://")[2]
            # Arrow fills the partition columns, which the file does not contain, from this
            # condition, and uses it to skip files.
            condition = ds.scalar(True)
            for name, value in file.partition.items():
                kind = self.schema.field(name).type
                constant = pa.scalar(value, pa.string()).cast(kind)
                field = ds.field(name)
                condition &= field.is_null() if value is None else field == constant
            parts.append(
                ds.ParquetFileFormat().make_fragment(
                    str(path), filesystem, partition_expression=condition
                )
            )
        return ds.FileSystemDataset(parts, self.schema, ds.ParquetFileFormat(), filesystem)


def _existing_format(uri: str) -> Format:
    """Return the format that a table at this path or URI would have, judged by the URI and the
    folder. The table need not exist."""
    if is_iceberg(uri):
        return "iceberg"
    return "parquet" if is_local(uri) and (local_path(uri) / "_penstock").is_dir() else "delta"


def _iceberg_log(uri: str) -> Log:
    try:
        from penstock.tables.iceberg import IcebergLog
    except ModuleNotFoundError as error:
        raise Unavailable(
            'Iceberg tables need pyiceberg: pip install "penstock-realm[iceberg]"'
        ) from error
    return IcebergLog(uri)


def _warn_of_types(names: Sequence[str]) -> None:
    from penstock_core.columns.events.lifted_columns import typed_note

    warnings.warn(typed_note(names), stacklevel=4)


def small_files(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Return groups of two or more small files to join.

    A file is small if it has less than half of ``target_bytes``. The files of a group are in one
    partition, adjacent by event id, and together have up to ``target_bytes`` bytes.
    """
    groups: list[list[DataFile]] = []
    by_partition: dict[tuple[tuple[str, str | None], ...], list[DataFile]] = {}
    for file in files:
        if file.size * 2 < target_bytes:
            by_partition.setdefault(tuple(file.partition.items()), []).append(file)
    for partition in by_partition.values():
        group: list[DataFile] = []
        for file in sorted(partition, key=lambda file: (file.ids or (0, 0), file.path)):
            if group and sum(member.size for member in group) + file.size > target_bytes:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) > 1]


def in_id_order(table: pa.Table) -> pa.Table:
    """Return the rows sorted by ``event_id``; unchanged without this column."""
    if ID_COLUMN not in table.column_names:
        return table
    return table.take(pc.sort_indices(table, [(ID_COLUMN, "ascending")]))


def check_keys(rows: pa.Table, keys: tuple[str, ...]) -> None:
    """Raise ``InvalidArgument`` for a key that is missing, null or duplicate."""
    missing = [name for name in keys if name not in rows.column_names]
    if missing or not keys:
        raise InvalidArgument(
            f"key names {_names_text(missing)}, which these rows do not have; they have "
            f"{_names_text(rows.column_names)}"
        )
    for name in keys:
        if rows.column(name).null_count:
            raise InvalidArgument(
                f"the key {name!r} is null in {rows.column(name).null_count} rows"
            )
    counts = rows.select(list(keys)).group_by(list(keys)).aggregate([([], "count_all")])
    duplicates = counts.filter(pc.greater(counts.column("count_all"), 1))
    if duplicates.num_rows:
        first_key = duplicates.select(list(keys)).slice(0, 1).to_pylist()[0]
        raise InvalidArgument(
            f"{duplicates.num_rows} keys are in several rows, the first is {first_key}; give one "
            f"row for each key"
        )


def rows_without_keys(table: pa.Table, rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Return the rows of ``table`` whose keys do not occur in ``rows``, in their order."""
    key_columns = [rows.column(name).cast(table.schema.field(name).type) for name in keys]
    if len(keys) == 1:
        is_replaced = pc.is_in(table.column(keys[0]), value_set=pa.chunked_array(key_columns[0]))
        return table.filter(pc.invert(is_replaced))
    # A join does not keep the order of rows, so they are numbered.
    numbered = table.select(list(keys)).append_column("", pa.array(range(table.num_rows)))
    remaining = numbered.join(
        pa.table(key_columns, names=list(keys)), list(keys), join_type="left anti"
    )
    return table.take(remaining.column("").combine_chunks().sort())


def check_version(app: str, version: int) -> None:
    """Raise ``InvalidArgument`` for an invalid writer name or version."""
    if not isinstance(app, str) or not app:
        raise InvalidArgument(f"app is {app!r}; give the writer a name that stays the same")
    if type(version) is not int or not 0 <= version < 1 << 63:
        raise InvalidArgument(f"version is {version!r}; versions count from 0")


def _names_text(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
