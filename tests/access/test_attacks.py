"""Attacks of clients without a sign-in and of users without rights, which all fail."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import structlog

import penstock
from penstock.client.connection.signing_in import SigningIn
from penstock.client.connection.transport import Link
from penstock.client.connection.urls import Address, parse_url
from penstock_core.api.channels import Locate, PurgeChannel
from penstock_core.api.durables import DescribeDelivery, DescribeDurable
from penstock_core.api.publishing import CommitStagedParts, CommitStages
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Subscribe
from penstock_core.api.tables import LocateSealedTable, LocateTable
from penstock_core.api.transactions import BeginTransaction
from penstock_core.vocabulary.errors import AccessDenied, AuthenticationFailed, InvalidArgument
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, frame
from penstock_server.frontends.native.connection import Connection
from tests.asking import ask

NEAR, FAR = Address("127.0.0.1", 9), Address("192.0.2.1", 9)


@pytest.mark.spec("A4")
@pytest.mark.parametrize("nonce", ["plain", "n\u00f6nce"])
@pytest.mark.parametrize("answer", ["c=biws,r=\u00e9,p=AAAA", "c=biws", "\u00e9", ",,", ""])
def test_a_strangers_nonsense_ends_its_own_connection_and_nothing_else(
    realm: penstock.Realm, nonce: str, answer: str
) -> None:
    first = f"n,,n=alice,r={nonce}".encode()
    with stranger_of(realm) as stranger:
        hello = wire.Hello("c", "s", "alice", token="", mechanism="SCRAM-SHA-256", data=first)
        stranger.sendall(PREFACE + framed(hello))
        assert b",s=" in stranger.recv(65_536)
        stranger.sendall(framed(wire.Proof(answer.encode())))
        assert b"authentication-failed" in all_of(stranger)

    with penstock.connect(realm.listen().replace("://", "://alice:secret@")) as session:
        assert session.access.me().user == "alice"


@pytest.mark.spec("A4")
def test_a_stranger_writes_no_lines_of_its_own_into_the_log(realm: penstock.Realm) -> None:
    first = ("n,,n=a\nb\x1b[2J" + "x" * 999 + ",r=nonce").encode()
    with structlog.testing.capture_logs() as lines, stranger_of(realm) as stranger:
        stranger.sendall(
            PREFACE
            + framed(wire.Hello("c", "s", "", token="", mechanism="SCRAM-SHA-256", data=first))
        )
        assert b",s=" in stranger.recv(65_536)
        stranger.sendall(framed(wire.Proof(b"c=biws,r=no,p=AAAA")))
        assert b"authentication-failed" in all_of(stranger)

    [line] = [entry for entry in lines if entry["event"] == "access.sign_in_refused"]
    assert str(line["user"]).isprintable()
    assert len(str(line["user"])) < 200


@pytest.mark.spec("A3")
def test_numbers_do_not_reveal_the_names_of_hidden_stores(realm: penstock.Realm) -> None:
    with realm.connect() as trusted:
        hidden = trusted.channels.create("hidden/merger")
        number = hidden.number
    requests: list[Request[Any]] = [
        CommitStages(number, "p", 1, stages=("none",)),
        Locate(number, 0, 1),
        LocateTable(number),
        LocateSealedTable(number, 0, 1),
        PurgeChannel(number, 0, 0),
        DescribeDurable(number, "d"),
        DescribeDelivery(number, 1, states=("dead",)),
        Subscribe(number, 1, FromEarliest(), credit=1),
        BeginTransaction("t", (number,)),
        CommitStagedParts("p", 1, ((number, ("none",)),)),
    ]
    with penstock.connect(realm.listen().replace("://", "://alice:secret@")) as session:
        for request in requests:
            with pytest.raises(AccessDenied) as caught:
                ask(session, request)
            assert "merger" not in str(caught.value), request
            assert "lacks '" in str(caught.value)


@pytest.mark.spec("A3", "D23")
@pytest.mark.parametrize("kind", ["channels", "queues"])
def test_dead_events_are_shown_only_to_readers_of_their_store(
    realm: penstock.Realm, kind: str
) -> None:
    with realm.connect() as trusted:
        getattr(trusted, kind).create("morgue")
        orders = trusted.channels.create("orders", dead_event_store="morgue")
        trusted.access.grant("alice@*", "durable", channel="orders")
        orders.durables.create("team")
        orders.publish(b"a secret", properties={"n": 1})
        with orders.durables.get("team").subscribe() as subscription:
            next(iter(subscription)).reject("a secret reason")
    number = orders.number
    requests = [
        DescribeDelivery(number, 10, states=("dead",)),
        DescribeDelivery(number, 10, states=("ready", "dead")),
        # As if the first page had been answered, with or without the state.
        DescribeDelivery(number, 10, states=("dead",), among_dead=True),
        DescribeDelivery(number, 10, among_dead=True),
        DescribeDelivery(number, 10, states=(), among_dead=True, first_id=2**40),
    ]
    right = "subscribe" if kind == "channels" else "peek"
    with penstock.connect(realm.listen().replace("://", "://alice:secret@")) as session:
        for request in requests:
            with pytest.raises(AccessDenied, match=f"lacks '{right}' on [a-z]+ morgue"):
                ask(session, request)
        for states in ((), ("ready",)):
            page = ask(session, DescribeDelivery(number, 10, states=states))
            assert page == {"runs": [], "next": None}
        with realm.connect() as trusted:
            trusted.access.grant("alice@*", right, **{kind.removesuffix("s"): "morgue"})
        (row,) = session.delivery_state("orders", states=["dead"]).to_pylist()

    assert (row["event_id"], row["durable"], row["cause"]) == (0, "team", "rejected")
    assert "secret" not in str(row)


@pytest.mark.spec("A3")
def test_a_refusal_does_not_reveal_whether_a_name_exists(realm: penstock.Realm) -> None:
    with realm.connect() as trusted:
        trusted.access.grant("alice@*", "realm")
        trusted.channels.create("dead")
        trusted.access.grant("alice@*", "full", channel="dead")
        trusted.channels.create("secret")
        trusted.queues.create("hidden")
    with penstock.connect(realm.listen().replace("://", "://alice:secret@")) as session:
        for tried in (
            lambda name: session.redrive(name),
            lambda name: session.redrive("dead", name),
            lambda name: session.joins.create("dead", name),
            lambda name: session.joins.create(name, "dead"),
        ):
            for name in ("secret", "hidden", "nowhere"):
                with pytest.raises(AccessDenied, match=f"lacks '[a-z]+' on channel {name};"):
                    tried(name)


@pytest.mark.spec("A3", "J5")
def test_another_user_cannot_take_the_place_of_a_lost_session(realm: penstock.Realm) -> None:
    listener = realm.listener
    assert listener is not None
    with realm.connect(user="alice"), realm.connect(user="admin"):
        places = set()
        for connection in listener.connections:
            assert isinstance(connection, Connection)
            connection.session = "the very same"  # sessions are shown to whoever sees a durable
            assert connection.requests is not None
            places.add(connection.requests.place_of(1))

    assert len(places) == 2


def stranger_of(realm: penstock.Realm) -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", int(realm.listen().rpartition(":")[2])), timeout=10
    )


def framed(message: wire.Message) -> bytes:
    return b"".join(map(bytes, frame(wire.encode(message))))


def all_of(plain: socket.socket) -> bytes:
    received = b""
    while part := plain.recv(65_536):
        received += part
    return received


@pytest.mark.spec("A4")
def test_events_are_not_published_to_a_remote_realm_that_demands_no_proof() -> None:
    far = SigningIn(parse_url("penstock://alice:secret@192.0.2.1:9"))
    near = SigningIn(parse_url("penstock://alice:secret@127.0.0.1:9"))
    safe = SigningIn(parse_url("penstocks://alice:secret@192.0.2.1:9"))

    with pytest.raises(AuthenticationFailed, match="could not prove"):
        asyncio.run(welcomed_at_once(far, FAR))
    asyncio.run(welcomed_at_once(near, NEAR))
    asyncio.run(welcomed_at_once(safe, FAR))


@pytest.mark.spec("A4")
def test_a_local_node_does_not_send_unencrypted_events_to_a_remote_one() -> None:
    """A node of a cluster names the others, and a session goes there, too."""
    proving = SigningIn(parse_url("penstock://alice:secret@127.0.0.1:9"))
    showing = SigningIn(parse_url("penstock://alice@127.0.0.1:9"), "a token")
    safe = SigningIn(parse_url("penstocks://alice@127.0.0.1:9"), "a token")

    with pytest.raises(AuthenticationFailed, match="could not prove"):
        asyncio.run(welcomed_at_once(proving, FAR))
    with pytest.raises(InvalidArgument, match=r"unencrypted to 192\.0\.2\.1:9"):
        asyncio.run(welcomed_at_once(showing, FAR))
    asyncio.run(welcomed_at_once(showing, NEAR))
    asyncio.run(welcomed_at_once(safe, FAR))


async def welcomed_at_once(signing_in: SigningIn, at: Address) -> None:
    """A realm that accepts every client, or that pretends to be another realm."""
    greeting: asyncio.Future[wire.Welcome] = asyncio.get_running_loop().create_future()
    greeting.set_result(wire.Welcome("id", "name", "1", event_bytes_max=1, frame_bytes_max=1))
    await signing_in.say_hello(Link(Nobody()), at, "session", greeting=greeting)


class Nobody:
    def received(self, link: Link, message: wire.FromServer, body: memoryview) -> None:
        raise AssertionError("nothing is said")

    def lost(self, link: Link, reason: BaseException | None) -> None:
        raise AssertionError("there was no connection")
