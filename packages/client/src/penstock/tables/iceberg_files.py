"""The data files of an Iceberg table: new ones, files of a realm that the table shares, and their
entries in manifests."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType

from penstock.tables.disk import Folder, local_path
from penstock.tables.files import ID_COLUMN, folder_of
from penstock.tables.log import CannotShare, DataFile, NewFile, SharedFile


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Return whether a log record is not about a column without statistics. The files of realms
    have no statistics of ``data``."""
    return not record.getMessage().startswith("PyArrow statistics missing for column")


logging.getLogger("pyiceberg.io.pyarrow").addFilter(_is_unexpected)


class IcebergFiles(Struct):
    """Creates data files at the location of a table, without its catalog. Can be pickled."""

    uri: str
    """The table, for error texts."""
    location: str
    """Folder of the table, as a path or URI."""
    files_id: str
    """Part of the names of the files; empty for a table that another program has created."""
    io: FileIO
    """Opens files in object stores, with the keys that the catalog has returned."""
    keeps_empty_partitions: bool = True
    keeps_partition_columns: bool = True

    @contextmanager
    def new_file(self, partition: str) -> Iterator[NewFile]:
        """Create a data file to write to. It is not visible before a commit adds it."""
        path = self._new_path(partition)
        if is_on_disk(path):
            place = local_path(path)
            folder = Folder(place.parent)
            with folder.new_file(place.name, path) as file:
                yield file
            folder.settle(place.parent)
            return
        output = self.io.new_output(path)
        with output.create() as sink:
            file = NewFile(path, sink)
            yield file
        file.size = len(output)

    def share(self, source: Path, file: SharedFile) -> DataFile:
        """Create a data file with the content of ``source``, as :meth:`SharingLog.share` does."""
        path = self._new_path(folder_of(file.partition))
        if not is_on_disk(path):
            raise CannotShare("the table is in an object store")
        place = local_path(path)
        size = Folder(place.parent).share(source, place.name)
        return DataFile(path, file.rows, size, partition=dict(file.partition), ids=file.ids)

    def _new_path(self, partition: str) -> str:
        """Return the path or URI of a new data file in the folder of a partition."""
        name = f"penstock-{self.files_id or 'rows'}-{uuid.uuid4().hex}"
        parts = (self.location.rstrip("/"), "data", partition, name)
        return "/".join(part for part in parts if part) + ".parquet"


def is_on_disk(location: str) -> bool:
    """Return whether a location is on a disk of this machine.

    Returns False for ``file:/`` with one slash, as Java programs write it; pyiceberg opens such
    files.
    """
    return location.startswith("file:///") or not (
        "://" in location or location.startswith("file:/")
    )


def entry_of(file: DataFile, metadata: TableMetadata, io: FileIO) -> TableFile:
    """Return the manifest entry of a new data file."""
    entry = parquet_file_to_data_file(io, metadata, file.path)
    # pyiceberg finds the partition in the columns of the file. Shared files lack these columns;
    # Iceberg's readers then take the values from the manifest.
    schema = metadata.schema()
    for position, field in enumerate(metadata.spec().fields):
        text = file.partition.get(schema.find_column_name(field.source_id) or "")
        kind = schema.find_type(field.source_id)
        if entry.partition[position] is None and text is not None:
            # Archives, which alone share files, are partitioned by days.
            assert isinstance(kind, DateType), f"{field.name} has type {kind}"
            entry.partition[position] = (date.fromisoformat(text) - date(1970, 1, 1)).days
    return entry


def data_file(file: TableFile, table: IcebergTable) -> DataFile:
    """Convert a data file of pyiceberg into a :class:`DataFile`."""
    schema = table.schema()
    partition = {}
    # The specification of the file, not of the table: the table may be partitioned differently by
    # now.
    for position, field in enumerate(table.specs()[file.spec_id].fields):
        name = schema.find_column_name(field.source_id)
        if name is not None and isinstance(field.transform, IdentityTransform):
            is_date = isinstance(schema.find_type(field.source_id), DateType)
            partition[name] = _partition_text(file.partition[position], is_date=is_date)
    return DataFile(
        file.file_path,
        file.record_count,
        file.file_size_in_bytes,
        partition=partition,
        ids=_ids(file, schema),
    )


def _ids(file: TableFile, schema: Schema) -> tuple[int, int] | None:
    """Return the smallest and the largest ``event_id`` of a file; None if it does not record
    them."""
    field = next((field for field in schema.fields if field.name == ID_COLUMN), None)
    if field is None or not isinstance(field.field_type, LongType):
        return None
    lowest = (file.lower_bounds or {}).get(field.field_id)
    highest = (file.upper_bounds or {}).get(field.field_id)
    if lowest is None or highest is None:
        return None
    return _long(lowest), _long(highest)


def _long(value: bytes) -> int:
    """Decode a bound of a column of type long."""
    return int.from_bytes(value, "little", signed=True)


def _partition_text(value: Any, *, is_date: bool) -> str | None:
    """Return a partition value as a text; None for null. Iceberg stores dates as days since
    1970."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if is_date and isinstance(value, int):
        value = date(1970, 1, 1) + timedelta(days=value)
    return str(value)
