"""Permissions over HTTP: every route checks the realm's rules; sessions of the console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.known import ANN, Known
from penstock_core.api.operations import OPERATIONS
from penstock_server.frontends.http.routes import TABLE

OPEN = {"login", "openapi.json", "iceberg/v1/oauth/tokens"}


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__password_length_min=1,
        access__failure_delay_s=0.01,
    ) as running:
        yield running


def test_every_route_asks_for_an_operation_there_is() -> None:
    assert {route.operation for route in TABLE.routes} <= set(OPERATIONS)
    assert {route.path for route in TABLE.routes if route.is_open} == OPEN


def test_requests_without_authentication_are_refused(web: Web) -> None:
    for route in TABLE.routes:
        if not route.is_open:
            reply = web.ask(route.method, route.path.replace("{", "").replace("}", ""))

            assert reply.status == 401, route
            code = "authentication-failed" if route.refusal_of is None else "401"
            assert reply.code == code, route
    assert web.ask("GET", "/metrics").status == 401
    assert web.get("/ready") == {"status": "ok"}


def test_a_wrong_password_is_refused(web: Web, admin: Known) -> None:
    assert Known(web.url, "admin", "wrong").ask("GET", "me").status == 401
    assert Known(web.url, "nobody", "wrong").ask("GET", "me").status == 401
    assert web.ask("GET", "me", headers={"authorization": "Basic !"}).status == 400
    assert web.ask("GET", "me", headers={"authorization": "Bearer no.token.here"}).status == 401
    assert "basic" in web.ask("GET", "me").headers["www-authenticate"].lower()
    assert admin.get("me")["rights"]


def test_rights_are_listed_by_name(admin: Known, ann: Known) -> None:
    admin.send("POST", "channels", {"name": "orders"})
    admin.send("POST", "channels", {"name": "mine"})

    assert ann.get("channels")["items"] == []
    for method, path, body in (
        ("GET", "channels/orders", None),
        ("GET", "channels/orders/events", None),
        ("GET", "channels/orders/live", None),
        ("POST", "channels/orders/events", {"data": "x"}),
        ("POST", "channels/orders/purge", {}),
        ("POST", "channels", {"name": "other"}),
        ("GET", "rates", None),
        ("GET", "history", None),
        ("GET", "users", None),
        ("GET", "audit", None),
        ("GET", "/metrics", None),
    ):
        reply = ann.ask(method, path, body)
        assert (reply.status, reply.code) == (403, "access-denied"), path

    rights = {"kind": "channel", "name": "orders", "subject": "ann@*", "rights": ["publish"]}
    admin.send("POST", "acl/grant", rights)
    assert ann.send("POST", "channels/orders/events", {"data": "x"})["count"] == 1
    assert [item["name"] for item in ann.get("channels")["items"]] == ["orders"]
    assert ann.ask("GET", "channels/orders/events").status == 403
    admin.send("POST", "acl/revoke", {**rights, "rights": []})
    assert ann.ask("POST", "channels/orders/events", {"data": "x"}).status == 403


@pytest.mark.spec("A2")
@pytest.mark.parametrize("kind", ["channel", "queue"])
def test_a_monitor_sees_columns_of_events_but_no_events(
    realm: penstock.Realm, admin: Known, ann: Known, kind: str
) -> None:
    admin.send("POST", f"{kind}s", {"name": "orders"})
    admin.send("POST", f"{kind}s/orders/events", {"data": "x", "properties": {"price": 9.5}})
    columns = f"{kind}s/orders/columns"
    assert ann.ask("GET", columns).code == "access-denied"

    admin.send("POST", "acl/grant", {"kind": "realm", "subject": "ann@*", "rights": ["monitor"]})
    address = realm.listen().removeprefix("penstock://")
    with penstock.connect(f"penstock://ann:{ANN.replace(' ', '%20')}@{address}") as session:
        of_kind = session.channels if kind == "channel" else session.queues
        schema = of_kind.get("orders").columns()

    assert {"name": "properties", "type": "struct<price: double>"} in ann.get(columns)["items"]
    assert str(schema.field("properties").type) == "struct<price: double>"
    for path in ("events", "events/0", "dead", "storage"):
        assert ann.ask("GET", f"{kind}s/orders/{path}").code == "access-denied", path


def test_rights_for_the_effects_of_a_request_are_checked(admin: Known, ann: Known) -> None:
    admin.send("POST", "channels", {"name": "dead"})
    grant = {"kind": "realm", "subject": "ann@*", "rights": ["channels", "realm"]}
    admin.send("POST", "acl/grant", grant)

    buried = {"name": "orders", "attributes": {"dead_event_store": "dead"}}
    assert ann.ask("POST", "channels", buried).code == "access-denied"
    assert ann.send("POST", "channels", {"name": "orders"})["name"] == "orders"
    assert ann.ask("PATCH", "channels/orders", {"dead_event_store": "dead"}).status == 403
    joined = {"source": "orders", "destination": "dead"}
    assert ann.ask("POST", "joins", joined).code == "access-denied"
    assert ann.ask("POST", "redrive", {"source": "dead"}).code == "access-denied"


def test_acts_are_recorded_with_their_principal(admin: Known, ann: Known) -> None:
    admin.send("POST", "channels", {"name": "orders"})
    ann.ask("DELETE", "channels/orders")

    newest = [
        *admin.get("audit", kind="refusals", limit=1)["items"],
        *admin.get("audit", limit=1)["items"],
    ]

    assert [(item["operation"], item["target"], item["outcome"]) for item in newest] == [
        ("channel.delete", "orders", "access-denied"),
        ("channel.create", "orders", "done"),
    ]
    assert newest[0]["principal"] == "ann@127.0.0.1"


def test_a_view_ends_when_its_right_does(admin: Known, ann: Known) -> None:
    admin.send("POST", "channels", {"name": "orders"})
    rights = {"kind": "channel", "name": "orders", "subject": "ann@*", "rights": ["subscribe"]}
    admin.send("POST", "acl/grant", rights)
    with ann.watching("channels/orders/live", headers=ann.own_headers) as events:
        admin.send("POST", "acl/revoke", {**rights, "rights": []})

        [(name, why)] = list(events)

    assert (name, why["code"]) == ("end", "access-denied")


@pytest.mark.spec("D21", "A2")
def test_a_view_of_a_pattern_shows_channels_while_they_may_be_read(
    admin: Known, ann: Known
) -> None:
    def allow(channel: str, *rights: str) -> None:
        entry = {"kind": "channel", "name": channel, "subject": "ann@*", "rights": [*rights]}
        admin.send("POST", "acl/grant" if rights else "acl/revoke", entry)

    def publish(channel: str) -> None:
        admin.send("POST", f"channels/{quote(channel, safe='')}/events", {"data": channel})

    for name in ("a/hidden", "a/open", "a/other"):
        admin.send("POST", "channels", {"name": name})
    allow("a/open", "subscribe")
    with ann.watching("live", headers=ann.own_headers, pattern="a/*") as events:
        publish("a/hidden")
        publish("a/open")
        first = next(events)[1]["data"]
        allow("a/other", "subscribe")
        publish("a/other")
        second = next(events)[1]["data"]
        allow("a/open")
        publish("a/open")
        publish("a/other")
        third = next(events)[1]["data"]

    assert (first, second, third) == ("a/open", "a/other", "a/other")


def test_the_console_logs_in_changes_things_with_its_token_and_logs_out(
    web: Web, ann: Known
) -> None:
    wrong = web.ask("POST", "login", {"user": "ann", "password": "wrong"})
    opened = web.ask("POST", "login", {"user": "ann", "password": ANN})
    cookie = opened.headers["set-cookie"]
    own_cookie = {"cookie": cookie.partition(";")[0]}
    token = {**own_cookie, "x-csrf-token": opened.document["csrf"]}

    assert wrong.status == 401
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert web.ask("GET", "me", headers=own_cookie).document["csrf"] == opened.document["csrf"]
    assert web.ask("POST", "logout", headers=own_cookie).code == "access-denied"
    assert web.ask("GET", "me", headers=own_cookie).status == 200
    assert web.ask("POST", "logout", headers=token).status == 200
    assert web.ask("GET", "me", headers=own_cookie).status == 401


def test_users_and_groups_are_made_changed_and_removed(admin: Known, web: Web) -> None:
    made = admin.send("POST", "users", {"name": "bob"})
    group = admin.send("POST", "groups", {"name": "ops", "members": ["bob"]})
    admin.send("POST", "acl/grant", {"kind": "realm", "subject": "group:ops", "rights": ["access"]})
    bob = Known(web.url, "bob", made["password"])

    assert group == {"name": "ops", "members": ["bob"]}
    assert bob.get("me")["groups"] == ["ops"]
    assert bob.send(
        "POST", "me/password", {"password": "another one", "old": made["password"]}
    ) == {"done": True}
    assert bob.ask("GET", "me").status == 401
    bob = Known(web.url, "bob", "another one")
    assert bob.get("me")["user"] == "bob"
    assert admin.send("PATCH", "groups/ops", {"remove": ["bob"]})["members"] == []
    assert bob.ask("GET", "me").code == "access-denied"
    assert admin.send("DELETE", "groups/ops") == {"done": True}
    assert admin.send("DELETE", "users/bob") == {"done": True}
    assert [user["name"] for user in admin.get("users")["items"]] == ["admin"]
    assert any(item["subject"] == "admin@*" for item in admin.get("acl", kind="realm")["items"])


def test_signing_in_outlives_a_restart_and_signing_out_does_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "access__mode": "mandatory",
        "access__password_rounds": 4_096,
        "access__password_length_min": 1,
    }
    cookies, tokens = {}, {}
    with penstock.Realm(tmp_path / "data", **settings) as realm:
        web = Web(realm.listen_http())
        admin = Known(web.url, "admin", realm.access.first_password)
        for user in ("ann", "bob", "eve"):
            admin.send("POST", "users", {"name": user, "password": ANN})
            granted = {"kind": "realm", "subject": f"{user}@*", "rights": ["access"]}
            admin.send("POST", "acl/grant", granted)
        for name in ("ann", "ann, who signs out", "bob", "eve"):
            login = {"user": name.partition(",")[0], "password": ANN}
            reply = web.ask("POST", "login", login, headers={"host": "localhost"})
            cookies[name] = reply.headers["set-cookie"].partition(";")[0]
            tokens[name] = reply.document["csrf"]
        out = {"cookie": cookies["ann, who signs out"], "host": "localhost"}
        out["x-csrf-token"] = tokens["ann, who signs out"]
        assert web.ask("POST", "logout", headers=out).status == 200
        admin.send("POST", "users/bob/password", {"password": ANN})
        admin.ask("DELETE", "users/eve")
        admin.send("POST", "users", {"name": "eve", "password": ANN})

    with penstock.Realm(tmp_path / "data", **settings) as realm:
        web = Web(realm.listen_http())
        for name, cookie in cookies.items():
            reply = web.ask("GET", "me", headers={"cookie": cookie, "host": "localhost"})
            assert reply.status == (200 if name == "ann" else 401), name
        changes = {"old": ANN, "password": "another"}
        ann = {"cookie": cookies["ann"], "host": "localhost"}
        assert web.ask("POST", "me/password", changes, headers=ann).code == "access-denied"
        ann["x-csrf-token"] = tokens["ann"]
        assert web.ask("POST", "me/password", changes, headers=ann).status == 200
        assert web.ask("GET", "me", headers=ann).status == 401
