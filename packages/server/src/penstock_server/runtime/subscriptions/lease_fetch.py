"""Filling a lease with events: of one channel, or of the channels of a pattern, each with an even
share of the batch (SEM H1, H4)."""

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

WATCHED_MAX: Final = 1_000
"""Most channels with a seat that waits for their events. A fetch looks for events of the others
every :data:`~penstock_server.runtime.subscriptions.lease_book.SEAT_S` seconds."""
_ALL: Final = 1 << 62
_AT_ONCE: Final = 64
"""Seats that are taken in one group of the writer."""

T = TypeVar("T")


class ChannelFetch:
    """Fills a lease with events of one durable or queue."""

    def __init__(
        self, book: LeaseBook, lease: EventLease, channel: ChannelId, check: Callable[[], None]
    ) -> None:
        """``check`` raises when the client may not have the events any more."""
        self._book = book
        self._shard = book.shard
        self._lease = lease
        self._check = check
        self._part = LeasePart(lease, channel, self._ended)

    async def run(self, wait_s: float) -> list[LeasePart]:
        """Wait for events; gives the part that has them, or none. Raises ``DurableInUse`` where
        another client is served."""
        part, ends_s = self._part, asyncio.get_running_loop().time() + wait_s
        await self._take_seat(ends_s)
        self._book.subscriptions.demand(part.subscription, self._lease.terms.count)
        await self._wait(ends_s, is_patient=wait_s > 0)
        self._refuse_failed()
        self._check()  # the right may have been lost meanwhile
        in_other_hands: str = await self._shard.act(self._sealed, sweeps=(part.channel,))
        self._refuse_failed()
        if part.ids:
            return [part]
        self._book.end(self._lease)
        if in_other_hands:
            raise DurableInUse(in_other_hands)
        return []

    async def _take_seat(self, ends_s: float) -> None:
        """Take a seat, and wait for it while another client has it."""
        loop = asyncio.get_running_loop()
        while True:
            freed = self._book.freed
            try:
                await self._book.take_seat(self._part)
            except DurableInUse:
                left_s = ends_s - loop.time()
                if self._lease.error is not None:
                    raise self._lease.error from None
                if left_s < SOON_S:
                    raise
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, SEAT_S)):
                        await freed.wait()
                continue
            self._lease.add(self._part)
            return

    async def _wait(self, ends_s: float, *, is_patient: bool) -> None:
        """Wait for the first events, and for those that come with them."""
        loop, lease = asyncio.get_running_loop(), self._lease
        if not is_patient:
            if await self._shard.act(lambda group: not free_for(group, self._part), sweeps=()):
                return
            ends_s += GRACE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_s, loop.time())):
                await lease.came.wait()
        before = -1
        while before < lease.count < lease.terms.count and not lease.is_full:
            before = lease.count
            await self._shard.act(lambda _: None, sweeps=())

    def _refuse_failed(self) -> None:
        error = self._lease.error or self._part.error
        if error is not None:
            raise error

    def _ended(self, _: LeasePart) -> None:
        """End the lease with its only seat."""
        self._book.end(self._lease)

    def _sealed(self, group: Group) -> str:
        """Stop the deliveries. Gives why nothing came if other clients are served."""
        seal(group, self._part, _ALL)
        return "" if self._part.ids else blocked(group, self._part)


class PatternFetch:
    """Fills a lease with events of a durable over a pattern: of each channel that has events its
    share, or waits while none has."""

    def __init__(
        self,
        book: LeaseBook,
        lease: EventLease,
        made: PatternDurable,
        watches: ChannelWatches,
        check: Callable[[str], None],
        after: int,
    ) -> None:
        """``check`` raises where the client may not consume a channel of this name; the channel
        of the number ``after`` had its turn last."""
        self._book = book
        self._shard = book.shard
        self._lease = lease
        self._made = made
        self._watches = watches
        self._check = check
        self._after = after
        asked = WatchChannels(made.pattern, 0, made.name)
        self._watch, _ = watches.begin(asked, self._allows, lambda _: lease.came.set())
        """Watches the channels that the client may consume, and that have the durable."""
        self._busy: dict[int, DurableInUse] = {}
        """Channels of the pattern whose only seat another client has."""
        self._refusal: PenstockError | None = None

    async def run(self, wait_s: float) -> list[LeasePart]:
        """Wait for events; gives the parts that have them, in the order of their turns. Raises
        ``DurableInUse`` where other clients are served on all channels, ``NameDoesNotExist`` where
        the durable was deleted meanwhile."""
        came = self._lease.came
        self._book.waiting[came] = None
        try:
            await self._gather(wait_s)
        finally:
            self._book.waiting.pop(came, None)
            self._watches.end(self._watch)
        self._refuse_failed()
        in_other_hands: str = await self._shard.act(self._sealed, sweeps=())
        self._refuse_failed()
        for part in self._lease.parts:
            if not part.ids:
                self._book.give_back_part(part)
                self._lease.drop(part)
        if parts := self._parts_in_turn():
            return parts
        self._book.end(self._lease)
        if in_other_hands:
            raise DurableInUse(in_other_hands)
        return []

    # --- channels ------------------------------------------------------------------------

    def _allows(self, name: str) -> bool:
        try:
            self._check(name)
        except PenstockError:
            return False
        return self._made.takes(name)

    def _in_turn(self, channels: Iterable[int]) -> list[int]:
        return self._watch.in_turn(channels, self._after)

    def _parts_in_turn(self) -> list[LeasePart]:
        """The parts of the lease in the order in which their channels have their turns."""
        by_number = {int(part.channel): part for part in self._lease.parts}
        return [by_number[number] for number in self._in_turn(by_number)]

    def _refuse_failed(self) -> None:
        """Raises why this cannot go on."""
        error = self._refusal or self._lease.error
        if error is not None:
            raise error
        self._shard.state.directory.patterns.get(self._made.pattern, self._made.name)

    # --- gathering -----------------------------------------------------------------------

    async def _gather(self, wait_s: float) -> None:
        loop, lease = asyncio.get_running_loop(), self._lease
        ends_s = loop.time() + wait_s
        await self._take_what_is_there()
        while not lease.count and ends_s - loop.time() >= SOON_S:
            self._refuse_failed()
            await self._wait(ends_s)
            await self._take_what_is_there()

    async def _take_what_is_there(self) -> None:
        """Take what the channels have now, of each its share."""
        ready: list[int] = await self._shard.act(self._ready, sweeps=tuple(self._watch.shown))
        if ready:
            await self._seat(ready)
            await self._shard.act(self._share, sweeps=())
            await self._arrived()

    def _ready(self, group: Group) -> list[int]:
        """The channels that have events in nobody's hands, as many as events may come."""
        ready: list[int] = []
        for number in self._in_turn(self._watch.shown):
            if number not in group.state.channels:
                continue  # the watch hears of it once the removal is stored
            group.sweep(number)
            state = group.state.channels[number].state
            durable = state.durables.get(self._made.name)
            if durable is not None and free_of(durable, state.stored):
                ready.append(number)
            if len(ready) == self._lease.terms.count:
                break
        return ready

    def _share(self, group: Group) -> None:
        """Ask each channel that has events for its share, and the others for nothing."""
        there: dict[LeasePart, int] = {}
        for part in self._lease.parts:
            if (held := _held(group, part)) is None:
                continue
            free = 0 if blocked(group, part) else free_for(group, part)
            there[part] = held + free
        shares = even_shares(there, self._lease.terms.count)
        for part in there:
            wanted = max(0, shares.get(part, 0) - (_held(group, part) or 0))
            command = SetDemand(part.subscription, wanted, at_once=True)
            group.do(part.channel, command)

    async def _arrived(self) -> None:
        """Wait until what was asked for has come, as far as it comes soon."""
        came = self._lease.came
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while True:
                    came.clear()
                    if self._lease.is_full or self._lease.error:
                        return
                    if not await self._shard.act(self._lacks, sweeps=()):
                        return
                    await came.wait()

    def _lacks(self, group: Group) -> bool:
        """Whether something of what was asked for may come still."""
        return any(
            _demand(group, part) and free_for(group, part) and not blocked(group, part)
            for part in self._lease.parts
        )

    async def _wait(self, ends_s: float) -> None:
        """Wait for an event of any channel, also of one that is made meanwhile, or until a seat is
        free."""
        came, loop = self._lease.came, asyncio.get_running_loop()
        came.clear()
        shown = self._watch.shown
        await self._seat(self._in_turn(shown)[:WATCHED_MAX], ends_s)
        for part in self._lease.parts:
            self._book.subscriptions.demand(part.subscription, 1)
        is_sure = not self._busy and len(shown) <= WATCHED_MAX
        until_s = ends_s if is_sure else min(ends_s, loop.time() + SEAT_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await came.wait()

    # --- seats ---------------------------------------------------------------------------

    async def _seat(self, numbers: Sequence[int], until_s: float = math.inf) -> None:
        """Take the seats that are free at these channels, as far as there is time. Raises what all
        of them would be refused with."""
        now_s = asyncio.get_running_loop().time
        lacking = [each for each in numbers if not self._lease.has(ChannelId(each))]
        for at in range(0, len(lacking), _AT_ONCE):
            if now_s() >= until_s:
                break
            async with asyncio.TaskGroup() as tasks:
                for number in lacking[at : at + _AT_ONCE]:
                    tasks.create_task(self._take_seat(number))
        if self._refusal is not None:
            raise self._refusal

    async def _take_seat(self, number: int) -> None:
        if number not in self._watch.shown:
            return
        (opened,) = self._watches.opened([number])
        part = LeasePart(self._lease, opened.channel, self._ended, opened=opened)
        try:
            await self._book.take_seat(part)
        except DurableInUse as error:
            self._busy[number] = error
        except NameDoesNotExist:
            self._watch.shown.discard(number)
        except PenstockError as error:
            self._refusal = error
        else:
            self._busy.pop(number, None)
            self._lease.add(part)

    def _ended(self, part: LeasePart) -> None:
        """A seat was ended: its durable is gone, or an administrator has unbound it."""
        if self._lease.is_answered:
            self._book.end_if_empty(self._lease)
            return
        self._lease.drop(part)
        if isinstance(part.error, NameDoesNotExist):
            self._watch.shown.discard(part.channel)

    # --- the end -------------------------------------------------------------------------

    def _sealed(self, group: Group) -> str:
        """The lease gets nothing more. Gives why it has nothing, if others are served on all
        channels."""
        left = self._lease.terms.count
        shown = self._watch.shown
        others = {number: str(why) for number, why in self._busy.items() if number in shown}
        for part in self._parts_in_turn():
            if part.channel not in group.state.channels:
                continue
            if self._allows(part.channel_name):
                seal(group, part, left)
                left -= len(part.ids)
            if not part.ids and (why := blocked(group, part)):
                others[part.channel] = why
        return next(iter(others.values())) if others and others.keys() == shown else ""


def _held(group: Group, part: LeasePart) -> int | None:
    """How many events a seat has; None: there is none."""
    channel = group.state.channels.get(part.channel)
    seat = None if channel is None else channel.state.seats.get(part.subscription)
    return None if seat is None else len(seat[1].in_flight)


def _demand(group: Group, part: LeasePart) -> int:
    """How many events a seat was promised and has not got."""
    channel = group.state.channels.get(part.channel)
    seat = None if channel is None else channel.state.seats.get(part.subscription)
    return 0 if seat is None else seat[1].demand or 0


def even_shares(there: Mapping[T, int], count: int) -> dict[T, int]:
    """How many of ``count`` events each gets: as many as any other, and what one has too few for
    goes to the others."""
    shares: dict[T, int] = {}
    left, rest = count, [(many, part) for part, many in there.items() if many]
    rest.sort(key=lambda each: each[0])
    for at, (many, part) in enumerate(rest):
        shares[part] = min(many, left // (len(rest) - at))
        left -= shares[part]
    return shares
