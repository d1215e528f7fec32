"""Requests and replies over a network that breaks: each request gets its own reply in the end, and
no reply queue remains (SEM R1-R3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock import aio
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    NameDoesNotExist,
    Refused,
    Unavailable,
)
from penstock_testing.loop import pass_time
from tests.sim.programs import Cast, Program

if TYPE_CHECKING:
    from tests.sim.wired_world import WiredWorld

QUESTIONS = 10
REMOVAL_S = 120.0
"""After this time the realm has noticed lost sessions and removed their reply queues."""


class Asker:
    """Sends several requests at a time, each again until it has a reply."""

    def __init__(self, world: WiredWorld, name: str) -> None:
        self.world = world
        self.program = Program(world, f"asker-{name}", self._main)
        self._answered: set[int] = set()

    @property
    def is_done(self) -> bool:
        return len(self._answered) == QUESTIONS

    async def _main(self, session: aio.Session) -> None:
        queue = await session.queues.get("questions")
        random = self.world.random
        while not self.is_done:
            await pass_time(random.expovariate(2))
            unanswered = sorted(set(range(QUESTIONS)) - self._answered)
            chosen = random.sample(unanswered, min(len(unanswered), random.randint(1, 4)))
            async with asyncio.TaskGroup() as group:
                for number in chosen:
                    group.create_task(self._ask(queue, number))

    async def _ask(self, queue: aio.Queue, number: int) -> None:
        question = f"{self.program.name}/{number}".encode()
        try:
            reply = await queue.request(question, self.world.random.uniform(1, 5))
        except NameDoesNotExist as error:
            name = self.program.name
            raise AssertionError(f"{name} is there, and its reply queue is not") from error
        except (Unavailable, Refused) as error:
            self.world.note(f"{question.decode()} has no reply: {error.code}")
            self.world.check_refusal(error)
            return
        assert reply.data == b"re: " + question, f"{question!r} is answered with {reply.data!r}"
        self._answered.add(number)
        self.world.note(f"{question.decode()} is answered")


class Replier:
    """Reads requests with a transactional reader, replies, and commits."""

    def __init__(
        self, world: WiredWorld, name: str, askers: list[Asker], addresses: set[str]
    ) -> None:
        self._addresses = addresses
        self.world = world
        self.program = Program(world, f"replier-{name}", self._main)
        self._askers = askers

    async def _main(self, session: aio.Session) -> None:
        queue = await session.queues.get("questions")
        async with queue.reader(transactional=True, window=3) as reader:
            while not all(asker.is_done for asker in self._askers):
                try:
                    for question in await reader.fetch(3, 0.5):
                        await self._reply(question)
                    await reader.commit()
                except Unavailable as error:
                    # The connection was lost, and the requests are delivered again; or the disk
                    # refused the commit, and the next commit includes them.
                    self.world.check_refusal(error)

    async def _reply(self, question: aio.ReceivedEvent) -> None:
        self._addresses.add(question.headers["reply_to"])
        try:
            await question.reply(b"re: " + question.data)
        except NameDoesNotExist:
            self.world.note(f"nobody waits for the reply to {question.data.decode()}")
        except (Unavailable, Refused) as error:
            self.world.note(f"no reply to {question.data.decode()}: {error.code}")
            self.world.check_refusal(error)


class Asked:
    def __init__(self, world: WiredWorld) -> None:
        self._world = world
        self._definition = Definition(kind="queue", type=world.draw_type(("persistent", "mixed")))
        askers = [Asker(world, name) for name in ("a", "b")]
        self._addresses: set[str] = set()
        """Addresses of reply queues, which no list contains."""
        repliers = [Replier(world, name, askers, addresses=self._addresses) for name in ("x", "y")]
        self._askers = askers
        programs = [asker.program for asker in askers]
        self._cast = Cast(world, programs + [replier.program for replier in repliers])

    async def prepare(self) -> None:
        await self._world.create("questions", self._definition)

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        self._cast.start(group, quiet=quiet)

    async def check(self) -> None:
        assert all(asker.is_done for asker in self._askers)
        await pass_time(REMOVAL_S)
        async with aio.connect(self._world.url) as session:
            remaining = [name for name in sorted(self._addresses) if await _exists(session, name)]
        assert not remaining, f"nobody waits for replies, and there are {remaining}"


async def _exists(session: aio.Session, name: str) -> bool:
    try:
        await session.queues.get(name)
    except NameDoesNotExist:
        return False
    return True
