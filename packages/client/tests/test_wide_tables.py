"""Tables of a channel on which few events have many names: whole, and not large (SEM E2)."""

from __future__ import annotations

import pytest

import penstock
from penstock.client.sync.sync import Channel, Session

pytestmark = pytest.mark.spec("E2")

WIDE = {f"p{number:03d}": number for number in range(250)}
COUNT = 20_000


def many() -> list[penstock.Event]:
    return [penstock.Event(properties={"sku": f"a{n % 9}", "price": n / 2}) for n in range(COUNT)]


@pytest.mark.slow
def test_a_table_has_every_column_and_is_not_larger_for_it(orders: Channel) -> None:
    orders.publish_many(many())
    before = orders.read().get_total_buffer_size()
    orders.publish(b"", properties={"sku": "w", **WIDE})
    orders.publish_many(many())

    table = orders.read()

    assert table.column_names[4:] == ["sku", "price", *WIDE]
    assert table.num_rows == 2 * COUNT + 1
    assert table.column("p042").to_pylist()[COUNT] == 42
    assert table.column("p042").null_count == 2 * COUNT
    assert table.get_total_buffer_size() < 6 * before, "twice as many events"
    assert orders.read(columns=["p007"], selector="sku = 'w'").to_pylist() == [{"p007": 7}]


@pytest.mark.slow
def test_a_delivery_shows_what_few_of_its_events_have(session: Session, orders: Channel) -> None:
    copies = session.channels.create("copies")
    session.joins.create("orders", "copies")
    for batch in (many(), [penstock.Event(properties={"sku": "w", **WIDE})], many()):
        orders.publish_many(batch)

    with copies.browse() as reading:
        tables = [batch.to_table() for batch in reading.batches()]

    (table,) = [table for table in tables if "p042" in table.column_names]
    assert table.filter(table.column("p042").is_valid()).column("sku").to_pylist() == ["w"]
