"""Which Parquet files of a channel's table (SEM B4) are files of its archive as they are (SEM B8).

The columns of tables are made for readers; those of archives are made to read the events back.
Nearly all columns are the same in both. A file with other ones is left to the archiver, which reads
the events of its range and writes a file of its own.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock_core.columns.files.archives import ArchiveLayout, joined_numbers
from penstock_core.columns.files.table_rows import PROGRAM_TYPES, TableLayout, no_events


class OtherColumns(Exception):
    """Raised if a file cannot be a file of an archive. The text has the reason."""


class SharedColumns:
    """The columns that the table and the archive of a channel have in common.

    ``stored`` is the schema of the channel's events, as new as the files. ``table`` is the schema
    of the archive so far; None if it does not exist yet.
    """

    def __init__(
        self, stored: pa.Schema, table: pa.Schema | None, *, channel: str, epoch: str
    ) -> None:
        events = no_events(stored)
        self.columns: pa.Schema = (
            ArchiveLayout(stored, table, channel=channel, epoch=epoch).of(events).schema
        )
        """The columns of the archive, except those for programs."""
        self._new = ArchiveLayout(stored).of(events).schema
        """The columns of an archive that would begin now. Tables name properties in this way."""
        self._table = TableLayout(stored)
        self._joined = {
            name: column.logical
            for column in joined_numbers(self._new)
            for name in (column.logical, column.name, *column.exact_names)
        }
        """Names of the columns of properties with integers and floats, with the properties."""

    def check(self, file: pa.Schema) -> list[pa.Field]:
        """Return the columns for programs among those of ``file``, as archives have them.

        Raises ``OtherColumns`` if a column is not a column of the archive.
        """
        programs = []
        for field in file:
            if field.name in PROGRAM_TYPES:
                programs.append(pa.field(field.name, PROGRAM_TYPES[field.name]))
            elif field.name in self._joined:
                raise OtherColumns(
                    f"property {self._joined[field.name]!r} has integers and floats, which "
                    f"archives have in two columns"
                )
            elif not self._is_same(field):
                raise OtherColumns(f"column {field.name!r} has another name or type in the archive")
        return programs

    def _is_same(self, field: pa.Field) -> bool:
        """Return whether the archive has the values of a file's column under the same name."""
        index = self.columns.get_field_index(field.name)
        new_index = self._new.get_field_index(field.name)
        if index < 0 or new_index < 0 or self._table.name_of(field.name) != field.name:
            return False
        column, new = self.columns.field(index), self._new.field(new_index)
        # The identity of the channel is in the metadata of the ids.
        has_same_property = field.name == "event_id" or column.metadata == new.metadata
        return (
            has_same_property
            and _has_same_fields(column.type, new.type)
            and is_part_of(field.type, column.type)
        )


def is_part_of(kind: pa.DataType, column: pa.DataType) -> bool:
    """Return whether a column of a table can have the values of a file's column of type ``kind`` as
    they are: structs may have fewer fields, and integers fewer bits."""
    if pa.types.is_struct(kind) and pa.types.is_struct(column):
        indexes = {field.name: index for index, field in enumerate(column)}
        return all(
            field.name in indexes and is_part_of(field.type, column.field(indexes[field.name]).type)
            for field in kind
        )
    if pa.types.is_list(kind) and pa.types.is_list(column):
        return is_part_of(kind.value_type, column.value_type)
    if pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(column):
        # Parquet and Iceberg have no integers of less than 32 bits.
        return bool(kind.bit_width <= max(32, column.bit_width))
    return bool(kind == column)


def _has_same_fields(kind: Any, other: Any) -> bool:
    """Return whether fields of equal names inside two types hold the same properties."""
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return _has_same_fields(kind.value_type, other.value_type)
    if not pa.types.is_struct(kind) or not pa.types.is_struct(other):
        return True
    others = {field.name: field for field in other}
    return all(
        field.name not in others
        or (
            field.metadata == others[field.name].metadata
            and _has_same_fields(field.type, others[field.name].type)
        )
        for field in kind
    )
