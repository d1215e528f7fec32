"""The channels of a pattern, each with its own subscription, which take turns (SEM D21)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock.client.connection.tracing import OperationSource
from penstock.client.reading.attachment import Attachment
from penstock.client.reading.durable_subscription import DurableSubscription
from penstock.client.reading.inbox import deadline_of, set_by
from penstock.client.reading.received import ReceivedBatch
from penstock.client.reading.settlements import Settlements
from penstock.client.reading.subscription import Subscription
from penstock_core.api.channels import ChannelOpened
from penstock_core.api.patterns import ChannelsWatched, WatchChannels
from penstock_core.display import short
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
"""Maximum number of subscriptions that are opened at the same time; a pattern may match thousands
of channels."""
TURN_EVENTS = 512
"""Maximum number of events of one channel that are delivered before the turn of the next one."""
ENDED_MAX = 16
"""Ended seats whose refused settlements are kept for the next flush; those of older ones are only
reported."""
_EXPECTED_ENDS = (NameDoesNotExist, AccessDenied)
"""Errors that remove a channel from the ring without a report: the channel or durable was deleted,
or the right to read it was revoked."""


class Member(Generic[S]):
    """One channel of the ring."""

    __slots__ = ("channel", "inner", "is_ready", "rests")

    def __init__(self, channel: ChannelOpened) -> None:
        self.channel = channel
        self.inner: S
        self.rests: deque[Any] = deque()
        """Batches taken from the inbox of the subscription and not delivered, in order. They are
        delivered first."""
        self.is_ready = False
        """Whether the channel waits in the ring for its turn."""

    @property
    def has_events(self) -> bool:
        """Whether the channel has events to deliver."""
        return bool(self.rests) or bool(len(self.inner._inbox))

    @property
    def has_more(self) -> bool:
        """Whether the channel has events to deliver, or its subscription has failed."""
        return self.has_events or self.inner._inbox.has_failed


class ChannelRing(Generic[S]):
    """The channels of a pattern, and the order of their turns."""

    def __init__(
        self,
        connection: RealmConnection,
        choice: Choice,
        make: Callable[[ChannelOpened, bool, Callable[[], None]], S],
        durable: str = "",
    ) -> None:
        """``make`` creates the subscription of a channel. Its arguments are the channel, whether
        the channel was created after the ring was first opened, and the function to call when a
        batch arrives."""
        self._connection = connection
        self._choice = choice
        self._make: Callable[[ChannelOpened, bool, Callable[[], None]], S] = make
        self._durable = durable
        self.source = OperationSource(connection, choice.text, durable)
        """The pattern and the durable, for a tracer."""
        self.members: dict[int, Member[S]] = {}
        self.is_open = False
        self._places: dict[int, Member[S]] = {}
        """Members of channels that may no longer be read. If the right is granted again, they
        continue where they were."""
        self._watch = Attachment(connection)
        """The watch of the pattern. It is already open while the channels are being opened."""
        self.new_from: int | None = None
        """The lowest number of channels created after the ring was first opened."""
        self.ready: deque[Member[S]] = deque()
        """Members with events or an end, in the order of their turns."""
        self._orphans: deque[ReceivedBatch] = deque()
        """Undelivered batches of channels that are no longer in the ring."""
        self.arrived = asyncio.Event()
        self._matches: list[ChannelOpened] = []
        """Channels that match the pattern and are not in the ring yet."""
        self._adding_task: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._error: PenstockError | None = None
        self.ended: deque[Settlements] = deque(maxlen=ENDED_MAX)
        """Settlements of seats that have ended, with errors to be raised."""

    @property
    def description(self) -> str:
        """The pattern, the durable if there is one, and the address of the realm."""
        durable = f"durable {short(self._durable)} over " if self._durable else ""
        return f"{durable}{short(self._choice.text)} {self._connection.standing}"

    @property
    def channels(self) -> list[str]:
        """The names of the members, sorted."""
        return sorted(member.channel.name for member in self.members.values())

    # --- opening and closing -------------------------------------------------------------

    async def open(self) -> None:
        """Watch the pattern, and open the subscriptions of all matching channels."""
        async with self._changing:
            if not self.is_open:
                await self._open()

    async def _open(self) -> None:
        """Watch the pattern and open all its channels; undo both after a failure."""
        self._error = None
        route = DeliveryRoute(
            reopen=self._reopen, failed=self._end_with, channels_found=self._add_soon
        )
        channels = await self._watch.open(route, self._channels)
        try:
            await self._add_channels(channels, is_first=True)
        except BaseException as error:
            self._watch.is_open = False
            self._connection.give_up(self._watch.number, error)
            await self._leave_all()
            raise
        self.is_open = True
        self._add_soon(())  # channels created since the watch began

    async def _channels(self) -> tuple[ChannelOpened, ...]:
        """Watch the pattern and return its channels."""
        answer = await self._watch.request(
            lambda: WatchChannels(self._choice.text, self._watch.number, self._durable),
            ChannelsWatched,
        )
        if self.new_from is None:
            self.new_from = answer.next_channel
        return answer.channels

    async def _reopen(self) -> None:
        if self._watch.is_open:
            self._add_soon(await self._channels())

    async def close(self) -> None:
        """Close the subscriptions and end the watch. Raises the first error; each subscription
        keeps the errors of its settlements."""
        async with self._changing:
            if not self.is_open:
                return
            self.is_open = self._watch.is_open = False
            if self._adding_task is not None:
                self._adding_task.cancel()
                await asyncio.wait([self._adding_task])
                self._adding_task = None
            self._error = SessionClosed("the subscription is closed")
            self.arrived.set()
            try:
                await self._leave_all()
            finally:
                await self._watch.leave()

    async def _leave_all(self) -> None:
        """Close all subscriptions. Raises the first error."""
        failures: list[PenstockError] = []

        async def leave(inner: S) -> None:
            try:
                await inner._close_quietly()
            except PenstockError as error:
                failures.append(error)

        self.ready.clear()
        async with asyncio.TaskGroup() as group:
            for member in self.members.values():
                member.is_ready = False
                for rest in reversed(member.rests):  # delivered first if it is opened again
                    member.inner._inbox.put_back(rest)
                member.rests.clear()
                group.create_task(leave(member.inner))
        if failures:
            raise failures[0]

    # --- channels that join and leave ----------------------------------------------------

    def _add_soon(self, channels: tuple[ChannelOpened, ...]) -> None:
        """Start to add channels that were created, or may be read from now on."""
        self._matches += channels
        if (
            self.is_open
            and self._matches
            and (self._adding_task is None or self._adding_task.done())
        ):
            self._adding_task = start_task(
                self._add_waiting_channels(), on_failure=self._adding_failed
            )

    async def _add_waiting_channels(self) -> None:
        while self._matches:
            channels, self._matches = self._matches, []
            await self._add_channels(tuple(channels), is_first=False)

    async def _add_channels(self, channels: tuple[ChannelOpened, ...], *, is_first: bool) -> None:
        """Add channels to the ring, and open their subscriptions. Raises the first error if
        ``is_first``; otherwise errors are reported."""
        failures: list[PenstockError] = []

        async def add(channel: ChannelOpened) -> None:
            try:
                await self._add_channel(channel)
            except _EXPECTED_ENDS:
                self.members.pop(channel.channel, None)
            except PenstockError as error:
                self.members.pop(channel.channel, None)
                failures.append(error)

        for start in range(0, len(channels), OPENED_TOGETHER):
            async with asyncio.TaskGroup() as group:
                for channel in channels[start : start + OPENED_TOGETHER]:
                    group.create_task(add(channel))
            if failures and is_first:
                raise failures[0]
        if self._error is None:
            for failure in failures:
                self._connection.report(failure)

    async def _add_channel(self, channel: ChannelOpened) -> None:
        """Add a channel to the ring, and open its subscription, at its former place if it has
        one."""
        number = channel.channel
        member = self.members.get(number)
        if member is not None and member.inner._inbox.has_failed and self.is_open:
            self._remove(member)
            member = None
        if member is None:
            member = self._places.pop(number, None) or self.new_member(channel)
            self.members[number] = member
        await member.inner.open()

    def new_member(self, channel: ChannelOpened) -> Member[S]:
        """Create the member for a channel that joins."""
        assert self.new_from is not None, "set when the watch began"
        is_new = channel.channel >= self.new_from

        member: Member[S] = Member(channel)
        member.inner = self._make(channel, is_new, lambda: self._arrives(member))
        return member

    def _remove(self, member: Member[S]) -> None:
        """Remove a channel whose subscription has ended, once all events before the end are
        delivered."""
        number = member.channel.channel
        if self.members.get(number) is member:
            del self.members[number]
        error = member.inner._inbox.failure
        inner = member.inner
        # The subscription is not left, because the realm or the session has already ended it.
        inner._opened.is_open = False
        if isinstance(inner, DurableSubscription):
            if not inner._settlements.is_clear:
                self.ended.append(inner._settlements)
        elif isinstance(error, AccessDenied):
            inner._keep_place()
            self._places[number] = member
        if isinstance(error, _EXPECTED_ENDS):
            return
        if error is not None:
            self._connection.report(error)

    def _end_with(self, error: PenstockError) -> None:
        """End the ring, because the session has ended or may no longer watch the pattern."""
        self._error = error
        self.arrived.set()

    def _adding_failed(self, error: BaseException) -> None:
        """Report that channels created later are not read, because the watch has failed."""
        failure = PenstockError(f"new channels of {self._choice.text} are not read: {error!r}")
        failure.__cause__ = error
        self._connection.report(failure)

    # --- taking turns --------------------------------------------------------------------

    def _arrives(self, member: Member[S]) -> None:
        """Record that a channel has events, and wake the reader."""
        if not member.is_ready:
            member.is_ready = True
            self.ready.append(member)
        self.arrived.set()

    def _end_turn(self, member: Member[S]) -> None:
        """Put a channel to the end of the ring after its turn, if it has more events."""
        if member.has_more:
            self._arrives(member)

    def put_back(self, rests: list[tuple[Any, int]]) -> None:
        """Put back the rests of batches that loops have begun, to be delivered next. ``rests`` has
        the batches and the number of their finished events."""
        for batch, count in reversed(rests):
            if (rest := batch._part(count)._current()) is not None:
                self._put_back(rest)

    def _put_back(self, rest: ReceivedBatch) -> None:
        """Make the rest of a batch the next one to be delivered."""
        member = self.members.get(rest._channel_id)
        if member is None:
            self._orphans.appendleft(rest)
            return
        member.rests.appendleft(rest)
        if member.is_ready:
            self.ready.remove(member)
        member.is_ready = True
        self.ready.appendleft(member)
        self.arrived.set()

    async def next_batch(self, timeout: float | None) -> Any:
        """Return the next events, all of one channel; None if none arrive within ``timeout``
        seconds."""
        if self._orphans:
            return self._orphans.popleft()
        while (member := await self._next(timeout)) is not None:
            if member.rests:
                batch = member.rests.popleft()._current()
            else:
                batch = await member.inner._next(0)
            if batch is not None and len(batch) > TURN_EVENTS:
                member.rests.appendleft(batch._part(TURN_EVENTS))
                batch = batch._part(0, TURN_EVENTS)
            self._end_turn(member)
            if batch is not None:
                return batch
        return None

    async def _next(self, timeout: float | None) -> Member[S] | None:
        """Return the channel whose turn it is; None if no events arrive within ``timeout`` seconds.
        Raises the error that has ended the ring, once all events before it are delivered."""
        deadline_s = deadline_of(timeout)
        while True:
            while self.ready:
                member = self.ready.popleft()
                member.is_ready = False
                if member.has_events:
                    return member
                if member.inner._inbox.has_failed and self.is_open and self._error is None:
                    self._remove(member)
            if self._error is not None:
                raise self._error
            if not await set_by(self.arrived, deadline_s):
                return None
