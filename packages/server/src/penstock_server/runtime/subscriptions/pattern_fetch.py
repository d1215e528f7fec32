"""One fetch of a durable over a pattern: it finds the channels that have something, gives each an
even share of the batch, and waits where none has (SEM H4)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.patterns import WatchChannels
from penstock_core.columns.selectors import Selector
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.pattern_durables import PatternDurable
from penstock_core.vocabulary.errors import DurableInUse, NameDoesNotExist, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.subscriptions.lease import EventLease, LeaseTerms
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
from penstock_server.runtime.subscriptions.pattern_lease import PatternLease
from penstock_server.runtime.subscriptions.watches import ChannelWatches
from penstock_server.runtime.writer.group import Group

WATCHED_MAX: Final = 1_000
"""Most channels with a seat that waits for their events. What the others have is looked for again
and again, every :data:`~penstock_server.runtime.subscriptions.lease_book.SEAT_S` seconds."""
T = TypeVar("T")

_AT_ONCE: Final = 64
"""Seats that are taken in one group of the writer."""


class PatternFetch:
    """Fills a lease, until it has something or the time is over."""

    def __init__(
        self,
        book: LeaseBook,
        lease: PatternLease,
        made: PatternDurable,
        client: str,
        selector: Selector | None,
        check: Callable[[str], None],
        after: int,
    ) -> None:
        """``check`` raises where the client may not consume a channel of this name; the channel
        of the number ``after`` had its turn last."""
        self._book = book
        self._shard = book.shard
        self._lease = lease
        self._made = made
        self._client = client
        self._selector = selector
        self._check = check
        self._after = after
        self._found: dict[int, ChannelOpened] = {}
        """The channels of the pattern that the client may consume, and that have the durable."""
        self._busy: dict[int, DurableInUse] = {}
        """Channels of the pattern whose only seat somebody else has."""
        self._refusal: PenstockError | None = None

    async def run(self, watches: ChannelWatches, wait_s: float) -> None:
        """Give the lease its events. Raises ``DurableInUse`` where others are served on all
        channels, ``NameDoesNotExist`` where the durable was ended meanwhile."""
        wake = self._lease.gathering.came
        asked = WatchChannels(self._made.pattern, 0, self._made.name)
        watch, watched = watches.begin(asked, self._allows, self._tell)
        self._book.waiting[wake] = None
        try:
            self._tell(watched.channels)
            await self._gather(wait_s)
        finally:
            self._book.waiting.pop(wake, None)
            watches.end(watch)
        self._refuse_failed()
        in_other_hands: str = await self._shard.act(self._sealed, sweeps=())
        self._refuse_failed()
        for part in self._lease.parts:
            if not part.ids:
                self._book.give_back_part(part)
                self._lease.drop(part)
        if not self._lease.parts and in_other_hands:
            raise DurableInUse(in_other_hands)

    def opened(self, part: EventLease) -> ChannelOpened:
        """The channel of a part, as it was when it was found."""
        return self._found[part.terms.channel]

    # --- channels ------------------------------------------------------------------------

    def _allows(self, name: str) -> bool:
        try:
            self._check(name)
        except PenstockError:
            return False
        return True

    def _tell(self, opened: Iterable[ChannelOpened]) -> None:
        self._found |= {each.channel: each for each in opened if self._made.takes(each.name)}
        self._lease.gathering.came.set()

    def _in_turn(self, numbers: Iterable[int]) -> list[int]:
        """Channels in the order in which they have their turns."""
        return sorted(numbers, key=lambda number: (number <= self._after, number))

    def parts_in_turn(self) -> list[EventLease]:
        """The parts of the lease in the order in which their channels have their turns."""
        by_number = {int(each.terms.channel): each for each in self._lease.parts}
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
        numbers = tuple(self._found)
        ready: list[int] = await self._shard.act(self._ready, sweeps=numbers)
        if ready:
            await self._seat(ready)
            await self._shard.act(self._share, sweeps=())
            await self._arrived()

    def _ready(self, group: Group) -> list[int]:
        """The channels that have events in nobody's hands, as many as events may come."""
        found: list[int] = []
        for number in self._in_turn(self._found):
            if number not in group.state.channels:
                self._found.pop(number)
                continue
            group.sweep(number)
            state = group.state.channels[number].state
            durable = state.durables.get(self._made.name)
            if durable is not None and free_of(durable, state.stored):
                found.append(number)
            if len(found) == self._lease.terms.count:
                break
        return found

    def _share(self, group: Group) -> None:
        """Ask each channel that has events for its share, and the others for nothing."""
        there: dict[EventLease, int] = {}
        for part in self._lease.parts:
            if (held := _held(group, part)) is None:
                continue
            free = 0 if blocked(group, part) else free_for(group, part)
            there[part] = held + free
        shares = even_shares(there, self._lease.terms.count)
        for part in there:
            wanted = max(0, shares.get(part, 0) - (_held(group, part) or 0))
            command = SetDemand(part.subscription, wanted, at_once=True)
            group.do(part.terms.channel, command)

    async def _arrived(self) -> None:
        """Wait until what was asked for has come, as far as it comes soon."""
        came = self._lease.gathering.came
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while True:
                    came.clear()
                    if self._lease.gathering.is_full or self._lease.error:
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
        came, loop = self._lease.gathering.came, asyncio.get_running_loop()
        came.clear()
        await self._seat(self._in_turn(self._found)[:WATCHED_MAX], ends_s)
        for part in self._lease.parts:
            self._book.subscriptions.demand(part.subscription, 1)
        is_sure = not self._busy and len(self._found) <= WATCHED_MAX
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
        opened = self._found.get(number)
        if opened is None:
            return
        terms, whole = self._lease.terms, self._lease
        part = EventLease(
            whole.name,
            LeaseTerms(
                terms.owner,
                opened.channel,
                terms.durable,
                count=terms.count,
                lease_ms=terms.lease_ms,
            ),
            f"http lease of {self._client}",
            selector=self._selector,
            clock=self._book.clock,
            recalled=lambda _: self._book.end_if_empty(whole),
            ended=self._ended,
            gathering=whole.gathering,
            of_channel=opened.name,
        )
        try:
            await self._book.take_seat(part)
        except DurableInUse as error:
            self._busy[number] = error
        except NameDoesNotExist:  # it was deleted since it was found
            self._found.pop(number, None)
        except PenstockError as error:
            self._refusal = error
        else:
            self._busy.pop(number, None)
            whole.add(part)

    def _ended(self, part: EventLease) -> None:
        """A seat was ended: its durable is gone, or an administrator has unbound it."""
        if self._lease.is_answered:
            self._book.end_if_empty(self._lease)
            return
        self._lease.drop(part)
        if isinstance(part.error, NameDoesNotExist):
            self._found.pop(part.terms.channel, None)

    # --- the end -------------------------------------------------------------------------

    def _sealed(self, group: Group) -> str:
        """The lease gets nothing more. Gives why it has nothing, if others are served on all
        channels."""
        left = self._lease.terms.count
        others = {n: str(error) for n, error in self._busy.items() if n in self._found}
        for part in self.parts_in_turn():
            if part.terms.channel not in group.state.channels:
                continue
            if self._allows(part.of_channel):
                seal(group, part, left)
                left -= len(part.ids)
            if not part.ids and (why := blocked(group, part)):
                others[part.terms.channel] = why
        return next(iter(others.values())) if others.keys() == self._found.keys() and others else ""


def _held(group: Group, part: EventLease) -> int | None:
    """How many events a seat has; None: there is none."""
    channel = group.state.channels.get(part.terms.channel)
    seat = None if channel is None else channel.state.seats.get(part.subscription)
    return None if seat is None else len(seat[1].in_flight)


def _demand(group: Group, part: EventLease) -> int:
    """How many events a seat was promised and has not got."""
    channel = group.state.channels.get(part.terms.channel)
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
