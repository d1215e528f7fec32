"""Requests that need several rights: all of them, and none of them tells by itself what is there
(SEM A2, A3). The rows of the matrix that its single rights do not show."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.api.channels import EditChannel, PurgeChannel
from penstock_core.api.durables import CreateDurable, PurgeDurable
from penstock_core.api.joins import CreateJoin, Redrive
from penstock_core.api.publishing import CommitStagedParts
from penstock_core.api.requests import Request
from penstock_core.api.transactions import (
    BeginTransaction,
    CommitTransaction,
    Leaving,
    TransactionPart,
)
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import AccessDenied, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.frontends import http
from tests.access.realms import QUICK, requests_in
from tests.asking import ask

pytestmark = pytest.mark.spec("A2", "A3")

Right = tuple[str, str]
"""Where, and which."""
Native = Callable[[dict[str, ChannelId]], Request[Any]]

PURGE, READ, DURABLE = ("orders", "purge"), ("orders", "subscribe"), ("orders", "durable")
FULL, BURY = ("orders", "full"), ("dead", "publish")
TOPICS = ("mqtt", "full")

JOINS, PUBLISH = ("", "realm"), ("orders", "publish")

CASES: dict[str, tuple[tuple[Right, ...], Native, tuple[str, str, Any] | None]] = {
    "purge by selector": (
        (PURGE, READ),
        lambda n: PurgeChannel(n["orders"], 0, 0, selector="a = 1"),
        ("POST", "channels/orders/purge", {"selector": "a = 1"}),
    ),
    "dry run of a purge": (
        (PURGE, READ),
        lambda n: PurgeChannel(n["orders"], 0, 0, selector="a = 1"),
        ("POST", "channels/orders/purge", {"dry_run": True}),
    ),
    "purge of a durable by selector": (
        (DURABLE, READ),
        lambda n: PurgeDurable(n["orders"], "kept", 0, last_id=0, selector="a = 1"),
        ("POST", "channels/orders/durables/kept/purge", {"selector": "a = 1"}),
    ),
    "a durable with a selector": (
        (DURABLE, READ),
        lambda n: CreateDurable(
            n["orders"], "kept", "shared", start=FromEarliest(), selector="a = 1"
        ),
        ("POST", "channels/orders/durables", {"name": "kept", "selector": "a = 1"}),
    ),
    "redrive by selector": (
        (PURGE, READ),
        lambda n: Redrive("orders", "", "a = 1"),
        ("POST", "redrive", {"source": "orders", "selector": "a = 1"}),
    ),
    "dry run of a redrive": (
        (PURGE, READ),
        lambda n: Redrive("orders", "", "", dry_run=True),
        ("POST", "redrive", {"source": "orders", "dry_run": True}),
    ),
    "redrive to a named destination": (
        (PURGE, READ, BURY),
        lambda n: Redrive("orders", "dead"),
        ("POST", "redrive", {"source": "orders", "destination": "dead"}),
    ),
    "another dead event store": (
        (FULL, BURY),
        lambda n: EditChannel("orders", Definition(dead_event_store="dead")),
        ("PATCH", "channels/orders", {"dead_event_store": "dead"}),
    ),
    "topics of MQTT": (
        (FULL, TOPICS),
        lambda n: EditChannel("orders", Definition(topics=("a/#",))),
        ("PATCH", "channels/orders", {"topics": ["a/#"]}),
    ),
    "a join": (
        (JOINS, READ, BURY),
        lambda n: CreateJoin("orders", "dead"),
        ("POST", "joins", {"source": "orders", "destination": "dead"}),
    ),
    "a transaction over two channels": (
        (PUBLISH, BURY),
        lambda n: BeginTransaction("both", (n["orders"], n["dead"])),
        None,
    ),
    "a commit to two channels": (
        (PUBLISH, BURY),
        lambda n: CommitTransaction(
            "both", (TransactionPart(n["orders"], 0, ()), TransactionPart(n["dead"], 0, ()))
        ),
        None,
    ),
    "a commit of stages of two channels": (
        (PUBLISH, BURY),
        lambda n: CommitStagedParts("both", 1, ((n["orders"], ("a",)), (n["dead"], ("b",)))),
        None,
    ),
    "a commit that takes from another channel": (
        (PURGE, BURY),
        lambda n: CommitTransaction(
            "both", (TransactionPart(n["dead"], 0, ()),), (Leaving(n["orders"], (), ()),)
        ),
        None,
    ),
}
"""Requests that take several rights: which, natively, and over HTTP; None: HTTP has it not."""
TRIED = [(case, "native") for case in CASES] + [
    (case, "http") for case, (*_, http_request) in CASES.items() if http_request is not None
]


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as session:
            session.channels.create("mqtt")
            session.channels.create("dead")
            session.channels.create("orders").durables.create("kept", type="shared")
            session.access.create_user("alice", "secret")
            session.access.grant("alice@*", "access")
        yield realm


def outcome(realm: penstock.Realm, case: str, front_end: str, rights: tuple[Right, ...]) -> str:
    """Code of the refusal for want of a right, or empty."""
    _, native, http_request = CASES[case]
    with realm.connect() as trusted:
        for where, right in rights:
            trusted.access.grant("alice@*", right, **_at(where))
        numbers = {n: trusted.channels.get(n).number for n in ("orders", "dead")}
    try:
        if front_end == "native":
            url = realm.listen().replace("://", "://alice:secret@")
            with penstock.connect(url) as session:
                ask(session, native(numbers))
        elif http_request is not None:
            secret = base64.b64encode(b"alice:secret").decode()
            headers = {"authorization": f"Basic {secret}"}
            reply = Web(realm.listen_http()).ask(*http_request, headers=headers)
            return "access-denied" if reply.status == 403 else ""
    except AccessDenied as error:
        return error.code
    except PenstockError:
        return ""  # whatever else is against it
    finally:
        with realm.connect() as trusted:
            for where, right in rights:
                trusted.access.revoke("alice@*", right, **_at(where))
    return ""


def _at(where: str) -> dict[str, str]:
    return {"channel": where} if where else {}


@pytest.mark.parametrize(("case", "front_end"), TRIED)
def test_a_request_needs_every_right_it_names(
    realm: penstock.Realm, case: str, front_end: str
) -> None:
    rights = CASES[case][0]
    for left_out in rights:
        fewer = tuple(right for right in rights if right != left_out)
        assert outcome(realm, case, front_end, rights=fewer) == "access-denied", (
            f"without {left_out}"
        )

    assert outcome(realm, case, front_end, rights=rights) == ""


def test_http_has_no_routes_for_the_native_only_requests() -> None:
    numbers = {"orders": ChannelId(1), "dead": ChannelId(2)}
    only_native = {
        type(native(numbers)) for _, native, http_request in CASES.values() if http_request is None
    }

    assert only_native
    assert not only_native & requests_in(http)


@pytest.mark.parametrize("front_end", ["native", "http"])
def test_naming_a_dead_event_store_does_not_reveal_whether_it_exists(
    realm: penstock.Realm, front_end: str
) -> None:
    assert outcome(realm, "another dead event store", front_end, rights=(FULL,)) == "access-denied"
    with realm.connect() as trusted:
        trusted.channels.delete("dead")
        trusted.channels.create("elsewhere")
    with realm.connect() as trusted:
        trusted.access.grant("alice@*", "full", channel="orders")
    secret = base64.b64encode(b"alice:secret").decode()
    reply = Web(realm.listen_http()).ask(
        "PATCH",
        "channels/orders",
        {"dead_event_store": "dead"},
        headers={"authorization": f"Basic {secret}"},
    )

    assert (reply.status, reply.code) == (403, "access-denied")


def test_the_right_to_create_channels_allows_nothing_on_channels_of_others(
    realm: penstock.Realm,
) -> None:
    with realm.connect() as trusted:
        trusted.access.grant("alice@*", "channels")
    with penstock.connect(realm.listen().replace("://", "://alice:secret@")) as session:
        owned = session.channels.create("own")
        owned.edit(ttl=5)
        session.channels.delete("own")
        with pytest.raises(AccessDenied, match="lacks 'full' on channel orders"):
            session.channels.get("orders").edit(ttl=5)
        with pytest.raises(AccessDenied, match="lacks 'full' on channel orders"):
            session.channels.delete("orders")
