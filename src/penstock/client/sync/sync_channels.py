"""Channels, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from penstock.client.connection.threads import LoopThread
from penstock.client.handles import channels as aio_channels
from penstock.client.handles.attributes import ChannelAttributes
from penstock.client.publishing.streamed import publish_streamed_from
from penstock.client.reading.start_positions import StartLike
from penstock.client.reading.subscription import BUFFER_BYTES_MAX
from penstock.client.sync.sync_destination import Destination
from penstock.client.sync.sync_durables import Durables
from penstock.client.sync.sync_merging import Registered
from penstock.client.sync.sync_subscription import Subscription
from penstock.columns.events.event import Event, Moment

if TYPE_CHECKING:
    from penstock.client.copies.transfer import FolderLike
    from penstock.client.reading.key_state import KeyState
    from penstock.columns.files.exports import Manifest


class Channels:
    def __init__(self, inner: aio_channels.Channels, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def create(self, name: str, **attributes: Unpack[ChannelAttributes]) -> Channel:
        """Make a channel (SEM C3); see :meth:`penstock.aio.Channels.create`."""
        return Channel(self._loop.call(self._inner.create(name, **attributes)), self._loop)

    def get(self, name: str) -> Channel:
        """Raises ``NameDoesNotExist``."""
        return Channel(self._loop.call(self._inner.get(name)), self._loop)

    def list(self) -> list[str]:
        """The names of all channels, sorted."""
        return self._loop.call(self._inner.list())

    def delete(self, name: str) -> None:
        """Remove a channel with its events and durables. Raises ``NameDoesNotExist``."""
        self._loop.call(self._inner.delete(name))

    def export(self, name: str, folder: FolderLike) -> Manifest:
        """Write a channel as it stands now into a new or empty folder (SEM C7); see
        :meth:`penstock.aio.Channels.export`."""
        return self._loop.call(self._inner.export(name, folder))

    def import_from(self, folder: FolderLike, name: str = "") -> Channel:
        """Make a channel out of an exported one, every id kept (SEM C7); see
        :meth:`penstock.aio.Channels.import_from`."""
        return Channel(self._loop.call(self._inner.import_from(folder, name)), self._loop)


class Channel(Destination):
    """One channel; state lives in the realm, this is a handle."""

    def __init__(self, inner: aio_channels.Channel, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self._inner: aio_channels.Channel = inner
        self.durables = Durables(inner.durables, loop)

    def publish(
        self,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
        transient: bool = False,
        deliver_at: Moment | None = None,
    ) -> int:
        """Publish one event; returns its id once it is safe, or with ``deliver_at`` its number
        in ``scheduled``; see :meth:`penstock.aio.Channel.publish`."""
        return self._loop.call(
            self._inner.publish(
                data,
                tag=tag,
                properties=properties,
                headers=headers,
                ttl=ttl,
                persistent=persistent,
                priority=priority,
                transient=transient,
                deliver_at=deliver_at,
            )
        )

    def publish_many(self, events: Iterable[Event]) -> range:
        """Publish events in one step: consecutive ids, all or none. They may come from a generator
        or any other iterable; see :meth:`penstock.aio.Channel.publish_many`."""
        if not isinstance(events, Sequence):
            return publish_streamed_from(self._loop, self._inner._publisher, events)
        return self._loop.call(self._inner.publish_many(events))

    def publish_table(self, table: Any, *, delta: bool = False) -> range:
        """Publish the rows of an Arrow, pandas or polars table in one step; see
        :meth:`penstock.aio.Channel.publish_table`."""
        return self._loop.call(self._inner.publish_table(table, delta=delta))

    def register(
        self, key: Any, properties: Mapping[str, Any] | None = None, /, **named: Any
    ) -> Registered:
        """Publish the full event of a value of the publish key (SEM K2); see
        :meth:`penstock.aio.Channel.register`."""
        return Registered(
            self._loop.call(self._inner.register(key, properties, **named)), self._loop
        )

    def update(
        self, key: Any, properties: Mapping[str, Any] | None = None, /, **changes: Any
    ) -> int:
        """Change some properties of the event of a key (SEM K2, K4)."""
        return self._loop.call(self._inner.update(key, properties, **changes))

    def state(self, key: Any, *, as_of: int | None = None, archive: str | None = None) -> KeyState:
        """The state of a key of a merge channel, now or as of an event (SEM K5); see
        :meth:`penstock.aio.Channel.state`."""
        return self._loop.call(self._inner.state(key, as_of=as_of, archive=archive))

    def stage(self, table: Any) -> list[str]:
        """Put rows aside on the realm; see :meth:`penstock.aio.Channel.stage`."""
        return self._loop.call(self._inner.stage(table))

    def commit_stages(self, stages: Sequence[str], *, producer: str, sequence: int) -> range:
        """Publish what was staged, in one step and once (SEM X1, X3)."""
        return self._loop.call(
            self._inner.commit_stages(stages, producer=producer, sequence=sequence)
        )

    def drop_stages(self, stages: Sequence[str]) -> None:
        """Forget what was staged; what was committed stays."""
        self._loop.call(self._inner.drop_stages(stages))

    def publish_bodies(
        self, bodies: Sequence[pa.RecordBatch], *, producer: str, sequence: int
    ) -> range:
        """Publish batches as they are stored, in one step and once; see
        :meth:`penstock.aio.Channel.publish_bodies`."""
        return self._loop.call(
            self._inner.publish_bodies(bodies, producer=producer, sequence=sequence)
        )

    def subscribe(
        self,
        *,
        start: StartLike = "latest",
        selector: str = "",
        timeout: float | None = None,
        merged: bool = False,
        archive: str | None = None,
        buffer_bytes: int = BUFFER_BYTES_MAX,
    ) -> Subscription:
        """Read events from ``start`` on, first those in the archive, then the stored, then live
        ones (SEM E6); see :meth:`penstock.aio.Channel.subscribe`."""
        inner = self._inner.subscribe(
            start=start,
            selector=selector,
            timeout=timeout,
            merged=merged,
            archive=archive,
            buffer_bytes=buffer_bytes,
        )
        return Subscription(inner, self._loop)

    def browse(
        self,
        *,
        start: StartLike = 0,
        end: int | None = None,
        selector: str = "",
        archive: str | None = "",
    ) -> Subscription:
        """Stored events from ``start`` up to and including ``end``, then the end; see
        :meth:`penstock.aio.Channel.browse`."""
        inner = self._inner.browse(start=start, end=end, selector=selector, archive=archive)
        return Subscription(inner, self._loop)

    def read(
        self,
        *,
        start: StartLike = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        selector: str = "",
        archive: str | None = None,
    ) -> pa.Table:
        """Events as one Arrow table, those in the archive first; see
        :meth:`penstock.aio.Channel.read`."""
        return self._loop.call(
            self._inner.read(
                start=start, end=end, columns=columns, selector=selector, archive=archive
            )
        )
