"""Clients that publish as fast as the realm reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from packages.client.tests.simulated import World, served
from packages.server.tests.frontends.wires import Peer
from packages.server.tests.runtime.living import body
from penstock_core.api.publishing import PublishEvents
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId, ChannelNumber
from penstock_core.wire.native import messages as wire
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import Body
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import SimLoop, pass_time


class WatchedRealm(RunningRealm):
    """A realm that records publishes as they arrive."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.arrivals: list[tuple[int, int]] = []
        """The channel and the number of events of each publish."""
        self.on_publish: Callable[[int], None] = lambda number: None
        """Called with the channel of a publish once it waits for its turn."""

    def publish(
        self, channel_id: ChannelId, bodies: Sequence[Body], *args: Any, **more: Any
    ) -> None:
        self.arrivals.append((channel_id, sum(body.rows for body in bodies)))
        super().publish(channel_id, bodies, *args, **more)
        self.on_publish(channel_id)


@asynccontextmanager
async def watched(
    realm_class: type[WatchedRealm] = WatchedRealm,
) -> AsyncIterator[tuple[World, WatchedRealm]]:
    """Run a realm with clients on a simulated loop; it records the publishes."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    memory = MemoryJournal(), MemoryBlobs()
    async with served(loop, *memory, realm_class=realm_class) as world:
        realm = world.listener.realm
        assert isinstance(realm, WatchedRealm)
        yield world, realm


class Publisher(Peer):
    """A client that sends publishes without waiting for answers, one by one or many at once."""

    def __init__(self, world: World, session: str, channel: int) -> None:
        super().__init__(world.listener, session)
        self._channel = ChannelNumber(channel)
        self._event = body([b"x" * 100])
        self._asked = 0
        self.say_with((wire.Schema(1), self._event.schema_bytes))

    def publish(self, count: int) -> None:
        """Send ``count`` publishes in one piece, without waiting for answers."""
        first, self._asked = self._asked, self._asked + count
        buffer = bytes(self._event.buffer)
        request = PublishEvents(self._channel, "", 0, schema=1, sizes=(len(buffer),))
        self.say_with(*((wire.Asked(first + n, request), buffer) for n in range(count)))

    def _say(self, data: bytes) -> None:
        self.connection._reader.receive(data)
        self.connection.buffer_updated(0)


async def publishers(world: World) -> tuple[Publisher, Publisher]:
    realm = world.listener.realm
    for name in ("flooded", "quiet"):
        await realm.create_channel(name, Definition(type="reliable"))
    pair = Publisher(world, "flooding", 1), Publisher(world, "other", 2)
    await pass_time(0.01)
    assert [len(publisher.wire.heard()) for publisher in pair] == [1, 1], "they are welcome"
    return pair
