"""Histories that are still on the realm, and publishing to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

import pyarrow as pa

from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.selectors import Selector
from penstock_spark.replaying.archived import Bounds, History, chosen


class LiveHistory:
    """The events a channel has, and where there is one its archive before them."""

    def __init__(
        self, channel: Channel, bounds: Bounds, selector: str = "", before: History | None = None
    ) -> None:
        self.channel = channel.name
        self._channel = channel
        self._bounds = bounds
        self._selector = Selector(selector) if selector else None
        self._before = before

    def batches(self, first_id: int, end_id: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the events of the archive, then those of the channel that follow its last one."""
        first = first_id
        if self._before is not None:
            for batch in self._before.batches(first_id, end_id):
                first = int(ids_of(batch)[-1]) + 1
                yield batch
        wanted = self._bounds.within(first, end_id)
        end = wanted.end_id
        last = self._channel.info().last_event_id if end is None else end - 1
        if last < wanted.first_id:
            return
        for events in self._channel.browse(start=wanted.first_id, end=last).batches():
            batch = chosen(events.to_arrow(), wanted, self._selector)
            if batch.num_rows:
                yield batch

    def count(self, first_id: int) -> int | None:
        """None: more events may come while it is read."""


class RealmOutlet:
    """The channels of a realm, as targets of a replay."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channels: dict[str, Channel] = {}

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        """Raises ``NameDoesNotExist``, and what publishing raises."""
        found = self._channels.get(channel)
        if found is None:
            found = self._channels[channel] = self._session.channels.get(channel)
        found.publish_bodies(bodies, producer=producer, sequence=sequence)


class StopSignal(Protocol):
    """Whether to stop; a ``threading.Event`` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class WallTimer:
    """The machine's time, and waits that end when it is time to stop."""

    def __init__(self, stopping: StopSignal) -> None:
        self._stopping = stopping
        self._latest_us = 0

    def now_us(self) -> int:
        now = int(datetime.now(UTC).timestamp() * 1_000_000)
        self._latest_us = max(self._latest_us, now)
        return self._latest_us

    def wait(self, us: int) -> bool:
        return self._stopping.wait(us / 1_000_000) if us else self._stopping.is_set()
