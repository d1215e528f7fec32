"""Arrow schemas by number. Bodies on the wire and in the journal refer to their schema by number.

A schema is recorded in the journal once. It stays recorded while an unsealed event uses it or a
recent publish has used it. After that it is forgotten, and the next publish with this schema
records it again under a new number. So memory and snapshots do not grow with the number of schemas
that were ever published.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

import pyarrow as pa

from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_core.columns.schema.schema_cache import SchemaMemo, fields_bytes

TRANSIENT_FROM = 1 << 32
"""Numbers from here on are for schemas that the server makes for deliveries and never stores."""
RECENT_BYTES_MAX: Final = 1 << 20
"""Limit on the serialized bytes of each generation of recent schemas. A parsed schema uses about
ten times as much memory."""
PARSED_FACTOR: Final = 8
"""Estimated bytes of memory for each byte of a serialized schema."""
TRANSIENT_MAX: Final = 1_024
"""Limit on the number of schemas made for deliveries. At the limit all of them are forgotten, and
later deliveries announce their schemas again under new numbers."""
TRANSIENT_BYTES_MAX: Final = 4 << 20
"""Limit on the bytes of the fields of all schemas made for deliveries. Clients choose the names of
the fields, and which of them have values."""

Recorded = tuple[int, pa.Schema]
"""The number of a recorded schema, and the schema."""


class Schemas:
    """The recorded schemas that are in use or were used recently, and the schemas of deliveries.

    Batches of events refer to their schema, so :attr:`_held`, a weak dictionary, has the schemas in
    use. Recent schemas are kept alive in two generations. Dropping the older generation as a whole
    approximates "least recently used" at the cost of one lookup for each publish.
    """

    def __init__(self, transient_max: int = TRANSIENT_MAX) -> None:
        self._transient_max = transient_max
        self._bytes: dict[int, bytes] = {}
        self._size = 0
        """Bytes of all recorded schemas."""
        self._numbers: dict[bytes, int] = {}
        self._held: WeakValueDictionary[int, pa.Schema] = WeakValueDictionary()
        self._recent: dict[bytes, Recorded] = {}
        self._less_recent: dict[bytes, Recorded] = {}
        self._recent_bytes = 0
        self._unweighed: dict[int, int] = {}
        """Bytes of memory by schema number, for schemas that were not charged to a batch yet."""
        self.transient_numbers: dict[pa.Schema, int] = {}
        """Numbers of the schemas of deliveries."""
        self._transient_bytes = 0
        self._transient_memo = SchemaMemo(self._number_transient)
        self._next = 1
        self._next_transient = TRANSIENT_FROM
        self._forgets = False

    def forget_unused(self) -> None:
        """Forget unused schemas from now on. Until this call, while a journal is read, all schemas
        are kept, because the next blocks may refer to any of them."""
        self._forgets = True

    def recorded(self, schema: bytes) -> Recorded | None:
        """Return the number and schema of these bytes; None if they have to be recorded (again)."""
        return self._recent.get(schema) or self._promoted(schema)

    def next_number(self) -> int:
        """Return the number for the next recorded schema."""
        return self._next

    def record(self, schema_id: int, schema: bytes) -> None:
        """Record that the journal has a schema. Raises ``InvalidEvent`` if the schema cannot be
        parsed."""
        parsed = schema_from(schema)
        if (before := self._bytes.get(schema_id)) is not None:
            self._size -= len(before)
            # A number is used again if the snapshot that recorded its schema was lost.
            if before != schema:
                self._numbers.pop(before, None)
        self._bytes[schema_id] = schema
        self._size += len(schema)
        self._numbers[schema] = schema_id
        self._held[schema_id] = parsed
        if self._size > RECENT_BYTES_MAX:
            self._unweighed[schema_id] = PARSED_FACTOR * len(schema)
        self._next = max(self._next, schema_id + 1)
        self._keep_recent(schema, (schema_id, parsed))

    def take_weight(self, schema_id: int) -> int:
        """Return the bytes of memory to charge to a batch for its schema. A schema is charged once,
        to the first batch that uses it, and never while all schemas fit among the recent ones."""
        return self._unweighed.pop(schema_id, 0)

    def in_journal(self) -> list[tuple[int, bytes]]:
        """Return the schemas that events and later blocks may refer to, ascending by number."""
        if self._forgets:
            self._forget()
        return sorted(self._bytes.items())

    def transient(self, schema: pa.Schema) -> int:
        """Return a number for a schema that is only sent and never stored."""
        return self._transient_memo.of(schema)

    def has(self, schema_id: int) -> bool:
        return schema_id in self._bytes

    def schema(self, schema_id: int) -> pa.Schema:
        """Return the schema with a recorded number (see :meth:`has`)."""
        schema = self._held.get(schema_id)
        if schema is None:
            schema = self._held[schema_id] = schema_from(self._bytes[schema_id])
        return schema

    def bytes_of(self, schema_id: int, schema: pa.Schema) -> bytes:
        """Return the bytes that announce ``schema`` under its number to a client."""
        return self._bytes.get(schema_id) or schema_bytes(schema)

    def _number_transient(self, schema: pa.Schema) -> int:
        """Return the number of a schema of deliveries; a new schema gets the next number."""
        schema_id = self.transient_numbers.get(schema)
        if schema_id is None:
            schema_id = self._next_transient
            self._next_transient = schema_id + 1
            size = fields_bytes(schema)
            if (
                len(self.transient_numbers) >= self._transient_max
                or self._transient_bytes + size > TRANSIENT_BYTES_MAX
            ):
                self.transient_numbers.clear()
                self._transient_bytes = 0
            self._transient_bytes += size
            self.transient_numbers[schema] = schema_id
        return schema_id

    def _promoted(self, schema: bytes) -> Recorded | None:
        """Move a schema of the older generation to the newest one, and return it; None if it has to
        be recorded."""
        entry = self._less_recent.get(schema)
        if entry is None:
            # Neither generation has the schema, but a stored batch may still use it.
            schema_id = self._numbers.get(schema)
            parsed = None if schema_id is None else self._held.get(schema_id)
            if schema_id is None or parsed is None:
                return None
            entry = schema_id, parsed
        self._keep_recent(schema, entry)
        return entry

    def _keep_recent(self, schema: bytes, entry: Recorded) -> None:
        """Add a schema to the newest generation, and begin a new generation if it is full."""
        if self._recent_bytes + len(schema) > RECENT_BYTES_MAX:
            # The older generation is dropped as a whole, so that lookups need no bookkeeping.
            self._less_recent, self._recent = self._recent, {}
            self._recent_bytes = 0
            if self._forgets:
                self._forget()
        self._recent[schema] = entry
        self._recent_bytes += len(schema)

    def _forget(self) -> None:
        """Forget unused schemas. The newest one stays, so that its number is not used again, even
        after a restart."""
        for schema_id in [schema_id for schema_id in self._bytes if schema_id not in self._held]:
            if schema_id == self._next - 1:
                continue
            schema = self._bytes.pop(schema_id)
            self._size -= len(schema)
            self._unweighed.pop(schema_id, None)
            if self._numbers.get(schema) == schema_id:
                del self._numbers[schema]
