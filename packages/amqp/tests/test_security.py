"""Sign-in and access rights of AMQP clients: the accounts and rights of the realm (SEM A)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from proton import Endpoint, Message
from proton.utils import BlockingConnection, LinkDetached, SendException

import penstock
from packages.amqp.tests.clients import WAIT_S, Client, Source, texts
from penstock_amqp.wire import sasl
from penstock_amqp.wire.types import Symbol, encode

QUICK: dict[str, Any] = {
    "access__password_rounds": 4_096,
    "access__password_length_min": 1,
    "access__failure_delay_s": 0.0,
}


@pytest.fixture
def guarded() -> Iterator[penstock.Realm]:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as root:
            root.queues.create("jobs")
            root.access.create_user("ann", "secret")
            root.access.grant("ann@*", "access")
        yield realm


def as_user(url: str, user: str, password: str, **more: Any) -> BlockingConnection:
    return BlockingConnection(
        url.replace("//", f"//{user}:{password}@"), timeout=WAIT_S, sasl_enabled=True, **more
    )


@pytest.mark.spec("A3", "A4")
def test_a_user_signs_in_and_does_what_was_granted(guarded: penstock.Realm) -> None:
    url = guarded.listen_amqp()
    with guarded.connect() as root:
        root.access.grant("ann@*", "push", queue="jobs")
    connection = as_user(url, "ann", "secret", allowed_mechs="PLAIN")
    connection.create_sender("jobs").send(Message(body="a"))

    with pytest.raises(LinkDetached, match=r"access-denied.*'pop'"):
        connection.create_receiver("jobs", name="r")
    with pytest.raises(LinkDetached, match=r"access-denied.*'channels'"):
        connection.create_sender("another", name="s")
    connection.close()
    with guarded.connect() as root:
        event = root.queues.get("jobs").pop(5)
    assert event is not None
    assert event.headers["publisher"] == "ann"


@pytest.mark.spec("A4")
@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("ann", "wrong", "PLAIN"), ("bob", "secret", "PLAIN"), ("", "", "ANONYMOUS")],
)
def test_nobody_else_comes_in(
    guarded: penstock.Realm, user: str, password: str, mechanism: str
) -> None:
    url = guarded.listen_amqp()

    with pytest.raises(Exception, match=r"(?i)sasl|auth|mechanism"):
        as_user(url, user, password, allowed_mechs=mechanism)


@pytest.mark.spec("A4")
def test_who_does_not_sign_in_is_told_to(guarded: penstock.Realm) -> None:
    port = int(guarded.listen_amqp().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as raw:
        raw.sendall(sasl.PROTOCOL)

        assert raw.recv(100) == sasl.SASL_PROTOCOL
        assert raw.recv(100) == b""


@pytest.mark.spec("A4")
@pytest.mark.parametrize(
    ("wanted", "code"), [(b"", sasl.OK), (b"ann", sasl.OK), (b"root", sasl.AUTH)]
)
def test_nobody_acts_as_somebody_else(guarded: penstock.Realm, wanted: bytes, code: int) -> None:
    assert signed_in(guarded, "PLAIN", wanted + b"\0ann\0secret") == sasl.outcome(code)


def signed_in(realm: penstock.Realm, mechanism: str, response: bytes) -> bytes:
    """The outcome, as the realm has written it."""
    address = "127.0.0.1", int(realm.listen_amqp().rpartition(":")[2])
    init = sasl._frame(0x41, [encode(Symbol(mechanism)), encode(response)])
    with socket.create_connection(address, WAIT_S) as raw, raw.makefile("rb") as answer:
        raw.sendall(sasl.SASL_PROTOCOL + init)
        assert answer.read(len(sasl.SASL_PROTOCOL)) == sasl.SASL_PROTOCOL
        frames = []
        for _ in range(2):  # the mechanisms there are, and the outcome
            size = answer.read(4)
            frames.append(size + answer.read(int.from_bytes(size, "big") - 4))
        return frames[-1]


KEY = ec.generate_private_key(ec.SECP256R1())


def token(key: ec.EllipticCurvePrivateKey = KEY, **claims: Any) -> bytes:
    token_claims = {"iss": "sso", "aud": "penstock", "sub": "ann", "exp": 4_000_000_000, **claims}
    return jwt.encode(token_claims, key, algorithm="ES256", headers={"kid": "k"}).encode()


def bearer(user: bytes, shown: bytes) -> bytes:
    return b"user=" + user + b"\x01auth=Bearer " + shown + b"\x01\x01"


@pytest.fixture
def trusting(tmp_path: Path) -> Iterator[penstock.Realm]:
    """It takes tokens."""
    public_key = {**json.loads(ECAlgorithm.to_jwk(KEY.public_key())), "kid": "k", "alg": "ES256"}
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [public_key]}))
    tokens = {"token_keys": str(keys), "token_issuer": "sso", "token_audience": "penstock"}
    settings: dict[str, Any] = {f"access__{name}": value for name, value in tokens.items()}
    with penstock.Realm(access__mode="mandatory", **QUICK, **settings) as realm:
        with realm.connect() as root:
            root.access.grant("token:ann@*", "access")
        yield realm


@pytest.mark.spec("A4")
@pytest.mark.parametrize("user", [b"ann", b""])
def test_a_bearer_token_says_who_it_is(trusting: penstock.Realm, user: bytes) -> None:
    assert signed_in(trusting, "XOAUTH2", bearer(user, token())) == sasl.outcome(sasl.OK)


@pytest.mark.spec("A4")
@pytest.mark.parametrize(
    "response",
    [
        bearer(b"bob", token()),
        bearer(b"ann", token(exp=1_000)),
        bearer(b"ann", token(ec.generate_private_key(ec.SECP256R1()))),
        bearer(b"ann", b""),
        b"user=ann\x01auth=Basic x\x01\x01",
        b"\xff",
        b"",
    ],
    ids=["of somebody else", "too old", "forged", "none", "another kind", "no text", "nothing"],
)
def test_a_token_that_is_none_is_refused(trusting: penstock.Realm, response: bytes) -> None:
    assert signed_in(trusting, "XOAUTH2", response) == sasl.outcome(sasl.AUTH)


@pytest.mark.spec("A4")
def test_a_realm_that_takes_no_tokens_does_not_say_so(guarded: penstock.Realm) -> None:
    assert signed_in(guarded, "XOAUTH2", bearer(b"ann", token())) == sasl.outcome(sasl.AUTH)


@pytest.mark.spec("A3")
def test_a_right_that_is_taken_away_ends_what_lived_by_it(guarded: penstock.Realm) -> None:
    url = guarded.listen_amqp()
    with guarded.connect() as root:
        root.access.grant("ann@*", "push", queue="jobs")
        connection = as_user(url, "ann", "secret", allowed_mechs="PLAIN")
        sender = connection.create_sender("jobs")
        sender.send(Message(body="a"))

        root.access.revoke("ann@*", "push", queue="jobs")

        with pytest.raises((LinkDetached, SendException)):
            sender.send(Message(body="b"))
        connection.close()
        assert root.queues.get("jobs").pop(5) is not None
        assert root.queues.get("jobs").pop(0) is None


def test_without_authentication_everyone_is_who_they_say() -> None:
    with penstock.Realm() as realm:
        url = realm.listen_amqp()
        connection = as_user(url, "bob", "any", allowed_mechs="PLAIN")
        connection.create_sender("jobs").send(Message(body="a"))
        connection.close()

        with Client(url) as client:
            assert texts(client.receiver("jobs"), 1) == ["a"]


@pytest.mark.spec("A3")
def test_making_and_ending_a_durable_want_a_right_and_refusals_leave_all_as_it_was(
    guarded: penstock.Realm,
) -> None:
    with guarded.connect() as root:
        news = root.channels.create("news", engine="jms")
        connection = as_user(guarded.listen_amqp(), "ann", "secret", allowed_mechs="PLAIN")

        numbers = count()

        def attach() -> Any:
            options = Source("topic", "shared", "global", durable=True)
            name = f"kept|{next(numbers)}"  # what follows the line tells links apart
            return connection.create_receiver("news", name=name, options=options)

        root.access.grant("ann@*", "durable", channel="news")
        with pytest.raises(LinkDetached, match=r"access-denied.*'subscribe'"):
            attach()
        assert [durable.name for durable in news.durables.list()] == []

        root.access.revoke("ann@*", channel="news")
        root.access.grant("ann@*", "subscribe", channel="news")
        with pytest.raises(LinkDetached, match=r"access-denied.*'durable'"):
            attach()
        assert [durable.name for durable in news.durables.list()] == []

        news.durables.create("kept", type="shared")
        receiver = attach()
        receiver.link.close()
        connection.wait(lambda: receiver.link.state & Endpoint.REMOTE_CLOSED)
        assert receiver.link.remote_condition.description.startswith("access-denied")
        assert [durable.name for durable in news.durables.list()] == ["kept"]
        connection.close()
