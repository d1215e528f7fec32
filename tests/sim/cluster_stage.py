"""Scenes in a cluster: every operation that a scene calls on a realm becomes a request of a client
to the owner."""

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
    """A :class:`~tests.sim.wired_world.WiredWorld` over a cluster. It repeats each request until an
    owner answers. The newest recovered epoch takes the place of the number of lives."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.name = name
        self.gate = Gate()
        self.outside: asyncio.TaskGroup
        self._world = world
        self._session: aio.Session
        self._definitions: dict[str, Definition] = {}
        self._numbers: dict[str, ChannelId] = {}
        self._scene = WIRED_SCENES[name](self)

    # --- what the scene uses of the cluster ----------------------------------------------

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
        return self._world.latest_us  # the clocks of nodes differ by hours at most

    @property
    def lives(self) -> int:
        return self._world.log.recovered_by

    @property
    def is_quiet(self) -> bool:
        return self._world.is_quiet

    def note(self, what: str) -> None:
        self._world.note(what)

    def draw_type(self, types: Sequence[str]) -> str:
        """Draw a type, except paged: pages belong to one machine."""
        return self.random.choice([kind for kind in types if kind != "paged"])

    def life_of(self, machine: str) -> int:
        """Return the epoch of the owner that a machine is connected to; 0 if it has no
        connection."""
        return self._world.life_of(machine)

    def is_stale(self, machine: str) -> bool:
        """Return whether a machine is not connected to the newest owner: an earlier owner sent its
        events."""
        return self._world.is_stale(machine)

    def check_refusal(self, error: PenstockError) -> None:
        """Report a refusal that cannot be right: the realm has room, and all stores exist from the
        start. Only the end of a transaction may be refused: a takeover aborts open transactions,
        and an unanswered end is repeated."""
        expected = AlreadyAborted | AlreadyCommitted | NoSuchTransaction
        if isinstance(error, Refused) and not isinstance(error, expected):
            self._world.promises.broken.append(f"the log contradicts a refusal: {error!r}")

    # --- requests of the client ----------------------------------------------------------

    async def create(self, name: str, definition: Definition) -> None:
        opened = await self._create_or_find(
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
        await self._create_or_find(
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
        """Return all events of a store in order, as ids and data."""
        channel = await self._session.channels.get(store)
        rows = [(event.event_id or 0, event.data) async for event in channel.browse()]
        ids = [event_id for event_id, _ in rows]
        assert ids == sorted(set(ids)), f"a browse of {store} gave {ids}"
        return rows

    async def live_on(self, store: str) -> int:
        """Return the number of events of a store."""
        message = DescribeChannel(store, _kind(self._definitions[store]))
        return (await self._session.connection.ask(message, ChannelInfo)).events

    async def _create_or_find(
        self, make: Callable[[], Awaitable[T]], find: Callable[[], Awaitable[T]]
    ) -> T:
        """Create an object; if an earlier attempt without an answer has created it, return that
        one."""
        while True:
            try:
                return await make()
            except NameAlreadyBound:
                return await find()
            except Unavailable:
                await pass_time(0.2)

    # --- the scene -----------------------------------------------------------------------

    async def play(self, outside: asyncio.TaskGroup) -> asyncio.Task[None]:
        """Start the scene. The returned task ends when all its clients are done."""
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
