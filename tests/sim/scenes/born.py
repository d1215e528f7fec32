"""Channels that are created while others read and consume their pattern, over a network that
breaks: no event is missed, and no channel waits behind a busy one (SEM D21, D22)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from penstock import aio
from penstock_core.vocabulary.errors import NameDoesNotExist, Refused, Unavailable
from penstock_testing.loop import pass_time
from tests.sim.programs import Cast, Program

if TYPE_CHECKING:
    from tests.sim.wired_world import WiredWorld

PATTERN = "born/*"
CHANNELS = 6
EVENTS = 5
STILL_S = 20.0
"""Longest wait for an event on a working connection."""

ChannelEvent = tuple[str, bytes]
"""A channel and the data of one of its events."""


class Maker:
    """Creates the durable of the pattern, then one channel after the other, and publishes on each
    at once. The first channel is busy: many events on it follow each publish elsewhere."""

    def __init__(self, world: WiredWorld) -> None:
        self.world = world
        self.program = Program(world, "maker", self._main)
        self.started: list[str] = []
        """Channels whose creation has begun, in order."""
        self.confirmed: set[ChannelEvent] = set()
        self._has_pattern = False

    @property
    def is_done(self) -> bool:
        return self.program.is_done

    async def _main(self, session: aio.Session) -> None:
        while not self._has_pattern:
            self._has_pattern = await self._attempt(self._make_pattern(session))
        for number in range(CHANNELS):
            await self._fill(session, f"born/{number}")

    async def _make_pattern(self, session: aio.Session) -> None:
        await session.durables.create(PATTERN, "own", type="shared", if_missing=True)

    async def _fill(self, session: aio.Session, name: str) -> None:
        events = [(name, b"%d" % n) for n in range(EVENTS)]
        while unconfirmed := [event for event in events if event not in self.confirmed]:
            if name not in self.started:
                self.started.append(name)
            await self._attempt(self._publish(session, unconfirmed[0]))

    async def _publish(self, session: aio.Session, event: ChannelEvent) -> None:
        name, data = event
        channel = await session.channels.create(
            name, type="persistent", retain_consumed=True, if_missing=True
        )
        await channel.publish(data)
        self.confirmed.add(event)
        self.world.note(f"{name} has {data.decode()}")
        busy = await session.channels.get("born/0")
        for number in range(self.world.random.randint(0, 15)):
            more = f"more {name} {data.decode()} {number}".encode()
            await busy.publish(more)
            self.confirmed.add(("born/0", more))
        await pass_time(self.world.random.expovariate(1))

    async def _attempt(self, request: object) -> bool:
        try:
            await request  # type: ignore[misc]  # an awaitable of this class
        except (Unavailable, Refused) as error:
            self.world.check_refusal(error)
            self.world.note(f"maker hears {error.code}")
            return False
        return True


class Follower:
    """Reads the pattern, and starts again after a kill: everything, or channels created from then
    on."""

    def __init__(
        self, world: WiredWorld, maker: Maker, start: Literal["earliest", "latest"]
    ) -> None:
        self.world = world
        self.maker = maker
        self._start = start
        self.program = Program(world, f"follower-{start}", self._main)
        self._received: set[ChannelEvent] = set()
        self._existing: set[str] = set()
        """Channels older than the subscription, whose events it may miss."""
        self._overtaken: dict[str, int] = {}
        """Number of batches of other channels delivered while a channel waited, by waiting
        channel."""

    def _missing(self) -> set[ChannelEvent]:
        expected = {event for event in self.maker.confirmed if event[0] not in self._existing}
        return expected - self._received

    async def _main(self, session: aio.Session) -> None:
        self._received, self._overtaken = set(), {}
        self._existing = set(self.maker.started) if self._start == "latest" else set()
        async with session.subscribe(PATTERN, start=self._start) as subscription:
            while not (self.maker.is_done and not self._missing()):
                if self.world.random.random() < 0.1:
                    await pass_time(self.world.random.uniform(0, 5))
                waiting = {member.channel.name for member in subscription._ring.ready}
                batch = await subscription.next_batch(timeout=0.5)
                if batch is None:
                    await self._check_complete(session, subscription)
                else:
                    self._take(batch, waiting, len(subscription.channels))

    def _take(self, batch: aio.ReceivedBatch, waiting: set[str], channels: int) -> None:
        for name in waiting - {batch.channel}:
            self._overtaken[name] = self._overtaken.get(name, 0) + 1
            assert self._overtaken[name] <= channels, f"{name} waits behind {self._overtaken[name]}"
        self._overtaken.pop(batch.channel, None)
        for event in batch:
            assert event.channel == batch.channel
            self._received.add((event.channel, event.data))

    async def _check_complete(
        self, session: aio.Session, subscription: aio.PatternSubscription
    ) -> None:
        """Check that nothing is missing after a wait without events, if the connection still
        works."""
        missing, reconnects = self._missing(), session.connection.reconnects
        if not missing:
            return
        await session.info()
        batch = await subscription.next_batch(timeout=STILL_S)
        await session.info()
        if batch is not None:
            self._take(batch, set(), 0)
        elif session.connection.reconnects == reconnects:
            name, missing = self.program.name, missing & self._missing()
            assert not missing, f"{name} is connected, and never got {sorted(missing)[:3]}"


class Consumer:
    """Consumes the durable of the pattern on all its channels."""

    def __init__(self, world: WiredWorld, maker: Maker) -> None:
        self.world = world
        self.maker = maker
        self.program = Program(world, "consumer", self._main)
        self.handled: set[ChannelEvent] = set()

    async def _main(self, session: aio.Session) -> None:
        while True:
            # read before the request: the maker continues while the answer is under way
            was_started = bool(self.maker.started)
            try:
                await self._consume(session)
            except NameDoesNotExist:  # the durable does not exist yet
                assert not was_started, "a channel is made, and not its durable"
                await pass_time(0.5)
            except Unavailable as error:
                # Closing raises the error of a lost connection; its events are delivered again.
                self.world.check_refusal(error)
            else:
                return

    async def _consume(self, session: aio.Session) -> None:
        async with session.subscribe(PATTERN, durable="own", window=4) as subscription:
            while True:
                batch = await subscription.next_batch(timeout=0.5)
                if batch is None and self.maker.is_done and await self._is_consumed(session):
                    return
                for event in batch or ():
                    if self.world.random.random() < 0.1:
                        await event.rollback()
                        continue
                    self.handled.add((event.channel, event.data))
                    await event.ack()

    async def _is_consumed(self, session: aio.Session) -> bool:
        for name in await session.channels.list():
            if name in self.maker.started:
                durable = await (await session.channels.get(name)).durables.get("own")
                if (await durable.info()).outstanding:
                    return False
        return True


class Born:
    def __init__(self, world: WiredWorld) -> None:
        self._world = world
        self._maker = Maker(world)
        self._consumer = Consumer(world, self._maker)
        programs = [self._maker.program, self._consumer.program]
        programs += [Follower(world, self._maker, "earliest").program]
        programs += [Follower(world, self._maker, "latest").program]
        self._cast = Cast(world, programs)

    async def prepare(self) -> None:
        """The programs create the channels."""

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        self._cast.start(group, quiet=quiet)

    async def check(self) -> None:
        missed = self._maker.confirmed - self._consumer.handled
        assert not missed, f"the consumer never got {sorted(missed)[:3]} of {len(missed)}"
        async with aio.connect(self._world.url) as session:
            durables = await session.durables.list()  # other scenes may have some, too
            (pattern_durable,) = (durable for durable in durables if durable.pattern == PATTERN)
            assert (pattern_durable.name, pattern_durable.channels) == ("own", CHANNELS)
            for number in range(CHANNELS):
                channel = await session.channels.get(f"born/{number}")
                (info,) = await channel.durables.list()
                assert (info.name, info.outstanding) == ("own", 0)
