"""Publishes without consequences take a fast path that writes the same block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.lives import Lives
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.events.single_event import codec_of_schema
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.messages.publishing import Appended
from penstock_core.vocabulary.errors import EventTooLarge, PublishingPaused
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Block
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.records import FactRecord, decode_block
from penstock_testing.loop import simulated

UNREACHED = 1 << 30
"""A capacity: it evicts nothing here, but needs the slow path."""

PUBLISHES: Sequence[Sequence[Event]] = (
    (Event(b"one", properties={"price": 1.5}),),
    (Event(b"one", tag="t"),),
    (Event(b"one"), Event(b"two", tag="t"), Event(b"", properties={"a": None})),
    (Event(b"three", priority=9, headers={"user": "somebody"}),),
    (Event(b"gone soon", ttl=60_000), Event(b"stays")),
    (Event(b"passes", transient=True), Event(b"stays")),
)


def bodies(events: Sequence[Event], *, parsed: bool) -> list[Body]:
    """Return one body for each event; those of plain events unparsed if possible."""
    made = []
    for event in events:
        batch = body_of([event])
        message, form = bytes(batch_bytes(batch)), codec_of_schema(batch.schema)
        digest = None if parsed or form is None else form.digest_of(message)
        parsed_batch = batch if digest is None else None
        made.append(Body(message, parsed_batch, schema_bytes(batch.schema), known_digest=digest))
    return made


async def published(lives: Lives, name: str, bodies: list[Body], sequence: int) -> Any:
    """Publish and return the answer."""
    answers: list[Any] = []
    number = lives.number(name)
    lives.realm.publish(
        ChannelId(number),
        bodies,
        "p",
        sequence=sequence,
        reply=lambda *answer: answers.append(answer),
        publisher="me@here",
    )
    await lives.realm.shard.act(lambda group: None)
    ((span, error),) = answers
    return span if error is None else error


async def appended(lives: Lives, name: str) -> list[tuple[FactRecord, list[bytes]]]:
    """Return the publishes on a channel from the journal, without times."""
    number, records = lives.number(name), []
    for block in await lives.store.journal.read(1, 1 << 20):
        assert isinstance(block, Block), "nothing is damaged"
        header, stored = decode_block(memoryview(block.data))
        for record in header.records:
            record_bodies = [bytes(next(stored)) for _ in record.bodies]
            if record.channel == number and isinstance(record.fact, Appended):
                fact = replace(record.fact, at_us=0)
                records.append((replace(record, channel=0, fact=fact), record_bodies))
    return records


@pytest.mark.spec("E4", "E3", "X3")
@pytest.mark.parametrize("kind", ["persistent", "mixed"])
@simulated
async def test_the_fast_path_writes_the_same_as_the_slow_one(kind: str) -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("short", kind)
        await lives.create("long", kind, capacity=UNREACHED)
        for sequence, events in enumerate(PUBLISHES, start=1):
            short = await published(lives, "short", bodies(events, parsed=False), sequence=sequence)
            long = await published(lives, "long", bodies(events, parsed=True), sequence=sequence)
            again = await published(lives, "short", bodies(events, parsed=False), sequence=sequence)
            assert short == long == again

        assert await appended(lives, "short") == await appended(lives, "long")
        stored = [event.data for event in await lives.stored("short")]
        assert stored == [event.data for event in await lives.stored("long")]


@pytest.mark.spec("E7")
@simulated
async def test_the_fast_path_refuses_oversized_events() -> None:
    lives = Lives()
    lives.limits = replace(lives.limits, event_bytes_max=100)
    async with lives.life():
        await lives.create("orders")
        with pytest.raises(EventTooLarge):
            await published(lives, "orders", bodies([Event(bytes(200))], parsed=False), sequence=1)
        assert (
            await published(lives, "orders", bodies([Event(b"x")], parsed=False), sequence=2)
        ).size


@pytest.mark.spec("X5", "X3")
@simulated
async def test_while_publishing_is_paused_only_retries_are_answered() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders")
        first = await published(lives, "orders", bodies([Event(b"x")], parsed=False), sequence=1)
        await lives.realm.pause(paused=True)

        assert (
            await published(lives, "orders", bodies([Event(b"x")], parsed=False), sequence=1)
            == first
        )
        refused = await published(lives, "orders", bodies([Event(b"y")], parsed=False), sequence=2)
        assert isinstance(refused, PublishingPaused)


@pytest.mark.spec("D2", "T3", "L2")
@simulated
async def test_the_fast_path_keeps_all_consequences_of_a_publish() -> None:
    """Each of these publishes needs the slow path, which is chosen for each publish."""
    lives = Lives()
    async with lives.life():
        for name in ("copied", "orders"):
            await lives.create(name)
        await lives.create("two", capacity=2)
        await lives.create("keyed", keys={"k": 1})
        for sequence in range(1, 5):
            one = [Event(b"%d" % sequence, properties={"k": 1})]
            for name in ("orders", "two", "keyed"):
                await published(lives, name, bodies(one, parsed=False), sequence=sequence)
            if sequence == 2:
                await lives.realm.joins.create("orders", "copied", "", archive=False)

        assert [e.data for e in await lives.stored("copied")] == [b"3", b"4"]
        assert [e.data for e in await lives.stored("two")] == [b"3", b"4"]
        assert [e.data for e in await lives.stored("keyed")] == [b"4"]
