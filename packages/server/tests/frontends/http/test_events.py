"""Events by HTTP: what goes in comes out, page by page, cut where it is long, and found by id."""

from __future__ import annotations

import base64
import gzip
import math
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from pyarrow import ipc

import penstock
from packages.server.tests.frontends.http.asking import Web

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
NDJSON = {"content-type": "application/x-ndjson"}
JSON_TYPE = {"content-type": "application/json"}


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


def ids(page: dict[str, list[dict[str, object]]]) -> list[object]:
    return [item["event_id"] for item in page["items"]]


def stream(table: pa.Table, options: ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


PACKED = stream(
    pa.table({"data": pa.array([bytes(80 << 20)], pa.binary()).dictionary_encode()}),
    ipc.IpcWriteOptions(compression="zstd"),
)
"""A few kilobytes that would be 80 MiB of one value, once they are unpacked."""


# --- in -----------------------------------------------------------------------------------


def test_an_event_is_published_as_json(web: Web, orders: penstock.Channel) -> None:
    answer = web.send(
        "POST",
        "channels/orders/events",
        {"data": "hello", "tag": "new", "properties": {"price": 9.5}, "priority": 7, "ttl": 90_000},
    )
    [event] = orders.browse()

    assert answer == {"first_id": 0, "last_id": 0, "count": 1, "scheduled": False}
    assert (event.data, event.tag, event.properties) == (b"hello", "new", {"price": 9.5})
    assert (event.priority, event.ttl) == (7, 90_000)


def test_several_are_published_in_one_step_and_once(web: Web, orders: penstock.Channel) -> None:
    body = {"events": [{"data": "a"}, {"data": "b"}], "producer": "shop", "sequence": 1}

    first = web.send("POST", "channels/orders/events", body)
    again = web.send("POST", "channels/orders/events", body)

    assert first == again
    assert [event.data for event in orders.browse()] == [b"a", b"b"]


def test_lines_of_json_are_those_the_command_line_prints(
    web: Web, orders: penstock.Channel
) -> None:
    lines = b'{"data": "a", "price": 1}\n\n{"data_base64": "/w==", "properties": {"n": 2}}\n'

    answer = web.ask("POST", "channels/orders/events", lines, headers=NDJSON)
    first, second = orders.browse()

    assert (answer.status, answer.document["count"]) == (201, 2)
    assert (first.data, first.properties) == (b"a", {"price": 1})
    assert (second.data, second.properties) == (b"\xff", {"n": 2})


def test_a_table_is_published_by_columns(web: Web, orders: penstock.Channel) -> None:
    table = pa.table({"data": pa.array([b"a", b"b"]), "price": [1.5, 2.5]})

    answer = web.ask("POST", "channels/orders/events", stream(table), headers=ARROW)

    assert answer.document["count"] == 2
    assert [event.properties["price"] for event in orders.browse()] == [1.5, 2.5]


def test_a_table_that_claims_to_be_far_larger_than_it_is_is_refused(
    web: Web, orders: penstock.Channel
) -> None:
    options = ipc.IpcWriteOptions(compression="zstd")
    bomb = stream(pa.table({"n": pa.array([0] * 4_000_000, pa.int64())}), options)

    reply = web.ask("POST", "channels/orders/events", bomb, headers=ARROW)

    assert len(bomb) < 1 << 16
    assert (reply.status, reply.code) == (422, "invalid-event")
    assert orders.info().events == 0


def test_an_event_may_wait_for_its_time(web: Web, orders: penstock.Channel) -> None:
    answer = web.send(
        "POST", "channels/orders/events", {"data": "later", "deliver_at": "2099-01-01T00:00:00Z"}
    )
    [waiting] = web.get("schedule")["items"]

    assert answer["scheduled"]
    assert (waiting["destination"], waiting["number"]) == ("orders", answer["first_id"])
    assert waiting["deliver_at"] == "2099-01-01T00:00:00Z"
    assert web.send("DELETE", "channels/orders/schedule/0") == {"done": True}
    assert web.ask("DELETE", "channels/orders/schedule/0").code == "illegal-state"
    assert web.get("schedule", channel="orders")["items"] == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_scheduled_events_have_pages(
    web: Web, session: penstock.Session, orders: penstock.Channel, limit: int
) -> None:
    session.channels.create("nothing/waits")
    session.channels.create("shop")
    session.queues.create("packing")
    for path, count in (("channels/orders", 3), ("queues/packing", 2), ("channels/shop", 2)):
        waiting = [{"data": "x", "deliver_at": "2099-01-01T00:00:00Z"}] * count
        web.send("POST", f"{path}/events", {"events": waiting})

    pages = [web.get("schedule", limit=limit)]
    while (after := pages[-1]["next"]) is not None:
        pages.append(web.get("schedule", limit=limit, after=after))

    listed = [(item["destination"], item["number"]) for page in pages for item in page["items"]]
    assert listed == [
        *(("orders", n) for n in range(3)),
        *(("packing", n) for n in range(2)),
        *(("shop", n) for n in range(2)),
    ]
    assert all(len(page["items"]) <= limit for page in pages)
    assert web.ask("GET", "schedule", after="x y").code == "invalid-argument"


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_time_may_be_seconds_since_1970(web: Web, orders: penstock.Channel, kind: str) -> None:
    body = b'{"data": "later", "properties": {}, "deliver_at": 4070908800.5}'

    reply = web.ask("POST", "channels/orders/events", body, headers={"content-type": kind})

    assert reply.document["scheduled"]
    [waiting] = web.get("schedule")["items"]
    assert waiting["deliver_at"] == "2099-01-01T00:00:00.500000Z"


@pytest.mark.spec("E8")
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_transient_event_goes_to_current_subscribers_and_is_not_stored(
    web: Web, session: penstock.Session, orders: penstock.Channel, kind: str
) -> None:
    body = b'{"data": "now", "properties": {"n": 1}, "transient": true}'
    with session.channels.get("orders").subscribe(timeout=30) as subscription:
        reply = web.ask("POST", "channels/orders/events", body, headers={"content-type": kind})
        event = next(iter(subscription))

    assert reply.status == 201, reply.data
    assert (event.data, event.properties) == (b"now", {"n": 1})
    assert orders.info().events == 0


def test_a_field_transient_of_a_plain_object_stays_a_property(
    web: Web, orders: penstock.Channel
) -> None:
    body = b'{"transient": true, "message": "hello"}'
    web.ask("POST", "channels/orders/events", body, headers=NDJSON)

    [event] = orders.browse()
    assert event.properties == {"transient": True, "message": "hello"}


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"[" * 100_000, 400),
        ("application/json", b'{"price": 1}', 400),
        ("application/json", b'{"events": []}', 400),
        ("application/json", b'{"data": "a", "data_base64": "YQ=="}', 400),
        ("application/json", b'{"data": "a", "priority": 11}', 400),
        ("application/json", b'{"message": {"a": 1}}', 400),
        ("application/json", b'{"deliver_at": "soon"}', 400),
        ("application/json", b'{"deliver_at": 1e300}', 400),
        ("application/json", b'{"properties": {"$penstock_x": 1}}', 422),
        ("application/x-ndjson", b"", 400),
        ("application/x-ndjson", b'{"data": "a"}\nno', 400),
        ("application/vnd.apache.arrow.stream", b"no arrow", 422),
        ("application/vnd.apache.arrow.stream", PACKED, 422),
        ("application/json", b'{"properties": {"a": ' + b"[" * 150 + b"]" * 150 + b"}}", 422),
        ("application/x-ndjson", b'{"properties": {"a": ' + b"[" * 150 + b"]" * 150 + b"}}", 422),
        ("text/plain", b"hello", 400),
    ],
)
def test_an_invalid_event_is_refused_and_nothing_is_stored(
    web: Web, orders: penstock.Channel, kind: str, body: bytes, status: int
) -> None:
    reply = web.ask("POST", "channels/orders/events", body, headers={"content-type": kind})

    assert reply.status == status, reply.data
    assert reply.reason
    assert orders.info().counters.published == 0


@pytest.mark.parametrize("rows", [1 << 20, 1 << 34])
def test_a_few_bytes_of_arrow_cannot_claim_to_be_a_million_events(
    web: Web, orders: penstock.Channel, rows: int
) -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"a": pa.nulls(1_000_003)})
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    answer = (1_000_003).to_bytes(8, "little")
    body = sink.getvalue().to_pybytes().replace(answer, rows.to_bytes(8, "little"))

    reply = web.ask("POST", "channels/orders/events", body, headers=ARROW)

    assert (reply.status, reply.code) == (422, "invalid-event")
    assert f"{len(body)} bytes of Arrow claim to be {rows} events" in reply.reason
    assert orders.info().counters.published == 0


def test_an_event_that_is_too_large_is_refused(web: Web, orders: penstock.Channel) -> None:
    large = {"data": "x" * (21 << 20)}

    reply = web.ask("POST", "channels/orders/events", large)

    assert (reply.status, reply.code) == (413, "event-too-large")


# --- out ----------------------------------------------------------------------------------


def test_pages_are_consecutive(web: Web, orders: penstock.Channel) -> None:
    orders.publish_many([penstock.Event(str(n).encode()) for n in range(5)])

    first = web.get("channels/orders/events", limit=2)
    second = web.get("channels/orders/events", limit=2, after=first["next"])
    third = web.get("channels/orders/events", limit=2, after=second["next"])

    assert [ids(page) for page in (first, second, third)] == [[0, 1], [2, 3], [4]]
    assert third["next"] is None


def test_a_browse_takes_a_range_a_selector_and_columns(web: Web, orders: penstock.Channel) -> None:
    orders.publish_many(
        [penstock.Event(b"x", tag="t", properties={"n": n, "m": 0}) for n in range(20)]
    )

    browsed = web.get(
        "channels/orders/events", start=5, end=14, selector="n > 7", columns="tag,properties.n"
    )

    assert ids(browsed) == list(range(8, 15))
    assert browsed["items"][0].keys() == {"event_id", "published", "size", "tag", "properties"}
    assert browsed["items"][0]["properties"] == {"n": 8}


def test_the_newest_come_oldest_first(web: Web, orders: penstock.Channel) -> None:
    orders.publish_many([penstock.Event(b"x", properties={"n": n % 2}) for n in range(50)])
    orders.purge(start=40, end=44)

    assert ids(web.get("channels/orders/events", newest=True, limit=7)) == [38, 39, *range(45, 50)]
    browsed = web.get("channels/orders/events", newest=True, limit=3, selector="n = 1")
    assert ids(browsed) == [45, 47, 49]


def test_long_data_is_cut_in_lists_and_whole_by_id(web: Web, orders: penstock.Channel) -> None:
    text = "ä" * 40_000
    orders.publish(text.encode())

    [shown] = web.get("channels/orders/events", data_bytes=101)["items"]
    single_event = web.get("channels/orders/events/0")

    assert (shown["data"], shown["is_cut"], shown["size"]) == ("ä" * 50, True, 80_000)
    assert single_event["event"]["data"] == text
    assert base64.b64decode(single_event["views"]["base64"]) == text.encode()


def test_data_is_read_in_every_way_it_can_be(web: Web, orders: penstock.Channel) -> None:
    orders.publish_many([penstock.Event(b'{"a": 1}'), penstock.Event(b"\xff\x00")])

    text, binary = (web.get(f"channels/orders/events/{n}")["views"] for n in (0, 1))

    assert (text["text"], text["json"]) == ('{"a": 1}', {"a": 1})
    assert (binary["hex"], binary["base64"]) == ("ff 00", "/wA=")
    assert "text" not in binary


def test_an_event_that_left_is_said_to_have_left_and_why(
    web: Web, orders: penstock.Channel
) -> None:
    orders.publish_many([penstock.Event(b"x")] * 2)
    orders.purge(start=0, end=0)

    removed, never = (web.ask("GET", f"channels/orders/events/{n}") for n in (0, 9))

    assert (removed.status, never.status) == (404, 404)
    assert "purged" in removed.reason
    assert "purged" not in never.reason


def test_a_browsed_event_can_be_published_again(web: Web, orders: penstock.Channel) -> None:
    orders.publish(b"\xff", tag="t", properties={"n": 1, "s": ["a"]}, ttl=90_000)
    [document] = web.get("channels/orders/events")["items"]
    copy = {
        name: document[name]
        for name in ("data", "data_base64", "tag", "properties", "ttl")
        if name in document
    }

    web.send("POST", "channels/orders/events", copy)
    first, second = orders.browse()

    assert (first.data, first.tag, first.properties) == (second.data, second.tag, second.properties)
    assert first.ttl == second.ttl


def test_a_browse_counts_nowhere(web: Web, orders: penstock.Channel) -> None:
    orders.publish(b"x")
    before = msgspec.json.encode(orders.info())

    web.get("channels/orders/events")

    assert msgspec.json.encode(orders.info()) == before


@pytest.mark.spec("E2")
def test_an_event_that_is_read_can_be_published_again_with_its_types(
    session: penstock.Session, web: Web
) -> None:
    source, copy = session.channels.create("source"), session.channels.create("copy")
    published_at = datetime(2030, 5, 4, hour=12, tzinfo=UTC)
    properties = {
        "at": published_at,
        "raw": b"\x00\xff",
        "x": math.inf,
        "lines": [{"v": -math.inf}],
    }
    source.publish(
        b"a", properties=properties, headers={"timestamp": published_at, "expiration": published_at}
    )

    (shown,) = web.ask("GET", "channels/source/events").document["items"]
    given_by_realm = ("event_id", "published", "size")
    again = {name: value for name, value in shown.items() if name not in given_by_realm}
    web.send("POST", "channels/copy/events", again)
    (event,) = copy.browse()

    assert shown["types"] == {"/at": "time", "/raw": "bytes", "/x": "inf", "/lines/0/v": "-inf"}
    assert event.properties == properties
    assert event.headers["expiration"] == published_at


def test_types_are_those_of_the_chosen_properties(session: penstock.Session, web: Web) -> None:
    session.channels.create("c").publish(b"", properties={"raw": b"\xff", "x": math.nan})

    reply = web.ask("GET", "channels/c/events", columns="properties.x")

    assert reply.document["items"][0]["types"] == {"/x": "nan"}


def test_a_compressed_body_is_refused_with_the_accepted_encoding(
    session: penstock.Session, web: Web
) -> None:
    session.channels.create("c")

    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    reply = web.ask("POST", "channels/c/events", gzip.compress(b"{}"), headers=headers)

    assert (reply.status, reply.headers["accept-encoding"]) == (415, "identity")
    assert reply.reason == "content encoding 'gzip' is not supported; send the body uncompressed"


def test_half_of_a_surrogate_pair_is_named(session: penstock.Session, web: Web) -> None:
    session.channels.create("c")

    reply = web.ask("POST", "channels/c/events", b'{"data":"\\ud800"}', headers=JSON_TYPE)

    assert (reply.status, reply.code) == (400, "invalid-argument")
    assert "half of a surrogate pair" in reply.reason
