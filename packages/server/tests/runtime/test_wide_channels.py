"""An event with many property names is kept, and other events do not grow by it (SEM E2)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from packages.server.tests.runtime.lives import Lives
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import LimitReached
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.store.sealed_file import Damage
from penstock_server.runtime.subscriptions.locations import columns
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_testing.loop import simulated

pytestmark = pytest.mark.spec("E2")

WIDE = {f"p{number:03d}": number for number in range(250)}
SPINDLE = 2_000


def orders(first: int, count: int = SPINDLE) -> list[Event]:
    return [
        Event(properties={"sku": f"a{n % 9}", "price": n / 2}) for n in range(first, first + count)
    ]


def wide() -> Event:
    return Event(properties={"sku": "w", **WIDE})


async def sealed_sizes(lives: Lives, name: str) -> list[int]:
    """Bytes of a channel's files, everything that fills one sealed."""
    sealer = lives.realm.sealer
    number = lives.number(name)
    while await sealer.seal(ChannelId(number)):
        pass
    return [file.index.size for file in lives.realm.shard.state.stores[number].files]


def columns_in(lives: Lives, name: str, at: int) -> list[str]:
    file = lives.realm.shard.state.stores[lives.number(name)].files[at]
    schema = pa.ipc.read_schema(pa.py_buffer(file.index.schema))
    return [field.name for field in schema.field("properties").type]


async def property_names(lives: Lives, name: str) -> list[str]:
    schema = ChannelSchema.from_bytes(
        await columns(lives.realm.shard, ChannelId(lives.number(name)))
    ).arrow
    return [field.name for field in schema.field("properties").type]


@pytest.mark.slow
@simulated
async def test_files_have_the_columns_they_need_and_joins_copy_no_others() -> None:
    lives = Lives(1)
    names = ["sku", "price", *WIDE]
    async with lives.life():
        for name in ("orders", "copies"):
            await lives.create(name, storage=Storage(events_per_spindle=SPINDLE))
        await lives.realm.joins.create("orders", "copies", "", archive=False)
        await lives.put("orders", *orders(0))
        await lives.put("orders", wide(), *orders(0, SPINDLE - 1))
        await lives.put("orders", *orders(0))
        for name in ("orders", "copies"):
            before, among, after = await sealed_sizes(lives, name)
            assert among < 1.6 * before
            assert after < 1.1 * before
            assert columns_in(lives, name, 1) == ["sku", "price"]
            assert columns_in(lives, name, 2) == ["sku", "price"]
            assert await property_names(lives, name) == names
    async with lives.life():
        for name in ("orders", "copies"):
            assert await property_names(lives, name) == names, (
                "what a file leaves out is not forgotten"
            )
            matches = await lives.stored(name, "p042 = 42")
            assert [event.properties for event in matches] == [{"sku": "w", **WIDE}]
            assert len(await lives.stored(name, "price >= 0")) == 3 * SPINDLE - 1


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False], ids=["one publish", "many publishes"])
@simulated
async def test_a_single_file_stays_small_and_is_rewritten_by_maintenance(together: bool) -> None:
    lives = Lives(1)
    async with lives.life():
        await lives.create("orders", storage=Storage(events_per_spindle=0))
        number = lives.number("orders")
        sealer = lives.realm.sealer
        await lives.put("orders", *orders(0))
        await sealer.seal(ChannelId(number), everything=True)
        (before,) = await sealed_sizes(lives, "orders")
        if together:
            await lives.put("orders", *orders(0, 1_000), wide(), *orders(0, 1_000))
        else:
            await lives.put("orders", *orders(0, 1_000))
            await lives.put("orders", wide())
            await lives.put("orders", *orders(0, 1_000))
        while await sealer.seal(ChannelId(number), everything=True):
            pass
        await lives.put("orders", *orders(0))
        while await sealer.seal(ChannelId(number), everything=True):
            pass
        assert sum(await sealed_sizes(lives, "orders")) < 5 * before
        await lives.realm.maintain("orders")
        assert sum(await sealed_sizes(lives, "orders")) < 5 * before
        assert len(await property_names(lives, "orders")) == 252
    async with lives.life():
        assert len(await property_names(lives, "orders")) == 252
        (match,) = await lives.stored("orders", "p249 = 249")
        assert match.properties == {"sku": "w", **WIDE}


@simulated
async def test_new_columns_during_a_rewrite_stay_in_a_separate_file() -> None:
    lives = Lives(1)
    async with lives.life():
        await lives.create("orders", storage=Storage(events_per_spindle=0))
        number, sealer = lives.number("orders"), lives.realm.sealer
        await lives.put("orders", *orders(0, 50))
        await sealer.seal(ChannelId(number), everything=True)
        real = sealer.maintainer.offload
        remaining = [Event(properties={"colour": "red"})]

        async def meanwhile(call: Any, /) -> Any:
            if remaining:
                await lives.put("orders", remaining.pop())
                await sealer.seal(ChannelId(number), everything=True)
            return await real(call)

        sealer.maintainer.offload = meanwhile
        await lives.realm.maintain("orders")
        assert not remaining
        assert [e.properties for e in await lives.stored("orders", "colour = 'red'")] == [
            {"colour": "red"}
        ]
    async with lives.life():
        assert len(await lives.stored("orders")) == 51
        assert len(await lives.stored("orders", "colour = 'red'")) == 1


@pytest.mark.slow
@simulated
async def test_events_of_many_kinds_are_sent_with_the_columns_they_need() -> None:
    lives = Lives(1)
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", wide())
        for n in range(40):
            await lives.put("orders", *orders(n, 500))
        store = lives.realm.shard.state.stores[lives.number("orders")]
        read = store.read((Span(0, 16_000),), Damage())
        assert sum(part.batch.nbytes for part in read) < 1 << 20
        assert [e.properties for e in await lives.stored("orders", "p001 = 1")] == [
            {"sku": "w", **WIDE}
        ]


@simulated
async def test_a_publish_above_the_limit_of_property_names_is_refused() -> None:
    limits = Limits(memory=MemoryLimits(property_names_max=5))
    lives = Lives(1, limits=limits)
    async with lives.life():
        await lives.create("orders")
        await lives.create("other")
        await lives.put("orders", Event(properties={"a": 1, "d": {"x": 1, "l": [{"y": 1}]}}))
        await lives.put("orders", Event(properties={"a": "of another type"}))
        message = (
            r"orders has 5 property names, and 'b' would make it 6; the limit is 5 "
            r"\(limits.property_names_max\)"
        )
        for late in (Event(properties={"b": 1}), Event(properties={"b": [1, "x"]})):
            with pytest.raises(LimitReached, match=message):
                await lives.put("orders", late)
            with pytest.raises(LimitReached, match=message):
                await lives.transact("t", {"orders": [late], "other": [late]})
        with pytest.raises(LimitReached, match=r"'d\.k0' and 2 others would make it 8"):
            await lives.put("orders", Event(properties={"d": {f"k{n}": n for n in range(3)}}))
        assert len(await lives.stored("orders")) == 2
        assert await lives.stored("other") == [], "all of a transaction or none"
        await lives.put("orders", Event(properties={"a": None}))
    async with lives.life():
        with pytest.raises(LimitReached, match="orders has 5 property names"):
            await lives.put("orders", Event(properties={"b": 1}))
        await lives.put("other", *(Event(properties={f"n{n}": n}) for n in range(5)))
