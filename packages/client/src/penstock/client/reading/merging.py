"""Merge channels in the client: registered events, and the merging of delivered deltas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock_core.columns.events.event import Event
from penstock_core.columns.keys.key_values import NO_SLOT
from penstock_core.columns.merge.states import DELTA, States, deltas_of
from penstock_core.columns.schema.layout import FIELDS
from penstock_core.display import safe_repr, short
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument

Publish = Callable[[Event], Awaitable[int]]
"""A function that publishes an event and returns its id."""


class Registered:
    """The event of a key of a merge channel, to be updated (SEM K2):
    ``await rates.register(...)``."""

    key: Any
    """The value of the channel's publish key."""
    event_id: int
    """The id of the newest event that this object has published."""

    def __init__(self, key_name: str, key: Any, event_id: int, publish: Publish) -> None:
        self.key = key
        self.event_id = event_id
        self._key_name = key_name
        self._publish = publish

    async def update(self, properties: Mapping[str, Any] | None = None, /, **changes: Any) -> int:
        """Change some properties. Return the id of the delta once it is stored safely.

        Properties not named keep their values; None sets null (SEM K4). Raises the errors of
        ``publish``.
        """
        event = delta_of(self._key_name, self.key, {**(properties or {}), **changes})
        self.event_id = await self._publish(event)
        return self.event_id

    @safe_repr
    def __repr__(self) -> str:
        return f"Registered({self._key_name}={short(self.key)}, event_id={self.event_id})"


def key_name_of(name: str, definition: Definition) -> str:
    """Return the name of the publish key of a merge channel. Raises ``IllegalState`` for any other
    channel."""
    if definition.engine != "merge":
        raise IllegalState(
            f"{name} has engine {definition.engine}; register, update, state and merged need a "
            "channel with engine merge"
        )
    (key,) = definition.keys
    return key


def registered_of(key_name: str, key: Any, properties: Mapping[str, Any]) -> Event:
    """Return the full event of a key. Raises ``InvalidArgument`` if ``properties`` have another
    key."""
    return Event(properties={**_checked(key_name, key, properties), key_name: key})


def delta_of(key_name: str, key: Any, changes: Mapping[str, Any]) -> Event:
    """Return the delta of a key. Raises ``InvalidArgument`` if ``changes`` have another key."""
    return Event(properties={key_name: key, **_checked(key_name, key, changes)}, is_delta=True)


def _checked(key_name: str, key: Any, properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties. Raises ``InvalidArgument`` if the key is None or they have another
    key."""
    if key is None:
        raise InvalidArgument(
            f"the value of {key_name} is None; give the value that identifies the event"
        )
    if key_name in properties and properties[key_name] != key:
        raise InvalidArgument(
            f"{key_name} is {key!r} and cannot be changed to {properties[key_name]!r}, which "
            f"identifies another event; register that one"
        )
    return properties


def as_deltas(body: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``body`` with all events marked as deltas."""
    flags = pa.array(np.ones(body.num_rows, dtype=np.bool_))
    return body.append_column(FIELDS[DELTA], flags)


class Merger:
    """Merges deltas into full events (SEM K3). It keeps the state of each key that was
    delivered."""

    def __init__(self, key_name: str) -> None:
        self._states = States(key_name)

    def merged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the events of a delivery as full events."""
        slots = self._states.slots_of(batch)
        rows, _ = self._states.merged(batch, slots, ~deltas_of(batch), every=True)
        last = len(slots) - 1 - np.unique(slots[::-1], return_index=True)[1]
        kept = np.sort(last[slots[last] != NO_SLOT])
        codes = np.zeros(len(kept), dtype=np.int32)
        self._states.append(rows.take(pa.array(kept)), slots[kept], codes)
        self._states.tidy()
        return rows
