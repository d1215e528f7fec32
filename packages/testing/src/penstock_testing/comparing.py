"""What a realm holds, in a form in which two of them can be compared: after it was moved to other
stores, or restored from a backup.

Names of files, and where an event lies, do not count; neither does whether a store is cluster-wide,
for that is what a move changes.
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
"""Events read at a time."""
SEEN = sorted(name for name, part in vars(Event).items() if isinstance(part, property))
"""All that a reader sees of an event."""

Contents = Mapping[str, Any]
"""By what it is: names of stores, and the parts of a realm besides them."""


async def contents_of(
    recovered: RecoveredRealm, blobs: Blobs, access: Mapping[str, bytes]
) -> Contents:
    """Everything in a realm that was recovered and is not run. ``access`` are the records of its
    users and rights."""
    state = recovered.state
    dispatch = Dispatch(blobs, SystemClock(), inline)
    await dispatch.files.load(state, inline)
    found: dict[str, Any] = {
        "next number": state.directory.next_number,
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
        left = channel.state.stored.copy()
        while left and (span := left.take(READ_EVENTS)) is not None:
            rows, damage = await dispatch.read(store, (Span(*span),))
            if damage.reasons:
                raise AssertionError(f"{channel.state.name}: {damage.reasons[0]}")
            for line in _lines(rows):
                events.update(line)
                count += 1
        found[channel.state.name] = {
            "number": number,
            **_comparable(channel.snapshot()),
            "events": count,
            "their content": events.hexdigest(),
        }
    return found


def differences(one: Contents, other: Contents) -> list[str]:
    """What differs, as lines for people; empty: nothing does."""
    return list(_differences("", one, other))


def _differences(where: str, one: Any, other: Any) -> Sequence[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found: list[str] = []
        for key in (*one, *(key for key in other if key not in one)):
            inner = f"{where} > {key}" if where else f"{key}"
            found += _differences(inner, one.get(key), other.get(key))
        return found
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]


def _comparable(state: Restored) -> dict[str, Any]:
    definition = on_one_node(state.definition)
    durables = {each.name: each for each in durables_of(definition, state.durables)}
    alike = replace(state, definition=definition, durables=())
    counters = msgspec.structs.asdict(state.counters)
    parts: dict[str, Any] = msgspec.structs.asdict(alike)
    parts |= {"durables": durables, "counters": counters}
    return parts


def _lines(rows: Sequence[OutgoingBatch]) -> Sequence[bytes]:
    found = []
    for part in rows:
        own = Rows(part.batch)
        for row in range(part.batch.num_rows):
            event = Event.received(own, row)
            seen = [getattr(event, name) for name in SEEN]
            line = (*seen, _publisher(part, event.event_id or 0))
            found.append(f"{line!r}\n".encode())
    return found


def _publisher(part: OutgoingBatch, event_id: int) -> str:
    for name, spans in part.publishers:
        at = bisect_right(spans, event_id, key=lambda span: span[0]) - 1
        if not spans or (at >= 0 and event_id < spans[at][1]):
            return name
    return ""
