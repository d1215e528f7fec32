"""Delta tables through delta-rs, without a JVM or jars.

Rows are written to files that are invisible until a commit in the table's log adds them. The commit
also records the writer's name and version as an application transaction, by which Delta recognizes
a repeated write.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from penstock.tables.disk import Folder, filesystem_of, is_local, local_path
from penstock.tables.files import ID_COLUMN
from penstock.tables.kinds import check_fields
from penstock.tables.log import (
    CONTENTS_MAX,
    UNCOMMITTED_HOURS,
    Commit,
    CommitConflict,
    DataFile,
    NewFile,
    State,
)
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.vocabulary.uris import shown

if TYPE_CHECKING:
    from deltalake import DeltaTable

_APP: Final = "penstockApp"
_VERSION: Final = "penstockVersion"
_CONTENT: Final = "penstockContent"
"""Keys in the metadata of a commit: the writer, its version, and the content identity."""
_SYNCED_COMMITS: Final = 100
"""Number of commits before the newest one that are synced if it is unknown which of them are on
disk. The system has written older ones by itself."""
_HISTORY_MAX: Final = 1_000
"""Maximum number of commits that are searched for the contents of a writer's versions, newest
first."""

_ESCAPE: Final = re.compile("%[0-9a-fA-F]{2}")
_READABLE: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Reader features of the Delta protocol that are supported here."""


class DeltaLog:
    """The log of one Delta table."""

    keeps_empty_partitions = False
    keeps_partition_columns = False

    def __init__(self, uri: str) -> None:
        try:
            import deltalake  # noqa: F401 - only checks that it is installed
        except ModuleNotFoundError as error:
            raise Unavailable("Delta tables need delta-rs: pip install deltalake") from error
        self.uri = uri
        self._filesystem, self._root = filesystem_of(uri)
        self._delta_uri = str(local_path(uri)) if is_local(uri) else uri
        # delta-rs writes such a path as it is, but other readers decode the escape.
        if is_local(uri) and (escape := _ESCAPE.search(self._delta_uri)):
            raise InvalidArgument(
                f"{shown(uri)} contains {escape[0]}, which programs that read Delta tables take "
                f"for {unquote(escape[0])!r}; choose a path without it"
            )
        self._table: DeltaTable | None = None
        self._state = State(-1)

    @property
    def location(self) -> str:
        return self.uri

    # --- state ---------------------------------------------------------------------------

    def state(self) -> State:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self._table is None:
            self._refuse_other_files()
            try:
                self._table = DeltaTable(self._delta_uri)
            except TableNotFoundError:
                return self._state
        else:
            self._table.update_incremental()
        if self._table.version() != self._state.version:
            self._state = self._read(self._table)
        return self._state

    def _refuse_other_files(self) -> None:
        """Raise ``InvalidArgument`` for the folder of a plain Parquet table."""
        path = Path(self._root)
        if not is_local(self.uri) or not path.is_dir() or (path / "_delta_log").is_dir():
            return
        if (path / "_penstock").is_dir():
            raise InvalidArgument(
                f"{shown(self.uri)} is a table of plain Parquet files; set format to parquet, "
                f"or choose another folder"
            )

    def _read(self, table: DeltaTable) -> State:
        """Return the state of a Delta table.

        Raises ``InvalidArgument`` if the table uses features that are not supported.
        """
        features = set(table.protocol().reader_features or ()) - _READABLE
        # Reader version 2 has no list of features; it means column mapping.
        if features or table.protocol().min_reader_version == 2:
            feature_names = ", ".join(sorted(features)) or "column mapping"
            raise InvalidArgument(
                f"the Delta table at {shown(self.uri)} uses {feature_names}, which is not "
                f"supported; write the table without it, for example with "
                f"delta.enableDeletionVectors = false"
            )
        schema = _as_arrow(table)
        partition_by = tuple(table.metadata().partition_columns)
        actions = pa.table(table.get_add_actions(flatten=True))
        names = [name for name in _ACTION_COLUMNS if name in actions.column_names]
        rows = actions.select([*names, *(f"partition.{name}" for name in partition_by)])
        files = [_data_file(row, partition_by) for row in rows.to_pylist()]
        return State(table.version(), schema, partition_by, files=tuple(reversed(files)))

    def last_of(self, app: str) -> int | None:
        return None if self._table is None else self._table.transaction_version(app)

    def contents(self, app: str) -> Mapping[int, str]:
        if self._table is None:
            return {}
        contents: dict[int, str] = {}
        for commit in self._table.history(_HISTORY_MAX):
            if commit.get(_APP) == app and len(contents) < CONTENTS_MAX:
                contents[int(commit[_VERSION])] = commit[_CONTENT]
        return contents

    def open(self, file: DataFile) -> Any:
        return self._filesystem.open_input_file(f"{self._root}/{file.path}")

    def locations(self, files: Sequence[DataFile]) -> Iterator[str]:
        for file in files:
            yield f"{self._delta_uri}/{file.path}"

    # --- commits -------------------------------------------------------------------------

    def file_maker(self) -> DeltaLog:
        return DeltaLog(self.uri)  # without the state of the table, which cannot be pickled

    @contextmanager
    def new_file(self, partition: str) -> Iterator[NewFile]:
        name = f"part-{uuid.uuid4().hex}.parquet"
        path = f"{partition}/{name}" if partition else name
        if not is_local(self.uri):
            with self._filesystem.open_output_stream(f"{self._root}/{path}") as sink:
                file = NewFile(path, sink)
                yield file
            file.size = self._filesystem.get_file_info(f"{self._root}/{path}").size
            return
        folder = Folder(self._root)
        with folder.new_file(path, path) as file:
            yield file
        folder.settle((folder.path / path).parent)

    def commit(self, based_on: State, commit: Commit) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        check_fields(commit.schema)
        # Retries of delta-rs are turned off: after a conflict, the caller must first check whether
        # this version is stored already.
        content = {_APP: commit.app, _VERSION: str(commit.version), _CONTENT: commit.content}
        commit_properties = CommitProperties(
            custom_metadata=content if commit.content else None,
            app_transactions=[Transaction(commit.app, commit.version)] if commit.app else None,
            max_commit_retries=0,
        )
        try:
            if based_on.version < 0:
                self._create(commit, commit_properties)
            else:
                self._add(commit, commit_properties)
        except CommitFailedError as error:
            raise CommitConflict from error
        except DeltaError as error:
            if "already exists" not in str(error):
                raise
            raise CommitConflict from error  # another program has just created the table
        self._settle_log(based_on.version + 1)

    def _create(self, commit: Commit, commit_properties: Any) -> None:
        """Create the table with its first commit."""
        from deltalake import DeltaTable, Schema
        from deltalake.transaction import create_table_with_add_actions

        if is_local(self.uri):
            Folder(self._root).make(Path(self._root))
        create_table_with_add_actions(
            self._delta_uri,
            Schema.from_arrow(commit.schema),
            [self._action(file, commit) for file in commit.add],
            mode="error",
            partition_by=list(commit.partition_by),
            commit_properties=commit_properties,
        )
        self._table = DeltaTable(self._delta_uri)

    def _add(self, commit: Commit, commit_properties: Any) -> None:
        """Commit a change to the existing table."""
        from deltalake import Schema
        from deltalake.transaction import RemoveAction

        table = self._table
        assert table is not None, "the state was read"
        # A commit of rows cannot add columns to the metadata of the table.
        self._add_columns(table, commit.schema)
        now_ms = time.time_ns() // 1_000_000
        removals = [
            RemoveAction(
                file.path,
                commit.changes_data,
                now_ms,
                size=file.size,
                partition_values=dict(file.partition),
            )
            for file in commit.remove
        ]
        table.create_write_transaction(
            [*removals, *(self._action(file, commit) for file in commit.add)],
            mode="append",
            schema=Schema.from_arrow(commit.schema),
            partition_by=list(commit.partition_by),
            commit_properties=commit_properties,
        )

    def _add_columns(self, table: DeltaTable, schema: pa.Schema) -> None:
        """Add the columns of ``schema`` that the table does not have, in a separate commit without
        rows."""
        from deltalake import CommitProperties, Schema

        existing = _as_arrow(table)
        delta_fields = Schema.from_arrow(schema).fields
        # A column with another type has new fields inside a struct; Delta merges them by name.
        new = [
            delta_field
            for delta_field, field in zip(delta_fields, schema, strict=True)
            if field.name not in existing.names or existing.field(field.name).type != field.type
        ]
        if new:
            table.alter.add_columns(new, commit_properties=CommitProperties(max_commit_retries=0))

    def _action(self, file: DataFile, commit: Commit) -> Any:
        """Return the action of Delta that adds a file. Its statistics let readers skip the file."""
        from deltalake.transaction import AddAction

        statistics: dict[str, Any] = {"numRecords": file.rows}
        if file.ids is not None:
            statistics |= {
                "minValues": {ID_COLUMN: file.ids[0]},
                "maxValues": {ID_COLUMN: file.ids[1]},
            }
        now_ms = time.time_ns() // 1_000_000
        return AddAction(
            file.path,
            file.size,
            dict(file.partition),
            modification_time=now_ms,
            data_change=commit.changes_data,
            stats=json.dumps(statistics),
        )

    def _settle_log(self, first_version: int) -> None:
        """Sync the commits from ``first_version`` on to disk before they are reported as stored."""
        if is_local(self.uri) and self._table is not None:
            self._table.update_incremental()
            folder = Folder(self._root)
            log = folder.path / "_delta_log"
            for version in range(first_version, self._table.version() + 1):
                # After a checkpoint, other programs may remove entries.
                with suppress(FileNotFoundError):
                    folder.settle(log / f"{version:020}.json")
            folder.settle(log)

    def sync(self) -> None:
        self._settle_log(max(0, self._state.version - _SYNCED_COMMITS))

    def settle(self) -> None:
        """Do nothing. Files of a Delta table are written to their final paths before the commit."""

    def clean(self, keep_hours: int) -> int:
        if self._table is None:
            return 0
        self._table.update_incremental()
        removed = self._table.vacuum(
            keep_hours,
            dry_run=False,
            # delta-rs would refuse less than a week.
            enforce_retention_duration=False,
            # A full vacuum also removes uncommitted files, which a writer may still commit. With
            # fewer hours, only the files that commits have replaced are removed.
            full=keep_hours >= UNCOMMITTED_HOURS,
        )
        return len(removed)


_ACTION_COLUMNS: Final = (
    "path",
    "num_records",
    "size_bytes",
    f"min.{ID_COLUMN}",
    f"max.{ID_COLUMN}",
)
"""Columns that are read from the table of add actions; statistics may be missing."""


def _data_file(row: dict[str, Any], partition_by: tuple[str, ...]) -> DataFile:
    """Return the data file that an add action describes. ``row`` is one row of the table of add
    actions, by column."""
    first_id, last_id = row.get(f"min.{ID_COLUMN}"), row.get(f"max.{ID_COLUMN}")
    return DataFile(
        unquote(row["path"]),
        row["num_records"] or 0,
        row["size_bytes"],
        partition={name: _partition_text(row[f"partition.{name}"]) for name in partition_by},
        ids=None if first_id is None or last_id is None else (first_id, last_id),
    )


def _partition_text(value: Any) -> str | None:
    """Return a partition value as Delta writes it in paths; None for null."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_arrow(table: DeltaTable) -> pa.Schema:
    """Return the columns of a Delta table as an Arrow schema."""
    return pa.schema(table.schema().to_arrow())
