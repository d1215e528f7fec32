"""Programs on other machines, with real sessions over a network that breaks: they publish,
subscribe and settle, are killed now and then, and continue from what they had stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING

from penstock import aio
from penstock.client.publishing.publishing import Publisher, bodies_of_events
from penstock_core.channel.producers import FORGET_AFTER_US
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import (
    CannotConnect,
    ConnectionLost,
    PenstockError,
    ProtocolViolation,
    Refused,
    Unavailable,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time
from penstock_testing.network import MACHINE
from tests.sim.clients import label_of

if TYPE_CHECKING:
    from tests.sim.clients import Compose
    from tests.sim.promises import Ledger
    from tests.sim.wired_world import WiredWorld

PATIENCE_S = 1e9
"""Longer than any run, so that programs keep their sessions."""

Main = Callable[[aio.Session], Awaitable[None]]


class Program:
    """Runs ``main`` with a session until it returns, and restarts it after each kill."""

    def __init__(self, world: WiredWorld, name: str, main: Main, *, kills_s: float = 10.0) -> None:
        self.world = world
        self.name = name
        self.is_done = False
        self.starts = 0
        self._main = main
        self._kills_s = kills_s
        """Mean time between two kills."""

    async def run(self) -> None:
        world = self.world
        while not self.is_done:
            self.starts += 1
            context = copy_context()
            context.run(MACHINE.set, self.name)
            running = world.loop.create_task(self._run_once(), context=context)
            lives_s = world.random.expovariate(1 / self._kills_s)
            try:
                await asyncio.wait([running], timeout=None if self.may_rest else lives_s)
                if running.done():
                    running.result()
                    self.is_done = True
                    continue
                self._lose_power()
            finally:
                await self._end(running)
            await pass_time(world.random.expovariate(2))
            world.network.power_on(self.name)

    @property
    def may_rest(self) -> bool:
        """Whether the program is no longer killed."""
        return self.starts > 4

    def _lose_power(self) -> None:
        """Cut the machine's power, or kill only the program, whose machine then resets
        connections."""
        world = self.world
        if world.random.random() < 0.3:
            world.network.power_off(self.name)
            world.note(f"{self.name} loses power")
        else:
            world.note(f"{self.name} is killed")

    async def _end(self, running: asyncio.Task[None]) -> None:
        """End the program's tasks. Errors they still raise are ignored, as a killed process reports
        none."""
        while not running.done():
            self.world.loop.kill(self.name)
            await asyncio.wait([running], timeout=0.001)
        self.world.loop.kill(self.name)
        if not running.cancelled():
            running.exception()  # retrieved, so that the loop does not report it

    async def _run_once(self) -> None:
        session = await self._connected()
        session.on_error(self._check_error)
        await self._main(session)
        try:
            await session.close()
        except ConnectionLost as error:  # the answer to a settlement was lost before
            self.world.note(f"{self.name} closes with {error.code}")

    async def _connected(self) -> aio.Session:
        while True:
            try:
                return await aio.connect(self.world.url, reconnect_timeout=PATIENCE_S)
            except CannotConnect:
                await pass_time(0.2)

    def _check_error(self, error: PenstockError) -> None:
        """Accept lost connections and stopped realms; no peer may send an invalid message."""
        assert not isinstance(error, ProtocolViolation), f"{self.name}: {error!r}"
        self.world.note(f"{self.name} hears {error.code}")


class Cast:
    """The programs of a scene. They outlive the realm: they start in its first life."""

    def __init__(self, world: WiredWorld, programs: Sequence[Program]) -> None:
        self._world = world
        self._programs = programs
        self._running: list[asyncio.Task[None]] = []

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        """Start the programs. A ``quiet`` life lasts until all are done."""
        if not self._running:
            outside = self._world.outside
            self._running = [outside.create_task(program.run()) for program in self._programs]
        if quiet:
            group.create_task(self._all_done())

    async def _all_done(self) -> None:
        await asyncio.wait(self._running)


class Steady:
    """Publishes under one identity, and repeats each publish until it is confirmed, over sessions,
    kills and lives (SEM X3)."""

    def __init__(
        self, world: WiredWorld, ledger: Ledger, name: str, compose: Compose, *, publishes: int = 14
    ) -> None:
        self.world = world
        self.ledger = ledger
        self.confirmed = 0
        self.publishes = publishes
        self._name = name
        self._compose = compose
        self._tried = -1
        self._tried_us = 0
        """Time at which the current publish was sent first."""
        self.program = Program(world, f"steady-{ledger.store}-{name}", self._main)

    @property
    def is_done(self) -> bool:
        return self.confirmed >= self.publishes

    async def _main(self, session: aio.Session) -> None:
        publisher = await self._publisher(session)
        while not self.is_done:
            await pass_time(self.world.random.expovariate(2))
            try:
                await self._next(publisher)
            except (Unavailable, Refused) as error:
                self.world.note(f"{self._name} has no ids: {error.code}")
                self.world.check_refusal(error)
                publisher = await self._publisher(session)

    async def _publisher(self, session: aio.Session) -> Publisher:
        """Return a publisher with the stored identity and number of confirmed publishes."""
        number = await self.world.number_of(self.ledger.store)
        return Publisher(
            session.connection,
            ChannelId(number),
            f"{self._name}-identity",
            published=self.confirmed,
        )

    async def _next(self, publisher: Publisher) -> None:
        world, store, n = self.world, self.ledger.store, self.confirmed
        label = label_of(world, store, self._name, number=ChannelId(n))
        events = self._compose(Random(f"{world.seed}/{label}"), label)
        datas = [event.data for event in events]
        self.ledger.offered.update(datas)
        self.ledger.doubtful[label] = tuple(datas)
        is_retry, self._tried = self._tried == n, n
        if not is_retry:
            self._tried_us = world.passed_us
        elif world.passed_us - self._tried_us > FORGET_AFTER_US:
            self.ledger.forgotten.update(datas)
        life = world.lives
        ids = await world.gate.published(
            publisher.publish(bodies_of_events(events)), is_retry=is_retry
        )
        self.confirmed += 1
        del self.ledger.doubtful[label]
        self.ledger.confirm(self._name, n, Span(ids.start, ids.stop), datas=datas, life=life)
        if is_retry or world.lives != life:
            self.ledger.unsure_lives.update(ids)
        world.note(f"confirmed {label.rstrip('.')} {ids}")


class Pipelined:
    """Publishes without waiting; a publish without an answer may be stored as a whole or not at
    all."""

    def __init__(
        self, world: WiredWorld, ledger: Ledger, name: str, compose: Compose, *, publishes: int = 20
    ) -> None:
        self.world = world
        self.ledger = ledger
        self._name = name
        self._compose = compose
        self._publishes = publishes
        self._n = 0
        self._last = -1
        self.program = Program(world, f"pipelined-{ledger.store}-{name}", self._main)

    @property
    def is_done(self) -> bool:
        return self.program.is_done

    async def _main(self, session: aio.Session) -> None:
        publisher = Publisher(
            session.connection, ChannelId(await self.world.number_of(self.ledger.store))
        )
        answers: list[asyncio.Future[range]] = []
        while self._n < self._publishes:
            await pass_time(self.world.random.expovariate(4))
            answers = [answer for answer in answers if not answer.done()]
            for _ in range(self.world.random.randint(1, 3)):
                answers.append(await self._begin(publisher))
        if answers:
            await asyncio.wait(answers)

    async def _begin(self, publisher: Publisher) -> asyncio.Future[range]:
        world, ledger, n = self.world, self.ledger, self._n
        self._n += 1
        label = label_of(world, ledger.store, self._name, number=ChannelId(n))
        events = self._compose(Random(f"{world.seed}/{label}"), label)
        datas = [event.data for event in events]
        ledger.offered.update(datas)
        ledger.doubtful[label] = tuple(datas)
        answer = await publisher.begin(bodies_of_events(events))
        before, life = world.gate.last_known, world.lives

        def record_answer(done: asyncio.Future[range]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is None and not done.cancelled():
                ids = done.result()
                assert ids.start > self._last, f"{label} got {ids} after {self._last}"
                self._last = ids.stop - 1
                world.gate.accepted(before)
                del ledger.doubtful[label]
                ledger.confirm(label, 0, Span(ids.start, ids.stop), datas=datas, life=life)
                ledger.unsure_lives.update(ids if world.lives != life else ())
                world.note(f"confirmed {label.rstrip('.')} {ids}")
            elif isinstance(error, Refused):
                del ledger.doubtful[label]
                ledger.refused.update(datas)
                world.note(f"refused {label.rstrip('.')}: {error.code}")
                world.check_refusal(error)

        answer.add_done_callback(record_answer)
        return answer
