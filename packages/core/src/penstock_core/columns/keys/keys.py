"""Publish keys: finds the events that newer events with the same key value replace (SEM K1).

The index is derived: it can be rebuilt from the stored events at any time. It holds only ids of
events, and looks up in the set of stored ids whether an event still exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.keys.key_retention import Bools, NewestByKey, NewestFew, is_first
from penstock_core.columns.keys.key_values import NO_SLOT, Values, ValuesMark
from penstock_core.columns.selectors.accesses import texts_of
from penstock_core.columns.selectors.expressions import Expression
from penstock_core.ids.ids import IdSet

PRUNE_MIN: Final = 1024
"""Values are not pruned automatically before their number exceeds twice this number."""
PRUNE_BYTES_MIN: Final = 16 << 20
"""Large values are not pruned automatically before their bytes exceed twice this number."""


KeysMark = tuple[ValuesMark, ...]
"""A state of the values of all keys to return to."""


class _Key(NamedTuple):
    """One publish key: its values, and the newest ids of each value."""

    values: Values
    newest: NewestByKey | NewestFew


class _Publish(NamedTuple):
    """The prepared keys of bodies: for each key the rows that have a value, and their slots."""

    bodies: tuple[pa.RecordBatch, ...]
    rows: tuple[tuple[Int64s, Int64s], ...]


class SingleEvent(NamedTuple):
    """A publish of one event: for each key the slot of its value, or `NO_SLOT`."""

    slots: tuple[int, ...]


class KeyMasks(NamedTuple):
    """Masks over the events of a publish."""

    keyed: Bools
    """Events that have the key."""
    follows: Bools
    """Events whose value is known from an earlier event."""


class KeyIndex:
    """An index of the newest events of each value of a channel's publish keys.

    Every stored event must be appended (:meth:`append`), in the order of ids. Values are equal if
    they are of one family (bool, number, string, bytes or timestamp) and compare equal: 1 and 1.0
    are one value, 1 and ``true`` are two. Events without the property, or with null, NaN, a list or
    a dictionary, are not replaced and do not replace others.
    """

    __slots__ = (
        "_bytes_after_pruning",
        "_count_after_pruning",
        "_depths",
        "_expected",
        "_keys",
        "_last",
        "_promised",
        "_shares",
    )

    def __init__(self, keys: Mapping[str, int], values: Values | None = None) -> None:
        """``keys`` has the depth of each key by its name. ``values`` are the values of the only key
        if another object owns and renumbers them (:meth:`renumber`)."""
        assert all(depth >= 1 for depth in keys.values()), "a depth is at least 1"
        self._keys = [
            _Key(Values(name) if values is None else values, _newest(depth))
            for name, depth in keys.items()
        ]
        self._depths = tuple(keys.values())
        self._shares = values is not None
        """Whether another object owns the values, so that this index must not prune them."""
        self._last: _Publish | None = None
        """The prepared keys of the bodies that are not appended yet."""
        self._expected = -1
        """Number of stored events if all removals were made through this index; otherwise -1."""
        self._promised = -1
        """The expected number once the bodies of the last :meth:`superseded` are appended."""
        self._count_after_pruning = PRUNE_MIN
        """Number of values after the last pruning."""
        self._bytes_after_pruning = PRUNE_BYTES_MIN
        """Bytes of the values after the last pruning."""

    def __len__(self) -> int:
        """Return the number of values of all keys, including values without a stored event."""
        return sum(len(key.values) for key in self._keys)

    @property
    def nbytes(self) -> int:
        """Memory of the values of all keys, in bytes, including values without a stored event."""
        return sum(key.values.nbytes for key in self._keys)

    def mark(self) -> KeysMark:
        """Return the marks of each key's values, for :meth:`drop_since`."""
        return tuple(key.values.mark() for key in self._keys)

    def drop_since(self, mark: KeysMark) -> None:
        """Drop the values that are new since ``mark``, because their events were refused. Values
        must not have been renumbered since then."""
        for key, values_mark in zip(self._keys, mark, strict=True):
            key.values.drop_since(values_mark)
        # The prepared slots may belong to dropped values.
        self._last, self._promised = None, -1

    def clear(self) -> None:
        """Drop all values, because no event is stored."""
        for key in self._keys:
            key.values.clear()
        self._keys = [
            _Key(key.values, _newest(depth))
            for key, depth in zip(self._keys, self._depths, strict=True)
        ]
        self._last, self._expected, self._promised = None, -1, -1
        self._count_after_pruning, self._bytes_after_pruning = PRUNE_MIN, PRUNE_BYTES_MIN

    def values_max(self, stored: IdSet) -> int:
        """Return the number of values above which :meth:`prune` is worth its cost, because it drops
        at least half of them."""
        return 2 * len(stored) * len(self._keys) + PRUNE_MIN if stored else 0

    def reclaim(self, stored: IdSet) -> None:
        """Drop values without a stored event if they are at least a fifth of all values.

        Pruning inspects every value and costs more than a publish, so it must free much.
        """
        if not self._shares and 4 * len(self) > 5 * len(stored) * len(self._keys):
            self.prune(stored)

    def superseded(self, bodies: Sequence[pa.RecordBatch], first_id: int, stored: IdSet) -> IdSet:
        """Return the ids to remove when ``bodies`` are appended with consecutive ids from
        ``first_id``.

        The newest *depth* events of each value stay, including events in ``bodies``. Keys are
        independent: an event that another key replaces in this publish still counts as newer.
        ``stored`` are the ids on the channel, including all appended so far. The index does not
        change until :meth:`append`, which must be called before the next :meth:`superseded` if the
        ids were removed.
        """
        self._prune_if_doubled(stored)
        self._verify(stored)
        publish = self._prepare(bodies)
        removed = IdSet()
        for key, (rows, slots) in zip(self._keys, publish.rows, strict=True):
            key_removed = key.newest.superseded(slots, rows + first_id, stored)
            if removed:
                removed.add_all(key_removed)
            else:
                # With a single key, its set is returned without a copy.
                removed = key_removed
        total = sum(body.num_rows for body in bodies)
        # With several keys, a key does not learn which ids another key replaced.
        certain = len(self._keys) == 1 or not removed
        self._promised = len(stored) + total - len(removed) if certain else -1
        return removed

    def superseded_by_one(
        self, value_of: Callable[[str], Any], stored: IdSet
    ) -> tuple[IdSet, SingleEvent] | None:
        """Return the ids to remove when one event is appended, and the argument for
        :meth:`append_one`.

        The computation of one event by columns would take longer than all other work of its
        publish. ``value_of`` returns the value of a property, None if the event has none, and
        ``NotImplemented`` if the value can only be read from a batch. In the last case this method
        returns None and changes nothing.
        """
        values = [value_of(key.values.name) for key in self._keys]
        if any(value is NotImplemented for value in values):
            return None
        self._prune_if_doubled(stored)
        self._verify(stored)
        self._last = None
        slots: list[int] = []
        removed = IdSet()
        for key, value in zip(self._keys, values, strict=True):
            slot = key.values.take_slot(value)
            slots.append(slot)
            key.newest.reset()
            if slot != NO_SLOT:
                key.newest.grow(len(key.values))
                removed.add_all(key.newest.superseded_by_one(slot, stored))
        certain = len(self._keys) == 1 or not removed
        self._promised = len(stored) + 1 - len(removed) if certain else -1
        return removed, SingleEvent(tuple(slots))

    def append_one(self, event: SingleEvent, event_id: int) -> None:
        """Add the stored event of the preceding :meth:`superseded_by_one`."""
        for key, slot in zip(self._keys, event.slots, strict=True):
            if slot != NO_SLOT:
                key.newest.append_one(slot, event_id)
        self._expected, self._promised = self._promised, -1

    def _verify(self, stored: IdSet) -> None:
        """Require that ids are looked up again if other code has removed events since the last
        publish."""
        if len(stored) != self._expected:
            for key in self._keys:
                key.newest.mark_unverified()

    def key_masks(self, bodies: Sequence[pa.RecordBatch], stored: IdSet) -> KeyMasks:
        """Return masks of the events in ``bodies`` that have the key, and of events with a known
        value.

        A value is known if an event with this value is stored, or is an earlier event of
        ``bodies``. Only for an index of one key of depth 1.
        """
        self._verify(stored)
        (key,), ((rows, slots),) = self._keys, self._prepare(bodies).rows
        assert isinstance(key.newest, NewestByKey), "only depth 1 keeps one event per value"
        total = sum(body.num_rows for body in bodies)
        keyed, follows = np.zeros(total, dtype=np.bool_), np.zeros(total, dtype=np.bool_)
        keyed[rows] = True
        follows[rows] = ~is_first(slots) | key.newest.are_stored(slots, stored)
        return KeyMasks(keyed, follows)

    def newest_of(self, value: object, stored: IdSet) -> int | None:
        """Return the id of the stored event with this value, or None. Only for an index of one key
        of depth 1."""
        (key,) = self._keys
        assert isinstance(key.newest, NewestByKey), "only depth 1 keeps one event per value"
        slot = key.values.slot_of(value)
        return None if slot == NO_SLOT else key.newest.newest_of(slot, stored)

    def ids_selected(self, expression: Expression, stored: IdSet) -> IdSet | None:
        """Return the ids of all stored events for which a selector's expression can hold. None if
        the expression does not require a text for the value of a key."""
        for values, newest in self._keys:
            texts = texts_of(expression, values.name)
            if texts is None:
                continue
            slots = [slot for text in texts if (slot := values.slot_of(text)) != NO_SLOT]
            newest.grow(len(values))
            return IdSet.from_ids(
                sorted(event_id for slot in slots for event_id in newest.stored_of(slot, stored))
            )
        return None

    @property
    def derived(self) -> dict[str, Any]:
        """Caches computed from the values, by purpose; empty again after values were dropped. Only
        for an index of one key."""
        (key,) = self._keys
        return key.values.derived

    def texts(self, known_count: int = 0) -> list[str]:
        """Return the string values, with and without a stored event, in the order of their first
        occurrence.

        The oldest ``known_count`` values are left out; the caller has remembered them in
        :attr:`derived`, which is cleared when values are dropped. Only for an index of one key.
        """
        (key,) = self._keys
        return key.values.texts(known_count)

    def append(self, bodies: Sequence[pa.RecordBatch], ids: int | Int64s) -> None:
        """Add stored events. ``ids`` are ascending, or the first of consecutive ids."""
        is_prepared = self._last is not None and _same(self._last.bodies, bodies)
        publish = self._prepare(bodies)
        for key, (rows, slots) in zip(self._keys, publish.rows, strict=True):
            event_ids = rows + ids if isinstance(ids, int) else ids[rows]
            key.newest.append(slots, event_ids)
        # Without a preceding superseded() the number of removed events is not known.
        self._expected = self._promised if is_prepared else -1
        self._last, self._promised = None, -1

    def _prune_if_doubled(self, stored: IdSet) -> None:
        if self._shares:
            return
        if len(self) > 2 * self._count_after_pruning or self.nbytes > 2 * self._bytes_after_pruning:
            self.prune(stored)

    def prune(self, stored: IdSet) -> None:
        """Drop values without a stored event. A publish calls this method if the number of values,
        or their size in bytes, has doubled since the last call."""
        for values, newest in self._keys:
            alive = newest.prune(len(values), stored)
            values.keep(alive)
        # The prepared slots have been renumbered.
        self._last = None
        self._count_after_pruning = max(len(self), PRUNE_MIN)
        self._bytes_after_pruning = max(self.nbytes, PRUNE_BYTES_MIN)

    def renumber(self, alive: Bools) -> None:
        """Renumber the slots after the owner of shared values has done so: only the ``alive``
        values remain, in their order."""
        (key,) = self._keys
        assert isinstance(key.newest, NewestByKey), "only depth 1 keeps one event per value"
        key.newest.keep(alive)
        self._last = None

    def _prepare(self, bodies: Sequence[pa.RecordBatch]) -> _Publish:
        """Return the rows with a value and their slots, for each key. The result is kept, because
        the publish of ``bodies`` needs it several times."""
        if self._last is None or not _same(self._last.bodies, bodies):
            rows = tuple(_rows_and_slots(key, bodies) for key in self._keys)
            self._last = _Publish(tuple(bodies), rows)
            for key in self._keys:
                key.newest.reset()
        return self._last


def _newest(depth: int) -> NewestByKey | NewestFew:
    """Return an empty record of the newest ``depth`` events of each key value."""
    return NewestByKey() if depth == 1 else NewestFew(depth)


def _same(first: Sequence[pa.RecordBatch], second: Sequence[pa.RecordBatch]) -> bool:
    """Whether two sequences have the same objects."""
    return len(first) == len(second) and all(map(lambda a, b: a is b, first, second))


def _rows_and_slots(key: _Key, bodies: Sequence[pa.RecordBatch]) -> tuple[Int64s, Int64s]:
    """Return the rows of all bodies that have a value of the key, and their slots."""
    body_slots = [key.values.slots_of(body) for body in bodies]
    slots = (
        body_slots[0]
        if len(body_slots) == 1
        # The empty array is for a publish without bodies: NumPy cannot concatenate none.
        else np.concatenate([np.empty(0, np.int64), *body_slots])
    )
    # slots_of() may have added values.
    key.newest.grow(len(key.values))
    rows = np.flatnonzero(slots != NO_SLOT)
    return rows, slots if len(rows) == len(slots) else slots[rows]
