"""Batches a client sends: what they claim is held against their bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.columns.schema.layout import BODY_ROWS_MAX, EVENT_BYTES_MIN
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_server.frontends.native.schemas import SchemaTable
from penstock_server.frontends.shared.buffers import Buffers
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.tail_batch import Meter, TailBatch


def nulls(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"properties": pa.nulls(rows, pa.struct([("a", pa.null())]))})


def take_bodies(*batches: pa.RecordBatch) -> list[Body]:
    announced = SchemaTable()
    announced.learn(1, schema_bytes(batches[0].schema))
    parts = [batch_bytes(batch).to_pybytes() for batch in batches]
    return announced.bodies(1, tuple(map(len, parts)), memoryview(b"".join(parts)))


def test_batches_of_nulls_are_bounded_together() -> None:
    assert sum(body.rows for body in take_bodies(*[nulls(BODY_ROWS_MAX // 2)] * 2)) == BODY_ROWS_MAX

    with pytest.raises(InvalidEvent, match="publish at most 1048576 at once"):
        take_bodies(nulls(BODY_ROWS_MAX + 1))
    with pytest.raises(InvalidEvent, match="have 1048577 events or more; publish at most"):
        take_bodies(nulls(BODY_ROWS_MAX), nulls(1), nulls(1))


def test_an_event_counts_sixteen_bytes_however_little_it_says() -> None:
    (body,) = take_bodies(nulls(100_000))
    assert len(body.buffer) < 100_000
    wanted = EVENT_BYTES_MIN * 100_000

    assert body.weight == wanted
    assert body.digest(1 << 20).size == wanted
    meter = Meter()
    tail_batch = TailBatch(
        Span(0, 100_000), 0, 1, schema=body.schema, body=body.buffer, home="heap"
    )
    meter.add_bytes(tail_batch.home, tail_batch.weight)
    assert meter.memory_bytes == wanted
    meter.add_bytes(tail_batch.home, -tail_batch.weight)
    assert meter.memory_bytes == 0


def wide(number: int) -> pa.Table:
    """A table whose schema takes some 10 kB, another one for each number."""
    names = [f"{number}-{index}" + "x" * 200 for index in range(30)]
    return pa.table({name: pa.array([1], pa.int8()) for name in names})


def test_the_schemas_of_all_connections_of_a_user_are_bounded(
    tmp_path: Path,
) -> None:
    with penstock.Realm(tmp_path, limits__property_names_max=0) as realm:
        realm.listener.announced_schemas = Buffers(2 * 50_000, small_bytes=1_000)
        with realm.connect() as first, realm.connect() as second:
            first.channels.create("orders")
            publish(first, numbers=range(4))
            publish(second, numbers=range(100, 102))
            with pytest.raises(
                penstock.PenstockError,
                match="together with those on the other connections of the user",
            ):
                publish(second, numbers=range(102, 106))
            publish(first, numbers=range(4, 5))
        with realm.connect() as third:  # the bytes of closed connections are free again
            publish(third, numbers=range(200, 206))


def publish(session: penstock.Session, numbers: range) -> None:
    orders = session.channels.get("orders")
    for number in numbers:
        orders.publish_table(wide(number))
