"""Numbers the values of a publish key: each value that has occurred has a slot (SEM K1)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import count, islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.keys.key_slot_cache import WordSlots, words_of
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.columns.schema.shapes import struct_shape
from penstock_core.columns.schema.values import leaf_of

NO_SLOT: Final = -1
"""Slot of an event that has no value for the key."""

_FAMILIES: Final = {
    "bool": "bool",
    **dict.fromkeys(("int8", "int16", "int32", "int64", "float", "double"), "number"),
    "string": "string",
    "binary": "bytes",
    **dict.fromkeys(("timestamp[us]", "timestamp[us, tz=UTC]"), "timestamp"),
}
"""The family of each leaf type. Values of one family are comparable: 1 and 1.0 are equal."""

SLOT_BYTES: Final = 160
"""Memory of a slot in addition to its value: entries of the dictionary, caches and ids."""

_HEAD: Final = 64
"""Number of values that are examined to estimate whether values repeat."""

_EPOCH: Final = np.datetime64(0, "us")


class _Slots(dict[Any, int]):
    """Slot by value. The lookup of a new value assigns it the next slot."""

    def __init__(self, next_slot: Callable[[], int]) -> None:
        super().__init__()
        self.next_slot = next_slot

    def __missing__(self, value: Any) -> int:
        slot = self[value] = self.next_slot()
        return slot


class ValuesMark(NamedTuple):
    """A state of :class:`Values` to return to: the number of slots, and the bytes of the values
    without ``SLOT_BYTES``."""

    slots: int
    value_bytes: int


class Values:
    """The slots of the values of one key, numbered from 0."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The name of the property."""
        numbers = count().__next__
        self._families = {family: _Slots(numbers) for family in _FAMILIES.values()}
        self._fields = SchemaMemo(self._fields_of)
        self._by_words: dict[tuple[str, int], WordSlots] = {}
        self._last: tuple[pa.RecordBatch, Int64s] | None = None
        """The last batch and its slots, cached because several callers use one batch in turn."""
        self._measured = dict.fromkeys(self._families, 0)
        """The number of values of each family whose bytes are in ``_bytes``."""
        self._measured_count = 0
        """Total number of measured values. A publish compares it with the current number of values
        to find out whether values are new."""
        self.derived: dict[str, Any] = {}
        """Caches computed from the values of stored events, by purpose. Renumbering clears them."""
        self._bytes = 0
        """Bytes of the measured values, without their slots."""

    def __len__(self) -> int:
        return sum(map(len, self._families.values()))

    @property
    def nbytes(self) -> int:
        """Memory of the values and their slots, in bytes. Each access measures the new values."""
        count = len(self)
        if count != self._measured_count:
            for family, slots in self._families.items():
                # A dictionary keeps the order of insertion, so the new values are its last ones.
                new = len(slots) - self._measured[family]
                self._bytes += sum(map(sys.getsizeof, islice(reversed(slots), new)))
                self._measured[family] = len(slots)
            self._measured_count = count
        return self._bytes + SLOT_BYTES * count

    def _fields_of(self, schema: pa.Schema) -> tuple[tuple[int, str], ...]:
        """Return the index and family of each property field that holds values of the key."""
        index = schema.get_field_index("properties")
        if index < 0:
            return ()
        shape = struct_shape(schema.field(index).type)
        return tuple(
            (place, _FAMILIES[slot.shape])
            for place, slot in enumerate(shape.slots)
            if slot.logical == self.name and isinstance(slot.shape, str) and slot.shape in _FAMILIES
        )

    def slots_of(self, batch: pa.RecordBatch) -> Int64s:
        """Return the slot of each event's value; :data:`NO_SLOT` for events without a countable
        value.

        Null, NaN, lists, dictionaries and an absent property do not count.
        """
        if self._last is not None and self._last[0] is batch:
            return self._last[1]
        slots = self._slots_of(batch)
        self._last = batch, slots
        return slots

    def take_slot(self, value: Any) -> int:
        """Return the slot of a value, and assign a slot to a new value. Return :data:`NO_SLOT` for
        null, NaN, a list or a dictionary, which do not count as values."""
        return self._assigned_slot(value)

    def _slots_of(self, batch: pa.RecordBatch) -> Int64s:
        """Return the slot of each event, from the columns and from ``more``."""
        slots: Int64s | None = None
        fields = self._fields.of(batch.schema)
        if fields:
            struct = batch.column("properties")
            for place, family in fields:
                column = struct.field(place)
                if struct.null_count:
                    column = pc.struct_field(struct, [place])
                column_slots = self._slots_of_column(column, family)
                slots = (
                    column_slots
                    if slots is None
                    else np.where(column_slots == NO_SLOT, slots, column_slots)
                )
        if slots is None:
            slots = np.full(batch.num_rows, NO_SLOT, dtype=np.int64)
        if "more" in batch.schema.names:
            self._read_more(batch.column("more"), slots)
        return slots

    def _slots_of_column(self, column: pa.Array, family: str) -> Int64s:
        """Return the slots of a column's values, through the cache if their bytes can be
        compared."""
        words = words_of(column)
        family_slots = self._families[family]
        if words is None:
            return self._slots_of_values(column, family_slots)
        key = (family, words.shape[1])
        table = self._by_words.get(key)
        if table is None:
            table = self._by_words[key] = WordSlots(words.shape[1])
        return table.slots_of(words, lambda rows: _slots(family_slots, _plain(column.take(rows))))

    def _slots_of_values(self, column: pa.Array, family_slots: _Slots) -> Int64s:
        """Return the slots of a column's values by dictionary lookups, once for each distinct value
        if values repeat."""
        if pa.types.is_floating(column.type):
            # NaN is not equal to itself, so it cannot be a value of a key.
            column = pc.if_else(pc.is_nan(column), None, column)
        if not column.null_count and _varies(column):
            return _slots(family_slots, _plain(column))
        encoded = column.dictionary_encode()
        values = _plain(encoded.dictionary)
        slots = _slots(family_slots, values)
        codes = encoded.indices
        if not codes.null_count:
            places: Int64s = codes.to_numpy()
        else:
            # Nulls get a code behind all others, whose slot is NO_SLOT.
            slots = np.append(slots, NO_SLOT)
            places = codes.fill_null(len(values)).to_numpy()
        return slots.take(places)

    def _read_more(self, cells: pa.BinaryArray, slots: Int64s) -> None:
        """Set the slots of events whose value is in ``more``."""
        # A loop in Python is fast enough, because few events have their value there.
        may_have_value = pc.fill_null(pc.match_substring(cells, self.name), fill_value=False)
        for row in np.flatnonzero(may_have_value.to_numpy(zero_copy_only=False)).tolist():
            properties = overflow.decoded(cells[row].as_py())
            if self.name in properties:
                slots[row] = self._assigned_slot(properties[self.name])

    def _assigned_slot(self, value: Any) -> int:
        """Return the slot of a value; a new value gets the next slot. Return :data:`NO_SLOT` if it
        does not count as a value."""
        if not _counts(value):
            return NO_SLOT
        family, plain = _family_of(value)
        return self._families[family][plain]

    def slot_of(self, value: Any) -> int:
        """Return the slot of a value; :data:`NO_SLOT` if it has not occurred. Assigns no slot."""
        if not _counts(value):
            return NO_SLOT
        family, plain = _family_of(value)
        return self._families[family].get(plain, NO_SLOT)

    def values_by_slot(self) -> list[tuple[str, Any]]:
        """Return the family and the value of each slot, in the order of slots."""
        values: list[tuple[str, Any]] = [("", None)] * len(self)
        for family, slots in self._families.items():
            for value, slot in slots.items():
                values[slot] = (family, value)
        return values

    def texts(self, known_count: int = 0) -> list[str]:
        """Return the string values in the order of their first occurrence, without the oldest
        ``known_count``."""
        slots = self._families["string"]
        return list(islice(reversed(slots), max(len(slots) - known_count, 0)))[::-1]

    def clear(self) -> None:
        """Drop all values."""
        for slots in self._families.values():
            slots.clear()
        self.keep(np.zeros(0, dtype=np.bool_))

    def mark(self) -> ValuesMark:
        """Return the state that :meth:`drop_since` restores."""
        value_bytes = self.nbytes - SLOT_BYTES * self._measured_count
        return ValuesMark(self._measured_count, value_bytes)

    def drop_since(self, mark: ValuesMark) -> None:
        """Drop the values that are new since ``mark``, because their events were refused. Values
        must not have been renumbered since then."""
        first = mark.slots
        if len(self) <= first:
            return
        # A dropped slot may soon belong to another value.
        self._last = None
        for family, slots in self._families.items():
            while slots and slots[next(reversed(slots))] >= first:
                slots.popitem()
            self._measured[family] = len(slots)
        self._measured_count = first
        # Do not subtract the sizes of the dropped values: a string may have grown since then.
        self._bytes = mark.value_bytes
        numbers = count(first).__next__
        for slots in self._families.values():
            slots.next_slot = numbers
        for table in self._by_words.values():
            table.drop_from(first)

    def keep(self, alive: npt.NDArray[np.bool_]) -> None:
        """Drop values whose slots are not ``alive`` and renumber the rest in their order."""
        # The cached slots have the old numbers.
        self._last = None
        self._by_words = {}
        moved = (np.cumsum(alive) - 1).tolist()
        is_alive = alive.tolist()
        numbers = count(int(alive.sum())).__next__
        for slots in self._families.values():
            living = {value: moved[slot] for value, slot in slots.items() if is_alive[slot]}
            slots.clear()
            slots.update(living)
            slots.next_slot = numbers
        self._measured = dict.fromkeys(self._families, 0)
        self._measured_count = self._bytes = 0
        self.derived.clear()


def _counts(value: Any) -> bool:
    """Whether a value of the property is a value of the key."""
    # NaN differs from itself.
    return value is not None and not isinstance(value, list | dict) and value == value


def _family_of(value: Any) -> tuple[str, Any]:
    """Return the family of a value, and its form as a key of the dictionary."""
    leaf, plain = leaf_of(value)
    if isinstance(plain, datetime):
        plain = int((np.datetime64(plain.replace(tzinfo=None), "us") - _EPOCH).astype(int))
    return _FAMILIES[leaf], plain


def _varies(column: pa.Array) -> bool:
    """Return True if most of the first few values are distinct, so that removing duplicates does
    not pay."""
    head = column[:_HEAD]
    return len(column) <= _HEAD or 2 * len(head.unique()) > len(head)


def _slots(family_slots: _Slots, values: Sequence[Any]) -> Int64s:
    return np.fromiter(map(family_slots.__getitem__, values), np.int64, len(values))


def _plain(values: pa.Array) -> Sequence[Any]:
    """Return the values as Python objects that are equal exactly if they are one value of the
    key."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pa.types.is_boolean(kind):
        plain: list[Any] = values.to_pylist()
        return plain
    numbers: list[Any] = values.to_numpy(zero_copy_only=False).tolist()
    return numbers
