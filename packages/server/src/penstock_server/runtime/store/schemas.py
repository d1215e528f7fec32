"""Arrow schemas by number. Bodies on the wire and in the journal name their schema so."""

from __future__ import annotations

import pyarrow as pa

from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_core.columns.schema.schema_cache import SchemaMemo

TRANSIENT_FROM = 1 << 32
"""Schemas from here on are made by the server for deliveries and are never stored."""


class Schemas:
    def __init__(self) -> None:
        self.by_id: dict[int, pa.Schema] = {}
        self._bytes: dict[int, bytes] = {}
        self.ids: dict[bytes, int] = {}
        """Ids of recorded schemas, by the schema's bytes."""
        self._transient: dict[pa.Schema, int] = {}
        self._transient_numbers = SchemaMemo(self._number_transient)
        self._next = 1
        self._next_transient = TRANSIENT_FROM

    def known(self, schema: bytes) -> int | None:
        """The id of a recorded schema."""
        return self.ids.get(schema)

    def next_number(self) -> int:
        return self._next

    def record(self, schema_id: int, schema: bytes) -> None:
        """``schema_id`` is in the journal from now on. Raises ``InvalidEvent`` on garbage."""
        self.by_id[schema_id] = schema_from(schema)
        self._bytes[schema_id] = schema
        self.ids[schema] = schema_id
        self._next = max(self._next, schema_id + 1)

    @property
    def recorded(self) -> list[int]:
        """The numbers of all schemas in the journal so far."""
        return sorted(self.ids.values())

    def transient(self, schema: pa.Schema) -> int:
        """An id for a schema that is only ever sent."""
        return self._transient_numbers.of(schema)

    def _number_transient(self, schema: pa.Schema) -> int:
        schema_id = self._transient.get(schema)
        if schema_id is None:
            schema_id = self._next_transient
            self._next_transient = schema_id + 1
            self._transient[schema] = schema_id
            self.by_id[schema_id] = schema
            self._bytes[schema_id] = schema_bytes(schema)
        return schema_id

    def has(self, schema_id: int) -> bool:
        return schema_id in self.by_id

    def schema(self, schema_id: int) -> pa.Schema:
        return self.by_id[schema_id]

    def bytes_of(self, schema_id: int) -> bytes:
        return self._bytes[schema_id]
