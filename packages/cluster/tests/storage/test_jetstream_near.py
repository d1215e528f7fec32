"""Which server the blocks of a journal are sent to."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest

from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import JetStreamRefusal, NatsConnection
from penstock_cluster.storage.jetstream.near import NearConnections
from penstock_cluster.storage.jetstream.stream import NatsStream
from penstock_core.vocabulary.errors import Unavailable
from tests.loops import on_a_loop

SERVERS = ("a", "b", "c")


class Link:
    """A connection to one server of three, all of which know who leads."""

    def __init__(self, net: Net, server: str) -> None:
        self.server = server
        self._net = net
        self.is_closed = False

    async def ask(self, subject: str, request: bytes = b"", headers: object = None) -> bytes:
        if subject.startswith("$JS.API.STREAM.INFO."):
            leader = {"leader": self._net.leader}
            return msgspec.json.encode({"config": {}, "state": {}, "cluster": leader})
        if self.server in self._net.silent:
            raise Unanswered(subject)
        self._net.published.append(self.server)
        return msgspec.json.encode({"seq": len(self._net.published)})

    async def close(self) -> None:
        self.is_closed = True


class Net:
    """Servers; a journal's stream; what is near to it. Everything else goes by ``a``."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        self.gone: set[str] = set()
        self.silent: set[str] = set()
        self.published: list[str] = []
        self.links: list[Link] = []
        self.shared = Link(self, "a")
        self.near = NearConnections(SERVERS, self.reach, cast("NatsConnection", self.shared))
        self.stream = NatsStream(cast("NatsConnection", self.shared), "shard")
        self.stream.was_seen = True

    async def reach(self, server: str) -> NatsConnection:
        if server in self.gone:
            raise Unavailable("nobody is there")
        self.links.append(Link(self, server))
        return cast("NatsConnection", self.links[-1])

    async def append(self) -> str:
        """Gives the server that a block was published to."""
        self.stream.begin_block()
        await self.stream.publish("subject", b"", {})
        return self.published[-1]

    @property
    def open_links(self) -> list[str]:
        return [link.server for link in self.links if not link.is_closed]


class Refusing:
    """A connection to servers that have no such stream."""

    server = "a"

    async def ask(self, subject: str, *_: object) -> bytes:
        raise JetStreamRefusal(10059, "stream not found")


@on_a_loop
async def test_blocks_go_to_the_leader_and_other_connections_are_not_kept() -> None:
    net = Net("c")
    assert await net.append() == "a"

    await net.near.lead(net.stream)

    assert await net.append() == "c"
    assert net.open_links == ["c"]
    await net.near.close()
    assert net.open_links == []


@on_a_loop
async def test_a_block_that_has_begun_is_not_moved() -> None:
    net = Net("c")
    net.stream.begin_block()
    await net.near.lead(net.stream)

    await net.stream.publish("subject", b"", {})

    assert net.published == ["a"]


@on_a_loop
async def test_where_everything_goes_to_the_leader_anyway_nothing_is_opened() -> None:
    net = Net("a")

    await net.near.lead(net.stream)

    assert await net.append() == "a"
    assert net.links == []


@on_a_loop
async def test_blocks_follow_the_leader_and_use_again_what_is_open() -> None:
    net = Net("b")
    for net.leader in "bcbacb":
        await net.near.lead(net.stream)
        assert await net.append() == net.leader

    assert net.open_links == ["b", "c"]


@on_a_loop
async def test_without_an_answer_the_same_block_goes_on_as_everything_else_does() -> None:
    net = Net("b")
    await net.near.lead(net.stream)
    net.silent = {"b"}
    with pytest.raises(Unanswered):
        await net.append()

    await net.stream.publish("subject", b"", {})

    assert net.published == ["a"]
    assert await net.append() == "a"


@on_a_loop
async def test_a_connection_that_is_away_or_has_gone_elsewhere_is_not_used() -> None:
    net = Net("b")
    await net.near.lead(net.stream)
    net.links[-1].server = ""
    assert await net.append() == "a"
    net.links[-1].server = "c"

    await net.near.lead(net.stream)

    assert await net.append() == "b"
    assert net.open_links == ["b"]


@on_a_loop
async def test_a_leader_that_is_not_reached_is_tried_again_and_one_nobody_named_is_not() -> None:
    net = Net("b")
    net.gone = {"b"}
    await net.near.lead(net.stream)
    assert await net.append() == "a"
    net.gone = set()
    await net.near.lead(net.stream)
    assert await net.append() == "b"
    net.leader = "unheard-of"
    await net.near.lead(net.stream)
    link_count = len(net.links)

    await net.near.lead(net.stream)

    assert len(net.links) == link_count
    assert await net.append() == "a"


@on_a_loop
async def test_while_nobody_knows_who_leads_blocks_go_where_they_went() -> None:
    net = Net("b")
    await net.near.lead(net.stream)
    net.leader = ""

    await net.near.lead(net.stream)

    assert await net.append() == "b"


@on_a_loop
async def test_a_stream_that_is_lost_holds_up_no_other() -> None:
    net = Net("b")
    lost = NatsStream(cast("NatsConnection", Refusing()), "lost")
    lost.was_seen = True

    net.near.start_connecting([lost, net.stream])
    assert await net.append() == "a"
    await asyncio.sleep(0)  # it has its turn

    assert await net.append() == "b"
    await net.near.close()
