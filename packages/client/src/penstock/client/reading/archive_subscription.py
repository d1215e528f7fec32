"""A subscription that reads back into the archive, and continues with the channel.

Events up to the archive's last come from the archive, all later ones from the channel, so that
events that have left the channel are delivered, too, and each id once. Events may move meanwhile:
if the archive's pipeline is bound to a durable, what the channel no longer has was archived before,
and is looked up there. An archive may have begun later than its channel; events before its first
one then come from the channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.client.connection.arguments import Duration, timeout_s
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
"""When nothing comes from a channel that has events ahead, the archive is asked once more."""


class SeamlessSubscription(Subscription):
    """A subscription or browse that begins in the archive where ``start`` lies there."""

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
        """The table to read; empty for none; None: the one that the channel names."""
        self._end_wanted = last_id
        self._archive: Archive | None = None
        self._wanted: Wanted | None = None
        self._past: Iterator[pa.RecordBatch] | None = None
        """The batches that are being read from the archive."""
        self._past_end = 0
        self._oldest = 0
        """The archive's first event."""
        self._turn = asyncio.Lock()
        """Whose turn it is to read on in the archive."""
        self._rests = 0
        """Batches at the front of the inbox that are what loops have left."""
        self._is_live = False
        """Whether the channel is open, maybe besides the archive."""
        self._at = 0
        """Id below which all events were handed out."""
        self._first_here: int | None = None
        """The channel's first event when it was opened."""
        self._head = 0
        """Below this id the channel had events when it was opened: they are caught up with."""

    # --- coming and going ----------------------------------------------------------------

    async def _open(self) -> None:
        if self._attachment.is_open:
            return
        self._archive, self._past, self._rests = None, None, 0
        self._last_id, self._is_live, self._head = self._end_wanted, False, 0
        archive = None if isinstance(self._start, FromLatest) else await self._found()
        first = None
        if archive is not None:
            first = await asyncio.to_thread(_first_in, archive, self._start)
        if archive is None or first is None:
            await super()._open()
            return
        self._forget()
        self._archive, self._attachment.is_open = archive, True
        self._at = self._first_id = first
        self._oldest = archive.first or 0
        here = self._first_here
        begins_here = here is not None and first <= self._oldest and here < self._oldest
        if begins_here or not self._read_past(archive.end):
            try:
                await self._go_live(begins_here=begins_here)
            except BaseException:
                self._attachment.is_open = False
                raise

    async def _found(self) -> Archive | None:
        from penstock.client.reading.archive import Archive, Wanted, unreachable  # imports Parquet

        named, name = self._named, self._name
        if named == "":
            return None
        info = await self._info()
        self._first_here = info.first_event_id
        uri = info.definition.archive if named is None else named
        if not uri:
            return None
        # A table that the user named is read whatever the history of the channel is.
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
        """Go on with the channel, or begin with it what is older than the archive."""
        self._forget()
        start = self._start if begins_here else FromId(self._at)
        first = await self._attachment.enter(self._route(), lambda: self._attach(start))
        if not self._attachment.is_open:  # closed meanwhile
            await self._attachment.leave()
            return
        self._is_live = True
        self._head = (await self._info()).last_event_id + 1
        if begins_here:
            assert self._archive is not None, "it comes next"
            self._at = self._first_id = first
            end = self._archive.end
            self._head = max(self._head, end)
            if self._last_id is not None:  # the channel does not have all there is
                last = end - 1 if self._end_wanted is None else min(end - 1, self._end_wanted)
                self._last_id = max(self._last_id, last)
            return
        # Events that had left the channel by then are in the archive by now.
        await self._look_again()

    async def _reopen(self) -> None:
        # One that is about to go on with the channel asks for it by itself on the next connection.
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
        self._next_id = self._next_id if self._archive is None else self._at
        super()._keep_place()
        if self._archive is not None and isinstance(self._start, FromId) and not self._browse:
            self._start = FromId(min(self._start.event_id, self._at))

    # --- taking --------------------------------------------------------------------------

    async def next_batch(self, timeout: Duration | None = None) -> ReceivedBatch | None:
        timeout = timeout_s(timeout)
        await self.open()
        if self._archive is None:
            return await super().next_batch(timeout)
        wait = self._timeout if timeout is None else timeout
        now = asyncio.get_running_loop().time
        until = None if wait is None else now() + wait
        while True:
            self._rests += self._put_back_rests()
            if self._rests:
                self._rests -= 1
                return self._inbox.take()
            if self._past is not None:
                batch = await self._from_archive()
            elif self._last_id is not None and self._at > self._last_id:
                return None
            else:
                left = None if until is None else max(0.0, until - now())
                batch, is_over = await self._from_channel(left)
                if is_over:
                    return batch
            if batch is not None:
                return batch

    def _read_past(self, end: int) -> bool:
        """Read the archive up to ``end`` next, if it has events from here on."""
        assert self._archive is not None, "it is what is read"
        assert self._wanted is not None, "made with it"
        if self._last_id is not None:
            end = min(end, self._last_id + 1)
        if end <= self._at:
            return False
        self._past = self._archive.batches(Span(self._at, end), self._wanted)
        self._past_end = end
        return True

    async def _look_again(self) -> bool:
        """Whether the archive meanwhile has events that are to come next."""
        assert self._archive is not None, "it is what is read"
        return self._read_past(await asyncio.to_thread(self._archive.refresh))

    async def _has_come_first(self) -> bool:
        """Whether there are events in the archive, by now, that come before the channel's."""
        async with self._turn:
            return self._past is not None or await self._look_again()

    async def _from_archive(self) -> ReceivedBatch | None:
        """The next events there; None when there are none, or another one has taken them."""
        async with self._turn:
            past = self._past
            if past is None:
                return None
            rows = await asyncio.to_thread(next, past, None)
            if self._past is not past:  # closed meanwhile
                self._inbox.raise_failure()
                return None
            if rows is not None:
                if self._merger is not None:
                    rows = self._merger.merged(rows)
                batch = ReceivedBatch(rows, None, self._connection.replier, channel=self._name)
                self._at = int(batch.event_ids[-1]) + 1
                return batch
            self._at, self._past = max(self._at, self._past_end), None
            if not await self._look_again() and not self._is_live and not self._is_done:
                await self._go_live()
            return None

    @property
    def _is_done(self) -> bool:
        return self._last_id is not None and self._at > self._last_id

    async def _from_channel(self, wait: float | None) -> tuple[ReceivedBatch | None, bool]:
        """The next events there, or none; and whether that is all for this time."""
        behind = self._at < self._head
        shorter = behind and (wait is None or wait > LOOK_AGAIN_S)
        batch = await self._inbox.get(LOOK_AGAIN_S if shorter else wait)
        if self._past is not None:  # another table has events that must come first
            if batch is not None:
                self._inbox.put_back(batch)
            return None, False
        if batch is None:
            if behind:
                self._head = 0  # asked for only once
                if await self._has_come_first():
                    return None, False
            return None, not shorter or self._inbox.has_ended
        self._took(batch)
        batch = await self._next_of(batch, behind=behind)
        if batch is None:
            return None, False
        self._at = int(batch.event_ids[-1]) + 1
        return batch, True

    async def _next_of(self, batch: ReceivedBatch, *, behind: bool) -> ReceivedBatch | None:
        """The part of a batch from the channel that is to be handed out now; the rest comes
        later."""
        if int(batch.event_ids[0]) < self._oldest:
            batch, later = _parted(batch, self._oldest)
            if later is not None:
                self._inbox.put_back(later)
        elif behind and not _follows(batch, self._at) and await self._has_come_first():
            self._inbox.put_back(batch)
            return None
        return _from(batch, self._at)


def _follows(batch: ReceivedBatch, event_id: int) -> bool:
    """Whether the batch begins with this id, without a gap."""
    ids = batch.event_ids
    return bool(ids[0] <= event_id and ids[-1] - ids[0] + 1 == len(ids))


def _from(batch: ReceivedBatch, event_id: int) -> ReceivedBatch | None:
    """The events of a batch from this id on."""
    first = int(np.searchsorted(batch.event_ids, event_id))
    if first == 0:
        return batch
    return None if first == len(batch) else batch._part(first)


def _parted(batch: ReceivedBatch, event_id: int) -> tuple[ReceivedBatch, ReceivedBatch | None]:
    """The events of a batch below this id, of which there are some, and those from it on."""
    count = int(np.searchsorted(batch.event_ids, event_id))
    later = _from(batch, event_id)
    return (batch if later is None else batch._part(0, count)), later


def _first_in(archive: Archive, start: AnyStart) -> int | None:
    """The id that ``start`` means; None where that is for the channel to say."""
    match start:
        case FromId(event_id):
            return event_id
        case FromEarliest():
            return archive.first
        case FromTime(at_us):
            return archive.first_since(at_us)
        case _:
            return None
