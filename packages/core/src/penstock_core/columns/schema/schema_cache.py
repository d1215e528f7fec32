"""A small cache of values computed from a schema.

Each access to the schema of a batch gives a new Python object, so identity cannot be the key.
Comparing two schemas of one origin is cheap, and few schemas are in use at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import pyarrow as pa

ENTRIES_MAX: Final = 32
BYTES_MAX: Final = 128 << 10
"""Bytes of the fields of all schemas in a cache, but for its newest: a few wide schemas fill it."""
FIELD_BYTES: Final = 64
"""Bytes of a field besides its name, about."""

Found = TypeVar("Found")


class SchemaMemo(Generic[Found]):
    """Caches ``work_out(schema)`` for the most recently used schemas."""

    __slots__ = ("_entries", "_work_out")

    def __init__(self, work_out: Callable[[pa.Schema], Found]) -> None:
        self._work_out = work_out
        self._entries: tuple[tuple[pa.Schema, Found, int], ...] = ()

    def of(self, schema: pa.Schema) -> Found:
        """The value for ``schema``. Schemas with different field metadata have different values."""
        entries = self._entries  # replaced as a whole, so other threads may read it
        for index, entry in enumerate(entries):
            known, found, _ = entry
            if known is schema or known.equals(schema, check_metadata=True):
                if index:
                    rest = entries[:index] + entries[index + 1 :]
                    self._entries = (entry, *rest)
                return found
        found = self._work_out(schema)
        size = _size_of(schema)
        kept = [(schema, found, size)]
        for entry in entries[: ENTRIES_MAX - 1]:
            size += entry[2]
            if size > BYTES_MAX:
                break
            kept.append(entry)
        self._entries = tuple(kept)
        return found


def _size_of(schema: pa.Schema) -> int:
    """About how many bytes the fields of a schema take, those of structs included."""
    size = 0
    left = list(schema)
    while left:
        field = left.pop()
        size += FIELD_BYTES + len(field.name)
        if pa.types.is_struct(field.type):
            left += list(field.type)
    return size
