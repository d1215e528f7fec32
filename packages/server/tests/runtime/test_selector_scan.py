"""Selectors on stored events are evaluated in steps, while publishers and readers are served (SEM
F5)."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from packages.server.tests.runtime.lives import Lives
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import InvalidSelector, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.delivery.selection import SelectorLimits
from penstock_server.runtime.realm import Limits
from penstock_testing.loop import simulated

STEP = 8


SMALL_STEPS = Limits(selectors=SelectorLimits(scan_events=STEP))


def numbered(first: int, end: int) -> list[Event]:
    return [Event(properties={"n": n}) for n in range(first, end)]


@pytest.mark.spec("Q1", "F5")
@pytest.mark.parametrize("seed", range(4))
@simulated
async def test_a_reader_with_a_selector_misses_nothing_while_it_attaches(
    seed: int,
) -> None:
    lives, random = Lives(seed, limits=SMALL_STEPS), Random(seed)
    async with lives.life():
        await lives.create("work", kind="queue")
        await lives.put("work", *numbered(0, 20 * STEP))
        other_reader = await lives.attach("work", window=5, session="other")
        await other_reader.has(5)
        opening = asyncio.get_running_loop().create_task(
            lives.attach("work", window=1_000, selector="n BETWEEN 3 AND 500")
        )
        before, next_number = lives.realm.shard.groups, 20 * STEP
        while not opening.done():
            await lives.put("work", *numbered(next_number, next_number + 1))
            next_number += 1
            if random.random() < 0.3:
                await other_reader.settle(*other_reader.outlet.ids)
        assert lives.realm.shard.groups - before > 20, "others were served meanwhile"
        reader = await opening
        await other_reader.leave()
        await lives.put("work", *numbered(next_number, next_number + 1))
        consumed = (await lives.info("work")).counters.consumed
        events = await reader.has(1)
        read = {event.event_id for event in events}
        assert len(read) == len(events)
        assert read == set(range(max(3, consumed), next_number + 1))


@pytest.mark.spec("T9", "D3", "F5")
@simulated
async def test_durables_and_purges_examine_each_event_once() -> None:
    lives = Lives(limits=SMALL_STEPS)
    async with lives.life():
        number = await lives.create("orders")
        await lives.put("orders", *numbered(0, 10 * STEP + 3))
        making = asyncio.get_running_loop().create_task(
            lives.durable("orders", "team", selector="n >= 40")
        )
        await lives.put("orders", *numbered(100, 110))
        await making
        state = lives.realm.directory.channels[number].state
        wanted = state.durable("team").outstanding
        assert list(wanted) == list(range(40, 93))
        purge = lives.realm.subscriptions.purge
        assert (
            await purge(ChannelId(number), None, None, selector="n BETWEEN 10 AND 19 OR n = 100")
            == 11
        )
        assert await purge(ChannelId(number), 0, 15, selector="n < 50") == 10
        assert (
            await lives.realm.subscriptions.purge_durable(
                ChannelId(number), "team", 45, last=None, selector="n > 105"
            )
            == 4
        )
        with pytest.raises(InvalidSelector):
            await purge(ChannelId(number), None, None, selector="n > > 1")
        await lives.conserved()


@pytest.mark.spec("F5")
@pytest.mark.parametrize("chosen", ["n < 0", "n >= 0", "n IN (1, 2, 7)", "odd", "odd OR n < 100"])
@simulated
async def test_the_matches_are_exact_however_scattered(chosen: str) -> None:
    lives = Lives(limits=SMALL_STEPS)
    async with lives.life():
        number = await lives.create("orders")
        events = [Event(properties={"n": n, "odd": n % 2 == 1}) for n in range(400)]
        await lives.put("orders", *events)
        selector = chosen.replace("odd", "odd = TRUE")
        expected = {
            "n < 0": set(),
            "n >= 0": set(range(400)),
            "n IN (1, 2, 7)": {1, 2, 7},
            "odd": set(range(1, 400, 2)),
            "odd OR n < 100": {*range(100), *range(101, 400, 2)},
        }[chosen]
        assert await lives.realm.subscriptions.purge(
            ChannelId(number), None, None, selector=selector
        ) == len(expected)
        remaining = {event.event_id for event in await lives.stored("orders")}
        assert remaining == set(range(400)) - expected


@pytest.mark.spec("T9")
@pytest.mark.parametrize("selector", ["", "n = 1"])
@simulated
async def test_requests_for_a_deleted_channel_are_refused_and_the_realm_continues(
    selector: str,
) -> None:
    lives = Lives(limits=SMALL_STEPS)
    async with lives.life():
        number = await lives.create("orders")
        await lives.realm.delete_channel("orders")
        subscriptions = lives.realm.subscriptions
        with pytest.raises(NameDoesNotExist):
            await subscriptions.purge(ChannelId(number), None, None, selector=selector)
        with pytest.raises(NameDoesNotExist):
            await subscriptions.purge_durable(
                ChannelId(number), "team", None, last=None, selector=selector
            )
        with pytest.raises(NameDoesNotExist):
            await subscriptions.create_durable(
                ChannelId(number),
                "team",
                "shared",
                start=FromEarliest(),
                selector=selector,
                persistent=None,
            )
        assert await lives.realm.list_channels() == []
