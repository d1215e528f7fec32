"""The channels of a pattern, each with a subscription of its own, served in turn (SEM D21)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock.client.reading.attachment import Attachment
from penstock.client.reading.durable_subscription import DurableSubscription
from penstock.client.reading.inbox import deadline_of, set_by
from penstock.client.reading.received import ReceivedBatch
from penstock.client.reading.settlements import Settlements
from penstock.client.reading.subscription import Subscription
from penstock_core.api.channels import ChannelOpened
from penstock_core.api.patterns import ChannelsWatched, WatchChannels
from penstock_core.tasks import start_task
from penstock_core.vocabulary.choice import Choice
from penstock_core.vocabulary.errors import (
    AccessDenied,
    NameDoesNotExist,
    PenstockError,
    SessionClosed,
)

S = TypeVar("S", Subscription, DurableSubscription)

OPENED_TOGETHER = 64
"""Subscriptions that are opened at a time: the realm is not asked for thousands at once."""
TURN_EVENTS = 512
"""Most events of one channel that are handed out before another has its turn."""
ENDED_MAX = 16
"""Ended seats whose refused settlements are kept for the next flush; older ones are only
reported."""
_LEFT_QUIETLY = (NameDoesNotExist, AccessDenied)
"""Ends of a subscription that are no error of the whole: the channel or durable was deleted, or may
not be read any more."""


class Member(Generic[S]):
    """One channel of the ring."""

    __slots__ = ("channel", "inner", "is_ready", "rests")

    def __init__(self, channel: ChannelOpened) -> None:
        self.channel = channel
        self.inner: S
        self.rests: deque[Any] = deque()
        """What was taken from its subscription and not handed out, in order; it comes first."""
        self.is_ready = False
        """Whether it stands in the ring."""

    @property
    def has_events(self) -> bool:
        """Whether there is something to hand out."""
        return bool(self.rests) or bool(len(self.inner._inbox))

    @property
    def has_more(self) -> bool:
        """Whether there is something to hand out, or an end to hear of."""
        return self.has_events or self.inner._inbox.has_failed


class ChannelRing(Generic[S]):
    """The members, and whose turn it is."""

    def __init__(
        self,
        connection: RealmConnection,
        choice: Choice,
        make: Callable[[ChannelOpened, bool, Callable[[], None]], S],
        durable: str = "",
    ) -> None:
        """``make`` makes the subscription of a channel, given whether it was made after the ring
        was opened first, and what to call when something has arrived."""
        self._connection = connection
        self._choice = choice
        self._make: Callable[[ChannelOpened, bool, Callable[[], None]], S] = make
        self._durable = durable
        self.members: dict[int, Member[S]] = {}
        self.is_open = False
        self._places: dict[int, Member[S]] = {}
        """Members whose right to read was lost: they continue where they were if it comes back."""
        self._watch = Attachment(connection)
        """The watch of the pattern; it is open while the channels are still being opened, too."""
        self._born_from: int | None = None
        """Channels of this number or a higher one were made after it was opened first."""
        self._ring: deque[Member[S]] = deque()
        """Members that have something, the one whose turn it is first."""
        self._last: deque[ReceivedBatch] = deque()
        """What loops have left of channels that are not there any more."""
        self._arrived = asyncio.Event()
        self._found: list[ChannelOpened] = []
        self._joining: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._error: PenstockError | None = None
        self.ended: deque[Settlements] = deque(maxlen=ENDED_MAX)
        """Settlements of seats that have ended, with errors to be raised."""

    @property
    def channels(self) -> list[str]:
        """The names of the members, sorted."""
        return sorted(member.channel.name for member in self.members.values())

    # --- opening and closing -------------------------------------------------------------

    async def open(self) -> None:
        """Watch the pattern, and open the subscriptions of all channels there are."""
        async with self._changing:
            if not self.is_open:
                await self._open()

    async def _open(self) -> None:
        self._error = None
        route = DeliveryRoute(reopen=self._reopen, failed=self._failed, found=self._later)
        channels = await self._watch.open(route, self._channels)
        try:
            await self._join(channels, is_first=True)
        except BaseException as error:
            self._watch.is_open = False
            self._connection.give_up(self._watch.number, error)
            await self._leave_all()
            raise
        self.is_open = True
        self._later(())

    async def _channels(self) -> tuple[ChannelOpened, ...]:
        """Watch the pattern; returns its channels."""
        answer = await self._watch.request(
            lambda: WatchChannels(self._choice.text, self._watch.number, self._durable),
            ChannelsWatched,
        )
        if self._born_from is None:
            self._born_from = answer.next_channel
        return answer.channels

    async def _reopen(self) -> None:
        if self._watch.is_open:
            self._later(await self._channels())

    async def close(self) -> None:
        """Close the subscriptions, and watch no more. Raises the first error of theirs; those of
        settlements are kept by each."""
        async with self._changing:
            if not self.is_open:
                return
            self.is_open = self._watch.is_open = False
            if self._joining is not None:
                self._joining.cancel()
                await asyncio.wait([self._joining])
                self._joining = None
            self._error = SessionClosed("the subscription is closed")
            self._arrived.set()
            try:
                await self._leave_all()
            finally:
                await self._watch.leave()

    async def _leave_all(self) -> None:
        failures: list[PenstockError] = []

        async def leave(inner: S) -> None:
            try:
                await inner._close_quietly()
            except PenstockError as error:
                failures.append(error)

        self._ring.clear()
        async with asyncio.TaskGroup() as group:
            for member in self.members.values():
                member.is_ready = False
                for rest in reversed(member.rests):  # it continues with these
                    member.inner._inbox.put_back(rest)
                member.rests.clear()
                group.create_task(leave(member.inner))
        if failures:
            raise failures[0]

    # --- channels that come and go -------------------------------------------------------

    def _later(self, channels: tuple[ChannelOpened, ...]) -> None:
        """Channels were made, or may be read from now on."""
        self._found += channels
        if self.is_open and self._found and (self._joining is None or self._joining.done()):
            self._joining = start_task(self._join_later(), on_failure=self._broken)

    async def _join_later(self) -> None:
        while self._found:
            found, self._found = self._found, []
            await self._join(tuple(found), is_first=False)

    async def _join(self, channels: tuple[ChannelOpened, ...], *, is_first: bool) -> None:
        failures: list[PenstockError] = []

        async def join(channel: ChannelOpened) -> None:
            try:
                await self._join_one(channel)
            except _LEFT_QUIETLY:
                self.members.pop(channel.channel, None)
            except PenstockError as error:
                self.members.pop(channel.channel, None)
                failures.append(error)

        for at in range(0, len(channels), OPENED_TOGETHER):
            async with asyncio.TaskGroup() as group:
                for channel in channels[at : at + OPENED_TOGETHER]:
                    group.create_task(join(channel))
            if failures and is_first:
                raise failures[0]
        if self._error is None:
            for failure in failures:
                self._connection.report(failure)

    async def _join_one(self, channel: ChannelOpened) -> None:
        number = channel.channel
        member = self.members.get(number)
        if member is not None and member.inner._inbox.has_failed and self.is_open:
            self._left(member)
            member = None
        if member is None:
            member = self._places.pop(number, None) or self._made(channel)
            self.members[number] = member
        await member.inner.open()

    def _made(self, channel: ChannelOpened) -> Member[S]:
        assert self._born_from is not None, "it is watched"
        is_new = channel.channel >= self._born_from

        member: Member[S] = Member(channel)
        member.inner = self._make(channel, is_new, lambda: self._arrives(member))
        return member

    def _left(self, member: Member[S]) -> None:
        """Its subscription has ended, and everything that came before is handed out."""
        number = member.channel.channel
        if self.members.get(number) is member:
            del self.members[number]
        error = member.inner._inbox.failure
        inner = member.inner
        inner._opened.is_open = False
        if isinstance(inner, DurableSubscription):
            if not inner._settlements.is_clear:
                self.ended.append(inner._settlements)
        elif isinstance(error, AccessDenied):
            inner._keep_place()
            self._places[number] = member
        if isinstance(error, _LEFT_QUIETLY):
            return
        if error is not None:
            self._connection.report(error)

    def _failed(self, error: PenstockError) -> None:
        """The session has ended, or may not watch any more."""
        self._error = error
        self._arrived.set()

    def _broken(self, error: BaseException) -> None:
        failure = PenstockError(f"no more channels of {self._choice.text} join: {error!r}")
        failure.__cause__ = error
        self._connection.report(failure)

    # --- taking turns --------------------------------------------------------------------

    def _arrives(self, member: Member[S]) -> None:
        if not member.is_ready:
            member.is_ready = True
            self._ring.append(member)
        self._arrived.set()

    def again(self, member: Member[S]) -> None:
        """Its turn is over: if it has more, it waits for the others to have theirs."""
        if member.has_more:
            self._arrives(member)

    def put_back(self, rests: list[tuple[Any, int]]) -> None:
        """Hand out next what loops have left of batches: those and how many of their events were
        handed out."""
        for batch, count in reversed(rests):
            if (rest := batch._part(count)._current()) is not None:
                self._put_back(rest)

    def _put_back(self, rest: ReceivedBatch) -> None:
        member = self.members.get(rest._channel_id)
        if member is None:
            self._last.appendleft(rest)
            return
        member.rests.appendleft(rest)
        if member.is_ready:
            self._ring.remove(member)
        member.is_ready = True
        self._ring.appendleft(member)
        self._arrived.set()

    async def next_batch(self, timeout: float | None) -> Any:
        """The next events, all of one channel; None if none come for ``timeout`` seconds."""
        if self._last:
            return self._last.popleft()
        while (member := await self._next(timeout)) is not None:
            if member.rests:
                batch = member.rests.popleft()._current()
            else:
                batch = await member.inner._next(0)
            if batch is not None and len(batch) > TURN_EVENTS:
                member.rests.appendleft(batch._part(TURN_EVENTS))
                batch = batch._part(0, TURN_EVENTS)
            self.again(member)
            if batch is not None:
                return batch
        return None

    async def _next(self, timeout: float | None) -> Member[S] | None:
        """The member whose turn it is; None: nothing has come for ``timeout`` seconds. Raises the
        error that the whole has ended with, once everything before it is taken."""
        deadline_s = deadline_of(timeout)
        while True:
            while self._ring:
                member = self._ring.popleft()
                member.is_ready = False
                if member.has_events:
                    return member
                if member.inner._inbox.has_failed and self.is_open and self._error is None:
                    self._left(member)
            if self._error is not None:
                raise self._error
            if not await set_by(self._arrived, deadline_s):
                return None
