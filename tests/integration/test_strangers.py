"""Connections that are no clients, by the thousand, and peers that take or say nothing."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock_core.api.channels import ListChannels
from penstock_core.api.realm import Ping
from penstock_core.api.subscriptions import Attach, Subscribe
from penstock_core.vocabulary.start_positions import FromId, FromLatest
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, frame
from penstock_server.frontends.native.connection import WRITE_HIGH_WATER, Connection
from penstock_testing.peers import RawPeer
from penstock_testing.process import ServerProcess
from tests.patience import until

CONNECTIONS = 10_000
MIB = 1 << 20
GREETING = PREFACE + b"".join(map(bytes, frame(wire.encode(wire.Hello("c", "s")))))


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def own_memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def unsent_bytes(realm: penstock.Realm) -> list[int]:
    """Return the bytes that wait for each native client of a realm to read them."""
    listener = realm.listener
    assert listener is not None
    return [
        connection.unsent_bytes
        for connection in listener.connections
        if isinstance(connection, Connection)
    ]


def garbage(draw: random.Random) -> bytes:
    junk = draw.randbytes(draw.randrange(200))
    request = b"".join(map(bytes, frame(wire.encode(wire.Asked(1, ListChannels())))))
    return draw.choice(
        [
            junk,
            PREFACE,
            PREFACE + junk,
            GREETING + junk,
            GREETING[: draw.randrange(len(GREETING))],
            GREETING + request[: draw.randrange(len(request))],
            GREETING + request,
            b"",
        ]
    )


@pytest.mark.process
@pytest.mark.slow
def test_ten_thousand_garbage_connections_cost_nothing_lasting(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "realm") as server,
        penstock.connect(server.url) as session,
    ):
        orders = session.channels.create("orders", type="reliable", capacity=100)
        address = ("127.0.0.1", server.port)

        def annoy(seed: int, count: int) -> None:
            draw = random.Random(seed)
            for _ in range(count):
                with socket.create_connection(address) as stranger:
                    stranger.sendall(garbage(draw))

        def are_all_gone() -> bool:
            """They are taken in the order they came: no stranger is behind one who was let in."""
            with penstock.connect(server.url):
                pass
            return session.info().connections == 1

        annoy(0, 500)  # what grows once may grow now
        until(are_all_gone)
        files, memory = settled_files(server.pid, 0), own_memory_kib(server.pid)
        with ThreadPoolExecutor(5) as pool:
            annoying = [pool.submit(annoy, seed, CONNECTIONS // 4) for seed in range(1, 5)]
            published = 0
            while not all(future.done() for future in annoying):
                assert orders.publish(b"meanwhile") == published
                published += 1
            for future in annoying:
                future.result()

        until(are_all_gone)
        assert settled_files(server.pid, files) <= files
        assert own_memory_kib(server.pid) < memory + 32 * 1024
        assert published > 100
        assert session.info().connections == 1
        assert server.terminate() == 0


def settled_files(pid: int, expected: int) -> int:
    """Open files once connections that ended have been noticed."""
    pause, last = threading.Event(), -1
    for _ in range(1_000):
        now = open_files(pid)
        if now == last and (not expected or now <= expected):
            return now
        last = now
        pause.wait(0.05)
    return last


@pytest.mark.process
def test_a_connection_that_never_says_who_it_is_is_closed_however_busy(tmp_path: Path) -> None:
    settings = {"PENSTOCK_LISTEN_HELLO_TIMEOUT_S": "1"}
    with ServerProcess(tmp_path / "realm", environment=settings) as server:
        with RawPeer(server.url) as silent:
            assert silent.hear(wire.Goodbye).text == "no Hello was received within 1 s"
        with RawPeer(server.url, patience_s=0.05) as slow:
            for number in range(1_000):
                slow.send(b"x" if number else PREFACE + struct.pack("<II", 4_096, 2_048))
                try:
                    goodbye = slow.hear(wire.Goodbye)
                except TimeoutError:
                    continue
                assert goodbye.text == "no Hello was received within 1 s"
                return
            raise AssertionError("it could go on for ever")


@pytest.mark.process
@pytest.mark.slow
def test_a_guest_who_falls_silent_is_taken_for_dead_and_a_client_is_not(tmp_path: Path) -> None:
    settings = {"PENSTOCK_LISTEN_IDLE_TIMEOUT_S": "12"}
    with (
        ServerProcess(tmp_path / "realm", environment=settings) as server,
        penstock.connect(server.url) as session,
        RawPeer(server.url) as silent,
    ):
        silent.greet()
        assert silent.hear(wire.Goodbye).text == "nothing was received for 12 s"

        assert session.info().connections == 1
        assert len(server.logged("connection.refused")) == 0


@pytest.mark.slow
@pytest.mark.spec("J1")
def test_a_subscriber_that_does_not_read_costs_only_itself() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="reliable")
        with RawPeer(realm.listen(), receive_bytes=4_096) as lazy:
            lazy.greet()
            lazy.say(wire.Asked(1, Subscribe(orders.number, 1, FromLatest(), credit=1 << 30)))
            lazy.hear(wire.Done)
            with orders.subscribe() as subscription:
                received = 0
                for _ in range(64):
                    orders.publish_many([penstock.Event(data=bytes(64 << 10))] * 16)
                    while received < orders.info().last_event_id + 1:
                        batch = subscription.next_batch(30)
                        assert batch is not None
                        received += len(batch)

            unsent = unsent_bytes(realm)
            assert received == 1_024
            assert WRITE_HIGH_WATER <= max(unsent) < 8 * WRITE_HIGH_WATER


@pytest.mark.slow
def test_a_peer_that_asks_and_takes_no_answers_is_not_read_any_further() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        for n in range(200):
            session.channels.create(f"{n:0200}")
        with RawPeer(realm.listen(), receive_bytes=4_096) as greedy:
            greedy.greet()
            greedy.wait_at_most(1)
            requests = b"".join(
                bytes(part)
                for n in range(2_000)
                for part in frame(wire.encode(wire.Asked(n, ListChannels())))
            )
            with pytest.raises(TimeoutError):
                greedy.send(requests * 2_000)

            unsent = unsent_bytes(realm)
            assert max(unsent) < 128 << 20
            assert len(session.channels.list()) == 200


def test_more_connections_than_allowed_are_told_so() -> None:
    with (
        penstock.Realm(listen__connections_max=2) as realm,
        realm.connect(),
        RawPeer(realm.listen()) as second,
        RawPeer(realm.listen()) as third,
    ):
        second.greet()
        third.send(PREFACE)

        assert (
            third.hear(wire.Goodbye).text == "the realm accepts no more connections at the moment"
        )
        assert third.is_closed_by_the_realm


def test_a_session_that_comes_again_ends_its_older_connection_and_gets_its_seats() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.durables.create("d", type="exclusive")
        url = realm.listen()
        with RawPeer(url) as older, RawPeer(url) as newer:
            older.greet("same")
            older.say(wire.Asked(1, Attach(orders.number, 1, "d")))
            older.hear(wire.Done)
            newer.greet("same")
            newer.say(wire.Asked(1, Attach(orders.number, 1, "d")))

            assert newer.hear(wire.Done).request == 1
            assert older.hear(wire.Goodbye).text == "the session has reconnected"


@pytest.mark.slow
@pytest.mark.spec("D14")
def test_a_session_that_comes_again_while_its_seat_is_being_taken_gets_it() -> None:
    held, go = threading.Event(), asyncio.Event()

    async def hold() -> None:
        held.set()
        await go.wait()

    with penstock.Realm() as realm, realm.connect() as session, ThreadPoolExecutor() as pool:
        orders = session.channels.create("orders")
        orders.durables.create("d", type="exclusive")
        url, attach = realm.listen(), wire.Asked(1, Attach(orders.number, 1, "d"))
        with RawPeer(url) as older, RawPeer(url) as newer:
            holding = pool.submit(realm.loop.call, realm.running.shard.exclusively(hold))
            held.wait()
            for peer in (older, newer):
                peer.greet("same")
                peer.say(attach)
                peer.say(wire.Asked(2, Ping()))
                assert peer.hear(wire.Done).request == 2  # the seat is asked for, and not taken
            realm.loop.soon(go.set)
            holding.result()

            assert isinstance(newer.hear_until(1)[-1], wire.Done)


@pytest.mark.spec("J5")
def test_what_is_lost_while_it_subscribes_again_keeps_its_place() -> None:
    held, go = threading.Event(), asyncio.Event()

    async def hold() -> None:
        held.set()
        await go.wait()

    with penstock.Realm() as realm, realm.connect() as session, ThreadPoolExecutor() as pool:
        orders = session.channels.create("orders", engine="jms")
        url = realm.listen()
        subscribe = wire.Asked(1, Subscribe(orders.number, 1, FromId(0), credit=100, confirms=True))
        with RawPeer(url) as first, RawPeer(url) as second, RawPeer(url) as third:
            first.greet("same")
            first.say(subscribe)
            first.hear(wire.Done)
            holding = pool.submit(realm.loop.call, realm.running.shard.exclusively(hold))
            held.wait()
            second.greet("same")
            second.say(subscribe)
            second.say(wire.Asked(2, Ping()))
            assert second.hear(wire.Done).request == 2  # the place is asked for, and not taken
            published = pool.submit(orders.publish, b"in between")
            third.greet("same")
            assert second.hear(wire.Goodbye).text == "the session has reconnected"
            third.say(subscribe)
            realm.loop.soon(go.set)
            holding.result()

            assert published.result() == 0
            assert third.hear(wire.Delivery).first_id == 0


@pytest.mark.slow
def test_a_realm_ends_in_time_though_a_peer_takes_nothing() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="reliable")
        realm.listen()
        lazy = RawPeer(realm.listen(), receive_bytes=4_096)
        lazy.greet()
        lazy.say(wire.Asked(1, Subscribe(orders.number, 1, FromLatest(), credit=1 << 30)))
        lazy.hear(wire.Done)
        orders.publish_many([penstock.Event(data=bytes(MIB))] * 16)

        realm.close()

    with lazy, pytest.raises(EOFError):
        lazy.hear(wire.Welcome)
