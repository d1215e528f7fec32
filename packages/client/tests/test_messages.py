"""Protocol Buffers over a session: descriptors kept, messages written, read and selected."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import penstock
from penstock import InvalidDescriptor, InvalidEvent, NameDoesNotExist
from penstock.client.sync.sync import Channel, Session
from tests.protocols import ORDER, shop

WAIT_S = 30.0


@pytest.fixture
def orders(session: Session) -> Channel:
    """Three orders of 100, 200 and 300."""
    channel = session.channels.create("orders", type="persistent", descriptors=shop())
    messages = channel.messages()
    channel.publish_many(
        [messages.event("shop.Order", {**ORDER, "total": total}) for total in (100, 200, 300)]
    )
    return channel


@pytest.mark.spec("P1")
def test_a_message_comes_out_as_it_went_in(orders: Channel) -> None:
    messages = orders.messages()
    first, *_ = orders.browse()

    assert messages.types[1:] == ("shop.Line", "shop.Order", "shop.Tree")
    assert messages.decode(first) == {**ORDER, "total": "100"}
    assert first.headers["message_type"] == "shop.Order"
    assert messages.table("shop.Order", orders.browse()).column("total").to_pylist() == [
        100,
        200,
        300,
    ]
    assert messages.table("shop.Order", orders.read().column("data")).num_rows == 3


@pytest.mark.spec("P1", "F5")
def test_selectors_read_the_fields_wherever_there_are_selectors(
    session: Session, orders: Channel
) -> None:
    chosen = "total > 100 AND lines[].sku = 'bolt'"
    durable = orders.durables.create("chosen", type="shared", selector=chosen)
    work = session.queues.create("work", descriptors=shop())
    session.joins.create("orders", "work", selector="total = 400")
    messages = orders.messages()

    with orders.subscribe(start="earliest", selector=chosen, timeout=WAIT_S) as live:
        orders.publish_many([messages.event("shop.Order", {**ORDER, "total": 400})])
        assert [event.event_id for event in islice(live, 3)] == [1, 2, 3]
    assert [event.event_id for event in orders.browse(selector=chosen)] == [1, 2, 3]
    assert orders.read(selector="total = 400").num_rows == 1
    assert [event.event_id for event in durable.fetch(3, timeout=WAIT_S)] == [1, 2, 3]
    assert [messages.decode(event)["total"] for event in work.peek(5)] == ["400"]
    assert not work.peek(5, selector="total = 100")
    assert orders.purge(selector="total = 200") == 1


@pytest.mark.spec("P2")
def test_a_type_without_a_descriptor_is_stored_and_unknown(orders: Channel) -> None:
    orders.publish(b"\x01", headers={"message_type": "shop.Nothing"})
    orders.publish(b"\x01")
    strange, plain = orders.browse(start=3)

    assert [event.event_id for event in orders.browse(selector="total IS NULL")] == [3, 4]
    with pytest.raises(InvalidEvent, match=r"unknown message type 'shop\.Nothing'"):
        orders.messages().decode(strange)
    with pytest.raises(InvalidEvent, match="event 4 names no message type"):
        orders.messages().decode(plain)


@pytest.mark.slow
@pytest.mark.spec("P3")
def test_nothing_is_published_without_a_known_type(session: Session, orders: Channel) -> None:
    bare = session.channels.create("bare")

    with pytest.raises(InvalidEvent, match="bare has no descriptors"):
        bare.messages().event("shop.Order", {})
    with pytest.raises(InvalidEvent, match=r"unknown message type 'shop\.Nothing'"):
        orders.messages().event("shop.Nothing", {})

    assert (bare.messages().types, bare.info().events, orders.info().events) == ((), 0, 3)


@pytest.mark.spec("P4", "C3")
def test_bad_descriptors_change_nothing(session: Session, orders: Channel) -> None:
    with pytest.raises(InvalidDescriptor, match="not a FileDescriptorSet"):
        session.channels.create("other", descriptors=b"message Order {}")
    with pytest.raises(InvalidDescriptor, match="not a FileDescriptorSet"):
        orders.edit(descriptors=b"message Order {}")
    with pytest.raises(penstock.InvalidArgument, match="descriptors: int is not a descriptor set"):
        orders.edit(descriptors=5)

    with pytest.raises(NameDoesNotExist):
        session.channels.get("other")
    assert orders.purge(selector="total = 100") == 1


@pytest.mark.spec("C3", "P1")
def test_descriptors_are_edited_in_place(orders: Channel) -> None:
    orders.edit(descriptors=b"")
    without = [event.event_id for event in orders.browse(selector="total > 100")]
    orders.edit(descriptors=shop(), ttl=1_000_000)

    assert without == []
    assert [event.event_id for event in orders.browse(selector="total > 100")] == [1, 2]


@pytest.mark.slow
@pytest.mark.spec("P1", "C7")
def test_descriptors_survive_a_restart_and_go_along_with_an_export(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        channel = session.channels.create("orders", type="persistent", descriptors=shop())
        channel.publish_many([channel.messages().event("shop.Order", ORDER)])

    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        kept = session.channels.get("orders")
        assert [event.event_id for event in kept.browse(selector="total = 250")] == [0]
        session.channels.export("orders", tmp_path / "export")

    with penstock.Realm() as realm, realm.connect() as session:
        copy = session.channels.import_from(tmp_path / "export")
        assert [event.event_id for event in copy.browse(selector="total = 250")] == [0]


@pytest.mark.spec("P4")
@pytest.mark.parametrize("size", [1_000_000, 1_100_000, 5_000_000])
def test_descriptors_that_are_too_large_are_refused_as_descriptors(size: int) -> None:
    """The error is the same if not even a request could carry the descriptors."""
    with penstock.Realm() as realm, realm.connect() as session:
        with pytest.raises(penstock.InvalidDescriptor, match="a channel accepts at most 983,040"):
            session.channels.create("orders", descriptors=b"\n" * size)
        assert session.channels.list() == []
