"""Creations, deletions, connections and sign-ins are logged over every protocol."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.known import Known
from penstock_server.logs import configure

PASSWORD = "secret"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Return the lines that a server has logged."""
    handlers, level, chosen = logging.root.handlers[:], logging.root.level, structlog.get_config()
    out = io.StringIO()
    configure("info", "json", out)
    yield out
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.configure(**chosen)


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(
        access__mode="mandatory", access__password_rounds=4_096, access__password_length_min=1
    ) as running:
        with running.connect() as session:
            for user in ("ann", "bea"):
                session.access.create_user(user, PASSWORD)
                session.access.grant(f"{user}@*", "full")
        yield running


def lines_of(log: io.StringIO, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    hidden = ("event", "level", "timestamp")
    return [
        {key: value for key, value in line.items() if key not in hidden}
        for line in lines
        if line["event"] == event
    ]


def named(log: io.StringIO, event: str) -> list[str]:
    return [line["name"] for line in lines_of(log, event)]


def test_creations_and_deletions_are_logged(realm: penstock.Realm, log: io.StringIO) -> None:
    with realm.connect() as session:
        log.truncate(0)
        log.seek(0)
        orders = session.channels.create("orders")
        session.queues.create("work")
        orders.durables.create("billing")
        session.joins.create("orders", "work")
        session.access.create_user("bob", PASSWORD)
        session.joins.delete("orders", "work")
        orders.durables.delete("billing")
        session.channels.delete("orders")
        session.queues.delete("work")
        session.access.delete_user("bob")

    assert named(log, "store.created") == ["orders", "work"]
    assert named(log, "store.deleted") == ["orders", "work"]
    assert named(log, "durable.created") == named(log, "durable.deleted") == ["billing"]
    join = [{"source": "orders", "destination": "work"}]
    assert lines_of(log, "join.created") == lines_of(log, "join.deleted") == join
    assert named(log, "user.created") == named(log, "user.deleted") == ["bob"]


def test_connections_and_their_ends_are_logged(realm: penstock.Realm, log: io.StringIO) -> None:
    address = realm.listen().removeprefix("penstock://")

    with penstock.connect(f"penstock://ann:{PASSWORD}@{address}"):
        pass
    realm.close()

    (opened,), (closed,) = lines_of(log, "connection.opened"), lines_of(log, "connection.closed")
    assert (opened["user"], opened["protocol"]) == ("ann@127.0.0.1", "native")
    assert (closed["connection"], closed["user"]) == (opened["connection"], opened["user"])
    assert closed["lasted_s"] >= 0


def test_sign_ins_over_http_are_logged(realm: penstock.Realm, log: io.StringIO) -> None:
    url = realm.listen_http()

    Known(url, "ann", PASSWORD).get("me")
    Web(url).send("POST", "login", {"user": "bea", "password": PASSWORD})
    Known(url, "ann", "wrong").ask("GET", "me")
    realm.close()

    noted = [line for line in lines_of(log, "audit.noted") if line["operation"] == "sign_in"]
    ways = [(line["principal"], line["outcome"], line.get("detail_how")) for line in noted]
    assert ("ann@127.0.0.1", "done", "http") in ways
    assert ("bea@127.0.0.1", "done", "console") in ways
    assert ("ann@127.0.0.1", "authentication-failed", "password") in ways
    assert [line["user"] for line in lines_of(log, "access.sign_in_refused")] == ["ann"]
