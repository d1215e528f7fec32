"""Compares the contents of two realms, for example before and after a move to other stores or a
restore from a backup.

The comparison ignores file names, the places of events in files, and whether a store is
cluster-wide, because a move changes these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace
from xxhash import xxh3_64

from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.rows import Rows
from penstock_core.ids.ids import Span
from penstock_core.messages.snapshots import Restored
from penstock_core.vocabulary.ports import Blobs, inline
from penstock_core.vocabulary.reach import durables_of, on_one_node
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.upkeep.recovery import RecoveredRealm
from penstock_server.runtime.writer.clock import SystemClock

READ_EVENTS = 10_000
"""Number of events that are read at a time."""
READABLE_PROPERTIES = sorted(
    name for name, part in vars(Event).items() if isinstance(part, property)
)
"""Names of the properties of an event that a client can read."""

Contents = Mapping[str, Any]
"""The contents of a realm: stores by name, and its other parts by their names."""


async def contents_of(
    recovered: RecoveredRealm, blobs: Blobs, access: Mapping[str, bytes]
) -> Contents:
    """Return the contents of a realm that was recovered but is not running. ``access`` has the
    records of its users and rights."""
    state = recovered.state
    dispatch = Dispatch(blobs, SystemClock(), inline)
    await dispatch.files.load(state, inline)
    contents: dict[str, Any] = {
        "next number": state.directory.next_channel_id,
        "joins": msgspec.to_builtins(sorted(state.directory.joins)),
        "transactions": msgspec.to_builtins(state.transactions.state()),
        "producers": msgspec.to_builtins(list(state.producers.remembered())),
        "publishing paused": state.directory.publishing_paused,
        "access": {key: value.hex() for key, value in sorted(access.items())},
    }
    for number, channel in state.channels.items():
        store = state.stores[number]
        events = xxh3_64()
        count = 0
        remaining = channel.state.stored.copy()
        # The events are read in batches, so that a large channel does not have to fit into memory.
        while remaining and (span := remaining.take(READ_EVENTS)) is not None:
            rows, damage = await dispatch.read(store, (Span(*span),))
            if damage.reasons:
                raise AssertionError(f"{channel.state.name}: {damage.reasons[0]}")
            for line in _lines(rows):
                events.update(line)
                count += 1
        contents[channel.state.name] = {
            "number": number,
            **_comparable(channel.snapshot()),
            "events": count,
            "checksum of the events": events.hexdigest(),
        }
    return contents


def differences(one: Contents, other: Contents) -> list[str]:
    """Return the differences as lines of text; empty if the contents are equal."""
    return list(_differences("", one, other))


def _differences(where: str, one: Any, other: Any) -> Sequence[str]:
    """Return the differences of two values; ``where`` is the path of their keys."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        lines: list[str] = []
        for key in (*one, *(key for key in other if key not in one)):
            inner = f"{where} > {key}" if where else f"{key}"
            lines += _differences(inner, one.get(key), other.get(key))
        return lines
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]


def _comparable(state: Restored) -> dict[str, Any]:
    """Return the state of a channel without the parts that a move changes."""
    definition = on_one_node(state.definition)
    durables = {durable.name: durable for durable in durables_of(definition, state.durables)}
    comparable = replace(state, definition=definition, durables=())
    counters = msgspec.structs.asdict(state.counters)
    fields: dict[str, Any] = msgspec.structs.asdict(comparable)
    fields |= {"durables": durables, "counters": counters}
    return fields


def _lines(rows: Sequence[OutgoingBatch]) -> Sequence[bytes]:
    """Return a line for each event, with all its properties and its publisher."""
    lines = []
    for part in rows:
        table = Rows(part.batch)
        for row in range(part.batch.num_rows):
            event = Event.received(table, row)
            values = [getattr(event, name) for name in READABLE_PROPERTIES]
            line = (*values, _publisher(part, event.event_id or 0))
            lines.append(f"{line!r}\n".encode())
    return lines


def _publisher(part: OutgoingBatch, event_id: int) -> str:
    """Return the publisher of an event; empty if it is not recorded."""
    for name, spans in part.publishers:
        index = bisect_right(spans, event_id, key=lambda span: span[0]) - 1
        # A publisher without spans has published all events of the batch.
        if not spans or (index >= 0 and event_id < spans[index][1]):
            return name
    return ""
