"""Collects events as columns: one list for each attribute instead of one object for each event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.durations import Milliseconds
from penstock_core.columns.events.event import NO_TTL, check_priority, event_data, ttl_ms
from penstock_core.vocabulary.errors import InvalidEvent

Properties = Mapping[str, Any]


class ColumnLists:
    """The attributes of some events, one list for each attribute, ready to become a batch."""

    __slots__ = ("datas", "persistents", "priorities", "properties", "size", "tags", "ttls")

    def __init__(self) -> None:
        self.datas: list[bytes] = []
        self.tags: list[str | None] = []
        self.properties: list[Properties | None] = []
        self.ttls: list[int | None] = []
        self.persistents: list[bool | None] = []
        self.priorities: list[int | None] = []
        self.size = 0

    @property
    def count(self) -> int:
        return len(self.datas)

    def body(self) -> pa.RecordBatch:
        """Return the events as a record batch. Raises ``InvalidEvent`` with the event and the
        property that cannot be stored."""
        return body_of_columns(
            self.datas,
            self.tags,
            self.properties,
            ttls=self.ttls,
            persistents=self.persistents,
            priorities=self.priorities,
        )

    def remove_invalid(self) -> list[InvalidEvent]:
        """Remove the events that cannot be stored. Return their errors."""
        events = list(
            zip(
                self.datas,
                self.tags,
                self.properties,
                self.ttls,
                self.persistents,
                self.priorities,
                strict=True,
            )
        )
        errors, valid = [], []
        for event in events:
            # Only a batch of this one event shows whether it is the invalid one.
            single = ColumnLists()
            single._fill([event])
            try:
                single.body()
            except InvalidEvent as error:
                errors.append(error)
            else:
                valid.append(event)
        self._fill(valid)
        return errors

    def _fill(self, events: Sequence[tuple[Any, ...]]) -> None:
        columns = [list(column) for column in zip(*events, strict=True)] or [[] for _ in range(6)]
        self.datas, self.tags, self.properties, self.ttls, self.persistents, self.priorities = (
            columns
        )


class BatchBuilder:
    """Collects events in a :class:`ColumnLists` until it has enough for a batch."""

    def __init__(self, events_max: int, bytes_max: int) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._gathered = ColumnLists()

    @property
    def count(self) -> int:
        """Number of collected events."""
        return self._gathered.count

    def add(
        self,
        data: bytes,
        tag: str | None,
        properties: Properties | None,
        ttl: Milliseconds,
        persistent: bool | None,
        priority: int | None,
    ) -> bool:
        """Add an event. Return whether there are enough events to send. Raises ``InvalidEvent``."""
        data = data if type(data) is bytes else event_data(data)
        if ttl is not NO_TTL:
            ttl = ttl_ms(ttl)
        if priority is not None:
            check_priority(priority)
        gathered = self._gathered
        gathered.datas.append(data)
        gathered.tags.append(tag)
        gathered.properties.append(properties)
        gathered.ttls.append(ttl or None)
        gathered.persistents.append(persistent)
        gathered.priorities.append(priority)
        gathered.size += len(data)
        return len(gathered.datas) >= self._events_max or gathered.size >= self._bytes_max

    def take(self) -> ColumnLists | None:
        """Return the collected events and begin a new batch; None if no event was collected."""
        if not self._gathered.count:
            return None
        gathered, self._gathered = self._gathered, ColumnLists()
        return gathered
