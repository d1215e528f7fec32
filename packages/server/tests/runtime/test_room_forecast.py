"""The forecast of copies is enough, and leaves out events that joins do not copy (SEM L)."""

from __future__ import annotations

from random import Random

import pytest

from packages.server.tests.runtime.lives import Lives, body_from_events
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import NameAlreadyBound
from penstock_server.runtime.writer.room_forecast import side_effect_bytes
from penstock_testing.loop import simulated

SELECTORS = (
    "",
    "n < 3",
    "n = 7",
    "tag = 'few'",
    "event_id < 4",
    "NOW() > 0",
    "JMSPriority = 4",
    "JMSTimestamp > 0 AND n > 5",
)


def events(random: Random) -> list[Event]:
    return [
        Event(
            random.randbytes(random.choice((10, 5_000))),
            tag=random.choice((None, "few")),
            properties={"n": n, "text": "x" * random.randrange(50)},
        )
        for n in range(10)
    ]


@pytest.mark.spec("L1", "L3")
@pytest.mark.parametrize("seed", range(8))
@simulated
async def test_the_forecast_is_enough_for_every_graph_of_joins(
    seed: int,
) -> None:
    random, lives = Random(seed), Lives()
    names = [f"s{n}" for n in range(6)]
    async with lives.life():
        for name in names:
            await lives.create(name)
        await lives.create("archive", kind="queue")
        for _ in range(12):
            source, end = random.sample(names, 2)
            archive = random.random() < 0.2
            try:
                await lives.realm.joins.create(
                    source, "archive" if archive else end, random.choice(SELECTORS), archive
                )
            except NameAlreadyBound:
                continue
        batch = events(random)
        state, body = lives.realm.shard.state, body_from_events(batch)
        # Count exactly, however little it is.
        room = side_effect_bytes(state, lives.number("s0"), [body], counted_above=0)
        before = lives.store.journal.info().size
        await lives.put("s0", *batch)
        written = lives.store.journal.info().size - before

        assert written <= room + len(body.buffer) + 4_096


@pytest.mark.spec("L1")
@simulated
async def test_the_forecast_leaves_out_events_that_joins_do_not_copy() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("source")
        for n in range(40):
            await lives.create(f"s{n}")
            await lives.realm.joins.create("source", f"s{n}", f"n = {n}", archive=False)
        body = body_from_events([Event(bytes(10_000), properties={"n": n}) for n in range(5)])
        number = lives.number("source")

        state = lives.realm.shard.state
        size = side_effect_bytes(state, number, [body], counted_above=1 << 16)

        assert 50_000 < size < 100_000
