"""Publishes and acknowledgements of a session's transaction take effect together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from packages.server.tests.runtime.lives import (
    ENDS,
    End,
    Lives,
    body_from_events,
    clock_now,
    datas,
    named,
)
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import (
    CapacityReached,
    IllegalState,
    NameDoesNotExist,
    PublishingPaused,
)
from penstock_server.runtime.writer.unit_of_work import Acknowledged, UnitOfWork
from penstock_testing.loop import pass_time, simulated

HONEST = Storage(honour_capacity=True)


async def work(lives: Lives, parts: dict[str, Sequence[Event]], *acknowledged: Acknowledged) -> Any:
    publishes = [(lives.number(n), [body_from_events(events)]) for n, events in parts.items()]
    limit = lives.realm.limits.event_bytes_max
    return await lives.realm.shard.ask(
        UnitOfWork(publishes, acknowledged, limit, publisher="me@here")
    )


def acknowledged(lives: Lives, name: str, seat: int, *ids: int) -> Acknowledged:
    return Acknowledged(lives.number(name), seat, IdSet.from_ids(ids).spans)


@pytest.mark.spec("X1", "X4")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_events_move_from_store_to_store_in_one_step(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("in", kind="queue")
        await lives.create("out", kind="queue")
        await lives.put("in", *named("a", "b"))
        reader = await lives.attach("in")
        await reader.has(2)
        spans = await work(lives, {"out": named("A")}, acknowledged(lives, "in", reader.number, 0))
        assert dict(spans) == {lives.number("out"): Span(0, 1)}
    async with lives.life(end):
        assert datas(await lives.stored("in")) == ["b"]
        assert datas(await lives.stored("out")) == ["A"]
        await lives.conserved()


@pytest.mark.spec("X1", "D15", "T4", "X5")
@simulated
async def test_one_refused_part_rejects_the_whole_unit_of_work() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("in", kind="queue")
        await lives.create("out")
        await lives.create("full", capacity=1, storage=HONEST)
        await lives.put("full", *named("x"))
        await lives.put("in", *named("a"))
        reader = await lives.attach("in")
        await reader.has(1)
        mine = acknowledged(lives, "in", reader.number, 0)
        with pytest.raises(CapacityReached):
            await work(lives, {"out": named("b"), "full": named("c")}, mine)
        with pytest.raises(IllegalState):
            await work(lives, {"out": named("b")}, acknowledged(lives, "in", 99, 0))
        await lives.realm.pause(paused=True)
        with pytest.raises(PublishingPaused):
            await work(lives, {"out": named("b")}, mine)

        assert await lives.stored("out") == []
        assert datas(await lives.stored("in")) == ["a"]
        await work(lives, {}, mine)  # which publishes nothing
        assert await lives.stored("in") == []


@pytest.mark.spec("X4")
@simulated
async def test_scheduled_events_of_a_unit_of_work_wait_and_the_others_do_not() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("out")
        number = lives.number("out")
        later = body_from_events(named("later", deliver_at=clock_now() + timedelta(seconds=5)))
        now = body_from_events(named("now"))
        unit = UnitOfWork([(number, [later, now])], (), 1 << 20)
        await lives.realm.shard.ask(unit)

        assert datas(await lives.stored("out")) == ["now"]
        await pass_time(6)
        assert datas(await lives.stored("out")) == ["now", "later"]


@pytest.mark.spec("D5")
@simulated
async def test_a_cumulative_durable_is_acknowledged_up_to_an_event() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("in")
        await lives.durable("in", "d", "exclusive")
        await lives.put("in", *named("a", "b", "c"))
        seat = await lives.attach("in", "d")
        await seat.has(3)
        part = Acknowledged(lives.number("in"), seat.number, (Span(1, 2),), previous=True)
        await work(lives, {}, part)

        assert datas(await lives.stored("in")) == ["c"]


@simulated
async def test_a_deleted_store_refuses_the_unit_of_work() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("out")
        number = lives.number("out")
        await lives.realm.delete_channel("out")
        unit = UnitOfWork([(number, [body_from_events(named("a"))])], (), 1 << 20)

        async with asyncio.timeout(5):
            with pytest.raises(NameDoesNotExist):
                await lives.realm.shard.ask(unit)
