"""Clients that publish as fast as the realm reads."""

from __future__ import annotations

from packages.client.tests.simulated import World
from packages.server.tests.frontends.wires import Peer
from packages.server.tests.runtime.living import body
from penstock_core.api.publishing import PublishEvents
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelNumber
from penstock_core.wire.native import messages as wire
from penstock_testing.loop import pass_time


class Publisher(Peer):
    """A client that sends its publishes one by one, and as many at once as it likes."""

    def __init__(self, world: World, session: str, channel: int) -> None:
        super().__init__(world.listener, session)
        self._channel = ChannelNumber(channel)
        self._event = body([b"x" * 100])
        self._asked = 0
        self.say_with((wire.Schema(1), self._event.schema_bytes))

    def publish(self, count: int) -> None:
        """In one piece, none of them confirmed."""
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
    found = Publisher(world, "flooding", 1), Publisher(world, "other", 2)
    await pass_time(0.01)
    assert [len(each.wire.heard()) for each in found] == [1, 1], "they are welcome"
    return found
