"""A model of a merge channel: one dictionary for each key, one event at a time (SEM K2, K4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock_core.columns.events.event import Event

KEY = "key"

Properties = dict[str, Any]


class Kept(NamedTuple):
    key: str | None
    properties: Properties
    at_us: int


class MergeModel:
    def __init__(self, *, capacity: int = 0, ttl_ms: int = 0) -> None:
        self.capacity = capacity
        self.ttl_ms = ttl_ms
        self.events: dict[int, Kept] = {}
        self.versions: list[tuple[int, Properties]] = []
        """Every event with the state of its key at that time, as a join copies it."""

    def published(self, first_id: int, events: Sequence[Event], at_us: int) -> None:
        self.expire(at_us)
        for event_id, event in enumerate(events, first_id):
            properties = dict(event.properties)
            key = properties.get(KEY)
            former = self.event_of(key) if key is not None else None
            if former is not None:
                before = self.events.pop(former).properties
                properties = {**before, **properties} if event.is_delta else properties
            self.events[event_id] = Kept(key, properties, at_us)
            self.versions.append((event_id, properties))
        if self.capacity:
            for event_id in sorted(self.events)[: -self.capacity]:
                del self.events[event_id]

    def expire(self, now_us: int) -> None:
        if self.ttl_ms:
            due = now_us - self.ttl_ms * 1_000
            self.events = {i: kept for i, kept in self.events.items() if kept.at_us > due}

    def purge(self, matches: Callable[[Properties], bool]) -> None:
        self.events = {i: kept for i, kept in self.events.items() if not matches(kept.properties)}

    def event_of(self, key: str | None) -> int | None:
        return next((i for i, kept in self.events.items() if kept.key == key), None)

    def stored(self) -> dict[int, Properties]:
        return {i: kept.properties for i, kept in sorted(self.events.items())}


class Follower:
    """A client that merges the events it gets."""

    def __init__(self) -> None:
        self.states: dict[str, Properties] = {}
        self.seen = 0
        self.last_id = -1

    def take(self, events: Sequence[Event]) -> None:
        """Merge all events from the beginning of the channel."""
        for event in events[self.seen :]:
            assert event.event_id is not None
            assert event.event_id > self.last_id, "in the order of ids, each once"
            self.last_id = event.event_id
            key = event.properties[KEY]
            if event.is_delta:
                assert key in self.states, f"a delta of {key} came before its state"
                self.states[key] = {**self.states[key], **event.properties}
            else:
                self.states[key] = dict(event.properties)
        self.seen = len(events)
