"""The trace context of an HTTP request: which headers are valid, and which events get them."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.test_events import ARROW, NDJSON, stream
from penstock_core.columns.events.trace_context import TRACE_STATE_CHARACTERS_MAX
from penstock_server.frontends.http.trace_context import TRACE_BYTES_MAX, bounded, trace_context_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OTHER = f"00-{TRACE}-00f067aa0ba902b7-00"
STATE = "congo=t61rcWkgMzE,rojo@vendor=00f067aa0ba902b7"
HEADERS = {"traceparent": PARENT, "tracestate": STATE}

pytestmark = pytest.mark.spec("E13")


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


def contexts(channel: penstock.Channel) -> list[tuple[object, object]]:
    events = [event.properties for event in channel.browse()]
    return [(properties.get("traceparent"), properties.get("tracestate")) for properties in events]


# --- headers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parent",
    [
        PARENT,
        f" {PARENT} ",
        f"cc-{TRACE}-b7ad6b7169203331-01",
        f"cc-{TRACE}-b7ad6b7169203331-01-what-a-later-version-adds",
    ],
)
def test_a_valid_header_is_taken_also_of_a_later_version(parent: str) -> None:
    assert trace_context_of({"traceparent": parent}) == {"traceparent": parent.strip()}


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "no context",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT}-more",
        f"{PARENT},{OTHER}",
        f"ff-{TRACE}-b7ad6b7169203331-01",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"cc-{TRACE}-b7ad6b7169203331-01.more",
        f"cc-{TRACE}-b7ad6b7169203331-01-{'x' * 128}",
        f"00-{TRACE}-b7ad6b7169203331-0\n",
        f"cc-{TRACE}-b7ad6b7169203331-01-{'x' * 100_000}",
    ],
)
def test_a_malformed_parent_is_ignored_with_its_state(parent: str) -> None:
    assert trace_context_of({"traceparent": parent, "tracestate": STATE}) == {}


def test_a_state_without_a_parent_is_ignored() -> None:
    assert trace_context_of({"tracestate": STATE}) == {}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (STATE, STATE),
        (" a=1 ,, b=2 ", "a=1,b=2"),
        ("9lives@cat=yes", "9lives@cat=yes"),
        ("a=1,a=2", ""),
        ("Upper=1", ""),
        ("a", ""),
        ("a=1=2", ""),
        ("a=\x7f", ""),
        (f"a={'x' * 257}", ""),
        (",".join(f"k{number}=1" for number in range(33)), ""),
        (",".join(f"k{number}=1" for number in range(10_000)), ""),
        ("," * 100_000, ""),
    ],
)
def test_a_malformed_state_is_ignored_alone(sent: str, kept: str) -> None:
    context = trace_context_of({"traceparent": PARENT, "tracestate": sent})

    assert context == ({**HEADERS, "tracestate": kept} if kept else {"traceparent": PARENT})


def test_a_long_state_loses_long_members_first_and_then_the_last() -> None:
    short = [f"k{number}={'x' * 60}" for number in range(9)]
    state = ",".join([f"long={'x' * 200}", *short])

    kept = trace_context_of({"traceparent": PARENT, "tracestate": state})["tracestate"]

    assert kept.split(",") == short[:8]
    assert len(kept) <= TRACE_STATE_CHARACTERS_MAX < len(",".join(short))


# --- events --------------------------------------------------------------------------------


def test_events_of_every_form_get_the_context_of_the_request(
    web: Web, orders: penstock.Channel
) -> None:
    table = stream(pa.table({"price": [1.5, 2.5]}))
    for _ in range(2):  # the second event of a kind is encoded without Arrow
        web.ask("POST", "channels/orders/events", {"data": "a"}, headers=HEADERS)
    web.ask("POST", "channels/orders/events", {"events": [{}, {}]}, headers=HEADERS)
    web.ask("POST", "channels/orders/events", b"{}\n{}", headers=NDJSON | HEADERS)
    web.ask("POST", "channels/orders/events", table, headers=ARROW | HEADERS)

    assert contexts(orders) == [(PARENT, STATE)] * 8


def test_an_event_with_a_context_keeps_it_untouched(web: Web, orders: penstock.Channel) -> None:
    traced = [{"properties": {"traceparent": "mine"}}, {"properties": {"tracestate": "a=1"}}, {}]
    web.ask("POST", "channels/orders/events", {"events": traced}, headers=HEADERS)
    web.ask("POST", "channels/orders/events", traced[0], headers=HEADERS)
    table = pa.table({"traceparent": pa.array([OTHER, None])})
    web.ask("POST", "channels/orders/events", stream(table), headers=ARROW | HEADERS)

    assert contexts(orders) == [
        ("mine", None),
        (None, "a=1"),
        (PARENT, STATE),
        ("mine", None),
        (OTHER, None),
        (PARENT, STATE),
    ]


def test_a_request_with_a_reply_carries_its_context(
    web: Web, session: penstock.Session, orders: penstock.Channel
) -> None:
    web.ask("POST", "channels/orders/requests?timeout=0", {"data": "?"}, headers=HEADERS)

    assert contexts(orders) == [(PARENT, STATE)]


def test_a_malformed_header_refuses_nothing(web: Web, orders: penstock.Channel) -> None:
    reply = web.ask("POST", "channels/orders/events", {}, headers={"traceparent": "broken"})

    assert reply.status == 201
    assert contexts(orders) == [(None, None)]


def test_repeated_headers_of_a_state_are_one_and_of_a_parent_are_malformed(
    web: Web, orders: penstock.Channel
) -> None:
    head = "POST /api/v1/channels/orders/events HTTP/1.1\r\nhost: localhost\r\n"
    head += "content-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n"
    parent, states = f"traceparent: {PARENT}\r\n", "tracestate: a=1\r\ntracestate: b=2\r\n"
    for lines in (parent + states, parent * 2 + states):
        with web.raw() as connection:
            connection.sendall(f"{head}{lines}\r\n{{}}".encode())
            while connection.recv(65_536):
                pass  # until the realm has answered and closed

    assert contexts(orders) == [(PARENT, "a=1,b=2"), (None, None)]


def test_the_context_does_not_multiply_the_size_of_a_request_with_very_many_events() -> None:
    many = TRACE_BYTES_MAX // len(PARENT)

    assert bounded(HEADERS, 1_000) == HEADERS
    assert bounded(HEADERS, many) == {"traceparent": PARENT}
    assert bounded(HEADERS, many + 1) == {}
