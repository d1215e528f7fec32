"""Channels that are made while others read and consume their pattern, over a network that breaks:
nothing of them is missed, and none waits behind a busy one (SEM D21, D22)."""

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
"""What a pattern has not given by then, on a connection that lives, it does not give."""

Found = tuple[str, bytes]
"""A channel, and what an event of it has in it."""


class Maker:
    """Makes the durable of the pattern, then channel after channel, and publishes on each at once.
    The first is busy: each later publish is followed by many on it."""

    def __init__(self, world: WiredWorld) -> None:
        self.world = world
        self.program = Program(world, "maker", self._main)
        self.begun: list[str] = []
        """Channels that it has begun to make, in order."""
        self.confirmed: set[Found] = set()
        self._has_pattern = False

    @property
    def is_done(self) -> bool:
        return self.program.is_done

    async def _main(self, session: aio.Session) -> None:
        while not self._has_pattern:
            self._has_pattern = await self._tried(self._make_pattern(session))
        for number in range(CHANNELS):
            await self._fill(session, f"born/{number}")

    async def _make_pattern(self, session: aio.Session) -> None:
        await session.durables.create(PATTERN, "own", type="shared", if_missing=True)

    async def _fill(self, session: aio.Session, name: str) -> None:
        wanted = [(name, b"%d" % n) for n in range(EVENTS)]
        while left := [each for each in wanted if each not in self.confirmed]:
            if name not in self.begun:
                self.begun.append(name)
            await self._tried(self._publish(session, left[0]))

    async def _publish(self, session: aio.Session, what: Found) -> None:
        name, data = what
        channel = await session.channels.create(
            name, type="persistent", retain_consumed=True, if_missing=True
        )
        await channel.publish(data)
        self.confirmed.add(what)
        self.world.note(f"{name} has {data.decode()}")
        busy = await session.channels.get("born/0")
        for number in range(self.world.random.randint(0, 15)):
            more = f"more {name} {data.decode()} {number}".encode()
            await busy.publish(more)
            self.confirmed.add(("born/0", more))
        await pass_time(self.world.random.expovariate(1))

    async def _tried(self, doing: object) -> bool:
        try:
            await doing  # type: ignore[misc]  # one of its own calls
        except (Unavailable, Refused) as error:
            self.world.hear(error)
            self.world.note(f"maker hears {error.code}")
            return False
        return True


class Follower:
    """Reads the pattern, in each of its lives anew: everything, or what is made from then on."""

    def __init__(
        self, world: WiredWorld, maker: Maker, start: Literal["earliest", "latest"]
    ) -> None:
        self.world = world
        self.maker = maker
        self._start = start
        self.program = Program(world, f"follower-{start}", self._main)
        self._found: set[Found] = set()
        self._had: set[str] = set()
        """Channels of which it need not get everything."""
        self._passed: dict[str, int] = {}
        """Batches of others that were handed out while a channel had something."""

    def _lacks(self) -> set[Found]:
        wanted = {each for each in self.maker.confirmed if each[0] not in self._had}
        return wanted - self._found

    async def _main(self, session: aio.Session) -> None:
        self._found, self._passed = set(), {}
        self._had = set(self.maker.begun) if self._start == "latest" else set()
        async with session.subscribe(PATTERN, start=self._start) as subscription:
            while not (self.maker.is_done and not self._lacks()):
                if self.world.random.random() < 0.1:
                    await pass_time(self.world.random.uniform(0, 5))
                waiting = {each.channel.name for each in subscription._ring.ready}
                batch = await subscription.next_batch(timeout=0.5)
                if batch is None:
                    await self._nothing_is_missing(session, subscription)
                else:
                    self._take(batch, waiting, len(subscription.channels))

    def _take(self, batch: aio.ReceivedBatch, waiting: set[str], channels: int) -> None:
        for name in waiting - {batch.channel}:
            self._passed[name] = self._passed.get(name, 0) + 1
            assert self._passed[name] <= channels, f"{name} waits behind {self._passed[name]}"
        self._passed.pop(batch.channel, None)
        for event in batch:
            assert event.channel == batch.channel
            self._found.add((event.channel, event.data))

    async def _nothing_is_missing(
        self, session: aio.Session, subscription: aio.PatternSubscription
    ) -> None:
        """Nothing comes: either there is no more, or the connection is not what it seems."""
        lacks, before = self._lacks(), session.connection.reconnects
        if not lacks:
            return
        await session.info()
        batch = await subscription.next_batch(timeout=STILL_S)
        await session.info()
        if batch is not None:
            self._take(batch, set(), 0)
        elif session.connection.reconnects == before:
            who, lacks = self.program.name, lacks & self._lacks()
            assert not lacks, f"{who} is connected, and never got {sorted(lacks)[:3]}"


class Consumer:
    """Consumes the durable of the pattern on all its channels."""

    def __init__(self, world: WiredWorld, maker: Maker) -> None:
        self.world = world
        self.maker = maker
        self.program = Program(world, "consumer", self._main)
        self.handled: set[Found] = set()

    async def _main(self, session: aio.Session) -> None:
        while True:
            are_made = bool(self.maker.begun)  # while the answer travels the maker goes on
            try:
                await self._consume(session)
            except NameDoesNotExist:  # the durable is not made yet
                assert not are_made, "a channel is made, and not its durable"
                await pass_time(0.5)
            except Unavailable as error:
                # The end raises what was lost with a connection; these events come again.
                self.world.hear(error)
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
            if name in self.maker.begun:
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
        """Its programs make what there is."""

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        self._cast.start(group, quiet=quiet)

    async def check(self) -> None:
        missed = self._maker.confirmed - self._consumer.handled
        assert not missed, f"the consumer never got {sorted(missed)[:3]} of {len(missed)}"
        async with aio.connect(self._world.url) as session:
            there = await session.durables.list()  # another scene's, too
            (over,) = (each for each in there if each.pattern == PATTERN)
            assert (over.name, over.channels) == ("own", CHANNELS)
            for number in range(CHANNELS):
                channel = await session.channels.get(f"born/{number}")
                (info,) = await channel.durables.list()
                assert (info.name, info.outstanding) == ("own", 0)
