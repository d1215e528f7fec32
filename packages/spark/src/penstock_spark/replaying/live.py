"""Reads the events to replay from a realm, and publishes replayed events to the realm."""

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
    """The stored events of a channel, after those of its archive if there is one."""

    def __init__(
        self, channel: Channel, bounds: Bounds, selector: str = "", before: History | None = None
    ) -> None:
        """``before`` is the archive of the channel. Only events within ``bounds`` that match
        ``selector`` are read."""
        self.channel = channel.name
        self._channel = channel
        self._bounds = bounds
        self._selector = Selector(selector) if selector else None
        self._archived = before

    def batches(self, first_id: int, end_id: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the events of the archive, then the events of the channel that follow the last
        archived one."""
        first = first_id
        if self._archived is not None:
            for batch in self._archived.batches(first_id, end_id):
                first = int(ids_of(batch)[-1]) + 1
                yield batch
        restricted = self._bounds.within(first, end_id)
        end = restricted.end_id
        # Without an upper bound, the read ends at the event that is the newest now.
        last = self._channel.info().last_event_id if end is None else end - 1
        if last < restricted.first_id:
            return
        for events in self._channel.browse(start=restricted.first_id, end=last).batches():
            batch = filter_events(events.to_arrow(), restricted, self._selector)
            if batch.num_rows:
                yield batch

    def count(self, first_id: int) -> int | None:
        """Return None, for "unknown": the channel may get more events during the replay."""


class RealmOutlet:
    """Publishes replayed events to the channels of a realm."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._channels: dict[str, Channel] = {}

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        """Publish ``bodies`` to a channel in one step.

        A repetition with equal ``producer`` and ``sequence`` stores nothing. Raises
        ``NameDoesNotExist`` if the channel does not exist, and the errors of publishing.
        """
        target = self._channels.get(channel)
        if target is None:
            target = self._channels[channel] = self._session.channels.get(channel)
        target.publish_bodies(bodies, producer=producer, sequence=sequence)


class StopSignal(Protocol):
    """Signals that the replay must stop, as a ``threading.Event`` does."""

    def is_set(self) -> bool:
        """Return whether the replay must stop."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the signal; return whether the replay must stop."""
        ...


class WallTimer:
    """The machine's clock. A wait ends early when the replay is stopped."""

    def __init__(self, stopping: StopSignal) -> None:
        self._stopping = stopping
        self._latest_us = 0

    def now_us(self) -> int:
        # The machine's clock may be set back, but the times of a replay must not decrease.
        now = int(datetime.now(UTC).timestamp() * 1_000_000)
        self._latest_us = max(self._latest_us, now)
        return self._latest_us

    def wait(self, us: int) -> bool:
        return self._stopping.wait(us / 1_000_000) if us else self._stopping.is_set()
