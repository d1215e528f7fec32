"""The fast path for plain requests behaves as h11 does: requests get the same bytes as answers,
whatever arrives, and in whatever pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import h11
import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from packages.server.tests.frontends.http.http_wire import HttpWire
from penstock_server.frontends.http.plain_requests import (
    PLAIN_HEAD_BYTES_MAX,
    PlainCycle,
    PlainProtocol,
    plain_head,
)
from penstock_server.runtime.access.open_connections import TrafficCounts

TURNS: Final = 12
"""Turns of the loop in which an answer is complete."""


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with all parts of the request, in a form that the query chooses."""
    form = scope["query_string"]
    cycle = getattr(receive, "__self__", None)
    direct = cycle if form == b"direct" and isinstance(cycle, PlainCycle) else None
    body = None if direct is None else direct.take_whole_body()
    if body is None and form != b"unread":
        body = await whole_body(receive)
        if body is None:
            return
    parts = [scope[name] for name in ("http_version", "method", "path", "raw_path", "headers")]
    status, headers, text = response_of(form, repr((parts, body)).encode())
    if direct is not None and direct.is_writable:
        direct.send_whole(status, headers, b"" if scope["method"] == "HEAD" else text)
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in (text[:20], b""):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": text[20:], "more_body": False})


async def whole_body(receive: Any) -> bytes | None:
    """Return the body; None if the client disconnects before its end."""
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message["body"]
        if not message["more_body"]:
            return body


def response_of(form: bytes, text: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the status, headers and body of a response."""
    if form in (b"204", b"304"):
        return int(form), [], b""
    kind = (b"content-type", b"text/plain")
    if form == b"chunked":
        return 200, [kind], text
    error = {b"short": 1, b"long": -1}.get(form, 0)
    more = {
        b"close": [(b"connection", b"close")],
        b"injected": [(b"x", b"1\r\nset-cookie: a=b")],
    }
    length = (b"content-length", b"%d" % (len(text) + error))
    return 200, [kind, length, *more.get(form, [])], text


def configuration() -> uvicorn.Config:
    config = uvicorn.Config(
        echo,
        http=H11Protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        h11_max_incomplete_event_size=64 << 10,
    )
    config.load()
    return config


def as_h11(config: uvicorn.Config) -> H11Protocol:
    return H11Protocol(config, ServerState(), {})


def as_plain(config: uvicorn.Config) -> PlainProtocol:
    return PlainProtocol(config, ServerState(), TrafficCounts())


CONFIG: Final = configuration()


class Conversation:
    """One connection, and its answers to the pieces that arrive."""

    def __init__(self, make: Callable[[uvicorn.Config], H11Protocol], pieces: Sequence[bytes]):
        self.wire = HttpWire()
        self.peer: H11Protocol
        asyncio.run(self._hold(make, pieces))

    async def _hold(
        self, make: Callable[[uvicorn.Config], H11Protocol], pieces: Sequence[bytes]
    ) -> None:
        self.peer = make(CONFIG)
        self.peer.connection_made(self.wire)
        for piece in pieces:
            if not self.wire.is_closing():
                self.peer.data_received(piece)
            for _ in range(TURNS):
                await asyncio.sleep(0)
        self.is_closed = self.wire.is_closing()
        self.peer.connection_lost(None)
        if self.peer.tasks:
            await asyncio.wait(self.peer.tasks)

    @property
    def outcome(self) -> tuple[bytes, bool]:
        return self.wire.written, self.is_closed


def request(
    line: bytes = b"POST /a?whole HTTP/1.1",
    headers: Sequence[bytes] = (b"Host: a", b"Content-Length: 3"),
    body: bytes = b"abc",
) -> bytes:
    return b"\r\n".join((line, *headers, b"", b"")) + body


FORMS: Final = (
    b"whole",
    b"direct",
    b"chunked",
    b"close",
    b"unread",
    b"204",
    b"304",
    b"injected",
    b"short",
    b"long",
)
lines = st.builds(
    lambda method, path, form, version: b"%b %b?%b HTTP/%b" % (method, path, form, version),
    st.sampled_from((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"get", b"G T")),
    st.sampled_from((b"/a", b"/", b"/%C3%A9%2f", b"//b", b"*", b"http://a/b", b"/\xe9", b"")),
    st.sampled_from(FORMS),
    st.sampled_from((b"1.1", b"1.1", b"1.1", b"1.0", b"2.0", b"1.1 ")),
)
odd_headers = st.sampled_from(
    (
        b"Host: b",
        b"Host:",
        b"host : a",
        b"Content-Length: 3",
        b"Content-Length: 4",
        b"Content-Length: 3, 3",
        b"Content-Length: +3",
        b"Content-Length: 0x3",
        b"content-length:3 ",
        b"Content-Length: -1",
        b"Content-Length: 99999999999999999999",
        b"Content-Length:",
        b"Content-Length: 3,4",
        b"Content-Length: \xb2",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip",
        b"transfer-encoding:\tchunked",
        b"Expect: 100-continue",
        b"Expect: x",
        b"Upgrade: websocket",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Connection: Upgrade",
        b"Connection: x, CLOSE",
        b" folded",
        b"\tfolded",
        b"x: a\x00b",
        b"x: a\rb",
        b"x: a\nb",
        b"x: \xff\x80",
        b"x: a\x7fb",
        b"x: \x0b",
        b"x:",
        b"x",
        b": a",
        b"x y: a",
        b"X-A:  a \t b \t",
        b"x\xe9: a",
        b"x:a:b",
        b"x: " + b"y" * PLAIN_HEAD_BYTES_MAX,
    )
)
bodies = st.sampled_from((b"", b"abc", b"ab", b"abcd", b"3\r\nabc\r\n0\r\n\r\n", b"0\r\n\r\n"))
usual = st.builds(
    lambda form, body, more: request(
        b"POST /a%2Fb?" + form + b" HTTP/1.1",
        (b"Host: a", b"Content-Length: %d" % len(body), *more),
        body,
    ),
    st.sampled_from(FORMS),
    bodies,
    st.lists(
        st.sampled_from((b"Accept: */*", b"Connection: keep-alive", b"x:\t1 2\t")), max_size=2
    ),
)
odd = st.builds(
    lambda line, headers, body: request(line, headers, body),
    lines,
    st.permutations((b"Host: a", b"Content-Length: 3")).flatmap(
        lambda some: st.lists(odd_headers, max_size=2).map(lambda more: [*some, *more])
    )
    | st.lists(odd_headers, max_size=3),
    bodies,
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a usual request with some bytes replaced, inserted or removed."""
    data = bytearray(draw(usual))
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, len(data) - 1))
        data[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from((b"", b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\x00", b"\xff", b"a"))
        )
    return bytes(data)


@st.composite
def arrivals(draw: st.DrawFn) -> list[bytes]:
    """Return the pieces in which some requests arrive on one connection."""
    data = b"".join(draw(st.lists(usual | odd | mutated(), min_size=1, max_size=3)))
    cuts = sorted(draw(st.sets(st.integers(1, len(data)), max_size=3)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(arrivals())
@example([request(), request(), request()])
@example([request() * 3])
@example([request(body=b""), b"ab", b"c" + request()])
@example([request(b"POST /a?unread HTTP/1.1", body=b"a"), b"bc" + request()])
@example([request(b"POST /a?close HTTP/1.1") + request()])
@example([request(headers=(b"Host: a", b"Connection: close")), request()])
@example([request() + b"GET / HT", b"TP/1.1\r\nHost: a\r\n\r\n", request()])
@example([request() + b"\x00\r\n\r\n"])
@example([request(b"POST /a?short HTTP/1.1")])
@example([request(b"POST /a?long HTTP/1.1")])
@example([request(b"HEAD /a?chunked HTTP/1.1") + request()])
def test_any_bytes_are_answered_as_by_h11_alone(pieces: list[bytes]) -> None:
    assert Conversation(as_plain, pieces).outcome == Conversation(as_h11, pieces).outcome


@given(usual | odd | mutated())
def test_a_plain_head_is_read_as_h11_reads_it(data: bytes) -> None:
    head = plain_head(data)
    if head is None:
        return
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(data[: head.end])
    event = reader.next_event()

    assert isinstance(event, h11.Request)
    assert (head.method, head.target, head.headers) == (
        event.method,
        event.target,
        list(event.headers),
    )
    lengths = [int(value) for name, value in head.headers if name == b"content-length"]
    assert lengths in ([], [head.body_bytes])
    assert (reader.they_are_waiting_for_100_continue, reader.trailing_data[0]) == (False, b"")


@pytest.mark.parametrize("form", [b"whole", b"direct", b"chunked"])
def test_usual_requests_take_the_fast_path(form: bytes) -> None:
    data = request(b"POST /a?" + form + b" HTTP/1.1", body=b"")
    held = Conversation(as_plain, [data, b"abc", data + b"abc", (data + b"abc") * 2])
    assert isinstance(held.peer, PlainProtocol)

    assert held.wire.written.count(b"HTTP/1.1 200 OK\r\n") == 4
    assert isinstance(held.peer.cycle, PlainCycle)
    traffic = held.peer._traffic
    assert traffic.received_bytes == 4 * len(data + b"abc")
    assert traffic.sent_bytes == len(held.wire.written)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (b"Host: a", b"Host: a"),
        (b"Host: a", b"Content-Length: 3", b"Content-Length: 3"),
        (b"Host: a", b"Content-Length: 3, 3"),
        (b"Host: a", b"Transfer-Encoding: chunked"),
        (b"Host: a", b"Expect: 100-continue"),
        (b"Host: a", b"Upgrade: websocket", b"Connection: upgrade"),
        (b"Host: a", b"Connection: close"),
        (b"Host: a", b" folded"),
        (b"Host: a\nx: b",),
        (b"Host: a", b"x: " + b"y" * PLAIN_HEAD_BYTES_MAX),
    ],
)
def test_h11_gets_all_that_is_not_plain(headers: Sequence[bytes]) -> None:
    assert plain_head(request(headers=headers)) is None


def test_h11_keeps_a_request_that_it_has_a_part_of() -> None:
    data = request()
    held = Conversation(as_plain, [data[:10], data[10:]])

    assert held.wire.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert not isinstance(held.peer.cycle, PlainCycle)


def test_a_header_of_an_answer_cannot_contain_another_header() -> None:
    held = Conversation(as_plain, [request(b"GET /a?injected HTTP/1.1", (b"Host: a",), b"")])

    assert held.outcome == (b"", True)
