"""Scenes in a cluster: all that they ask of a realm, a client asks the owner for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeVar

from penstock import aio
from penstock_core.api.channels import (
    ChannelInfo,
    ChannelOpened,
    CreateChannel,
    DescribeChannel,
    OpenChannel,
)
from penstock_core.api.durables import CreateDurable, DescribeDurable, DurableInfo
from penstock_core.api.requests import Kind
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    AlreadyAborted,
    AlreadyCommitted,
    NameAlreadyBound,
    NoSuchTransaction,
    PenstockError,
    Refused,
    Unavailable,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_testing.loop import SimLoop, pass_time
from penstock_testing.network import SimNetwork
from tests.sim.cluster_clients import URL, connected
from tests.sim.gate import Gate
from tests.sim.scenes.asked import Asked
from tests.sim.scenes.followed import Followed
from tests.sim.scenes.jms import Jms
from tests.sim.scenes.ordered import Ordered
from tests.sim.scenes.scene import Scene
from tests.sim.scenes.wired import Wired
from tests.sim.wired_world import WiredWorld

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld

T = TypeVar("T")

WIRED_SCENES: dict[str, Callable[[WiredWorld], Scene]] = {
    "asked": Asked,
    "followed": Followed,
    "jms": Jms,
    "ordered": Ordered,
    "wired": Wired,
}


class ClusterStage:
    """A :class:`~tests.sim.wired_world.WiredWorld` over a cluster. What it asks for, it asks again
    until an owner answers; how often somebody took over is how many lives there were."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.name = name
        self.gate = Gate()
        self.outside: asyncio.TaskGroup
        self._world = world
        self._session: aio.Session
        self._definitions: dict[str, Definition] = {}
        self._numbers: dict[str, ChannelId] = {}
        self._scene = WIRED_SCENES[name](self)

    # --- what it has of the cluster ------------------------------------------------------

    @property
    def seed(self) -> int:
        return self._world.seed

    @property
    def random(self) -> Random:
        return self._world.random

    @property
    def loop(self) -> SimLoop:
        return self._world.loop

    @property
    def network(self) -> SimNetwork:
        return self._world.loop.network

    @property
    def url(self) -> str:
        return URL

    @property
    def now_us(self) -> int:
        return self.loop.now_us()

    @property
    def latest_us(self) -> int:
        return self._world.latest_us

    @property
    def passed_us(self) -> int:
        return self._world.latest_us  # nodes' clocks differ by hours at most

    @property
    def lives(self) -> int:
        return self._world.log.recovered_by

    @property
    def is_quiet(self) -> bool:
        return self._world.is_quiet

    def note(self, what: str) -> None:
        self._world.note(what)

    def draw_type(self, types: Sequence[str]) -> str:
        """Pages belong to one machine."""
        return self.random.choice([each for each in types if each != "paged"])

    def life_of(self, machine: str) -> int:
        """The epoch of the owner that a machine is connected to; 0: it is connected to none."""
        return self._world.life_of(machine)

    def is_stale(self, machine: str) -> bool:
        """Whether it is not connected to the newest owner: what comes was sent by one before."""
        return self._world.is_stale(machine)

    def hear(self, error: PenstockError) -> None:
        """Nothing here is refused for good: there is room, and every store is there from the
        beginning. A takeover ends what transactions have not committed, and the end of one that was
        not answered is asked for again."""
        may_be = AlreadyAborted | AlreadyCommitted | NoSuchTransaction
        if isinstance(error, Refused) and not isinstance(error, may_be):
            self._world.promises.broken.append(f"the log contradicts a refusal: {error!r}")

    # --- what a client asks for ----------------------------------------------------------

    async def create(self, name: str, definition: Definition) -> None:
        opened = await self._made(
            lambda: self._session.connection.ask(
                CreateChannel(name, definition), ChannelOpened, resend=False
            ),
            lambda: self._session.connection.ask(
                OpenChannel(name, _kind(definition)), ChannelOpened
            ),
        )
        self._definitions[name] = definition
        self._numbers[name] = opened.channel

    async def create_durable(
        self,
        store: str,
        name: str,
        kind: str = "shared",
        *,
        strict_order: bool = False,
        order_by: str = "",
    ) -> None:
        number = self._numbers[store]
        message = CreateDurable(
            number, name, kind, start=FromEarliest(), strict_order=strict_order, order_by=order_by
        )
        connection = self._session.connection
        await self._made(
            lambda: connection.ask(message, DurableInfo, resend=False),
            lambda: connection.ask(DescribeDurable(number, name), DurableInfo),
        )

    async def number_of(self, store: str) -> int:
        return self._numbers[store]

    async def is_consumed(self, store: str, durable: str) -> bool:
        if not durable:
            return await self.live_on(store) == 0
        message = DescribeDurable(self._numbers[store], durable)
        return not (await self._session.connection.ask(message, DurableInfo)).outstanding

    async def stored_on(self, store: str) -> list[tuple[int, bytes]]:
        """All that a store holds, in order: ids and content."""
        channel = await self._session.channels.get(store)
        found = [(event.event_id or 0, event.data) async for event in channel.browse()]
        ids = [event_id for event_id, _ in found]
        assert ids == sorted(set(ids)), f"a browse of {store} gave {ids}"
        return found

    async def live_on(self, store: str) -> int:
        """How many events a store has."""
        message = DescribeChannel(store, _kind(self._definitions[store]))
        return (await self._session.connection.ask(message, ChannelInfo)).events

    async def _made(self, make: Callable[[], Awaitable[T]], find: Callable[[], Awaitable[T]]) -> T:
        """Something new, or what an earlier attempt has made that was not answered."""
        while True:
            try:
                return await make()
            except NameAlreadyBound:
                return await find()
            except Unavailable:
                await pass_time(0.2)

    # --- the scene -----------------------------------------------------------------------

    async def play(self, outside: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Begin; the task is done when everybody in the scene is."""
        self.outside = outside
        self._session = await connected()
        await self._scene.prepare()
        self.note(f"the scene {self.name} begins")
        return outside.create_task(self._all_done())

    async def _all_done(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._scene.start(group, quiet=True)

    async def check(self) -> None:
        await self._scene.check()
        await self._session.close()
        self.note(f"the scene {self.name} is checked")


def _kind(definition: Definition) -> Kind:
    return "queue" if definition.kind == "queue" else "channel"
