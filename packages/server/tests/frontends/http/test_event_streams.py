"""Streams of events over HTTP: all selected events as Arrow, CSV or NDJSON, or a broken body."""

from __future__ import annotations

import csv
import http.client
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from urllib.request import Request, urlopen

import duckdb
import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web
from packages.server.tests.frontends.http.disconnecting import TIMEOUT_S, ask, hang_up
from packages.server.tests.frontends.http.known import Known
from penstock_server.frontends.http import event_streams
from penstock_testing.ports import free_port
from penstock_testing.process import ServerProcess

ARROW = {"accept": "application/vnd.apache.arrow.stream"}
EVENTS = "channels/orders/events"
MANY = 3_000


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of few events, so that a stream has many; returns their size."""
    monkeypatch.setattr(event_streams, "BLOCK_EVENTS_MAX", 100)
    return 100


def publish_numbers(channel: penstock.Channel, count: int, data: bytes = b"") -> None:
    channel.publish_many([penstock.Event(data, properties={"n": n}) for n in range(count)])


def table_in(reply: Reply) -> pa.Table:
    assert reply.status == 200, reply.data
    return pa.ipc.open_stream(reply.data).read_all()


class OpenStream:
    """A stream of which the client has read only the head."""

    def __init__(self, web: Web, path: str, **headers: str) -> None:
        self.connection = http.client.HTTPConnection(*web.address, timeout=TIMEOUT_S)
        self.connection.request("GET", f"/api/v1/{path}", headers=headers)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()


@pytest.fixture
def opened(web: Web) -> Iterator[Callable[..., OpenStream]]:
    """Opens streams, and closes them after the test."""
    streams: list[OpenStream] = []

    def open_one(path: str, **headers: str) -> OpenStream:
        streams.append(OpenStream(web, path, **headers))
        return streams[-1]

    yield open_one
    for stream in streams:
        stream.connection.close()


# --- what a stream has --------------------------------------------------------------------


@pytest.mark.spec("E12")
def test_a_stream_has_all_events_in_order(
    web: Web, orders: penstock.Channel, small_blocks: int
) -> None:
    publish_numbers(orders, MANY)
    orders.publish(b"a pen", tag="t", properties={"sku": "P-1"})

    table = table_in(web.ask("GET", EVENTS, headers=ARROW))

    assert table.column_names == ["event_id", "published", "tag", "data", "n", "sku"]
    assert table["event_id"].to_pylist() == list(range(MANY + 1))
    assert table["n"].to_pylist() == [*range(MANY), None]
    assert table.slice(MANY).select(["tag", "data", "sku"]).to_pylist() == [
        {"tag": "t", "data": b"a pen", "sku": "P-1"}
    ]
    assert table["n"].num_chunks > MANY // small_blocks, "it came in blocks"


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"limit": 250}, range(250)),
        ({"limit": (1 << 63) - 1}, range(1_000)),
        ({"start": 990}, range(990, 1_000)),
        ({"after": 990}, range(990, 1_000)),
        ({"start": 5, "end": 7}, range(5, 8)),
        ({"end": (1 << 63) - 1, "start": 998}, range(998, 1_000)),
        ({"selector": "n > 8 AND n < 12"}, range(9, 12)),
        ({"selector": "n >= 500", "limit": 300}, range(500, 800)),
        ({"selector": "n < 0"}, ()),
        ({"start": "latest"}, ()),
    ],
)
def test_a_stream_has_the_selected_events(
    query: dict[str, Any],
    numbers: range,
    web: Web,
    orders: penstock.Channel,
    small_blocks: int,
) -> None:
    publish_numbers(orders, 1_000)

    table = table_in(web.ask("GET", EVENTS, headers=ARROW, **query))

    assert table["n"].to_pylist() == list(numbers)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("n,event_id", ["n", "event_id"]),
        ("properties.n, tag", ["n", "tag"]),
        (",".join(["n"] * 2_048), ["n"]),
        ("n,properties.n", ["n"]),
        ("properties.tag", ["properties.tag"]),
        (" , ", ["event_id", "published", "tag", "data", "n", "properties.tag"]),
    ],
)
def test_a_stream_has_the_requested_columns(
    columns: str, names: list[str], web: Web, orders: penstock.Channel
) -> None:
    orders.publish(b"", properties={"n": 1, "tag": "a property"})

    assert table_in(web.ask("GET", EVENTS, headers=ARROW, columns=columns)).column_names == names


def test_a_channel_without_events_is_an_empty_table(web: Web, orders: penstock.Channel) -> None:
    table = table_in(web.ask("GET", EVENTS, headers=ARROW))

    assert (table.num_rows, table.column_names) == (0, ["event_id", "published", "tag", "data"])


@pytest.mark.spec("E12")
def test_a_stream_ends_with_the_last_event_of_the_time_of_the_request(
    orders: penstock.Channel, opened: Callable[..., OpenStream], small_blocks: int
) -> None:
    publish_numbers(orders, MANY)
    stream = opened(EVENTS, **ARROW)
    orders.publish(b"", properties={"n": -1, "later": True})

    table = pa.ipc.open_stream(stream.answer.read()).read_all()

    assert table.num_rows == MANY
    assert "later" not in table.column_names


def test_a_stream_of_a_merge_channel_has_its_states(web: Web, session: penstock.Session) -> None:
    rates = session.channels.create("rates", engine="merge", keys={"pair": 1})
    rates.publish(b"", properties={"pair": "EUR", "bid": 1.0, "ask": 1.1})
    rates.publish_many([penstock.Event(properties={"pair": "EUR", "bid": 1.2}, is_delta=True)])

    table = table_in(web.ask("GET", "channels/rates/events", headers=ARROW, columns="pair,bid,ask"))

    assert table.to_pylist() == [{"pair": "EUR", "bid": 1.2, "ask": 1.1}]


@pytest.mark.spec("E12")
def test_a_stream_of_a_queue_takes_nothing(web: Web, session: penstock.Session) -> None:
    jobs = session.queues.create("jobs")
    jobs.push_many([penstock.Event(b"%d" % n, properties={"n": n}) for n in range(5)])

    table = table_in(web.ask("GET", "queues/jobs/events", headers=ARROW, selector="n > 2"))

    assert table["data"].to_pylist() == [b"3", b"4"]
    assert (jobs.info().events, jobs.info().in_flight) == (5, 0)


def test_a_stream_of_a_durable_has_its_outstanding_events(
    web: Web, orders: penstock.Channel
) -> None:
    billing = orders.durables.create("billing", start="earliest")
    publish_numbers(orders, 5)
    for event in billing.fetch(2, timeout=TIMEOUT_S):
        event.ack()
    billing.flush()

    table = table_in(
        web.ask("GET", "channels/orders/durables/billing/events", headers=ARROW, columns="n")
    )

    assert table["n"].to_pylist() == [2, 3, 4]
    assert billing.info().outstanding == 3


# --- numbers (SEM E10) --------------------------------------------------------------------


@pytest.mark.spec("E10", "E12")
def test_integers_and_floats_are_one_column_if_that_is_exact(
    web: Web, orders: penstock.Channel
) -> None:
    for price in (3, 2.5):
        orders.publish(b"", properties={"price": price})

    assert table_in(web.ask("GET", EVENTS, headers=ARROW, columns="price")).to_pydict() == {
        "price": [3.0, 2.5]
    }


@pytest.mark.spec("E10", "E12")
def test_an_integer_without_an_exact_double_in_the_first_block_separates_the_types(
    web: Web, orders: penstock.Channel
) -> None:
    for price in ((1 << 53) + 1, 2.5):
        orders.publish(b"", properties={"price": price})
    typed = {"price::int": [(1 << 53) + 1, None], "price::float": [None, 2.5]}

    for columns in ("price", "price,price::int"):
        table = table_in(web.ask("GET", EVENTS, headers=ARROW, columns=columns))
        assert table.to_pydict() == typed


@pytest.mark.spec("E10", "E12")
def test_such_an_integer_in_a_later_block_breaks_the_stream_off(
    web: Web, orders: penstock.Channel, small_blocks: int
) -> None:
    orders.publish(b"", properties={"price": 2.5})
    publish_numbers(orders, 2 * small_blocks)
    orders.publish(b"", properties={"price": (1 << 53) + 1})

    with pytest.raises(http.client.IncompleteRead):
        web.ask("GET", EVENTS, headers=ARROW)
    exact = table_in(web.ask("GET", EVENTS, headers=ARROW, columns="price::int"))
    assert exact["price::int"].to_pylist()[-1] == (1 << 53) + 1


# --- forms --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("text/csv;q=0.5, application/x-ndjson;q=0.6", "application/x-ndjson"),
        ("application/json;q=0.1, Text/CSV;q=0.2, x/y", "text/csv"),
        ("application/vnd.apache.arrow.stream;q=0, */*;q=0.1", "application/json"),
        (f"{'x/y,' * 1_000}application/vnd.apache.arrow.stream", ARROW["accept"]),
    ],
)
def test_accept_chooses_the_form(
    accept: str, kind: str, web: Web, orders: penstock.Channel
) -> None:
    reply = web.ask("GET", EVENTS, headers={"accept": accept})

    assert (reply.status, reply.headers["content-type"]) == (200, kind)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("arrow", ARROW["accept"]),
        ("csv", "text/csv"),
        ("ndjson", "application/x-ndjson"),
        ("json", "application/json"),
    ],
)
def test_a_client_that_cannot_set_headers_names_the_form(
    form: str, kind: str, web: Web, orders: penstock.Channel
) -> None:
    assert web.ask("GET", EVENTS, format=form).headers["content-type"] == kind


def test_csv_keeps_nulls_bytes_and_nested_values_apart(web: Web, orders: penstock.Channel) -> None:
    orders.publish(b'say "hi"\n', properties={"name": "", "raw": b"\xff", "list": [1, 2]})
    orders.publish(b"\xff", properties={"data_base64": "x"})

    reply = web.ask(
        "GET", EVENTS, format="csv", columns="data,name,raw,list,properties.data_base64"
    )

    assert list(csv.reader(io.StringIO(reply.data.decode()))) == [
        ["data", "data_base64", "name", "raw", "list", "properties.data_base64"],
        ['say "hi"\n', "", "", "/w==", "[1,2]", ""],
        ["", "/w==", "", "", "", "x"],
    ]
    assert b'"",' in reply.data, "an empty text is in quotes, a null is not"


def test_a_csv_of_no_events_has_a_header(web: Web, orders: penstock.Channel) -> None:
    reply = web.ask("GET", EVENTS, format="csv")

    assert reply.data == b'"event_id","published","tag","data","data_base64"\n'


def test_lines_are_the_items_of_pages(
    web: Web, orders: penstock.Channel, small_blocks: int
) -> None:
    publish_numbers(orders, 3 * small_blocks, b"x" * 10)
    items = web.get(EVENTS, limit=3 * small_blocks)["items"]

    reply = web.ask("GET", EVENTS, format="ndjson")
    few = web.ask("GET", EVENTS, format="ndjson", columns="properties.n", start=7, limit=1)

    assert [msgspec.json.decode(line) for line in reply.data.splitlines()] == items
    assert msgspec.json.decode(few.data)["properties"] == {"n": 7}
    assert "data" not in msgspec.json.decode(few.data)


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"columns": "n,nope"}, "unknown column nope; the table has event_id"),
        ({"columns": "n" * 4_097}, "columns must have at most 4096 characters"),
        ({"columns": "nope", "format": "ndjson"}, "columns=nope is not valid"),
        ({"selector": "n >"}, "expected a value"),
        ({"start": 9, "end": 3}, "an empty range"),
        ({"start": "soon"}, "is not a start position"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"limit": 1 << 63}, "limit"),
        ({"limit": -1}, "limit must be at least 1"),
        ({"end": 1 << 63}, "end"),
        ({"newest": "true"}, "in pages of JSON only"),
        ({"data_bytes": 5}, "a stream has all data"),
        ({"format": "xml"}, "format"),
        ({"format": "json", "limit": 1_001}, "limit=1001 is above 1000"),
    ],
)
def test_a_bad_request_is_refused_with_the_reason(
    query: dict[str, Any], said: str, web: Web, orders: penstock.Channel
) -> None:
    publish_numbers(orders, 10)

    reply = web.ask("GET", EVENTS, headers=ARROW, **query)

    assert reply.status in (400, 422)
    assert said in reply.reason


def test_a_stream_of_a_queue_has_no_cursor(web: Web, session: penstock.Session) -> None:
    session.queues.create("jobs")

    reply = web.ask("GET", "queues/jobs/events", headers=ARROW, after=3)

    assert (reply.status, reply.code) == (400, "invalid-argument")


def test_a_form_that_does_not_exist_is_refused(web: Web, orders: penstock.Channel) -> None:
    reply = web.ask("GET", EVENTS, headers={"accept": "image/png"})

    assert reply.status == 406
    assert "text/csv" in reply.reason


def test_a_client_of_http_1_0_gets_no_stream(web: Web, orders: penstock.Channel) -> None:
    with web.raw() as peer:
        peer.sendall(f"GET /api/v1/{EVENTS}?format=csv HTTP/1.0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: peer.recv(65_536), b""))

    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert b"needs HTTP/1.1" in answer


# --- ends in the middle -------------------------------------------------------------------

LARGE = bytes(20_000)


@pytest.fixture
def long_stream(
    orders: penstock.Channel, opened: Callable[..., OpenStream], small_blocks: int
) -> OpenStream:
    """A stream that the buffers of the connection do not hold, of which nothing was read."""
    for _ in range(4):
        publish_numbers(orders, 500, LARGE)
    return opened(EVENTS, **ARROW)


@pytest.mark.spec("E12")
def test_a_deleted_channel_breaks_its_streams_off(
    long_stream: OpenStream, session: penstock.Session
) -> None:
    session.channels.delete("orders")

    with pytest.raises(http.client.IncompleteRead):
        long_stream.answer.read()


@pytest.mark.spec("E12")
def test_a_slow_client_gets_all_events_and_delays_nobody(
    long_stream: OpenStream, orders: penstock.Channel, web: Web
) -> None:
    for n in range(20):
        orders.publish(b"beside it", properties={"n": n})
    assert web.get(EVENTS, start=1_999, limit=1)["items"][0]["event_id"] == 1_999

    table = pa.ipc.open_stream(long_stream.answer.read()).read_all()

    assert table["event_id"].to_pylist() == list(range(2_000))
    assert set(table["data"].to_pylist()) == {LARGE}


def test_the_realm_reads_only_what_a_client_receives(
    orders: penstock.Channel, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = 0
    blocks = threading.Semaphore(0)
    deliver = event_streams._BlockOutlet.deliver

    def count(outlet: Any, rows: Any, redeliveries: Any) -> None:
        nonlocal delivered
        delivered += rows.count
        blocks.release()
        deliver(outlet, rows, redeliveries)

    monkeypatch.setattr(event_streams._BlockOutlet, "deliver", count)
    monkeypatch.setattr(event_streams, "BLOCK_BYTES_MAX", 1 << 20)
    for _ in range(4):
        publish_numbers(orders, 500, LARGE)
    peer = ask(web, "GET", f"{EVENTS}?format=arrow")
    assert blocks.acquire(timeout=TIMEOUT_S)
    for _ in range(20):
        orders.publish(b"beside it")

    assert delivered < 2_000, "the client has read nothing"
    hang_up(peer)


def test_a_stream_ends_with_its_client(
    orders: penstock.Channel, web: Web, realm: penstock.Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    close = event_streams._Reader.close

    def note(reader: Any) -> None:
        close(reader)
        closed.set()

    monkeypatch.setattr(event_streams._Reader, "close", note)
    for _ in range(4):
        publish_numbers(orders, 500, LARGE)
    before = realm.running.dispatch.count
    peer = ask(web, "GET", f"{EVENTS}?format=arrow")
    assert peer.recv(1_000).startswith(b"HTTP/1.1 200")
    assert not closed.is_set()
    hang_up(peer)

    assert closed.wait(TIMEOUT_S)
    assert realm.running.dispatch.count == before
    assert web.get(EVENTS)["items"], "others are served as ever"


class TestRights:
    """A realm with users; ann has the right that a test grants."""

    RIGHTS: Final = {"kind": "channel", "name": "orders", "subject": "ann@*"}

    @pytest.fixture
    def realm(self) -> Iterator[penstock.Realm]:
        with penstock.Realm(
            access__mode="mandatory",
            access__password_rounds=4_096,
            access__password_length_min=1,
        ) as running:
            yield running

    @pytest.mark.spec("E12")
    def test_a_stream_needs_the_right_to_read(self, admin: Known, ann: Known) -> None:
        admin.send("POST", "channels", {"name": "orders"})
        admin.send("POST", EVENTS, {"data": "a pen"})
        refused = ann.ask("GET", EVENTS, headers=ARROW)
        admin.send("POST", "acl/grant", {**self.RIGHTS, "rights": ["subscribe"]})

        assert (refused.status, refused.code) == (403, "access-denied")
        assert table_in(ann.ask("GET", EVENTS, headers=ARROW))["data"].to_pylist() == [b"a pen"]

    @pytest.mark.spec("E12")
    def test_a_stream_is_broken_off_with_its_right(
        self,
        admin: Known,
        ann: Known,
        session: penstock.Session,
        opened: Callable[..., OpenStream],
        small_blocks: int,
    ) -> None:
        channel = session.channels.create("orders")
        for _ in range(4):
            publish_numbers(channel, 500, LARGE)
        admin.send("POST", "acl/grant", {**self.RIGHTS, "rights": ["subscribe"]})
        stream = opened(EVENTS, **ARROW, **ann.own_headers)
        admin.send("POST", "acl/revoke", {**self.RIGHTS, "rights": []})

        with pytest.raises(http.client.IncompleteRead):
            stream.answer.read()


# --- the tools of others ------------------------------------------------------------------


@pytest.mark.process
def test_polars_duckdb_and_pandas_read_a_channel_of_a_server(tmp_path: Path) -> None:
    port = free_port()
    flags = ("--http", "--http-port", str(port))
    url = f"http://127.0.0.1:{port}/api/v1/{EVENTS}?columns=event_id,n,sku"
    with ServerProcess(tmp_path / "data", *flags) as server:
        with penstock.connect(server.url) as session:
            orders = session.channels.create("orders")
            for first in range(0, 120_000, 40_000):
                numbers = pa.array(range(first, first + 40_000))
                orders.publish_table(pa.table({"n": numbers, "sku": ["P-1"] * 40_000}))

        with urlopen(Request(url, headers=ARROW)) as answer:
            frame = pl.read_ipc_stream(answer.read())
        chosen = pl.read_ipc_stream(f"{url}&format=arrow&selector={quote('n >= 119990')}")
        with urlopen(Request(url, headers=ARROW)) as answer:
            rows = duckdb.from_arrow(pa.ipc.open_stream(answer))
            [(total, count)] = rows.aggregate("sum(n), count(*)").fetchall()
        csv_frame = pd.read_csv(url, storage_options={"accept": "text/csv"})

    assert (frame.height, frame["n"].sum()) == (120_000, sum(range(120_000)))
    assert (total, count) == (sum(range(120_000)), 120_000)
    assert (len(csv_frame), set(csv_frame["sku"])) == (120_000, {"P-1"})
    assert chosen["n"].to_list() == list(range(119_990, 120_000))
