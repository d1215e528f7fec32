"""Filling a lease with events: of one channel, or of the channels of a pattern in even shares
(SEM H1, H4)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from penstock_core.api.patterns import WatchChannels
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.pattern_durables import PatternDurable
from penstock_core.vocabulary.errors import DurableInUse, NameDoesNotExist, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.subscriptions.lease import EventLease, LeasePart
from penstock_server.runtime.subscriptions.lease_book import (
    GRACE_S,
    SEAT_S,
    SOON_S,
    LeaseBook,
    blocked,
    free_for,
    free_of,
    seal,
)
from penstock_server.runtime.subscriptions.watches import ChannelWatches
from penstock_server.runtime.writer.group import Group

_ALL: Final = 1 << 62
"""A number of events that no lease reaches."""
_AT_ONCE: Final = 64
"""Number of seats that are taken concurrently, so that the writer can decide them in one group."""

T = TypeVar("T")


class ChannelFetch:
    """Fills a lease with events of one durable or queue."""

    def __init__(
        self, book: LeaseBook, lease: EventLease, channel: ChannelId, check: Callable[[], None]
    ) -> None:
        """Prepare the fetch. ``check`` raises an error if the client has lost the right to the
        events."""
        self._book = book
        self._shard = book.shard
        self._lease = lease
        self._check = check
        self._part = LeasePart(lease, channel, self._end_part)

    async def run(self, wait_s: float) -> list[LeasePart]:
        """Wait for events, at most ``wait_s`` seconds. Return the part with the events, or no part
        if there are none. Raises ``DurableInUse`` if the durable serves another client."""
        part, ends_s = self._part, asyncio.get_running_loop().time() + wait_s
        await self._take_seat(ends_s)
        self._book.subscriptions.demand(part.subscription, self._lease.terms.count)
        await self._wait(ends_s, may_wait=wait_s > 0)
        self._refuse_failed()
        self._check()  # the client may have lost the right during the wait
        blocked_by: str = await self._shard.act(self._seal, sweeps=(part.channel,))
        self._refuse_failed()
        if part.ids:
            return [part]
        self._book.end(self._lease)
        if blocked_by:
            raise DurableInUse(blocked_by)
        return []

    async def _take_seat(self, ends_s: float) -> None:
        """Take a seat, and wait while another client has it."""
        loop = asyncio.get_running_loop()
        while True:
            # Read before the attempt, so that a seat freed during it is not missed.
            freed = self._book.freed
            try:
                await self._book.take_seat(self._part)
            except DurableInUse:
                remaining_s = ends_s - loop.time()
                if self._lease.error is not None:
                    raise self._lease.error from None
                if remaining_s < SOON_S:
                    raise
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(remaining_s, SEAT_S)):
                        await freed.wait()
                continue
            self._lease.add(self._part)
            return

    async def _wait(self, ends_s: float, *, may_wait: bool) -> None:
        """Wait until ``ends_s`` for the first delivery, then as long as each turn of the writer
        delivers more events. If ``may_wait`` is False, return immediately unless an event is
        ready."""
        loop, lease = asyncio.get_running_loop(), self._lease
        if not may_wait:
            if await self._shard.act(lambda group: not free_for(group, self._part), sweeps=()):
                return
            ends_s += GRACE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_s, loop.time())):
                await lease.changed.wait()
        # Each turn of the writer may deliver more events: stop after a turn that does not.
        before = -1
        while before < lease.count < lease.terms.count and not lease.is_full:
            before = lease.count
            await self._shard.act(lambda _: None, sweeps=())

    def _refuse_failed(self) -> None:
        error = self._lease.error or self._part.error
        if error is not None:
            raise error

    def _end_part(self, _: LeasePart) -> None:
        """End the lease with its only seat."""
        self._book.end(self._lease)

    def _seal(self, group: Group) -> str:
        """Stop the deliveries. If no event was delivered because the durable serves another client,
        return this reason; otherwise an empty text."""
        seal(group, self._part, _ALL)
        return "" if self._part.ids else blocked(group, self._part)


class PatternFetch:
    """Fills a lease with events of a durable over a pattern: an even share of each channel that has
    events. Waits while no channel has any."""

    def __init__(
        self,
        book: LeaseBook,
        lease: EventLease,
        pattern_durable: PatternDurable,
        watches: ChannelWatches,
        check: Callable[[str], None],
        after: int,
    ) -> None:
        """Prepare the fetch. ``check`` raises an error if the client may not consume a channel of
        this name; ``after`` is the channel that had its turn last."""
        self._book = book
        self._shard = book.shard
        self._lease = lease
        self._durable = pattern_durable
        self._watches = watches
        self._check = check
        self._after = after
        request = WatchChannels(pattern_durable.pattern, 0, pattern_durable.name)
        self._watch, _ = watches.begin(request, self._allows, lambda _: lease.changed.set())
        """Watches the channels that the client may consume and that have the durable."""
        self._busy: dict[int, DurableInUse] = {}
        """Channels of the pattern whose only seat another client has."""
        self._refusal: PenstockError | None = None

    async def run(self, wait_s: float) -> list[LeasePart]:
        """Wait for events, at most ``wait_s`` seconds. Return the parts with events, in the order
        of their turns. Raises ``DurableInUse`` if the durables of all channels serve other clients,
        and ``NameDoesNotExist`` if the durable was deleted during the wait."""
        changed = self._lease.changed
        self._book.waiting[changed] = None
        try:
            await self._gather(wait_s)
        finally:
            self._book.waiting.pop(changed, None)
            self._watches.end(self._watch)
        self._refuse_failed()
        blocked_by: str = await self._shard.act(self._seal, sweeps=())
        self._refuse_failed()
        for part in self._lease.parts:
            if not part.ids:
                self._book.give_back_part(part)
                self._lease.drop(part)
        if parts := self._parts_in_turn():
            return parts
        self._book.end(self._lease)
        if blocked_by:
            raise DurableInUse(blocked_by)
        return []

    # --- channels ------------------------------------------------------------------------

    def _allows(self, name: str) -> bool:
        """Whether the client may consume from a channel, and the durable applies to it."""
        try:
            self._check(name)
        except PenstockError:
            return False
        return self._durable.takes(name)

    def _in_turn(self, channels: Iterable[int]) -> list[int]:
        return self._watch.in_turn(channels, self._after)

    def _parts_in_turn(self) -> list[LeasePart]:
        """Return the parts of the lease in the order of their channels' turns."""
        by_channel = {int(part.channel): part for part in self._lease.parts}
        return [by_channel[channel_id] for channel_id in self._in_turn(by_channel)]

    def _refuse_failed(self) -> None:
        """Raise the error that ends this fetch, if it has one."""
        error = self._refusal or self._lease.error
        if error is not None:
            raise error
        # Raises NameDoesNotExist if the durable over the pattern was deleted.
        self._shard.state.directory.patterns.get(self._durable.pattern, self._durable.name)

    # --- gathering -----------------------------------------------------------------------

    async def _gather(self, wait_s: float) -> None:
        """Fetch events until the lease has some, or ``wait_s`` seconds have passed."""
        loop, lease = asyncio.get_running_loop(), self._lease
        ends_s = loop.time() + wait_s
        await self._fetch_ready()
        while not lease.count and ends_s - loop.time() >= SOON_S:
            self._refuse_failed()
            await self._wait(ends_s)
            await self._fetch_ready()

    async def _fetch_ready(self) -> None:
        """Fetch the events that are ready on the channels now, in even shares."""
        ready: list[int] = await self._shard.act(self._ready, sweeps=tuple(self._watch.shown))
        if ready:
            await self._take_seats(ready)
            await self._shard.act(self._share, sweeps=())
            await self._wait_for_demand()

    def _ready(self, group: Group) -> list[int]:
        """Return the channels with ready events, at most as many as the lease may have events."""
        ready: list[int] = []
        for channel_id in self._in_turn(self._watch.shown):
            if channel_id not in group.state.channels:
                continue  # deleted; the watch is notified once the deletion is stored
            group.sweep(channel_id)
            state = group.state.channels[channel_id].state
            durable = state.durables.get(self._durable.name)
            if durable is not None and free_of(durable, state.stored):
                ready.append(channel_id)
            if len(ready) == self._lease.terms.count:
                break
        return ready

    def _share(self, group: Group) -> None:
        """Set the demand of each seat to the share of its channel."""
        available: dict[LeasePart, int] = {}
        for part in self._lease.parts:
            if (in_flight := _held(group, part)) is None:
                continue
            free = 0 if blocked(group, part) else free_for(group, part)
            available[part] = in_flight + free
        shares = even_shares(available, self._lease.terms.count)
        for part in available:
            demand = max(0, shares.get(part, 0) - (_held(group, part) or 0))
            command = SetDemand(part.subscription, demand, at_once=True)
            group.do(part.channel, command)

    async def _wait_for_demand(self) -> None:
        """Wait until the seats have got the events that they demand, at most :data:`GRACE_S`
        seconds."""
        changed = self._lease.changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while True:
                    # Cleared before the check, so that a delivery in between is not missed.
                    changed.clear()
                    if self._lease.is_full or self._lease.error:
                        return
                    if not await self._shard.act(self._has_open_demand, sweeps=()):
                        return
                    await changed.wait()

    def _has_open_demand(self, group: Group) -> bool:
        """Whether a seat still waits for events that are ready for it."""
        return any(
            _demand(group, part) and free_for(group, part) and not blocked(group, part)
            for part in self._lease.parts
        )

    async def _wait(self, ends_s: float) -> None:
        """Wait until ``ends_s`` for an event of any channel, including channels created during the
        wait, or for a free seat."""
        changed, loop = self._lease.changed, asyncio.get_running_loop()
        changed.clear()
        shown, watched_max = self._watch.shown, self._book.limits.watched_max
        await self._take_seats(self._in_turn(shown)[:watched_max], ends_s)
        for part in self._lease.parts:
            self._book.subscriptions.demand(part.subscription, 1)
        # Busy seats and unwatched channels do not wake this fetch, so it polls them.
        has_all_seats = not self._busy and len(shown) <= watched_max
        until_s = ends_s if has_all_seats else min(ends_s, loop.time() + SEAT_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await changed.wait()

    # --- seats ---------------------------------------------------------------------------

    async def _take_seats(self, channel_ids: Sequence[int], until_s: float = math.inf) -> None:
        """Take the free seats at these channels, and begin no attempt after ``until_s``. Raises the
        first error that is not about a single channel."""
        now_s = asyncio.get_running_loop().time
        without_seat = [
            channel_id for channel_id in channel_ids if not self._lease.has(ChannelId(channel_id))
        ]
        for start in range(0, len(without_seat), _AT_ONCE):
            if now_s() >= until_s:
                break
            async with asyncio.TaskGroup() as tasks:
                for channel_id in without_seat[start : start + _AT_ONCE]:
                    tasks.create_task(self._take_seat(channel_id))
        if self._refusal is not None:
            raise self._refusal

    async def _take_seat(self, channel_id: int) -> None:
        """Take a free seat at a channel; record the reason if that is not possible."""
        if channel_id not in self._watch.shown:
            return
        (opened,) = self._watches.opened([channel_id])
        part = LeasePart(self._lease, opened.channel, self._end_part, opened=opened)
        try:
            await self._book.take_seat(part)
        except DurableInUse as error:
            self._busy[channel_id] = error
        except NameDoesNotExist:
            self._watch.shown.discard(channel_id)
        except PenstockError as error:
            # `_take_seats` raises the error later: raised here, the task group would wrap it and
            # cancel the other attempts.
            self._refusal = error
        else:
            self._busy.pop(channel_id, None)
            self._lease.add(part)

    def _end_part(self, part: LeasePart) -> None:
        """Drop a part whose durable was deleted or unbound by an administrator."""
        if self._lease.is_answered:
            self._book.end_if_empty(self._lease)
            return
        self._lease.drop(part)
        if isinstance(part.error, NameDoesNotExist):
            self._watch.shown.discard(part.channel)

    # --- the end -------------------------------------------------------------------------

    def _seal(self, group: Group) -> str:
        """Stop the deliveries to the lease. If it has no events because the durables of all
        channels serve other clients, return this reason; otherwise an empty text."""
        remaining = self._lease.terms.count
        shown = self._watch.shown
        reasons = {
            channel_id: str(error)
            for channel_id, error in self._busy.items()
            if channel_id in shown
        }
        for part in self._parts_in_turn():
            if part.channel not in group.state.channels:
                continue
            if self._allows(part.channel_name):
                seal(group, part, remaining)
                remaining -= len(part.ids)
            if not part.ids and (reason := blocked(group, part)):
                reasons[part.channel] = reason
        return next(iter(reasons.values())) if reasons and reasons.keys() == shown else ""


def _held(group: Group, part: LeasePart) -> int | None:
    """Return the number of events in flight at a seat; None if the seat does not exist."""
    channel = group.state.channels.get(part.channel)
    seat = None if channel is None else channel.state.seats.get(part.subscription)
    return None if seat is None else len(seat[1].in_flight)


def _demand(group: Group, part: LeasePart) -> int:
    """Return the number of events that a seat waits for."""
    channel = group.state.channels.get(part.channel)
    seat = None if channel is None else channel.state.seats.get(part.subscription)
    return 0 if seat is None else seat[1].demand or 0


def even_shares(available: Mapping[T, int], count: int) -> dict[T, int]:
    """Split ``count`` events evenly between parts with ``available`` events, and return the share
    of each part. A part with fewer events than an even share leaves the difference to others."""
    shares: dict[T, int] = {}
    remaining, parts = count, [(size, part) for part, size in available.items() if size]
    # Smallest first, so that the events that a small part lacks are divided among larger ones.
    parts.sort(key=lambda size_and_part: size_and_part[0])
    for index, (size, part) in enumerate(parts):
        shares[part] = min(size, remaining // (len(parts) - index))
        remaining -= shares[part]
    return shares
