"""Unsealed batches are kept as bytes; few of them are also kept parsed."""

from __future__ import annotations

import gc
from weakref import ref

import pyarrow as pa

from packages.server.tests.runtime.lives import Lives
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes, schema_from
from penstock_core.ids.ids import Span
from penstock_server.runtime.store.tail_batch import PARSED_BYTES_MAX, TailBatch
from penstock_testing.loop import simulated

NAMES = 500
WIDE = {f"name{n}": n for n in range(NAMES)}


def wide_batch(n: int) -> pa.RecordBatch:
    properties = pa.StructArray.from_arrays([pa.array([n])] * NAMES, names=list(WIDE))
    return pa.RecordBatch.from_arrays(
        [pa.array([b"x"], pa.binary()), properties], names=["data", "properties"]
    )


def test_the_oldest_parsed_batches_are_dropped_and_parsed_again() -> None:
    first = wide_batch(0)
    schema = schema_from(schema_bytes(first.schema))
    body = memoryview(batch_bytes(first))
    oldest = TailBatch(Span(0, 1), 0, 1, schema=schema, body=body, batch=first)
    reference = ref(first)
    del first

    others = [
        TailBatch(Span(n, n + 1), 0, 1, schema=schema, body=body, batch=wide_batch(n))
        for n in range(1, PARSED_BYTES_MAX // len(body) // 12 + 2)
    ]

    assert reference() is None
    assert oldest.batch.equals(wide_batch(0))
    assert others[-1].batch.equals(wide_batch(len(others)))


@simulated
async def test_few_copies_of_joins_are_kept_parsed() -> None:
    lives = Lives()
    async with lives.life("closed"):
        await lives.create("source")
        for name in "abc":
            await lives.create(name)
            await lives.realm.joins.create("source", name, "", archive=False)
        before = wide_ones()
        event = Event(b"x" * 100_000, properties=WIDE)
        for _ in range(20):
            await lives.put("source", event)

        assert [(await lives.info(name)).events for name in "abc"] == [20] * 3
        assert wide_ones() - before <= PARSED_BYTES_MAX // (12 * len(event.data))


def wide_ones() -> int:
    """Parsed batches with many properties in memory."""
    gc.collect()
    return sum(
        isinstance(candidate, pa.RecordBatch)
        and "properties" in candidate.schema.names
        and candidate.schema.field("properties").type.num_fields > 100
        for candidate in gc.get_objects()
    )
