"""Transactions: all of a transaction's events or none, over several stores (SEM X1, X2, X4)."""

from __future__ import annotations

import asyncio
from random import Random

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
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import (
    AlreadyAborted,
    AlreadyCommitted,
    CapacityReached,
    EventTooLarge,
    InvalidArgument,
    MemoryLimit,
    NameDoesNotExist,
    NoSuchStage,
    NoSuchTransaction,
    StorageFailed,
)
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_testing.loop import pass_time, simulate, simulated

HONEST = Storage(honour_capacity=True)
DAY_S = 24 * 3_600


@pytest.mark.spec("X1", "X2", "X4")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["persistent", "mixed", "paged"])
@simulated
async def test_events_of_several_stores_come_together_and_are_known_after_a_restart(
    end: End, kind: str
) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("orders", kind)
        await lives.create("work", kind, kind="queue")
        await lives.put("orders", *named("before"))
        parts = {"orders": named("a", "b"), "work": named("job")}
        spans = await lives.transact("t1", parts)
        assert spans == {1: Span(1, 3), 2: Span(0, 1)}
    async with lives.life(end):
        assert datas(await lives.stored("orders")) == ["before", "a", "b"]
        assert (await lives.info("work")).events == 1
        info = await lives.realm.transactions.describe("t1")
        assert (info.state, dict(info.spans)) == ("committed", spans)
        with pytest.raises(AlreadyCommitted):
            await lives.commit("t1", parts)
        with pytest.raises(AlreadyCommitted):
            await lives.realm.transactions.begin("t1", [1])
        with pytest.raises(AlreadyCommitted):
            await lives.realm.transactions.abort("t1")
        assert len(await lives.stored("orders")) == 3


@pytest.mark.spec("X1", "T4", "E7")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_one_store_that_refuses_rejects_the_whole_transaction(end: End) -> None:
    lives = Lives(limits=Limits(event_bytes_max=5_000, memory=MemoryLimits(2_000, 2_000)))
    async with lives.life(end):
        await lives.create("orders")
        await lives.create("full", capacity=1, storage=HONEST)
        await lives.create("off", "off_heap")
        await lives.create("gone")
        await lives.put("full", *named("x"))
        refused: list[tuple[str, list[Event], type[Exception]]] = [
            ("full", named("y"), CapacityReached),
            ("off", [Event(bytes(3_000))], MemoryLimit),
            ("off", [Event(bytes(6_000))], EventTooLarge),
            ("off", named("later", deliver_at=clock_now()), InvalidArgument),
        ]
        for n, (name, events, error) in enumerate(refused):
            parts = {"orders": named("a"), name: events}
            with pytest.raises(error):
                await lives.transact(f"t{n}", parts)
            assert await lives.stored("orders") == []
            assert (await lives.realm.transactions.describe(f"t{n}")).state == "open"
        number = lives.number("gone")
        await lives.realm.delete_channel("gone")
        with pytest.raises(NameDoesNotExist):
            await lives.realm.transactions.begin("t9", [number])
        await lives.commit("t0", {"orders": named("a")})  # the same, without the refused part
    async with lives.life(end):
        assert datas(await lives.stored("orders")) == ["a"]
        assert datas(await lives.stored("full")) == ["x"]
        await lives.conserved()


@pytest.mark.spec("C6", "X1")
@simulated
async def test_the_memory_limit_counts_over_all_stores_of_a_transaction() -> None:
    limits = Limits(memory=MemoryLimits(10_000, 10_000, 10_000))
    lives = Lives(limits=limits)
    async with lives.life():
        for kind in ("reliable", "simple", "off_heap", "paged"):
            await lives.create(kind, kind)
            await lives.create(f"{kind}2", kind)
        for first, second in [
            ("reliable", "simple"),
            ("off_heap", "off_heap2"),
            ("paged", "paged2"),
        ]:
            parts = {first: [Event(bytes(6_000))], second: [Event(bytes(6_000))]}
            with pytest.raises(MemoryLimit):
                await lives.transact(first, parts)
            assert await lives.stored(first) == []
        events_by_store = {
            kind: [Event(bytes(6_000))] for kind in ("reliable", "off_heap", "paged")
        }
        await lives.transact("t", events_by_store)
        assert all([len(await lives.stored(kind)) == 1 for kind in events_by_store])


@pytest.mark.spec("T4")
@simulated
async def test_a_transaction_may_exceed_the_capacity_only_if_begun_below_it() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", capacity=2, storage=HONEST)
        await lives.put("orders", *named("a"))
        await lives.realm.transactions.begin("below", [lives.number("orders")])
        await lives.put("orders", *named("b"))
        await lives.realm.transactions.begin("full", [lives.number("orders")])
        await lives.commit("below", {"orders": named("c", "d", "e")})
        assert len(await lives.stored("orders")) == 5
        with pytest.raises(CapacityReached):
            await lives.commit("full", {"orders": named("f")})
        assert datas(await lives.stored("orders")) == [*"abcde"]


@pytest.mark.spec("K1", "T4", "X1")
@simulated
async def test_an_event_that_replaces_another_needs_no_room() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("last", capacity=1, keys={"k": 1}, storage=HONEST)
        await lives.put("last", *named("old", properties={"k": 1}))
        parts = {"last": named("new", properties={"k": 1})}
        await lives.transact("t", parts)
        assert datas(await lives.stored("last")) == ["new"]
        with pytest.raises(CapacityReached):
            await lives.transact("u", {"last": named("other", properties={"k": 2})})
        await lives.conserved()


@pytest.mark.slow
@pytest.mark.spec("X2")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_the_outcome_of_a_transaction_is_known_for_a_day(end: End) -> None:
    lives = Lives(limits=Limits(sweep_interval_s=3_600.0))
    async with lives.life(end):
        await lives.create("orders")
        transactions = lives.realm.transactions
        await lives.transact("done", {"orders": named("a")})
        await transactions.begin("undone", [1])
        await transactions.abort("undone")
        with pytest.raises(AlreadyAborted):
            await lives.commit("undone", {"orders": named("b")})
    async with lives.life(end):
        transactions = lives.realm.transactions
        await pass_time(DAY_S - 60)
        assert (await transactions.describe("done")).state == "committed"
        assert (await transactions.describe("undone")).state == "aborted"
        with pytest.raises(NoSuchTransaction):
            await transactions.describe("never")
        with pytest.raises(NoSuchTransaction):
            await transactions.abort("never")
        with pytest.raises(InvalidArgument):
            await transactions.begin("", [1])
        await pass_time(120)
        await lives.transact("another", {"orders": named("c")})
    async with lives.life(end):
        for old in ("done", "undone"):
            with pytest.raises(NoSuchTransaction):
                await lives.realm.transactions.describe(old)


@pytest.mark.spec("X2")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_an_open_transaction_begins_again_after_a_restart(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("orders")
        await lives.put("orders", *named("a"))
        await lives.realm.transactions.begin("t", [1])
    async with lives.life(end):
        with pytest.raises(NoSuchTransaction, match="begin it again"):
            await lives.commit("t", {"orders": named("b")})
        await lives.transact("t", {"orders": named("b")})
        assert datas(await lives.stored("orders")) == ["a", "b"]


@pytest.mark.spec("X1", "C1g")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_stages_are_part_of_a_transaction(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        number = await lives.create("orders", "paged")
        await lives.realm.transactions.begin("t", [number])
        with pytest.raises(NoSuchStage):
            await lives.commit("t", {"orders": []}, ["s"])
        lives.realm.stages.put("s", number, [body_from_events(named("b", "c"))])
        spans = await lives.commit("t", {"orders": named("a")}, ["s"])
        assert spans == {number: Span(0, 3)}
    async with lives.life(end):
        assert datas(await lives.stored("orders")) == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.spec("X1", "X2")
def test_after_a_power_cut_at_any_sync_a_transaction_is_complete_or_absent() -> None:
    async def life(good: int) -> tuple[int, bool]:
        lives = Lives(good)
        async with lives.life():
            await lives.create("a")
            await lives.create("b", "paged")
            await lives.create("c", kind="queue")
        confirmed = 0
        async with lives.life():
            lives.disk.fail_syncs_after(good)
            try:
                for n in range(4):
                    parts = {name: named(f"{n}", f"{n}") for name in "abc"}
                    await lives.transact(f"t{n}", parts)
                    confirmed += 1
            except StorageFailed:
                pass
        lives.disk.fail_syncs(0)
        async with lives.life():
            count = len(await lives.stored("a"))
            assert count % 2 == 0
            assert count >= 2 * confirmed
            assert len(await lives.stored("b")) == count
            assert (await lives.info("c")).events == count
            for n in range(4):
                if 2 * n < count:
                    assert (await lives.realm.transactions.describe(f"t{n}")).state == "committed"
                else:
                    await lives.transact(f"t{n}", {"a": named(f"{n}", f"{n}")})
            assert datas(await lives.stored("a")) == [str(n // 2) for n in range(8)]
        return count, count > 2 * confirmed

    seen = {simulate(life(good), Random(good)) for good in range(16)}
    assert {count for count, _ in seen} == {0, 2, 4, 6, 8}


@pytest.mark.spec("T6", "D6", "X1")
@simulated
async def test_events_acknowledged_before_a_commit_are_not_evicted_as_dead() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead")
        await lives.create("orders", capacity=2, dead_event_store="dead")
        await lives.durable("orders", "d")
        seat = await lives.attach("orders", "d")
        await lives.put("orders", *named("a", "b"))
        await seat.has(2)
        await lives.realm.transactions.begin("t", [])
        async with asyncio.TaskGroup() as group:  # both in one
            group.create_task(seat.settle(0))
            group.create_task(lives.commit("t", {"orders": named("c")}))
        assert datas(await lives.stored("orders")) == ["b", "c"]
        assert datas(await lives.stored("dead")) == []
