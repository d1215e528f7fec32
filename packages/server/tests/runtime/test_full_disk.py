"""Requests that write nothing are served while the disk is full."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packages.server.tests.runtime.lives import Lives, body_from_events, datas, named
from packages.server.tests.runtime.staged_parts import commit
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import AlreadyCommitted, StorageFailed
from penstock_server.runtime.writer.transactions import StorePart
from penstock_testing.loop import simulated

LARGE = bytes(100_000)
MANY = [Event(LARGE)] * 50
"""More bytes than the journal has reserved."""


async def fill(lives: Lives, name: str) -> None:
    """Publish an event, so that the realm has its schema; then fill the disk."""
    await lives.put(name, *named("first"))
    lives.disk.free_bytes = 0


async def is_refused(lives: Lives, name: str, **columns: Any) -> bool:
    next_id = (await lives.info(name)).last_event_id
    try:
        await lives.put(name, *[Event(LARGE, **columns)] * len(MANY))
    except StorageFailed:
        assert (await lives.info(name)).last_event_id == next_id
        return True
    return False


@pytest.mark.spec("J2", "J4", "S1")
@pytest.mark.parametrize("kind", ["persistent", "mixed", "paged"])
@simulated
async def test_passing_events_of_a_jms_channel_are_not_refused(kind: str) -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", kind, engine="jms")
        await fill(lives, "orders")
        assert not await is_refused(lives, "orders"), "nobody waits for it"
        outlet = await lives.follow("orders")
        assert not await is_refused(lives, "orders")
        await outlet.has(50)
        await lives.conserved()


@pytest.mark.spec("J2", "S1")
@simulated
async def test_events_for_a_durable_are_refused_until_there_is_room() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", engine="jms")
        await lives.durable("orders", "team")
        await fill(lives, "orders")
        assert await is_refused(lives, "orders")
        lives.disk.free_bytes = None
        assert not await is_refused(lives, "orders")
        await lives.conserved()


@pytest.mark.spec("J2", "L1", "S1")
@simulated
async def test_events_that_a_join_copies_are_refused() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", engine="jms")
        await lives.create("copies")
        await lives.realm.joins.create("orders", "copies", "", archive=False)
        await fill(lives, "orders")
        assert await is_refused(lives, "orders")
        assert datas(await lives.stored("copies")) == ["first"]


@pytest.mark.spec("C1c", "C1d", "C1e", "C1f", "S1")
@pytest.mark.parametrize("kind", ["reliable", "simple", "transient", "off_heap"])
@simulated
async def test_events_in_memory_only_are_not_refused(kind: str) -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", kind)
        await fill(lives, "orders")
        assert not await is_refused(lives, "orders")
        await lives.conserved()


@pytest.mark.spec("C1b", "S1")
@simulated
async def test_a_mixed_channel_refuses_persistent_events_only() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", "mixed")
        await lives.put("orders", Event(b"first", persistent=False))
        await fill(lives, "orders")
        assert await is_refused(lives, "orders")
        assert not await is_refused(lives, "orders", persistent=False)
        await lives.conserved()


@pytest.mark.spec("T5", "S1")
@simulated
async def test_a_publish_that_would_evict_to_a_dead_event_store_is_refused() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("dead")
        await lives.create("orders", "reliable", capacity=50, dead_event_store="dead")
        await fill(lives, "orders")
        assert await is_refused(lives, "orders")
        assert (await lives.info("orders")).events == 1


@pytest.mark.spec("S1")
@simulated
async def test_events_that_have_to_be_stamped_are_refused() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", "reliable", storage=Storage(stamp_dictionary=True))
        await fill(lives, "orders")
        assert await is_refused(lives, "orders")


@pytest.mark.spec("X3", "S1")
@simulated
async def test_a_repeated_publish_is_answered_on_a_full_disk() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders")
        span = await lives.put("orders", *MANY, producer="p", sequence=1)
        parts = [(lives.number("orders"), ["stage"])]
        lives.realm.stages.put("stage", lives.number("orders"), [body_from_events(MANY)])
        spans = await commit(lives, parts, 1)
        lives.disk.free_bytes = 0

        assert await lives.put("orders", *MANY, producer="p", sequence=1) == span
        lives.realm.stages.put("stage", lives.number("orders"), [body_from_events(MANY)])
        assert await commit(lives, parts, 1) == spans
        with pytest.raises(StorageFailed):
            await lives.put("orders", *MANY, producer="p", sequence=2)
        assert (await lives.info("orders")).events == 2 * len(MANY)


@pytest.mark.spec("X2", "S1")
@simulated
async def test_a_repeated_commit_is_answered_on_a_full_disk() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders")
        part = StorePart(lives.number("orders"), [body_from_events(MANY)])
        await lives.realm.transactions.begin("t", [part.channel_id])
        await commit_transaction(lives, part)
        lives.disk.free_bytes = 0

        with pytest.raises(AlreadyCommitted):
            await commit_transaction(lives, part)


async def commit_transaction(lives: Lives, part: StorePart) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(_: object, error: BaseException | None) -> None:
        done.set_exception(error) if error is not None else done.set_result(None)

    lives.realm.transactions.commit("t", [part], reply)
    await done
