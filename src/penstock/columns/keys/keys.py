"""Publish keys: which events newer ones of the same value replace (SEM K1).

The index is derived: it can be built again from the stored events at any time. All it knows of
an event is its id; whether the event still lives it asks the set of stored ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.columns.events.batch import Int64s
from penstock.columns.keys.key_retention import Bools, Newest, NewestFew, is_first
from penstock.columns.keys.key_values import NO_SLOT, Values
from penstock.core.ids.ids import IdSet

PRUNE_MIN: Final = 1024
"""Below twice this many values nothing is dropped unasked."""


class _Key(NamedTuple):
    """A key: its values, and the newest ids of each."""

    values: Values
    newest: Newest | NewestFew


class _Publish(NamedTuple):
    """What was worked out for bodies: per key the rows that have a value, and their slots."""

    bodies: tuple[pa.RecordBatch, ...]
    rows: tuple[tuple[Int64s, Int64s], ...]


class Known(NamedTuple):
    """Events of a publish: which have the key, and which a value that is known already."""

    keyed: Bools
    follows: Bools


class KeyIndex:
    """The newest events of each value of a channel's publish keys.

    Every stored event goes through :meth:`append`, in the order of ids. A value is told by what
    it is and its family - bool, number, string, bytes or timestamp: 1 and 1.0 are the same
    value, 1 and ``true`` are not. Events without the property, or with null, NaN, a list or a
    dictionary, are untouched.
    """

    __slots__ = ("_expected", "_keys", "_last", "_promised", "_pruned", "_shares")

    def __init__(self, keys: Mapping[str, int], values: Values | None = None) -> None:
        """``values`` of the one key, when somebody else numbers them: see :meth:`renumbered`."""
        assert all(depth >= 1 for depth in keys.values()), "a depth is at least 1"
        self._keys = [
            _Key(
                Values(name) if values is None else values,
                Newest() if depth == 1 else NewestFew(depth),
            )
            for name, depth in keys.items()
        ]
        self._shares = values is not None
        self._last: _Publish | None = None
        self._expected = -1
        """How many events are stored if none was removed behind the back of this index."""
        self._promised = -1
        """The same once the bodies of the last look are appended."""
        self._pruned = PRUNE_MIN

    def __len__(self) -> int:
        """Values met, of all keys; some may have no live event any more."""
        return sum(len(key.values) for key in self._keys)

    def superseded(self, bodies: Sequence[pa.RecordBatch], first_id: int, stored: IdSet) -> IdSet:
        """The ids to remove when ``bodies`` are appended with ids from ``first_id`` on.

        Of each value the newest *depth* stay, those in ``bodies`` included. Each key looks for
        itself: what another one replaces by the same publish still counts as newer. ``stored``
        are the live ids, all that was appended before included. Nothing changes until
        :meth:`append`, which comes before the next look when these ids were removed.
        """
        if len(self) > 2 * self._pruned and not self._shares:
            self.prune(stored)
        self._doubt(stored)
        publish = self._worked_out(bodies)
        removed = IdSet()
        for key, (rows, slots) in zip(self._keys, publish.rows, strict=True):
            found = key.newest.superseded(slots, rows + first_id, stored)
            if removed:
                removed.add_all(found)
            else:
                removed = found
        total = sum(body.num_rows for body in bodies)
        # With several keys, one does not know what another replaced.
        certain = len(self._keys) == 1 or not removed
        self._promised = len(stored) + total - len(removed) if certain else -1
        return removed

    def _doubt(self, stored: IdSet) -> None:
        if len(stored) != self._expected:
            for key in self._keys:
                key.newest.doubt()

    def known(self, bodies: Sequence[pa.RecordBatch], stored: IdSet) -> Known:
        """Which events of ``bodies`` have the key, and for which of them there is another one of
        its value, stored or before it in ``bodies``. For an index of one key, of depth 1."""
        self._doubt(stored)
        (key,), ((rows, slots),) = self._keys, self._worked_out(bodies).rows
        assert isinstance(key.newest, Newest), "one event a value"
        total = sum(body.num_rows for body in bodies)
        keyed, follows = np.zeros(total, dtype=np.bool_), np.zeros(total, dtype=np.bool_)
        keyed[rows] = True
        follows[rows] = ~is_first(slots) | key.newest.lives(slots, stored)
        return Known(keyed, follows)

    def append(self, bodies: Sequence[pa.RecordBatch], ids: int | Int64s) -> None:
        """Take note of stored events: their ids, ascending, or the first of dense ones."""
        looked_at = self._last is not None and _same(self._last.bodies, bodies)
        publish = self._worked_out(bodies)
        for key, (rows, slots) in zip(self._keys, publish.rows, strict=True):
            own = rows + ids if isinstance(ids, int) else ids[rows]
            key.newest.append(slots, own)
        self._expected = self._promised if looked_at else -1
        self._last, self._promised = None, -1

    def prune(self, stored: IdSet) -> None:
        """Drop the values without a live event. Done unasked when their number has doubled."""
        for values, newest in self._keys:
            alive = newest.prune(len(values), stored)
            values.keep(alive)
        self._last = None
        self._pruned = max(len(self), PRUNE_MIN)

    def renumbered(self, alive: Bools) -> None:
        """Only these of the shared values are left; they have moved up, in their order."""
        (key,) = self._keys
        assert isinstance(key.newest, Newest), "one event a value"
        key.newest.keep(alive)
        self._last = None

    def _worked_out(self, bodies: Sequence[pa.RecordBatch]) -> _Publish:
        if self._last is None or not _same(self._last.bodies, bodies):
            rows = tuple(_rows_and_slots(key, bodies) for key in self._keys)
            self._last = _Publish(tuple(bodies), rows)
            for key in self._keys:
                key.newest.reset()
        return self._last


def _same(one: Sequence[pa.RecordBatch], other: Sequence[pa.RecordBatch]) -> bool:
    return len(one) == len(other) and all(map(lambda a, b: a is b, one, other))


def _rows_and_slots(key: _Key, bodies: Sequence[pa.RecordBatch]) -> tuple[Int64s, Int64s]:
    found = [key.values.slots_of(body) for body in bodies]
    slots = found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *found])
    key.newest.grow(len(key.values))
    rows = np.flatnonzero(slots != NO_SLOT)
    return rows, slots if len(rows) == len(slots) else slots[rows]
