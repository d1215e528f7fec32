"""Unused schemas are forgotten, and no event is lost by it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from packages.server.tests.runtime.lives import End, Lives
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import schema_bytes
from penstock_core.columns.schema.schema_cache import BYTES_MAX, SchemaMemo
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.store import schemas as schemas_module
from penstock_server.runtime.store.schemas import PARSED_FACTOR, Schemas
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_testing.loop import pass_time, simulated

FEW = 2_000
"""Bytes of recent schemas, in place of a mebibyte."""


@pytest.fixture(autouse=True)
def few_recent_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas_module, "RECENT_BYTES_MAX", FEW)
    monkeypatch.setattr("penstock_core.columns.schema.ipc.SCHEMAS_BYTES_MAX", FEW)


def encoded(number: int) -> bytes:
    return schema_bytes(pa.schema([(f"column{number}", pa.int64())]))


def count_recorded(schemas: Schemas) -> int:
    return len(schemas.in_journal())


def differing(count: int, first: int = 0) -> list[Event]:
    """Return events with a different schema each."""
    return [
        Event(b"x", properties={f"p{number}": number}) for number in range(first, first + count)
    ]


# --- the registry -------------------------------------------------------------------------


def test_an_unused_schema_is_forgotten() -> None:
    schemas = Schemas()
    schemas.forget_unused()
    for number in range(1, 101):
        schemas.record(number, encoded(number))

    assert count_recorded(schemas) < 30
    assert schemas.recorded(encoded(1)) is None
    assert schemas.recorded(encoded(100)) is not None


def test_a_schema_in_use_keeps_its_number() -> None:
    schemas = Schemas()
    schemas.forget_unused()
    schemas.record(1, encoded(1))
    held = schemas.schema(1)
    for number in range(2, 101):
        schemas.record(number, encoded(number))

    assert schemas.recorded(encoded(1)) == (1, held)
    assert (1, encoded(1)) in schemas.in_journal()
    del held
    for number in range(101, 201):
        schemas.record(number, encoded(number))
    assert schemas.recorded(encoded(1)) is None


def test_all_schemas_are_kept_while_a_journal_is_read() -> None:
    schemas = Schemas()
    for number in range(1, 101):
        schemas.record(number, encoded(number))

    assert count_recorded(schemas) == 100
    assert schemas.schema(1).names == ["column1"]
    schemas.forget_unused()
    assert count_recorded(schemas) < 30


def test_no_schema_number_is_used_twice() -> None:
    schemas = Schemas()
    schemas.forget_unused()
    for number in range(1, 101):
        assert schemas.next_number() == number
        schemas.record(number, encoded(number))
    again = Schemas()
    for number, schema in schemas.in_journal():
        again.record(number, schema)

    assert again.next_number() == 101


def test_a_reused_number_names_the_later_schema() -> None:
    schemas = Schemas()
    schemas.record(1, encoded(1))
    schemas.record(1, encoded(2))

    assert schemas.schema(1).names == ["column2"]
    assert [schema for _, schema in schemas.in_journal()] == [encoded(2)]


def test_the_first_batch_with_a_schema_is_charged_for_it() -> None:
    schemas = Schemas()
    for number in range(1, 31):
        schemas.record(number, encoded(number))

    assert schemas.take_weight(30) == PARSED_FACTOR * len(encoded(30))
    assert schemas.take_weight(30) == 0
    assert schemas.take_weight(1) == 0, "few schemas cost nothing"


def test_schemas_of_deliveries_are_limited_and_numbered_separately() -> None:
    schemas = Schemas(transient_max=10)
    numbers = [
        schemas.transient(pa.schema([(f"column{number}", pa.int64())])) for number in range(100)
    ]

    assert len(set(numbers)) == 100
    assert len(schemas.transient_numbers) <= 10


def test_few_wide_schemas_are_kept_by_a_memo() -> None:
    memo = SchemaMemo(lambda schema: len(schema))
    wide = [
        pa.schema([(f"{number}-{field}" + "x" * 200, pa.int64()) for field in range(300)])
        for number in range(20)
    ]
    assert [memo.of(schema) for schema in wide] == [300] * 20
    narrow = [pa.schema([(f"column{number}", pa.int64())]) for number in range(20)]
    assert [memo.of(schema) for schema in narrow * 2] == [1] * 40

    sizes = [size for _, _, size in memo._entries]
    assert sum(sizes) <= BYTES_MAX
    assert len(sizes) == 21


# --- a realm ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["power cut", "snapshot", "closed"])
@simulated
async def test_events_of_forgotten_schemas_are_read_after_every_restart(end: End) -> None:
    lives = Lives(sealing=EAGER)
    async with lives.life(end):
        await lives.create("kept")
        for event in differing(60):
            await lives.put("kept", event)
        await lives.sealed("kept")
        await lives.put("kept", *differing(3, first=58))
    for life in range(2):
        async with lives.life(end):
            schemas = lives.realm.shard.state.schemas
            await lives.put("kept", *differing(2))
            assert count_recorded(schemas) < 40
            events = await lives.stored("kept")
            names = [next(iter(event.properties)) for event in events[:63]]
            assert names == [f"p{number}" for number in (*range(60), 58, 59, 60)]
            assert len(events) == 63 + 2 * (life + 1)


@simulated
async def test_schemas_of_purged_events_are_not_in_a_snapshot() -> None:
    lives = Lives(sealing=SealingLimits(interval_s=1e6))
    async with lives.life("snapshot"):
        await lives.create("kept")
        for event in differing(60):
            await lives.put("kept", event)
        schemas = lives.realm.shard.state.schemas
        assert count_recorded(schemas) == 60
        await lives.purge("kept")
        assert count_recorded(schemas) < 40
    async with lives.life():
        assert count_recorded(lives.realm.shard.state.schemas) < 40


@simulated
async def test_schemas_count_against_the_limit_of_unsealed_bytes() -> None:
    lives = Lives(sealing=EAGER, limits=Limits(tail_bytes_max=100_000))
    async with lives.life("closed"):
        await lives.create("kept")
        for event in differing(60):
            await lives.put("kept", event)
        assert lives.realm.waiting_bytes > 30 * PARSED_FACTOR * 100
        await pass_time(1)

        assert lives.realm.waiting_bytes <= 100_000
        assert len(await lives.stored("kept")) == 60


def test_wide_schemas_of_deliveries_are_kept_within_a_number_of_bytes() -> None:
    def wide(number: int) -> pa.Schema:
        names = [f"{number}-{column}".ljust(255, "x") for column in range(200)]
        return pa.schema([(name, pa.int64()) for name in names])

    schemas = Schemas()
    first = schemas.transient(wide(0))
    for number in range(1, 100):
        schemas.transient(wide(number))

    assert len(schemas.transient_numbers) * 200 * 255 < schemas_module.TRANSIENT_BYTES_MAX
    assert schemas.transient(wide(0)) > first, "it is announced again, under another number"
