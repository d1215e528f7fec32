"""Requests that need several rights: all of them, and none of them tells by itself what is there
(SEM A2, A3). The rows of the matrix that its single rights do not show."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.vocabulary.errors import AccessDenied, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.frontends import http
from tests.access.composed import CASES, FULL, Right
from tests.access.realms import QUICK, requests_in
from tests.asking import ask

pytestmark = pytest.mark.spec("A2", "A3")


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
            trusted.access.grant("alice@*", right, **_channel_field(where))
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
                trusted.access.revoke("alice@*", right, **_channel_field(where))
    return ""


def _channel_field(where: str) -> dict[str, str]:
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
