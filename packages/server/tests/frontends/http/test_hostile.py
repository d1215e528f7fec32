"""Hostile HTTP peers: each is refused or dropped in time, without effects on other clients."""

from __future__ import annotations

import contextlib
import gzip
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web, part

LIMITS: dict[str, Any] = {
    "http__head_timeout_s": 1.0,
    "http__body_timeout_s": 0.2,
    "http__send_timeout_s": 1.0,
    "http__body_bytes": 4_096,
}


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(**LIMITS) as running:
        yield running


def read_to_end(peer: socket.socket) -> bytes:
    """Everything the server says until it closes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := peer.recv(65_536):
            received += more
    return received


def test_a_silent_peer_is_dropped(web: Web) -> None:
    with web.raw() as peer:
        assert read_to_end(peer) == b""


def test_a_peer_that_never_ends_its_headers_is_dropped(web: Web) -> None:
    with web.raw() as peer:
        peer.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")

        assert read_to_end(peer) == b""


def test_a_peer_that_asks_and_then_begins_again_for_ever_is_dropped(web: Web) -> None:
    with web.raw() as peer:
        peer.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /health HT")

        assert read_to_end(peer).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_come_is_not_waited_for(web: Web) -> None:
    with web.raw() as peer:
        peer.sendall(
            b"POST /api/v1/channels HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )

        assert read_to_end(peer).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "length", [b"content-length: 5000", b"transfer-encoding: chunked"], ids=["told", "chunked"]
)
def test_a_body_that_is_too_large_is_refused(web: Web, length: bytes) -> None:
    with web.raw() as peer:
        peer.sendall(
            b"POST /api/v1/channels HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\n" + length + b"\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):
            peer.sendall(b"1388\r\n" + b"x" * 5_000 + b"\r\n0\r\n\r\n")

        assert read_to_end(peer).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "request_",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 2_000_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: [::1]evil\r\n\r\n",
        b"POST /api/v1/channels HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/v1/channels HTTP/1.0\r\nhost: localhost\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["noise", "version", "headers", "length", "hosts", "bracket", "two lengths", "old"],
)
def test_data_that_is_not_http_is_refused(web: Web, request_: bytes) -> None:
    with web.raw() as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(request_)

        assert read_to_end(peer)[:10] in (b"", b"HTTP/1.1 4")
    assert web.get("/health") == {"status": "ok"}


def test_of_more_connections_than_there_may_be_those_go_that_were_waited_for_longest() -> None:
    with (
        penstock.Realm(http__connections_max=3) as realm,
        realm.connect() as session,
        contextlib.ExitStack() as peers,
    ):
        web = Web(realm.listen_http())
        opened = [peers.enter_context(web.raw()) for _ in range(5)]

        assert [_is_dropped_at_once(peer) for peer in opened] == [True] * 2 + [False] * 3
        assert session.channels.create("orders").publish(b"x") == 0


HALVES = {
    "heads": b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ",
    "bodies": b"POST /api/v1/channels HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    "logins": b"POST /api/v1/login HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("per_address", [16, 1_000], ids=["its share", "all places"])
@pytest.mark.parametrize("half", HALVES)
def test_incomplete_requests_do_not_block_other_clients(half: str, per_address: int) -> None:
    with (
        penstock.Realm(
            http__connections_max=32, http__connections_per_address_max=per_address
        ) as realm,
        contextlib.ExitStack() as peers,
    ):
        web = Web(realm.listen_http())
        for _ in range(32):
            peers.enter_context(web.raw()).sendall(HALVES[half])

        assert web.ask("GET", "/health").status == 200
        assert web.ask("GET", "/metrics").status == 200
        assert web.get("realm")["name"] == "penstock"


def test_while_every_place_is_busy_one_may_still_look_whether_the_realm_lives() -> None:
    with (
        penstock.Realm(http__connections_max=2) as realm,
        realm.connect() as session,
        contextlib.ExitStack() as views,
    ):
        session.channels.create("orders")
        web = Web(realm.listen_http())
        for _ in range(2):
            views.enter_context(web.watching("channels/orders/live"))

        assert [web.ask("GET", path).status for path in ("/health", "/ready", "/metrics")] == [
            200
        ] * 3
        refused = web.ask("GET", "realm")
        assert (refused.status, refused.code) == (503, "unavailable")
        assert "http.connections_max" in refused.reason


def _is_dropped_at_once(peer: socket.socket) -> bool:
    peer.settimeout(0.3)
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_a_viewer_that_takes_nothing_is_dropped(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    event = penstock.Event(b"x" * 60_000)
    with web.raw() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.sendall(
            b"GET /api/v1/channels/orders/live?data_bytes=65536 HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        peer.recv(1_024)
        while _views(web):
            orders.publish_many([event] * 20)

    assert orders.info().counters.published > 0


def _views(web: Web) -> bool:
    text = web.ask("GET", "/metrics").data
    return b"penstock_http_views 0.0" not in text


# --- other sites' pages -------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "", "10.0.0.1"])
def test_a_strange_name_for_this_machine_is_refused(web: Web, host: str) -> None:
    for path in ("/api/v1/realm", "/", "/metrics", "/health"):
        reply = web.ask("GET", path, headers={"host": host})

        assert (reply.status, reply.code) == (403, "cross-site")


@pytest.mark.parametrize(
    "host",
    [
        "[::1]evil",
        "[::1]evil:80",
        "[::1",
        "::1",
        "[evil]",
        "localhost:evil",
        "a b",
        "user@localhost",
        "localhost/",
        "localhost#x",
        "localhost:1:2",
    ],
)
def test_a_host_that_is_none_is_refused(web: Web, host: str) -> None:
    reply = web.ask("GET", "realm", headers={"host": host})

    assert (reply.status, reply.code) == (400, "invalid-argument")
    assert "Host" in reply.reason


@pytest.mark.parametrize(
    "lengths",
    [
        b"HTTP/1.1\r\ncontent-length: 30\r\ntransfer-encoding: chunked",
        b"HTTP/1.0\r\ntransfer-encoding: chunked",
    ],
    ids=["both", "old"],
)
def test_a_request_whose_length_can_be_read_in_two_ways_is_refused(
    web: Web, lengths: bytes
) -> None:
    with web.raw() as peer:
        peer.sendall(
            b"POST /api/v1/channels " + lengths + b"\r\nhost: localhost\r\n"
            b"content-type: application/json\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n"
        )
        answer_bytes = read_to_end(peer)

    assert answer_bytes.startswith(b"HTTP/1.1 400")
    assert b"Transfer-Encoding" in answer_bytes
    assert answer_bytes.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9080", "[::1]:9080"])
def test_the_names_of_this_machine_are_taken(web: Web, host: str) -> None:
    assert web.ask("GET", "realm", headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_another_sites_page_changes_nothing(
    web: Web, session: penstock.Session, headers: dict[str, str]
) -> None:
    reply = web.ask("POST", "channels", {"name": "orders"}, headers=headers)

    assert (reply.status, reply.code) == (403, "cross-site")
    assert session.channels.list() == []


def test_the_consoles_own_page_may_change_something(web: Web) -> None:
    own_headers = {"origin": web.url, "sec-fetch-site": "same-origin"}

    assert web.ask("POST", "channels", {"name": "orders"}, headers=own_headers).status == 201


def test_a_form_cannot_be_sent(web: Web) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}

    assert web.ask("POST", "channels", b'{"name": "orders"}', headers=kind).status == 415


# --- files --------------------------------------------------------------------------------


def test_the_console_is_served_with_its_policy(web: Web) -> None:
    page = web.ask("GET", "/")

    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "strict-transport-security" not in page.headers
    again = web.ask("GET", "/index.html", headers={"if-none-match": page.headers["etag"]})
    assert (again.status, again.data) == (304, b"")
    assert web.ask("HEAD", "/").headers["content-length"] == str(len(page.data))


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("br;q=1.0, GZIP;q=0.8, *;q=0.1", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, br", False),
        ("xgzip, gzipx", False),
    ],
)
def test_files_of_the_console_are_compressed_where_the_browser_takes_it(
    web: Web, accepted: str, is_packed: bool
) -> None:
    plain = web.ask("GET", "/main.js")
    answer = web.ask("GET", "/main.js", headers={"accept-encoding": accepted})

    assert plain.headers["vary"] == answer.headers["vary"] == "accept-encoding"
    assert (answer.headers.get("content-encoding") == "gzip") == is_packed
    assert (gzip.decompress(answer.data) if is_packed else answer.data) == plain.data
    if is_packed:
        assert len(answer.data) < len(plain.data) / 2
    for answer_bytes in (plain, answer):
        tag = {"if-none-match": answer_bytes.headers["etag"], "accept-encoding": accepted}
        is_same = answer_bytes.headers["etag"] == answer.headers["etag"]
        assert web.ask("GET", "/main.js", headers=tag).status == (304 if is_same else 200)


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/..%2fserver.py",
        "/../../bootstrap.py",
        "//etc/passwd",
        "/.hidden.js",
        "/vendor",
        "/index.html/",
        "/%00",
        "/console.py",
    ],
)
def test_nothing_outside_the_console_is_served(web: Web, path: str) -> None:
    reply = web.ask("GET", path)

    assert reply.status in (200, 404)
    assert reply.status == 404 or reply.data == web.ask("GET", "/").data


def test_other_methods_are_refused_with_the_allowed_ones(web: Web) -> None:
    for method, path, allowed in (
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/api/v1/realm", "GET, PATCH"),
        ("DELETE", f"/api/v1/channels/{part('a/b')}/purge", "POST"),
    ):
        reply = web.ask(method, path)

        assert (reply.status, reply.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_http_1_0_needs_no_host(web: Web, path: str) -> None:
    with web.raw() as peer:
        peer.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())

        assert read_to_end(peer).split(b"\r\n")[0].endswith(b" 200 OK")


def test_http_1_0_with_a_foreign_host_is_refused(web: Web) -> None:
    with web.raw() as peer:
        peer.sendall(b"GET /health HTTP/1.0\r\nhost: evil.example\r\n\r\n")

        assert read_to_end(peer).split(b"\r\n")[0].endswith(b" 403 Forbidden")
