"""Reads histories from the realm, and publishes replayed events to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol

import pyarrow as pa

from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.selectors import Selector
from penstock_spark.replaying.archived import Bounds, History, filter_events


class LiveHistory:
    """The events of an archive, if given, followed by those of its channel."""

    def __init__(
        self, channel: Channel, bounds: Bounds, selector: str = "", before: History | None = None
    ) -> None:
        self.channel = channel.name
        self._channel = channel
        self._bounds = bounds
        self._selector = Selector(selector) if selector else None
        self._archived = before

    def batches(self, first_id: int, end_id: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the events of the archive, then those of the channel that follow its last one."""
        first = first_id
        if self._archived is not None:
            for batch in self._archived.batches(first_id, end_id):
                first = int(ids_of(batch)[-1]) + 1
                yield batch
        restricted = self._bounds.within(first, end_id)
        end = restricted.end_id
        last = self._channel.info().last_event_id if end is None else end - 1
        if last < restricted.first_id:
            return
        for events in self._channel.browse(start=restricted.first_id, end=last).batches():
            batch = filter_events(events.to_arrow(), restricted, self._selector)
            if batch.num_rows:
                yield batch

    def count(self, first_id: int) -> int | None:
        """Return None: the channel may get more events during the replay."""


class RealmOutlet:
    """Publishes to the channels of a realm."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channels: dict[str, Channel] = {}

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        """Publish in one step. Raises ``NameDoesNotExist``, and the errors of publishing."""
        target = self._channels.get(channel)
        if target is None:
            target = self._channels[channel] = self._session.channels.get(channel)
        target.publish_bodies(bodies, producer=producer, sequence=sequence)


class StopSignal(Protocol):
    """Signals that the replay must stop; a ``threading.Event`` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class WallTimer:
    """The machine's clock; waits end early when the replay is stopped."""

    def __init__(self, stopping: StopSignal) -> None:
        self._stopping = stopping
        self._latest_us = 0

    def now_us(self) -> int:
        now = int(datetime.now(UTC).timestamp() * 1_000_000)
        self._latest_us = max(self._latest_us, now)
        return self._latest_us

    def wait(self, us: int) -> bool:
        return self._stopping.wait(us / 1_000_000) if us else self._stopping.is_set()
