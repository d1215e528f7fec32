"""Limits of HTTP requests: above them a client gets 429, and may continue later."""

from __future__ import annotations

import contextlib
import socket

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import LimitReached
from penstock_server.frontends.http.quotas import CLIENTS_MAX, Quotas
from penstock_server.runtime.access.quota import ConnectionLimits
from penstock_testing.stores import StillClock

ANN, BOB = Principal("ann", "localhost"), Principal("bob", "localhost")


def test_requests_above_the_rate_are_refused_with_a_wait() -> None:
    with penstock.Realm(limits__requests_per_s_max=5) as realm:
        web = Web(realm.listen_http())
        replies = [web.ask("GET", "realm") for _ in range(40)]
        refused = next(reply for reply in replies if reply.status != 200)

        assert (refused.status, refused.code) == (429, "limit-reached")
        assert refused.headers["retry-after"] == "1"
        assert "limits.requests_per_s_max" in refused.reason
        assert web.ask("GET", "/health").status == 200
        assert web.ask("GET", "/metrics").status == 200


def test_more_live_views_or_durables_than_allowed_are_refused() -> None:
    with (
        penstock.Realm(
            limits__subscriptions_per_connection_max=1, limits__durables_per_channel_max=1
        ) as realm,
        realm.connect() as session,
    ):
        web = Web(realm.listen_http())
        orders = session.channels.create("orders")
        with web.watching("channels/orders/live", start="earliest") as events:
            refused = web.ask("GET", "channels/orders/live")
            assert (refused.status, refused.code) == (429, "limit-reached")
            assert "limits.subscriptions_per_connection_max" in refused.reason
            orders.publish(b"x")
            assert next(events)[1]["data"] == "x"
        with web.watching("channels/orders/live", start="earliest") as events:
            assert next(events)[1]["data"] == "x"

        durables = [
            web.ask("POST", "channels/orders/durables", {"name": name, "type": "shared"})
            for name in "ab"
        ]
        assert [reply.status for reply in durables] == [201, 429]
        assert "limits.durables_per_channel_max" in durables[1].reason


def test_the_rate_is_counted_per_client() -> None:
    clock = StillClock()
    quotas = Quotas(ConnectionLimits(requests_per_s_max=2), clock)
    for _ in range(2):
        with quotas.asking(ANN):
            pass
    with pytest.raises(LimitReached, match="ann@localhost"), quotas.asking(ANN):
        pass
    with quotas.asking(BOB):
        pass


def test_bytes_in_flight_are_given_back_with_the_answer() -> None:
    quotas = Quotas(ConnectionLimits(in_flight_bytes_max=100), StillClock())
    with quotas.asking(ANN) as first, quotas.asking(ANN) as second:
        first(80)
        with pytest.raises(LimitReached, match=r"limits\.in_flight_bytes_max"):
            second(30)
        second(20)
    with quotas.asking(ANN) as again, quotas.asking(BOB) as others:
        again(500)  # one alone always passes
        others(80)


def test_only_so_many_are_remembered() -> None:
    quotas = Quotas(ConnectionLimits(requests_per_s_max=1), StillClock())
    with quotas.asking(ANN):
        pass
    for number in range(CLIENTS_MAX):
        with quotas.asking(Principal(f"user-{number}", "localhost")):
            pass

    with quotas.asking(ANN):
        pass


def test_events_that_are_too_many_in_flight_are_refused_before_they_are_sent() -> None:
    head = (
        "POST /api/v1/channels/orders/events HTTP/1.1\r\nhost: localhost\r\n"
        "content-type: application/json\r\ncontent-length: {}\r\n\r\n"
    )
    with penstock.Realm(limits__in_flight_bytes_max=1_000) as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        web = Web(realm.listen_http())
        data = b'{"data": "' + b"x" * 900 + b'"}'
        with socket.create_connection(web.address, 30) as first:
            first.sendall(head.format(len(data)).encode())
            first.sendall(data[:10])
            answer = b""
            while b"429" not in answer:  # before the first is known, one alone would be let in
                with socket.create_connection(web.address, 0.2) as second:
                    second.sendall(head.format(500).encode())
                    with contextlib.suppress(TimeoutError):
                        answer = second.recv(65_536)
            first.sendall(data[10:])
            assert b"201" in first.recv(65_536)

        assert b"connection: close" in answer
        assert b"limits.in_flight_bytes_max" in answer
        assert web.ask("POST", "channels/orders/events", {"data": "x"}).status == 201
        assert orders.info().events == 2
