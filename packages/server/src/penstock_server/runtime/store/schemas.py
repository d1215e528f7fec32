"""Arrow schemas by number. Bodies on the wire and in the journal name their schema so.

A schema is recorded in the journal once, and is known as long as an event that is not sealed has
it, or it was published lately. Then it is forgotten: the next publish with it records it again,
under another number. So memory and snapshots do not grow with the schemas that were ever published.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

import pyarrow as pa

from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_core.columns.schema.schema_cache import SchemaMemo

TRANSIENT_FROM = 1 << 32
"""Schemas from here on are made by the server for deliveries and are never stored."""
RECENT_BYTES_MAX: Final = 1 << 20
"""Bytes of serialized schemas after which those that were not published again lose their place
among the recent ones. Parsed, a schema takes about ten times its bytes."""
PARSED_FACTOR: Final = 8
"""Bytes of memory for each byte of a serialized schema, about."""
TRANSIENT_MAX: Final = 1_024
"""Schemas of deliveries that keep their number; later deliveries announce others again."""

Recorded = tuple[int, pa.Schema]
"""The number of a recorded schema, and the schema."""


class Schemas:
    """The recorded schemas that may still be named, and the numbers of those of deliveries.

    Batches of events hold their schema; :attr:`_held` shows which are still held by any. The recent
    ones are held here: in two generations, so that a publish costs one look-up.
    """

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}
        self._size = 0
        """Bytes of all of them."""
        self._numbers: dict[bytes, int] = {}
        self._held: WeakValueDictionary[int, pa.Schema] = WeakValueDictionary()
        self._recent: dict[bytes, Recorded] = {}
        self._less_recent: dict[bytes, Recorded] = {}
        self._recent_bytes = 0
        self._unweighed: dict[int, int] = {}
        """Memory of schemas that no batch has been charged for yet, in bytes."""
        self._transient: dict[pa.Schema, int] = {}
        self._transient_numbers = SchemaMemo(self._number_transient)
        self._next = 1
        self._next_transient = TRANSIENT_FROM
        self._forgets = False

    def forget_unused(self) -> None:
        """Forget schemas that nothing holds, from now on. While a journal is read all are kept: the
        blocks that follow may name any of them."""
        self._forgets = True

    def recorded(self, schema: bytes) -> Recorded | None:
        """The number and the schema of these bytes; None if they have to be recorded (again)."""
        return self._recent.get(schema) or self._promoted(schema)

    def next_number(self) -> int:
        return self._next

    def record(self, schema_id: int, schema: bytes) -> None:
        """Note that ``schema_id`` is in the journal. Raises ``InvalidEvent`` on garbage."""
        parsed = schema_from(schema)
        if (before := self._bytes.get(schema_id)) is not None:
            self._size -= len(before)
            if before != schema:  # a snapshot that cannot be read did not have it
                self._numbers.pop(before, None)
        self._bytes[schema_id] = schema
        self._size += len(schema)
        self._numbers[schema] = schema_id
        self._held[schema_id] = parsed
        if self._size > RECENT_BYTES_MAX:
            self._unweighed[schema_id] = PARSED_FACTOR * len(schema)
        self._next = max(self._next, schema_id + 1)
        self._keep_recent(schema, (schema_id, parsed))

    def first_weight(self, schema_id: int) -> int:
        """Bytes of memory to charge to the first batch of events with a schema; 0 after that, and
        for schemas that all have room among the recent ones."""
        return self._unweighed.pop(schema_id, 0)

    def in_journal(self) -> list[tuple[int, bytes]]:
        """The schemas that events and later blocks may name, by number, ascending."""
        if self._forgets:
            self._forget()
        return sorted(self._bytes.items())

    def transient(self, schema: pa.Schema) -> int:
        """An id for a schema that is only ever sent."""
        return self._transient_numbers.of(schema)

    def has(self, schema_id: int) -> bool:
        return schema_id in self._bytes

    def schema(self, schema_id: int) -> pa.Schema:
        """The schema with a number that :meth:`has` knows."""
        held = self._held.get(schema_id)
        if held is None:
            held = self._held[schema_id] = schema_from(self._bytes[schema_id])
        return held

    def bytes_of(self, schema_id: int, schema: pa.Schema) -> bytes:
        """The bytes with which a ``schema`` of this number is announced to a client."""
        return self._bytes.get(schema_id) or schema_bytes(schema)

    def _number_transient(self, schema: pa.Schema) -> int:
        schema_id = self._transient.get(schema)
        if schema_id is None:
            schema_id = self._next_transient
            self._next_transient = schema_id + 1
            if len(self._transient) >= TRANSIENT_MAX:
                self._transient.clear()
            self._transient[schema] = schema_id
        return schema_id

    def _promoted(self, schema: bytes) -> Recorded | None:
        """A schema that is not among the most recent ones; it is from now on."""
        entry = self._less_recent.get(schema)
        if entry is None:
            number = self._numbers.get(schema)
            parsed = None if number is None else self._held.get(number)
            if number is None or parsed is None:
                return None
            entry = number, parsed
        self._keep_recent(schema, entry)
        return entry

    def _keep_recent(self, schema: bytes, entry: Recorded) -> None:
        if self._recent_bytes + len(schema) > RECENT_BYTES_MAX:
            self._less_recent, self._recent = self._recent, {}
            self._recent_bytes = 0
            if self._forgets:
                self._forget()
        self._recent[schema] = entry
        self._recent_bytes += len(schema)

    def _forget(self) -> None:
        """Forget the schemas that nothing holds. The newest stays, so that no number is given
        twice, also after a restart."""
        for number in [number for number in self._bytes if number not in self._held]:
            if number == self._next - 1:
                continue
            schema = self._bytes.pop(number)
            self._size -= len(schema)
            self._unweighed.pop(number, None)
            if self._numbers.get(schema) == number:
                del self._numbers[schema]
