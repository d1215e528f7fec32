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
"""The family of each leaf type. Values of one family are compared: 1 and 1.0 are equal."""

SLOT_BYTES: Final = 160
"""Memory of a slot besides its value: entries of the dictionary, of the caches and of the ids."""

_HEAD: Final = 64

_EPOCH: Final = np.datetime64(0, "us")


class _Slots(dict[Any, int]):
    """Slot by value; a lookup of a new value assigns it the next slot."""

    def __init__(self, following: Callable[[], int]) -> None:
        super().__init__()
        self.following = following

    def __missing__(self, value: Any) -> int:
        slot = self[value] = self.following()
        return slot


class ValuesMark(NamedTuple):
    """How many values there were, and the memory of the values alone in bytes."""

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
        self.renumberings = 0
        """How often values were dropped, and the others numbered anew."""
        self._last: tuple[pa.RecordBatch, Int64s] | None = None
        """The last batch and its slots: several callers ask about one batch in turn."""
        self._measured = dict.fromkeys(self._families, 0)
        """The number of values of each family whose bytes are in ``_bytes``."""
        self._bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._families.values()))

    @property
    def nbytes(self) -> int:
        """Memory of the values and their slots, in bytes. Measures the values that are new."""
        for family, slots in self._families.items():
            new = len(slots) - self._measured[family]
            if new:
                self._bytes += sum(map(sys.getsizeof, islice(reversed(slots), new)))
                self._measured[family] = len(slots)
        return self._bytes + SLOT_BYTES * len(self)

    def _fields_of(self, schema: pa.Schema) -> tuple[tuple[int, str], ...]:
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
        """The slot of each event's value; :data:`NO_SLOT` where it has none that counts.

        Null, NaN, lists, dictionaries and an absent property do not count.
        """
        if self._last is not None and self._last[0] is batch:
            return self._last[1]
        slots = self._slots_of(batch)
        self._last = batch, slots
        return slots

    def take_slot(self, value: Any) -> int:
        """The slot of a value, a new one if it has not occurred; :data:`NO_SLOT` if it does not
        count."""
        return self._of_value(value)

    def _slots_of(self, batch: pa.RecordBatch) -> Int64s:
        found: Int64s | None = None
        fields = self._fields.of(batch.schema)
        if fields:
            struct = batch.column("properties")
            for place, family in fields:
                column = struct.field(place)
                if struct.null_count:
                    column = pc.struct_field(struct, [place])
                slots = self._of_column(column, family)
                found = slots if found is None else np.where(slots == NO_SLOT, found, slots)
        if found is None:
            found = np.full(batch.num_rows, NO_SLOT, dtype=np.int64)
        if "more" in batch.schema.names:
            self._read_more(batch.column("more"), found)
        return found

    def _of_column(self, column: pa.Array, family: str) -> Int64s:
        words = words_of(column)
        known = self._families[family]
        if words is None:
            return self._of_values(column, known)
        key = (family, words.shape[1])
        table = self._by_words.get(key)
        if table is None:
            table = self._by_words[key] = WordSlots(words.shape[1])
        return table.slots_of(words, lambda rows: _slots(known, _plain(column.take(rows))))

    def _of_values(self, column: pa.Array, known: _Slots) -> Int64s:
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        if not column.null_count and _varies(column):
            return _slots(known, _plain(column))
        encoded = column.dictionary_encode()
        values = _plain(encoded.dictionary)
        slots = _slots(known, values)
        codes = encoded.indices
        if not codes.null_count:
            places: Int64s = codes.to_numpy()
        else:
            slots = np.append(slots, NO_SLOT)
            places = codes.fill_null(len(values)).to_numpy()
        return slots.take(places)

    def _read_more(self, cells: pa.BinaryArray, found: Int64s) -> None:
        """Add slots of values in ``more``. A Python loop, because few events have values there."""
        maybe = pc.fill_null(pc.match_substring(cells, self.name), fill_value=False)
        for row in np.flatnonzero(maybe.to_numpy(zero_copy_only=False)).tolist():
            properties = overflow.decoded(cells[row].as_py())
            if self.name in properties:
                found[row] = self._of_value(properties[self.name])

    def _of_value(self, value: Any) -> int:
        if not _counts(value):
            return NO_SLOT
        family, plain = _family_of(value)
        return self._families[family][plain]

    def slot_of(self, value: Any) -> int:
        """The slot of a value; :data:`NO_SLOT` if it has not occurred. Assigns no slot."""
        if not _counts(value):
            return NO_SLOT
        family, plain = _family_of(value)
        return self._families[family].get(plain, NO_SLOT)

    def known(self) -> list[tuple[str, Any]]:
        """The family and the value of each slot, in the order of slots."""
        found: list[tuple[str, Any]] = [("", None)] * len(self)
        for family, slots in self._families.items():
            for value, slot in slots.items():
                found[slot] = (family, value)
        return found

    def texts(self, known_count: int = 0) -> list[str]:
        """The values that are texts in the order in which they occurred first, without as many of
        the oldest as are known."""
        slots = self._families["string"]
        return list(islice(reversed(slots), max(len(slots) - known_count, 0)))[::-1]

    def clear(self) -> None:
        """Drop all values."""
        for slots in self._families.values():
            slots.clear()
        self.keep(np.zeros(0, dtype=np.bool_))

    def mark(self) -> ValuesMark:
        """The state that :meth:`drop_since` returns to."""
        return ValuesMark(len(self), self.nbytes - SLOT_BYTES * len(self))

    def drop_since(self, mark: ValuesMark) -> None:
        """Drop the values that are new since ``mark``: their events were refused. No values may
        have been renumbered since then."""
        first = mark.slots
        if len(self) <= first:
            return
        self._last = None
        for family, slots in self._families.items():
            while slots and slots[next(reversed(slots))] >= first:
                slots.popitem()
            self._measured[family] = len(slots)
        # Not by the sizes of the dropped values: a string may have grown since it was measured.
        self._bytes = mark.value_bytes
        numbers = count(first).__next__
        for slots in self._families.values():
            slots.following = numbers
        for table in self._by_words.values():
            table.drop_from(first)

    def keep(self, alive: npt.NDArray[np.bool_]) -> None:
        """Drop values whose slots are not ``alive`` and renumber the rest in their order."""
        self.renumberings += 1
        self._last = None
        self._by_words = {}
        moved = (np.cumsum(alive) - 1).tolist()
        kept = alive.tolist()
        numbers = count(int(alive.sum())).__next__
        for slots in self._families.values():
            living = {value: moved[slot] for value, slot in slots.items() if kept[slot]}
            slots.clear()
            slots.update(living)
            slots.following = numbers
        self._measured = dict.fromkeys(self._families, 0)
        self._bytes = 0


def _counts(value: Any) -> bool:
    return value is not None and not isinstance(value, list | dict) and value == value


def _family_of(value: Any) -> tuple[str, Any]:
    """The family of a value, and the form in which it is a key of the dictionary."""
    leaf, plain = leaf_of(value)
    if isinstance(plain, datetime):
        plain = int((np.datetime64(plain.replace(tzinfo=None), "us") - _EPOCH).astype(int))
    return _FAMILIES[leaf], plain


def _varies(column: pa.Array) -> bool:
    """True if most of the first few values are distinct: removing duplicates does not pay then."""
    head = column[:_HEAD]
    return len(column) <= _HEAD or 2 * len(head.unique()) > len(head)


def _slots(known: _Slots, values: Sequence[Any]) -> Int64s:
    return np.fromiter(map(known.__getitem__, values), np.int64, len(values))


def _plain(values: pa.Array) -> Sequence[Any]:
    """The values as Python objects that are equal exactly if they are one value of the key."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pa.types.is_boolean(kind):
        plain: list[Any] = values.to_pylist()
        return plain
    numbers: list[Any] = values.to_numpy(zero_copy_only=False).tolist()
    return numbers
