"""A small cache of values computed from a schema.

Each access to the schema of a batch gives a new Python object, so identity cannot be the key.
Comparing two schemas of one origin is cheap, and few schemas are in use at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import pyarrow as pa

ENTRIES_MAX: Final = 32

Found = TypeVar("Found")


class SchemaMemo(Generic[Found]):
    """Caches ``work_out(schema)`` for the most recently used schemas."""

    __slots__ = ("_entries", "_work_out")

    def __init__(self, work_out: Callable[[pa.Schema], Found]) -> None:
        self._work_out = work_out
        self._entries: tuple[tuple[pa.Schema, Found], ...] = ()

    def of(self, schema: pa.Schema) -> Found:
        """The value for ``schema``. Schemas with different field metadata have different values."""
        entries = self._entries  # replaced as a whole, so other threads may read it
        for index, (known, found) in enumerate(entries):
            if known is schema or known.equals(schema, check_metadata=True):
                if index:
                    rest = entries[:index] + entries[index + 1 :]
                    self._entries = ((known, found), *rest)
                return found
        found = self._work_out(schema)
        self._entries = ((schema, found), *entries[: ENTRIES_MAX - 1])
        return found
