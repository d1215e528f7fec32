"""The network of the simulation does what it is told, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_testing.loop import SimLoop, pass_time, simulated
from penstock_testing.network import MACHINE, SimNetwork, SimTransport


class Peer(asyncio.BufferedProtocol):
    """Writes down what happens to it."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.is_lost = False
        self.reason: Exception | None = None
        self._room = bytearray(7)
        self.transport: SimTransport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, count: int) -> None:
        self.heard += self._room[:count]

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost, self.reason = True, exc


def network() -> SimNetwork:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop), "it is simulated"
    return loop.network


async def pair() -> tuple[Peer, Peer]:
    loop, there = asyncio.get_running_loop(), Peer()
    await loop.create_server(lambda: there, "127.0.0.1", 9_000)
    _, here = await loop.create_connection(Peer, "127.0.0.1", 9_000)
    return here, there


class Hasty(Peer):
    """Ends each connection at once."""

    def connection_made(self, transport: Any) -> None:
        transport.abort()


@simulated
async def test_who_connects_is_told_of_an_end_that_came_meanwhile() -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(Hasty, "127.0.0.1", 9_000)
    _, here = await loop.create_connection(Peer, "127.0.0.1", 9_000)
    await pass_time(1)

    assert here.is_lost
    assert isinstance(here.reason, ConnectionResetError)


@pytest.mark.parametrize("seed", range(5))
@simulated
async def test_bytes_come_whole_and_in_order_however_they_are_cut(seed: int) -> None:
    here, there = await pair()
    said = b"".join(b"%d " % n for n in range(20_000))
    for at in range(0, len(said), 1_000):
        here.transport.write(said[at : at + 1_000])
    here.transport.close()
    await pass_time(60)

    assert there.heard == said
    assert (here.is_lost, there.is_lost, there.reason) == (True, True, None)


@simulated
async def test_who_does_not_read_makes_the_other_wait() -> None:
    here, there = await pair()
    there.transport.pause_reading()
    here.transport.write(bytes(50_000))
    here.transport.write(bytes(50_000))
    await pass_time(60)
    waiting = here.transport.get_write_buffer_size()
    there.transport.resume_reading()
    await pass_time(60)

    assert waiting > 0
    assert (len(there.heard), here.transport.get_write_buffer_size()) == (100_000, 0)


@simulated
async def test_a_silent_connection_is_lost_for_nobody_until_it_is_healed() -> None:
    here, there = await pair()
    here.transport.is_silent = there.transport.is_silent = True
    here.transport.write(b"anybody?")
    await pass_time(600)
    before = here.is_lost, there.is_lost
    network().heal()
    await pass_time(1)

    assert (before, bytes(there.heard)) == ((False, False), b"")
    assert here.is_lost
    assert there.is_lost


@simulated
async def test_one_side_may_break_and_the_other_learns_of_it_when_it_speaks() -> None:
    here, there = await pair()
    here.transport.reset()
    await pass_time(60)
    before = there.is_lost
    there.transport.write(b"still there?")
    await pass_time(60)

    assert (here.is_lost, before, there.is_lost) == (True, False, True)
    assert isinstance(there.reason, ConnectionResetError)


@simulated
async def test_a_replay_is_another_connection_that_says_the_same() -> None:
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

    assert [bytes(peer.heard) for peer in peers] == [b"hello"]
    assert not peers[0].is_lost


@simulated
async def test_nobody_answers_where_nobody_listens() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Peer, "127.0.0.1", 9_000)
    network().power_off("realm")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await loop.create_connection(Peer, "127.0.0.1", 9_000)


class Worker(Peer):
    """Begins work for all that happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[tuple[str, asyncio.Task[None]]] = []

    def _begin(self, what: str) -> None:
        self.work.append((what, asyncio.get_running_loop().create_task(pass_time(5))))

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
async def test_what_is_heard_begins_work_of_the_machine_that_hears_it() -> None:
    loop, there = network().loop, Worker()
    assert isinstance(loop, SimLoop), "it is simulated"
    MACHINE.set("listens")
    await loop.create_server(lambda: there, "127.0.0.1", 9_000)
    MACHINE.set("connects")
    _, here = await loop.create_connection(Worker, "127.0.0.1", 9_000)
    MACHINE.set("")
    there.transport.pause_reading()
    for _ in range(3):
        here.transport.write(bytes(50_000))
    there.transport.write(b"work!")
    await pass_time(1)
    there.transport.resume_reading()
    await pass_time(1)

    loop.kill("connects")
    await pass_time(1)

    assert {what for what, _ in there.work} == {"made", "heard", "lost"}
    assert {what for what, _ in here.work} == {"made", "heard", "may write"}
    assert all(task.cancelled() for _, task in here.work)
    for _, task in there.work:
        await task  # it is not cancelled
