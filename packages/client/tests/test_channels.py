"""Channels over a session: made, changed, written, read, purged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.reading.start_positions import StartLike
from penstock.client.sync.sync import Channel, Session


@pytest.mark.spec("C2")
def test_channels_are_made_listed_found_and_deleted(session: Session) -> None:
    session.channels.create("b")
    session.channels.create("/a//x")

    assert session.channels.list() == ["a/x", "b"]
    assert session.channels.get("a/x").name == "a/x"

    session.channels.delete("b")

    assert session.channels.list() == ["a/x"]
    with pytest.raises(penstock.NameDoesNotExist, match="b"):
        session.channels.get("b")
    with pytest.raises(penstock.NameDoesNotExist, match="b"):
        session.channels.delete("b")


@pytest.mark.spec("C2")
@pytest.mark.parametrize("name", ["", "a/..", "a/*", "\u202ea", "x" * 256, "a\0"])
def test_a_bad_name_is_refused_and_nothing_is_created(session: Session, name: str) -> None:
    with pytest.raises(penstock.InvalidName):
        session.channels.create(name)

    assert session.channels.list() == []


def test_a_name_that_is_taken_is_refused(session: Session, orders: Channel) -> None:
    with pytest.raises(penstock.NameAlreadyBound, match="orders"):
        session.channels.create("orders")


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"colour": "blue"}, "a channel has no attribute colour; allowed are type"),
        ({"kind": "queue"}, "a channel has no attribute kind"),
        ({"max_deliveries": 3}, "a channel has no attribute max_deliveries"),
        ({"keys": {"sku": "all"}}, "keys"),
        ({"storage": "fast"}, "storage must be a dictionary, not str"),
        ({"type": "blue"}, "blue"),
        ({"engine": "merge"}, "exactly one publish key"),
        ({"ttl": -1}, "ttl"),
        (
            {"ttl": "soon"},
            "ttl is 'soon'; give whole milliseconds, 0 or more, a text such as '500ms'",
        ),
        ({"capacity": -5}, "capacity"),
        ({"start_event_id": -1}, "start_event_id"),
        ({"start_event_id": 2**63}, "start_event_id"),
        ({"storage": {"sync": "maybe"}}, "sync"),
        ({"storage": {"colour": 1}}, "colour"),
    ],
)
def test_an_attribute_that_cannot_be_is_refused_with_its_name(
    session: Session, attributes: dict[str, Any], says: str
) -> None:
    with pytest.raises(penstock.InvalidArgument, match=says):
        session.channels.create("orders", **attributes)

    assert session.channels.list() == []


@pytest.mark.spec("C3", "T3")
def test_an_edit_applies_at_once(session: Session, orders: Channel) -> None:
    orders.publish_many([penstock.Event()] * 5)

    orders.edit(capacity=2)

    assert (orders.info().events, orders.info().definition.capacity) == (2, 2)
    with pytest.raises(penstock.InvalidArgument, match="type"):
        orders.edit(type="reliable")  # type: ignore[call-arg]  # fixed at creation


@pytest.mark.spec("E1", "E2", "E4")
def test_what_is_published_is_what_is_read(orders: Channel) -> None:
    properties = {"price": 9.5, "lines": [{"sku": "a"}], "none": None, "flag": True, "raw": b"\0"}
    assert orders.publish(b"one", tag="new", properties=properties, priority=7) == 0

    event = next(iter(orders.subscribe(start="earliest", timeout=5)))

    assert (event.event_id, event.data, event.tag, event.priority) == (0, b"one", "new", 7)
    assert event.properties == properties
    assert event.published is not None
    assert abs(event.published - datetime.now(UTC)) < timedelta(minutes=5)


def test_many_events_get_one_range_of_ids(orders: Channel) -> None:
    orders.publish(b"first")

    ids = orders.publish_many([penstock.Event(data=b"%d" % n) for n in range(1_000)])

    assert ids == range(1, 1_001)
    assert [event.data for event in orders.browse(start=1)] == [b"%d" % n for n in range(1_000)]


@pytest.mark.parametrize("kind", ["table", "batch", "pandas"])
def test_a_table_is_published_by_column(orders: Channel, kind: str) -> None:
    table = pa.table({"data": [b"a", b"b"], "tag": ["x", None], "n": [1, 2], "s": ["p", None]})
    published_columns = {
        "table": lambda: table,
        "batch": lambda: table.to_batches()[0],
        "pandas": lambda: table.select(["n", "s"]).to_pandas(),
    }[kind]()

    assert orders.publish_table(published_columns) == range(2)

    assert [event.properties for event in orders.browse()] == [
        {"n": 1, "s": "p"},
        {"n": 2, "s": None},
    ]


def test_an_empty_table_publishes_nothing(orders: Channel) -> None:
    assert orders.publish_table(pa.table({"n": pa.array([], pa.int64())})) == range(0)
    assert orders.info().last_event_id == -1


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (pa.table({"when": pa.array([1], pa.duration("s"))}), "when"),
        (
            pa.table(
                {
                    "u": pa.array([b"1234"], pa.decimal128(5))
                    if False
                    else pa.array([None], pa.month_day_nano_interval())
                }
            ),
            "u",
        ),
        (pa.table({"data": ["text"]}), "data"),
        ([1, 2], "list"),
        (None, "NoneType"),
    ],
)
def test_a_table_with_a_column_that_cannot_be_is_refused_by_its_name(
    orders: Channel, table: object, says: str
) -> None:
    with pytest.raises((penstock.InvalidEvent, penstock.InvalidArgument), match=says):
        orders.publish_table(table)

    assert orders.info().last_event_id == -1


@pytest.mark.spec("E2")
@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": {3}}, 1 << 70, float])
def test_a_property_of_a_type_that_cannot_be_is_refused_by_its_name(
    orders: Channel, value: object
) -> None:
    with pytest.raises(penstock.InvalidEvent, match="wrong"):
        orders.publish(b"", properties={"right": 1, "wrong": value})

    assert orders.info().last_event_id == -1


def test_no_events_are_no_publish(orders: Channel) -> None:
    with pytest.raises(penstock.InvalidEvent, match="publish at least one"):
        orders.publish_many([])


@pytest.mark.slow
@pytest.mark.spec("E6")
def test_a_subscription_starts_where_it_is_told(orders: Channel) -> None:
    orders.publish_many([penstock.Event(data=b"%d" % n) for n in range(4)])
    between = datetime.now(UTC)
    orders.publish_many([penstock.Event(data=b"%d" % n) for n in range(4, 6)])

    def ids(start: StartLike) -> list[int | None]:
        return [event.event_id for event in orders.subscribe(start=start, timeout=0.2)]

    assert ids("earliest") == [0, 1, 2, 3, 4, 5]
    assert ids(3) == [3, 4, 5]
    assert ids(between) == [4, 5]
    assert ids(datetime.now(UTC)) == []
    assert ids("latest") == []


@pytest.mark.parametrize("start", ["first", True, 1.5, None])
def test_an_invalid_start_is_refused_at_the_call(orders: Channel, start: object) -> None:
    with pytest.raises(
        penstock.InvalidArgument, match="give 'earliest', 'latest', an event id, or"
    ):
        orders.subscribe(start=start)  # type: ignore[arg-type]  # that is the point


def test_a_negative_start_is_refused(orders: Channel) -> None:
    with pytest.raises(penstock.InvalidArgument, match="event ids begin at 0"):
        orders.subscribe(start=-1)


@pytest.mark.spec("E6")
def test_stored_events_and_live_ones_follow_without_a_seam(orders: Channel) -> None:
    orders.publish_many([penstock.Event()] * 100)
    with orders.subscribe(start="earliest") as subscription:
        ids: list[int] = []
        while len(ids) < 200:
            if len(ids) == 100:
                orders.publish_many([penstock.Event()] * 100)
            batch = subscription.next_batch(30)
            assert batch is not None
            ids += batch.event_ids.tolist()

    assert ids == list(range(200))


@pytest.mark.slow
def test_batches_are_columns(orders: Channel) -> None:
    orders.publish_table(pa.table({"n": list(range(10))}))

    [batch] = list(orders.subscribe(start="earliest", timeout=0.2).batches())

    assert batch.to_table()["n"].to_pylist() == list(range(10))
    assert batch.to_pandas()["n"].tolist() == list(range(10))
    assert len(batch.to_arrow()) == 10


@pytest.mark.slow
@pytest.mark.spec("F5", "F4")
def test_a_selector_chooses_wherever_events_are_read(orders: Channel) -> None:
    orders.publish_table(pa.table({"n": list(range(10))}))

    assert [e.event_id for e in orders.subscribe(start=0, selector="n > 7", timeout=0.2)] == [8, 9]
    assert [e.event_id for e in orders.browse(selector="n = 3")] == [3]
    assert orders.read(selector="n < 2")["n"].to_pylist() == [0, 1]
    assert orders.purge(selector="n < 5") == 5
    with pytest.raises(penstock.InvalidSelector, match="column 5"):
        orders.subscribe(selector="n > > 7").open()


def test_a_browse_ends_and_leaves_everything_there(orders: Channel) -> None:
    orders.publish_many([penstock.Event()] * 10)

    assert [event.event_id for event in orders.browse(start=2, end=4)] == [2, 3, 4]
    assert [event.event_id for event in orders.browse(start=20)] == []
    assert orders.info().events == 10


def test_reading_gives_a_table_with_the_columns_asked_for(orders: Channel) -> None:
    orders.publish_table(pa.table({"n": [1, 2, 3], "s": ["a", "b", "c"]}))

    assert orders.read(start=1, end=1).select(["event_id", "n"]).to_pylist() == [
        {"event_id": 1, "n": 2}
    ]
    assert orders.read(columns=["s"]).column_names == ["s"]
    with pytest.raises(penstock.InvalidArgument, match="unknown column x; the table has"):
        orders.read(columns=["x"])


def test_reading_a_channel_without_events_gives_an_empty_table(orders: Channel) -> None:
    table = orders.read()

    assert (table.num_rows, table.column_names[:2]) == (0, ["event_id", "published"])


@pytest.mark.spec("T9")
def test_a_purge_is_inclusive_and_counts(orders: Channel) -> None:
    orders.publish_many([penstock.Event()] * 10)

    assert orders.purge(start=3, end=5) == 3
    assert [event.event_id for event in orders.browse()] == [0, 1, 2, 6, 7, 8, 9]
    assert orders.purge() == 7
    assert orders.purge() == 0


@pytest.mark.spec("T4")
def test_a_full_channel_that_honours_its_capacity_refuses(session: Session) -> None:
    full = session.channels.create("full", capacity=2, storage={"honour_capacity": True})
    full.publish_many([penstock.Event()] * 2)
    errors: list[tuple[penstock.PenstockError, int]] = []

    with pytest.raises(penstock.CapacityReached, match="2"):
        full.publish(b"")
    with full.producer(on_error=lambda error, count: errors.append((error, count))) as producer:
        producer.send(b"")
        producer.send(b"")

    assert sum(count for _, count in errors) == 2
    assert all(isinstance(error, penstock.CapacityReached) for error, _ in errors)
    assert full.info().events == 2


@pytest.mark.spec("C6")
def test_a_memory_channel_refuses_what_does_not_fit_and_forgets_nothing() -> None:
    with penstock.Realm(limits__memory_bytes=10_000) as realm, realm.connect() as session:
        channel = session.channels.create("m", type="reliable")
        channel.publish(bytes(6_000))

        with pytest.raises(penstock.MemoryLimit, match="6004 bytes offered, 3832 bytes"):
            channel.publish(bytes(6_000))

        assert [len(event.data) for event in channel.browse()] == [6_000]


def test_a_producer_sends_in_order_and_counts(orders: Channel) -> None:
    with orders.producer(batch_events=100) as producer:
        for n in range(1_000):
            producer.send(b"", properties={"n": n})
        producer.flush()

        assert producer.acknowledged == 1_000
    assert orders.read()["n"].to_pylist() == list(range(1_000))
    with pytest.raises(penstock.SessionClosed, match="the producer is closed"):
        producer.send(b"")


def test_events_that_linger_leave_by_themselves(orders: Channel) -> None:
    with orders.subscribe() as subscription, orders.producer(linger_ms=1) as producer:
        producer.send(b"alone")
        batch = subscription.next_batch(30)

        assert batch is not None
        assert [event.data for event in batch] == [b"alone"]


def test_a_property_that_cannot_be_costs_a_producer_that_event_alone(orders: Channel) -> None:
    errors: list[tuple[penstock.PenstockError, int]] = []
    with orders.producer(on_error=lambda error, count: errors.append((error, count))) as producer:
        producer.send(b"good")
        producer.send(b"bad", properties={"wrong": object()})
        producer.send(b"good")

    assert [count for _, count in errors] == [1]
    assert "wrong" in str(errors[0][0])
    assert [event.data for event in orders.browse()] == [b"good", b"good"]


@pytest.mark.spec("E7")
@pytest.mark.parametrize("size", [20_000_000, 70 << 20])
def test_an_event_that_is_too_large_is_refused_with_both_sizes(size: int) -> None:
    with penstock.Realm(limits__max_event_bytes=1_000_000) as realm, realm.connect() as session:
        orders = session.channels.create("orders")

        with pytest.raises(penstock.EventTooLarge, match=rf" {str(size)[:6]}\d\d bytes.* 1000000"):
            orders.publish(bytes(size))

        assert orders.publish(b"small") == 0
        assert orders.info().events == 1


@pytest.mark.slow
@pytest.mark.spec("X1")
def test_a_publish_larger_than_a_frame_is_one_step(orders: Channel) -> None:
    ids = orders.publish_many([penstock.Event(data=bytes(1 << 20))] * 70)

    assert ids == range(70)
    assert sum(len(batch) for batch in orders.browse().batches()) == 70
