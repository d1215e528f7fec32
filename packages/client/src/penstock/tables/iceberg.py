"""Iceberg tables through pyiceberg, in any catalog that pyiceberg supports, without a JVM.

A commit adds data files, new columns and the writer's version in one step of the catalog, and only
if the table still has the snapshot that the commit was based on. After a conflict, the caller first
has to check whether the version is stored; retries of pyiceberg could store rows twice and are
therefore turned off. A writer's version is a property of the table, so that it outlives snapshots.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CreateTableTransaction, Transaction
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
)
from pyiceberg.table.update.snapshot import _OverwriteFiles, _SnapshotProducer
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import LongType, NestedField
from pyiceberg.utils.config import Config

from penstock.tables.disk import Folder, iceberg_parts, local_path
from penstock.tables.files import ID_COLUMN
from penstock.tables.iceberg_columns import (
    COLUMNS,
    NAME_MAPPING,
    arrow_columns,
    column_records,
    iceberg_schema,
)
from penstock.tables.iceberg_files import IcebergFiles, data_file, entry_of, is_on_disk
from penstock.tables.log import (
    CONTENTS_MAX,
    UNCOMMITTED_HOURS,
    Commit,
    CommitConflict,
    CommitUnconfirmed,
    DataFile,
    NewFile,
    SharedFile,
    State,
)
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.vocabulary.uris import shown, without_secrets

_APP: Final = "penstock.app."
"""Prefix of the table properties that record the versions of a writer, in JSON."""
_FILES_ID: Final = "penstock.files"
"""Table property with an id that is part of the names of the table's data files. After a table is
renamed, a new table of its former name uses the same folder; the id distinguishes the files of the
two. Uncommitted files without this id are never removed."""
_HOUR_MS: Final = 3_600_000
EXTENDED_HOURS: Final = 1
"""Hours after which a snapshot is removed if its successor has only added files. Until then
programs may still read the snapshot; more hours would make the metadata large."""
SNAPSHOTS_MAX: Final = 1_000
"""Largest number of snapshots that are kept for more than ``EXTENDED_HOURS``. Each commit reads and
writes a description of all snapshots, about 1 KB for each."""
_PROPERTIES: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
"""Properties of a new table. They limit the numbers of its manifests and metadata files."""
CONNECT_S_MAX: Final = 10.0
"""Seconds within which a REST catalog must accept a connection."""
ANSWER_S_MAX: Final = 60.0
"""Seconds within which a REST catalog must send the next part of an answer."""
_CATALOG_PACKAGES: Final = ("botocore", "hive_metastore", "requests", "sqlalchemy", "thrift")
"""Packages that pyiceberg uses to reach catalogs. It does not convert their errors."""
_REPEATED: Final = (
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
"""Answers of a REST catalog after which a commit is repeated. Most leave open whether it was
stored."""
_CONFLICTS: Final = (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,  # a file to replace is no longer in the table
)


class IcebergLog:
    """The log of one Iceberg table."""

    keeps_empty_partitions = True
    keeps_partition_columns = True

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._catalog_name, *self._identifier = iceberg_parts(uri)
        self._table: IcebergTable | None = None
        self._staged: IcebergTable | None = None
        """The future table if it does not exist yet. Files can already be written to its
        location."""
        self._state = State(-1)
        self._state_location = ""
        """Location of the metadata that ``_state`` was read from."""
        self._files: dict[str, tuple[TableFile, ...]] = {}
        """The data files of the table, by the path of their manifest."""
        self._has_deletes = False
        """Whether the table has delete files, which are not supported."""
        self._new_files_id = uuid.uuid4().hex
        """Value of the property `penstock.files` if this object creates the table."""

    @cached_property
    def _catalog(self) -> Catalog:
        with reaching(self.uri):
            name = self._catalog_name
            # Read at this moment, because pyiceberg otherwise uses the configuration that it found
            # when it was imported.
            properties: Any = Config().get_catalog_config(name) or {}
            try:
                return _with_timeout(load_catalog(name, **properties))
            except ValueError as error:
                reason = without_secrets(str(error), str(properties.get("uri", "")))
                raise InvalidArgument(
                    f"the catalog {name!r} of {shown(self.uri)} is not configured: {reason}; set "
                    f"PYICEBERG_CATALOG__{name.upper()}__URI, or describe it in .pyiceberg.yaml"
                ) from None  # the text of the cause may have a password

    # --- state ---------------------------------------------------------------------------

    def state(self) -> State:
        with reaching(self.uri):
            try:
                table = self._table = self._catalog.load_table(tuple(self._identifier))
            except (NoSuchTableError, NoSuchNamespaceError):
                self._table, self._state, self._state_location = None, State(-1), ""
                return self._state
            if table.metadata_location != self._state_location:
                self._state = self._read(table)
                self._state_location = table.metadata_location
        return self._state

    def _read(self, table: IcebergTable) -> State:
        """Return the state of a table.

        Raises ``InvalidArgument`` if its partitions are not supported, or a column was renamed.
        """
        try:
            columns = arrow_columns(table.schema(), table.properties.get(COLUMNS, ""))
            partition_by = tuple(_partition_columns(table))
        except InvalidArgument as error:
            raise InvalidArgument(f"the table at {shown(self.uri)}: {error}") from error
        snapshot = table.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        # Manifests never change, so each is read once.
        self._files = {
            manifest.manifest_path: self._files_in(manifest, table.io)
            for manifest in manifests
            if manifest.content == ManifestContent.DATA
        }
        self._has_deletes = any(
            manifest.content == ManifestContent.DELETES
            and (manifest.has_added_files() or manifest.has_existing_files())
            for manifest in manifests
        )
        return State(
            0 if snapshot is None else snapshot.sequence_number or 0,
            columns,
            partition_by,
            files=tuple(data_file(file, table) for file in self._data_files()),
        )

    def _files_in(self, manifest: ManifestFile, io: FileIO) -> tuple[TableFile, ...]:
        """Return the data files that a manifest lists; without I/O if it is in the last read
        state."""
        files = self._files.get(manifest.manifest_path)
        if files is not None:
            return files
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        return tuple(entry.data_file for entry in entries)

    def _data_files(self) -> Iterator[TableFile]:
        """Yield all data files of the table."""
        for files in self._files.values():
            yield from files

    def last_of(self, app: str) -> int | None:
        record = self._record_of(app)
        return None if record is None else int(record["version"])

    def contents(self, app: str) -> Mapping[int, str]:
        record = self._record_of(app) or {}
        return {int(version): content for version, content in record.get("contents", {}).items()}

    def _record_of(self, app: str) -> dict[str, Any] | None:
        """Return the decoded record of a writer's versions; None if it has stored none."""
        text = None if self._table is None else self._table.properties.get(_APP + app)
        return None if text is None else dict(json.loads(text))

    # --- files ---------------------------------------------------------------------------

    @property
    def location(self) -> str:
        return self._current_or_staged.location()

    @property
    def _files_id(self) -> str:
        """Part of the names of data files; empty for a table that another program has created."""
        if self._table is None:
            return self._new_files_id
        return str(self._table.properties.get(_FILES_ID, ""))

    @property
    def _io(self) -> FileIO:
        return self._current_or_staged.io

    @property
    def _current_or_staged(self) -> IcebergTable:
        """The table or, before its first commit, the staged table that the catalog would create.

        The catalog chooses the location of a new table and returns the keys for its files, which
        are needed to write data files before the first commit.
        """
        if self._table is not None:
            return self._table
        if self._staged is None:
            with reaching(self.uri):
                any_schema = Schema(NestedField(1, ID_COLUMN, LongType(), required=False))
                self._staged = self._creation(any_schema, ())._table
        return self._staged

    def open(self, file: DataFile) -> Any:
        self._refuse_deletes()
        with reaching(self.uri):
            return self._io.new_input(file.path).open()

    def _refuse_deletes(self) -> None:
        """Raise ``InvalidArgument`` if data files contain rows that delete files remove."""
        if self._has_deletes:
            raise InvalidArgument(
                f"the table at {shown(self.uri)} has files that delete single rows, which is not "
                f"supported; compact it with the program that deleted them"
            )

    def locations(self, files: Sequence[DataFile]) -> Iterator[str]:
        self._refuse_deletes()
        for file in files:
            yield str(local_path(file.path)) if is_on_disk(file.path) else file.path

    def file_maker(self) -> IcebergFiles:
        # Of a table that does not exist yet, files are written to the location that the catalog has
        # chosen for it, which the first commit keeps.
        return IcebergFiles(self.uri, self.location, self._files_id, io=self._io)

    def new_file(self, partition: str) -> AbstractContextManager[NewFile]:
        return self.file_maker().new_file(partition)

    def share(self, source: Path, file: SharedFile) -> DataFile:
        return self.file_maker().share(source, file)

    # --- commits -------------------------------------------------------------------------

    def commit(self, based_on: State, commit: Commit) -> None:
        try:
            with reaching(self.uri):
                if based_on.version < 0:
                    transaction: Transaction = self._creation(
                        iceberg_schema(commit.schema), commit.partition_by
                    )
                else:
                    transaction = self._change(commit)
                self._add(transaction, commit)
                table = transaction.commit_transaction()
        except _CONFLICTS as error:
            raise CommitConflict from error
        except Unavailable as error:
            cause = error.__cause__
            if isinstance(cause, RESTError) and not isinstance(cause, _REPEATED):
                raise  # such as a missing right
            raise CommitUnconfirmed(_reason(cause or error)) from error
        self._settle(table, only_added=True)

    def _creation(self, schema: Schema, partition_by: Sequence[str]) -> CreateTableTransaction:
        """Return a transaction whose commit creates the table.

        Until then, nothing changes in the catalog but a missing namespace, which is created.
        """
        namespace = tuple(self._identifier[:-1])
        if not self._catalog.namespace_exists(namespace):
            self._catalog.create_namespace_if_not_exists(namespace)
        # Ids of partition fields begin at 1,000 by convention of Iceberg.
        fields = [
            PartitionField(
                schema.find_field(name).field_id, 1_000 + index, IdentityTransform(), name
            )
            for index, name in enumerate(partition_by)
        ]
        return self._catalog.create_table_transaction(
            tuple(self._identifier),
            schema,
            location=None if self._staged is None else self._staged.location(),
            partition_spec=PartitionSpec(*fields),
            properties={**_PROPERTIES, _FILES_ID: self._new_files_id},
        )

    def _change(self, commit: Commit) -> SingleAttempt:
        """Return a transaction on the last read state of the table. It already adds the new columns
        of ``commit``."""
        table = self._table
        assert table is not None, "the state was read"
        transaction = SingleAttempt(table)
        current = table.schema()
        schema = iceberg_schema(commit.schema, current, table.metadata.last_column_id)
        if schema != current:
            transaction.set_schema(schema)
        return transaction

    def _add(self, transaction: Transaction, commit: Commit) -> None:
        """Add the snapshot of ``commit`` and the changed table properties to ``transaction``."""
        old_properties = {} if self._table is None else self._table.properties
        schema = transaction.table_metadata.schema()
        properties = {
            NAME_MAPPING: schema.name_mapping.model_dump_json(),
            COLUMNS: column_records(schema, commit.schema),
        }
        summary: dict[str, str] = {}
        if commit.app:
            properties[_APP + commit.app] = self._record(commit)
            summary = {"penstock.app": commit.app, "penstock.version": str(commit.version)}
        transaction.set_properties(
            {name: text for name, text in properties.items() if old_properties.get(name) != text}
        )
        io, metadata = self._io, transaction.table_metadata
        producer: _SnapshotProducer[Any]
        if commit.remove:
            producer = ReplacedFiles(
                Operation.OVERWRITE, transaction, io, snapshot_properties=summary
            )
        else:
            producer = transaction.update_snapshot(snapshot_properties=summary).merge_append()
        with producer as snapshot:
            replaced_paths = {file.path for file in commit.remove}
            for file in self._data_files():
                if file.file_path in replaced_paths:
                    snapshot.delete_data_file(file)
            for new_file in commit.add:
                snapshot.append_data_file(entry_of(new_file, metadata, io))

    def _record(self, commit: Commit) -> str:
        """Return the JSON record of a writer's versions after ``commit``."""
        contents = dict(sorted(self.contents(commit.app).items())[-CONTENTS_MAX + 1 :])
        if commit.content:
            contents[commit.version] = commit.content
        return json.dumps({"version": commit.version, "contents": contents})

    def sync(self) -> None:
        if self._table is not None:
            self._settle(self._table)

    def _settle(self, table: IcebergTable, *, only_added: bool = False) -> None:
        """Sync the commits of a table on a disk of this machine. ``only_added``: leave out the
        manifests that were added before its newest snapshot.

        Raises ``Unavailable`` if the files are not there.
        """
        snapshot = table.current_snapshot()
        if snapshot is None or not is_on_disk(table.metadata_location):
            return
        folder = Folder(local_path(table.location()))
        try:
            paths = [table.metadata_location, snapshot.manifest_list]
            paths += [
                manifest.manifest_path
                for manifest in snapshot.manifests(table.io)
                if not only_added or manifest.added_snapshot_id == snapshot.snapshot_id
            ]
            for path in paths:
                folder.settle(local_path(path))
            folder.settle(local_path(table.metadata_location).parent)
        except FileNotFoundError as error:
            raise Unavailable(
                f"the table at {shown(self.uri)} cannot be synced: {error.filename} is not on this "
                f"machine; it may have this commit all the same; write again under the same app "
                f"and version, where the files of the catalog are"
            ) from error

    def settle(self) -> None:
        """Do nothing. Files are written to their final paths before the commit."""

    # --- maintenance ---------------------------------------------------------------------

    def clean(self, keep_hours: int) -> int:
        """Remove the snapshots that were replaced at least ``keep_hours`` ago, and the files that
        no other snapshot lists.

        If the table is on a disk of this machine, data files of Penstock that were not committed
        within ``UNCOMMITTED_HOURS`` are also removed. Return the number of removed data files.
        """
        self.state()
        if self._table is None:
            return 0
        with reaching(self.uri):
            # Snapshots go first: a crash after that leaves unused files, but no snapshot without
            # its files.
            unused = self._expire(self._table, keep_hours)
            used = self._all_files(self._table.snapshots())
            unused |= {path for path in self._old_files() if path not in used}
            for path in unused:
                with suppress(FileNotFoundError):  # another program removes them, too
                    self._table.io.delete(path)
        return sum(path.endswith(".parquet") for path in unused)

    def _expire(self, table: IcebergTable, keep_hours: int) -> set[str]:
        """Remove the snapshots that were replaced long enough ago. Return the paths of the files
        that no other snapshot lists."""
        now_ms = time.time_ns() // 1_000_000
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
        successors = {snapshot.parent_snapshot_id: snapshot for snapshot in snapshots}
        expired = [
            snapshot
            for newer_count, snapshot in enumerate(reversed(snapshots))
            if snapshot.snapshot_id not in heads
            and _is_expired(
                snapshot,
                successors.get(snapshot.snapshot_id),
                now_ms=now_ms,
                keep_hours=keep_hours,
                is_surplus=newer_count >= SNAPSHOTS_MAX,
            )
        ]
        if not expired:
            return set()
        listed = self._all_files(expired)
        transaction = SingleAttempt(table)
        transaction.remove_snapshots([snapshot.snapshot_id for snapshot in expired])
        try:
            transaction.commit_transaction()
        except (*_CONFLICTS, CommitStateUnknownException, ValueError):
            # The next compaction tries again. pyiceberg raises ``ValueError`` for snapshots that
            # another program has removed.
            return set()
        return listed - self._all_files(table.snapshots())

    def _all_files(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """Return the paths of all files of ``snapshots``: manifest lists, manifests and data
        files."""
        assert self._table is not None, "the state was read"
        io = self._table.io
        manifests: dict[str, ManifestFile] = {}
        paths = set()
        for snapshot in snapshots:
            paths.add(snapshot.manifest_list)
            manifests |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(io)}
        for path, manifest in manifests.items():
            paths.add(path)
            paths |= {file.file_path for file in self._files_in(manifest, io)}
        return paths

    def _old_files(self) -> Iterator[str]:
        """Yield the paths of Penstock's data files in the table's folder that are older than
        ``UNCOMMITTED_HOURS``. If they are not committed, no writer will commit them any more."""
        if not is_on_disk(self.location) or not self._files_id:
            return
        root = local_path(self.location)
        limit_s = time.time_ns() / 1e9 - UNCOMMITTED_HOURS * 3_600
        for path in root.glob(f"data/**/penstock-{self._files_id}-*.parquet"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < limit_s:
                    yield self.location.rstrip("/") + "/" + path.relative_to(root).as_posix()


class SingleAttempt(Transaction):
    """A transaction that is not retried: the catalog refuses it if the table was changed since its
    state was read."""

    _staged: tuple[tuple[Any, ...], TableMetadata] | None = None
    """The updates of the transaction, and the metadata of the table after them."""

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata of the table after the commit.

        The base class makes a new copy, with all snapshots, for each of some twenty accesses in a
        commit.
        """
        if self._staged is None or self._staged[0] is not self._updates:
            self._staged = self._updates, super().table_metadata
        return self._staged[1]

    def set_schema(self, schema: Schema) -> None:
        """Replace the columns of the table."""
        metadata = self.table_metadata
        new = schema.model_copy(
            update={"schema_id": max(old.schema_id for old in metadata.schemas) + 1}
        )
        self._stage(
            (AddSchemaUpdate(schema=new), SetCurrentSchemaUpdate()),
            (
                AssertCurrentSchemaId.model_validate(
                    {"current-schema-id": metadata.current_schema_id}
                ),
                AssertLastAssignedFieldId.model_validate(
                    {"last-assigned-field-id": metadata.last_column_id}
                ),
            ),
        )

    def remove_snapshots(self, snapshot_ids: Sequence[int]) -> None:
        self._stage((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshot_ids)}),))

    def commit_transaction(self) -> IcebergTable:
        """Commit once. The base class would retry without a check of the writer's version."""
        # Another table may have been created under the name since the state was read.
        same_table = AssertTableUUID(uuid=self._table.metadata.table_uuid)
        self._table._do_commit(self._updates, (*self._requirements, same_table))
        return self._table


class ReplacedFiles(_OverwriteFiles):
    """A snapshot that replaces data files. Manifests without data files are not part of it; the
    base class would keep one for each earlier snapshot of this kind, and read all of them."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [
            manifest
            for manifest in super()._process_manifests(manifests)
            if manifest.has_added_files()
            or manifest.has_existing_files()
            or manifest.added_snapshot_id == self._snapshot_id
        ]


@contextmanager
def reaching(uri: str) -> Iterator[None]:
    """Convert the errors of an unreachable catalog or store in the block into ``Unavailable`` that
    names the table."""
    try:
        yield
    except NotInstalledError as error:
        raise Unavailable(f"{shown(uri)}: pyiceberg lacks a package: {error}") from error
    except Exception as error:
        # pyiceberg does not convert the errors of the packages that it uses to reach a catalog.
        package = type(error).__module__.partition(".")[0]
        if isinstance(error, RESTError) or package in _CATALOG_PACKAGES:
            raise _unreachable(uri, error) from error
        raise


def _with_timeout(catalog: Catalog) -> Catalog:
    """Return a catalog whose HTTP requests end after :data:`ANSWER_S_MAX`; pyiceberg sets no
    limit."""
    session = getattr(catalog, "_session", None)  # only REST catalogs have one
    if session is not None:
        timeouts_s = min(CONNECT_S_MAX, ANSWER_S_MAX), ANSWER_S_MAX
        session.request = partial(session.request, timeout=timeouts_s)
    return catalog


def _unreachable(uri: str, error: Exception) -> Unavailable:
    return Unavailable(f"the catalog of {shown(uri)} did not answer as expected: {_reason(error)}")


def _reason(error: BaseException) -> str:
    """Return the first line of the text of an error. Errors of catalogs can be long."""
    return str(error).strip().partition("\n")[0]


def _is_expired(
    snapshot: Snapshot,
    successor: Snapshot | None,
    now_ms: int,
    keep_hours: int,
    *,
    is_surplus: bool,
) -> bool:
    """Return whether ``snapshot`` was replaced at least ``keep_hours`` ago, and can be removed.

    ``successor`` is the snapshot that replaced it. If the successor only added files, ``snapshot``
    keeps no data file alive and is removed after ``EXTENDED_HOURS`` already, and so is a snapshot
    that ``is_surplus``, with ``SNAPSHOTS_MAX`` newer ones.
    """
    replacing = snapshot if successor is None else successor
    is_extended = (
        successor is not None
        and successor.summary is not None
        and successor.summary.operation == Operation.APPEND
    )
    hours = min(keep_hours, EXTENDED_HOURS) if is_extended or is_surplus else keep_hours
    return replacing.timestamp_ms <= now_ms - hours * _HOUR_MS


def _partition_columns(table: IcebergTable) -> Iterator[str]:
    """Yield the names of the columns whose values partition a table.

    Raises ``InvalidArgument`` if it is partitioned in another way, such as by the hash of a column.
    """
    for field in table.spec().fields:
        name = table.schema().find_column_name(field.source_id)
        if isinstance(field.transform, IdentityTransform) and name is not None:
            yield name
        # A void transform is left behind when a partition column is removed.
        elif not isinstance(field.transform, VoidTransform):
            raise InvalidArgument(
                f"it is partitioned by {field.transform}({name}), and only partitions by the "
                f"values of columns are supported; replace its partition spec"
            )
