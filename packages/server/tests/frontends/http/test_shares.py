"""No user can use all live views, or all answers, of a realm: each one has a share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import penstock
from packages.client.tests.patience import eventually
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.known import ANN, Known
from penstock_core.access.rights import ANONYMOUS, Principal
from penstock_core.vocabulary.errors import LimitReached
from penstock_server.frontends.http.shares import Shares
from tests.access.realms import QUICK

BOB = "secret of bob"


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
def realm(settings: dict[str, Any]) -> Iterator[penstock.Realm]:
    with penstock.Realm(access__mode="mandatory", **QUICK, **settings) as running:
        with running.connect() as root:
            root.channels.create("orders")
            for user, password in (("ann", ANN), ("bob", BOB)):
                root.access.create_user(user, password)
                root.access.grant(f"{user}@*", "access", "admin")
                root.access.grant(f"{user}@*", "subscribe", channel="orders")
        yield running


@pytest.fixture
def bob(web: Web) -> Known:
    return Known(web.url, "bob", BOB)


@pytest.fixture
def ann(web: Web) -> Known:
    return Known(web.url, "ann", ANN)


def views(user: Known, count: int, stack: ExitStack) -> None:
    for _ in range(count):
        opened = user.watching("channels/orders/live", headers=user.own_headers)
        stack.enter_context(opened)


@pytest.mark.parametrize(
    "settings", [{"http__viewers_per_user_max": 2, "http__viewers_max": 3}], ids=["2 of 3"]
)
def test_one_user_does_not_take_all_live_views(ann: Known, bob: Known) -> None:
    with ExitStack() as stack:
        views(ann, 2, stack)

        refused = ann.ask("GET", "channels/orders/live")
        assert (refused.status, refused.code) == (429, "limit-reached")
        assert "ann already has 2 live views or streams open" in refused.reason
        assert "http.viewers_per_user_max" in refused.reason
        views(bob, 1, stack)
        assert bob.ask("GET", "channels/orders/live").status == 503, "all three are taken"
    with ExitStack() as stack:  # those that were closed are free again
        eventually(lambda: "penstock_http_views 0.0" in ann.ask("GET", "/metrics").data.decode())
        views(ann, 2, stack)


@pytest.mark.parametrize("settings", [{"http__requests_per_user_max": 3}], ids=["3"])
def test_one_user_does_not_take_all_requests_and_can_still_sign_in(ann: Known, bob: Known) -> None:
    with ExitStack() as stack:
        views(ann, 3, stack)

        refused = ann.ask("GET", "me")
        assert (refused.status, refused.code) == (429, "limit-reached")
        assert "http.requests_per_user_max" in refused.reason
        assert refused.headers["retry-after"] == "1"
        assert bob.ask("GET", "me").status == 200
        assert Web(ann.url).ask("POST", "login", {"user": "ann", "password": ANN}).status == 200
    eventually(lambda: ann.ask("GET", "me").status == 200)


@pytest.mark.parametrize("settings", [{"access__logins_per_user_max": 2}], ids=["2"])
def test_a_user_with_many_logins_ends_only_own_sessions(web: Web) -> None:
    def signed_in(user: str, password: str) -> dict[str, str]:
        reply = web.ask("POST", "login", {"user": user, "password": password})
        assert reply.status == 200
        return {"cookie": reply.headers["set-cookie"].partition(";")[0]}

    other_cookie = signed_in("bob", BOB)
    cookies = [signed_in("ann", ANN) for _ in range(3)]

    statuses = [
        web.ask("GET", "me", headers=headers).status for headers in (other_cookie, *cookies)
    ]
    assert statuses == [200, 401, 200, 200]


def test_strangers_share_with_those_from_where_they_come() -> None:
    shares = Shares(1, "views", "http.viewers_per_user_max")

    def stranger(host: str) -> Principal:
        return Principal(ANONYMOUS, host)

    with shares.one(stranger("2001:db8::1")):
        with pytest.raises(LimitReached, match=r"anonymous@2001:db8::/64 already has 1 views"):
            shares.one(stranger("2001:db8::2")).__enter__()
        with shares.one(stranger("10.0.0.1")), shares.one(Principal("ann", "10.0.0.1")):
            with pytest.raises(LimitReached):
                shares.one(Principal("ann", "10.0.0.2")).__enter__()
            assert len(shares) == 3
    assert len(shares) == 0


def test_without_authentication_there_are_no_users_to_share() -> None:
    with penstock.Realm(http__viewers_per_user_max=0, http__requests_per_user_max=1) as realm:
        web = Web(realm.listen_http())
        web.send("POST", "channels", {"name": "orders"})
        with web.watching("channels/orders/live"), web.watching("channels/orders/live"):
            assert web.get("me")["user"] == ANONYMOUS
