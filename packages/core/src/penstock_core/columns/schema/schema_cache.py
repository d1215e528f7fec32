"""A small cache of values computed from a schema.

Each access to a batch's schema creates a new Python object, so identity cannot be the key.
Comparing two schemas of the same origin is cheap, and few schemas are in use at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import pyarrow as pa

ENTRIES_MAX: Final = 32
"""Maximum number of schemas in a cache."""
BYTES_MAX: Final = 128 << 10
"""Maximum number of bytes of the fields of the cached schemas, except the newest schema. A few wide
schemas reach this limit."""
FIELD_BYTES: Final = 64
"""Approximate bytes of a field in addition to its name."""

Key = TypeVar("Key")
Computed = TypeVar("Computed")


class FieldsCache(dict[Key, Computed]):
    """A dictionary that is cleared when its entries are too many or have too many fields. The
    newest entry stays in any case. Clearing happens rarely, and needs no record of which entry was
    used last."""

    __slots__ = ("_entries_max", "_fields", "_fields_max")

    def __init__(self, entries_max: int, fields_max: int) -> None:
        super().__init__()
        self._entries_max = entries_max
        self._fields_max = fields_max
        self._fields = 0

    def add(self, key: Key, value: Computed, fields: int) -> None:
        """Add a new entry that has ``fields`` fields."""
        if len(self) >= self._entries_max or self._fields + fields > self._fields_max:
            self.clear()
            self._fields = 0
        self[key] = value
        self._fields += fields


class SchemaMemo(Generic[Computed]):
    """Caches ``compute(schema)`` for the most recently used schemas."""

    __slots__ = ("_compute", "_entries")

    def __init__(self, compute: Callable[[pa.Schema], Computed]) -> None:
        self._compute = compute
        self._entries: tuple[tuple[pa.Schema, Computed, int], ...] = ()

    def of(self, schema: pa.Schema) -> Computed:
        """Return the value for ``schema``. Schemas with different field metadata have different
        values."""
        # Replaced as a whole, so that other threads can read it without a lock.
        entries = self._entries
        for index, entry in enumerate(entries):
            cached_schema, value, _ = entry
            # Identity is rare, but cheaper to test than equality.
            if cached_schema is schema or cached_schema.equals(schema, check_metadata=True):
                if index:
                    other_entries = entries[:index] + entries[index + 1 :]
                    self._entries = (entry, *other_entries)
                return value
        value = self._compute(schema)
        size = fields_bytes(schema)
        new_entries = [(schema, value, size)]
        for entry in entries[: ENTRIES_MAX - 1]:
            size += entry[2]
            if size > BYTES_MAX:
                break
            new_entries.append(entry)
        self._entries = tuple(new_entries)
        return value


def fields_bytes(schema: pa.Schema) -> int:
    """Return the approximate size in bytes of a schema's fields, including fields of structs."""
    size = 0
    pending = list(schema)
    while pending:
        field = pending.pop()
        size += FIELD_BYTES + len(field.name)
        if pa.types.is_struct(field.type):
            pending += list(field.type)
    return size
