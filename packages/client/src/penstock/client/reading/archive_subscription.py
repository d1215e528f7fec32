"""A subscription that begins in the archive of a channel and continues with the channel.

Events up to the last one of the archive are read from the archive, all later ones from the channel.
Events that have left the channel are therefore also delivered, and each id is delivered once.
Events may be archived during the subscription. If the archive's pipeline is bound to a durable, an
event is archived before it leaves the channel, so that events missing from the channel are in the
archive. If the archive was begun later than its channel, events before the first one of the archive
are read from the channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.client.connection.arguments import Duration
from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.merging import Merger
from penstock.client.reading.received import ReceivedBatch
from penstock.client.reading.subscription import BUFFER_BYTES_MAX, Subscription
from penstock_core.api.channels import ChannelInfo, ChannelOpened, DescribeChannel
from penstock_core.columns.protobuf import fields_of
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import PenstockError, SessionClosed
from penstock_core.vocabulary.start_positions import (
    AnyStart,
    FromEarliest,
    FromId,
    FromLatest,
    FromTime,
)

if TYPE_CHECKING:
    from penstock.client.reading.archive import Archive, Wanted

LOOK_AGAIN_S: Final = 1.0
"""Seconds to wait for events that the channel had when the subscription was opened. Then the
archive is opened again, because the events may have moved there."""


class SeamlessSubscription(Subscription):
    """A subscription or browse that reads events from the archive first, if ``start`` is in the
    archive."""

    def __init__(
        self,
        connection: RealmConnection,
        channel: ChannelOpened,
        start: AnyStart,
        *,
        archive: str | None = None,
        selector: str = "",
        timeout: Duration | None = None,
        browse: bool = False,
        last_id: int | None = None,
        merger: Merger | None = None,
        buffer_bytes: int = BUFFER_BYTES_MAX,
    ) -> None:
        super().__init__(
            connection,
            channel.channel,
            start,
            selector=selector,
            timeout=timeout,
            browse=browse,
            last_id=last_id,
            merger=merger,
            buffer_bytes=buffer_bytes,
            channel_name=channel.name,
        )
        self._name = channel.name
        self._channel_opened = channel
        self._named = archive
        """URI of the archive to read; empty for no archive; None for the channel's archive."""
        self._end_wanted = last_id
        self._archive: Archive | None = None
        self._wanted: Wanted | None = None
        self._past: Iterator[pa.RecordBatch] | None = None
        """The batches of the archive that are being read."""
        self._past_end = 0
        self._oldest = 0
        """Id of the archive's first event."""
        self._turn = asyncio.Lock()
        """Held while one of several tasks reads from the archive."""
        self._rests = 0
        """Number of batches at the front of the inbox that loops have put back."""
        self._is_live = False
        """Whether the channel is subscribed to; batches of the archive may still be read as
        well."""
        self._position = 0
        """Id below which all events are delivered."""
        self._first_here: int | None = None
        """Id of the channel's first event when the subscription was opened."""
        self._catch_up_end = 0
        """Id after the last event that the channel had when the subscription was opened."""

    # --- opening and closing -------------------------------------------------------------

    async def _open(self) -> None:
        """Open the archive if the start is in it, otherwise the channel."""
        if self._attachment.is_open:
            return
        self._archive, self._past, self._rests = None, None, 0
        self._last_id, self._is_live, self._catch_up_end = self._end_wanted, False, 0
        # Events from now on come from the channel alone.
        archive = None if isinstance(self._start, FromLatest) else await self._open_archive()
        first = None
        if archive is not None:
            first = await asyncio.to_thread(_first_in, archive, self._start)
        if archive is None or first is None:
            await super()._open()
            return
        self._forget()
        self._archive, self._attachment.is_open = archive, True
        self._position = self._first_id = first
        self._oldest = archive.first or 0
        here = self._first_here
        begins_here = here is not None and first <= self._oldest and here < self._oldest
        if begins_here or not self._read_past(archive.end):
            try:
                await self._go_live(begins_here=begins_here)
            except BaseException:
                self._attachment.is_open = False
                raise

    async def _open_archive(self) -> Archive | None:
        """Return the archive to read; None if none is named."""
        # Imported late, as it imports Parquet.
        from penstock.client.reading.archive import Archive, Wanted, unreachable

        named, name = self._named, self._name
        if named == "":
            return None
        info = await self._info()
        self._first_here = info.first_event_id
        uri = info.definition.archive if named is None else named
        if not uri:
            return None
        # A table that the user has named is read even if it belongs to another epoch.
        epoch = "" if named else self._channel_opened.epoch(self._connection.realm_id)
        try:
            archive = await asyncio.to_thread(Archive.open, uri, name, epoch=epoch)
        except PenstockError as error:
            if not named:
                unreachable(uri, name, error)
            raise
        now_us = int(datetime.now(UTC).timestamp() * 1_000_000)
        messages = fields_of(info.definition.descriptors) if self._selector else None
        self._wanted = Wanted(self._selector, now_us, messages)
        return archive

    async def _info(self) -> ChannelInfo:
        message = DescribeChannel(self._name, "channel")
        return await self._connection.ask(message, ChannelInfo)

    async def _go_live(self, *, begins_here: bool = False) -> None:
        """Open the subscription of the channel, to continue after the archive, or to read events
        that are older than the archive first."""
        self._forget()
        start = self._start if begins_here else FromId(self._position)
        first = await self._attachment.enter(self._route(), lambda: self._attach(start))
        if not self._attachment.is_open:  # closed by another task
            await self._attachment.leave()
            return
        self._is_live = True
        self._catch_up_end = (await self._info()).last_event_id + 1
        if begins_here:
            assert self._archive is not None, "the archive is read after the channel's first events"
            self._position = self._first_id = first
            end = self._archive.end
            self._catch_up_end = max(self._catch_up_end, end)
            if self._last_id is not None:  # the archive may hold later events than the channel
                last = end - 1 if self._end_wanted is None else min(end - 1, self._end_wanted)
                self._last_id = max(self._last_id, last)
            return
        # Events that left the channel before its subscription was opened are in the archive by now.
        await self._look_again()

    async def _reopen(self) -> None:
        # Before the channel is open, _go_live requests it on the next connection.
        if self._archive is None or self._is_live:
            await super()._reopen()

    async def close(self) -> None:
        was_live, self._is_live, self._past = self._is_live, False, None
        if was_live or self._archive is None or not self._attachment.is_open:
            await super().close()
            return
        self._attachment.is_open = False
        self._keep_place()
        self._loops.closed()
        self._inbox.fail(SessionClosed("the subscription is closed"))

    def _keep_place(self) -> None:
        self._next_id = self._next_id if self._archive is None else self._position
        super()._keep_place()
        if self._archive is not None and isinstance(self._start, FromId) and not self._browse:
            self._start = FromId(min(self._start.event_id, self._position))

    # --- receiving -----------------------------------------------------------------------

    async def _next(self, timeout: float | None) -> ReceivedBatch | None:
        await self.open()
        if self._archive is None:
            return await super()._next(timeout)
        now = asyncio.get_running_loop().time
        until = None if timeout is None else now() + timeout
        while True:
            self._rests += self._put_back_rests()
            if self._rests:
                self._rests -= 1
                return self._inbox.take()
            if self._past is not None:
                batch = await self._from_archive()
            elif self._last_id is not None and self._position > self._last_id:
                return None
            else:
                remaining = None if until is None else max(0.0, until - now())
                batch, is_final = await self._from_channel(remaining)
                if is_final:
                    return batch
            if batch is not None:
                return batch

    def _read_past(self, end: int) -> bool:
        """Begin to read the archive from the position up to ``end``. Return False if it has no such
        events."""
        assert self._archive is not None, "only called with an archive"
        assert self._wanted is not None, "set with the archive"
        if self._last_id is not None:
            end = min(end, self._last_id + 1)
        if end <= self._position:
            return False
        self._past = self._archive.batches(Span(self._position, end), self._wanted)
        self._past_end = end
        return True

    async def _look_again(self) -> bool:
        """Open the newest version of the archive. Return whether it has events to deliver next."""
        assert self._archive is not None, "only called with an archive"
        return self._read_past(await asyncio.to_thread(self._archive.refresh))

    async def _has_archived_next(self) -> bool:
        """Return whether the archive now has events that precede those of the channel."""
        async with self._turn:
            return self._past is not None or await self._look_again()

    async def _from_archive(self) -> ReceivedBatch | None:
        """Return the next events of the archive; None if none are left, or another task has read
        them."""
        async with self._turn:
            past = self._past
            if past is None:
                return None
            rows = await asyncio.to_thread(next, past, None)
            if self._past is not past:  # closed by another task
                self._inbox.raise_failure()
                return None
            if rows is not None:
                if self._merger is not None:
                    rows = self._merger.merged(rows)
                batch = ReceivedBatch(rows, None, self._connection.replier, channel=self._name)
                self._position = int(batch.event_ids[-1]) + 1
                return batch
            self._position, self._past = max(self._position, self._past_end), None
            if not await self._look_again() and not self._is_live and not self._is_done:
                await self._go_live()
            return None

    @property
    def _is_done(self) -> bool:
        return self._last_id is not None and self._position > self._last_id

    async def _from_channel(self, wait: float | None) -> tuple[ReceivedBatch | None, bool]:
        """Return the next events of the channel, and whether the caller gets this result; False
        means that it has to continue with the archive or wait again."""
        is_catching_up = self._position < self._catch_up_end
        shorter = is_catching_up and (wait is None or wait > LOOK_AGAIN_S)
        batch = await self._inbox.get(LOOK_AGAIN_S if shorter else wait)
        if self._past is not None:  # another task has found archived events that come first
            if batch is not None:
                self._inbox.put_back(batch)
            return None, False
        if batch is None:
            if is_catching_up:
                self._catch_up_end = 0  # the archive is examined only once
                if await self._has_archived_next():
                    return None, False
            return None, not shorter or self._inbox.has_ended
        self._took(batch)
        batch = await self._next_of(batch, is_catching_up=is_catching_up)
        if batch is None:
            return None, False
        self._position = int(batch.event_ids[-1]) + 1
        return batch, True

    async def _next_of(self, batch: ReceivedBatch, *, is_catching_up: bool) -> ReceivedBatch | None:
        """Return the events of a batch of the channel to deliver now; put the others back. None
        means that archived events come first. ``is_catching_up``: whether events that the channel
        had when the subscription was opened are still to be delivered."""
        if int(batch.event_ids[0]) < self._oldest:
            batch, later = _split(batch, self._oldest)
            if later is not None:
                self._inbox.put_back(later)
        elif (
            is_catching_up
            and not _follows(batch, self._position)
            and await self._has_archived_next()
        ):
            self._inbox.put_back(batch)
            return None
        return _from(batch, self._position)


def _follows(batch: ReceivedBatch, event_id: int) -> bool:
    """Return whether a batch continues at this id, without a gap."""
    ids = batch.event_ids
    return bool(ids[0] <= event_id and ids[-1] - ids[0] + 1 == len(ids))


def _from(batch: ReceivedBatch, event_id: int) -> ReceivedBatch | None:
    """Return the events of a batch from this id on; None if it has none."""
    first = int(np.searchsorted(batch.event_ids, event_id))
    if first == 0:
        return batch
    return None if first == len(batch) else batch._part(first)


def _split(batch: ReceivedBatch, event_id: int) -> tuple[ReceivedBatch, ReceivedBatch | None]:
    """Split a batch at ``event_id``. Return the events with lower ids, at least one, and the
    other events; None if there are no others."""
    count = int(np.searchsorted(batch.event_ids, event_id))
    later = _from(batch, event_id)
    return (batch if later is None else batch._part(0, count)), later


def _first_in(archive: Archive, start: AnyStart) -> int | None:
    """Return the id that ``start`` means in the archive; None if only the channel knows it."""
    match start:
        case FromId(event_id):
            return event_id
        case FromEarliest():
            return archive.first
        case FromTime(at_us):
            return archive.first_since(at_us)
        case _:
            return None
