"""The simulated network does exactly what the test orders."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_testing.loop import SimLoop, pass_time, simulated
from penstock_testing.network import MACHINE, SimNetwork, SimTransport


class Peer(asyncio.BufferedProtocol):
    """Records its callbacks."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False
        self.reason: Exception | None = None
        self._room = bytearray(7)
        self.transport: SimTransport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, count: int) -> None:
        self.received += self._room[:count]

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost, self.reason = True, exc


def network() -> SimNetwork:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop), "it is simulated"
    return loop.network


async def pair() -> tuple[Peer, Peer]:
    loop, far = asyncio.get_running_loop(), Peer()
    await loop.create_server(lambda: far, "127.0.0.1", 9_000)
    _, near = await loop.create_connection(Peer, "127.0.0.1", 9_000)
    return near, far


class Hasty(Peer):
    """Aborts each connection at once."""

    def connection_made(self, transport: Any) -> None:
        transport.abort()


@simulated
async def test_a_client_learns_that_its_connection_ended_while_it_connected() -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(Hasty, "127.0.0.1", 9_000)
    _, near = await loop.create_connection(Peer, "127.0.0.1", 9_000)
    await pass_time(1)

    assert near.is_lost
    assert isinstance(near.reason, ConnectionResetError)


@pytest.mark.parametrize("seed", range(5))
@simulated
async def test_bytes_arrive_complete_and_in_order_in_segments_of_any_size(seed: int) -> None:
    near, far = await pair()
    sent = b"".join(b"%d " % n for n in range(20_000))
    for offset in range(0, len(sent), 1_000):
        near.transport.write(sent[offset : offset + 1_000])
    near.transport.close()
    await pass_time(60)

    assert far.received == sent
    assert (near.is_lost, far.is_lost, far.reason) == (True, True, None)


@simulated
async def test_a_peer_that_does_not_read_makes_the_other_side_wait() -> None:
    near, far = await pair()
    far.transport.pause_reading()
    near.transport.write(bytes(50_000))
    near.transport.write(bytes(50_000))
    await pass_time(60)
    waiting = near.transport.get_write_buffer_size()
    far.transport.resume_reading()
    await pass_time(60)

    assert waiting > 0
    assert (len(far.received), near.transport.get_write_buffer_size()) == (100_000, 0)


@simulated
async def test_neither_side_of_a_silent_connection_loses_it_before_the_network_heals() -> None:
    near, far = await pair()
    near.transport.is_silent = far.transport.is_silent = True
    near.transport.write(b"anybody?")
    await pass_time(600)
    lost_before = near.is_lost, far.is_lost
    network().heal()
    await pass_time(1)

    assert (lost_before, bytes(far.received)) == ((False, False), b"")
    assert near.is_lost
    assert far.is_lost


@simulated
async def test_the_other_side_of_a_reset_learns_of_it_when_it_sends() -> None:
    near, far = await pair()
    near.transport.reset()
    await pass_time(60)
    lost_before = far.is_lost
    far.transport.write(b"still there?")
    await pass_time(60)

    assert (near.is_lost, lost_before, far.is_lost) == (True, False, True)
    assert isinstance(far.reason, ConnectionResetError)


@simulated
async def test_a_replay_sends_the_same_bytes_over_another_connection() -> None:
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer())
        return peers[-1]

    loop = asyncio.get_running_loop()
    await loop.create_server(make, "127.0.0.1", 9_000)
    network().replay(b"hello", ("127.0.0.1", 9_000))
    await pass_time(1)
    peers[0].transport.write(b"who are you?")
    await pass_time(1)

    assert [bytes(peer.received) for peer in peers] == [b"hello"]
    assert not peers[0].is_lost


@simulated
async def test_connecting_fails_without_a_listener_or_without_power() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Peer, "127.0.0.1", 9_000)
    network().power_off("realm")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await loop.create_connection(Peer, "127.0.0.1", 9_000)


class Worker(Peer):
    """Starts a task in each of its callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[tuple[str, asyncio.Task[None]]] = []

    def _begin(self, callback: str) -> None:
        self.work.append((callback, asyncio.get_running_loop().create_task(pass_time(5))))

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin("made")

    def buffer_updated(self, count: int) -> None:
        super().buffer_updated(count)
        self._begin("heard")

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        self._begin("may write")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._begin("lost")


@pytest.mark.slow
@simulated
async def test_tasks_started_by_a_callback_belong_to_the_receiving_machine() -> None:
    loop, far = network().loop, Worker()
    assert isinstance(loop, SimLoop), "it is simulated"
    MACHINE.set("listens")
    await loop.create_server(lambda: far, "127.0.0.1", 9_000)
    MACHINE.set("connects")
    _, near = await loop.create_connection(Worker, "127.0.0.1", 9_000)
    MACHINE.set("")
    far.transport.pause_reading()
    for _ in range(3):
        near.transport.write(bytes(50_000))
    far.transport.write(b"work!")
    await pass_time(1)
    far.transport.resume_reading()
    await pass_time(1)

    loop.kill("connects")
    await pass_time(1)

    assert {callback for callback, _ in far.work} == {"made", "heard", "lost"}
    assert {callback for callback, _ in near.work} == {"made", "heard", "may write"}
    assert all(task.cancelled() for _, task in near.work)
    for _, task in far.work:
        await task  # not cancelled, so it returns
