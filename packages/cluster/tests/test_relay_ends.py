"""The two ends of a relay, each with a transport of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock_cluster.relay import (
    DRAIN_S,
    REPLAY_BYTES_MAX,
    RelayChooser,
    RelayEnd,
)
from penstock_testing.loop import pass_time, simulated


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and is full once it has ``room`` bytes."""

    def __init__(self, protocol: asyncio.BaseProtocol, room: int = 1 << 20) -> None:
        super().__init__()
        self.protocol = protocol
        self.room = room
        self.written = b""
        self.has_eof = self.is_closed = self.is_aborted = False
        self._reads = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        if len(self.written) > self.room:
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.7", 7)


class OneRelay:
    """Stands for all relays of a node: there is an owner, whose end is there already."""

    patience_s = 10.0

    def __init__(
        self, room: int = 1 << 20, local: Callable[[], asyncio.BaseProtocol] | None = None
    ) -> None:
        """``local`` makes the protocol of the node itself; else nobody is answered by it."""
        self._local = local or RelayEndNever
        self.ended: list[RelayEnd] = []
        self.near, far = RelayEnd(self.ended.append), RelayEnd(self.ended.append)
        self.near.other, far.other = far, self.near
        self.owner = Wire(far, room)
        far.connection_made(self.owner)
        self.owner.pause_reading()

    def may_begin(self, _: object) -> bool:
        return True

    async def begin(self, *_: object) -> RelayEnd:
        return self.near

    def enter(self, _: object) -> bool:
        return True

    def leave(self, _: object) -> None:
        pass

    async def client(self, said: bytes = b"hello") -> Wire:
        """A client that has come to the node and said something."""
        relay: Any = self
        chooser = RelayChooser(relay, "amqp", lambda _: True, local=self._local, places=relay)
        wire = Wire(chooser)
        chooser.connection_made(wire)
        chooser.data_received(said)
        await pass_time(0.001)
        return wire


class RelayEndNever(asyncio.Protocol):
    """Nobody is answered by the node itself."""

    def __init__(self) -> None:
        raise AssertionError("it was to be relayed")


@simulated
async def test_what_came_before_goes_first_and_answers_wait_for_somebody_to_hear_them() -> None:
    relay = OneRelay()
    assert not relay.owner.is_reading()

    client = await relay.client(b"hello")

    assert relay.owner.written == b"hello"
    assert relay.owner.is_reading()
    assert client.is_reading()


@simulated
async def test_a_client_whose_first_bytes_fill_the_way_to_the_owner_is_not_read_on() -> None:
    relay = OneRelay(room=100)

    client = await relay.client(bytes(200))

    assert not client.is_reading()
    assert isinstance(relay.owner.protocol, RelayEnd)
    relay.owner.protocol.resume_writing()
    assert client.is_reading()


class Local(asyncio.Protocol):
    """The node itself answers whatever is said to it."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"here: " + data)


@simulated
async def test_a_client_whose_owner_was_gone_before_it_was_passed_on_is_answered_here() -> None:
    relay = OneRelay(local=Local)
    assert isinstance(relay.owner.protocol, RelayEnd)
    relay.owner.protocol.connection_lost(None)

    client = await relay.client(b"hello")

    assert client.written == b"here: hello"
    assert not client.is_aborted


@pytest.mark.parametrize("ends", ["in order", "by a reset"])
@simulated
async def test_a_client_whose_owner_drops_it_without_a_word_is_answered_here(ends: str) -> None:
    relay = OneRelay(local=Local)
    client = await relay.client(b"hel")
    far = relay.owner.protocol
    assert isinstance(far, RelayEnd)
    assert isinstance(client.protocol, RelayEnd)
    client.protocol.data_received(b"lo")

    if ends == "in order":
        assert not far.eof_received()
    with capture_logs() as logs:
        far.connection_lost(None if ends == "in order" else ConnectionResetError())

    assert client.written == b"here: hello"
    assert (client.is_closed, client.is_aborted, client.has_eof) == (False, False, False)
    assert relay.near in relay.ended
    assert [line["event"] for line in logs] == ["relay.no_owner"]


@pytest.mark.parametrize("why", ["it was answered", "it has said too much"])
@simulated
async def test_a_client_is_dropped_with_its_owner_when_there_is_no_beginning_again(
    why: str,
) -> None:
    relay = OneRelay()
    client = await relay.client()
    far = relay.owner.protocol
    assert isinstance(far, RelayEnd)
    assert isinstance(client.protocol, RelayEnd)
    if why == "it was answered":
        far.data_received(b"answer")
    else:
        client.protocol.data_received(bytes(REPLAY_BYTES_MAX))

    far.connection_lost(ConnectionResetError())

    assert client.is_aborted


@simulated
async def test_each_side_may_end_before_the_other() -> None:
    relay = OneRelay()
    client = await relay.client()
    near, far = client.protocol, relay.owner.protocol
    assert isinstance(near, RelayEnd)
    assert isinstance(far, RelayEnd)

    assert near.eof_received(), "the answer may still come"
    assert relay.owner.has_eof
    far.data_received(b"answer")
    assert client.written == b"answer"
    assert not far.eof_received(), "nothing is left to come"
    far.connection_lost(None)

    assert client.is_closed


@simulated
async def test_who_does_not_read_the_rest_is_dropped_in_the_end() -> None:
    relay = OneRelay()
    client = await relay.client()
    assert isinstance(relay.owner.protocol, RelayEnd)
    relay.owner.protocol.data_received(b"the rest")

    relay.owner.protocol.connection_lost(None)

    assert client.is_closed
    assert not client.is_aborted
    await pass_time(DRAIN_S + 1)
    assert client.is_aborted


@simulated
async def test_a_client_that_is_reset_resets_the_owner() -> None:
    relay = OneRelay()
    client = await relay.client()
    assert isinstance(client.protocol, RelayEnd)

    client.protocol.connection_lost(ConnectionResetError())

    assert relay.owner.is_aborted
    assert relay.near in relay.ended
