"""Publishes with expensive selectors wait for a thread; other channels do not wait, and no match is
missed or out of order (SEM F5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from packages.server.tests.runtime.expensive_selectors import (
    LETTERS,
    SMALL_SLICES,
    Elsewhere,
    costly,
    expected,
    outstanding,
)
from packages.server.tests.runtime.lives import Lives, Outlet, body_from_events, datas
from penstock_core.bounds import SELECTORS_WORK_MAX, STAMPED_PREDICATES_MAX
from penstock_core.columns.events.event import Event
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.retention import Sweep
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import LimitReached, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.delivery.selection import Choosing, SelectorLimits
from penstock_server.runtime.store.bodies import SelectorKey
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.runtime.writer.match_cache import NeedsEvaluation
from penstock_server.runtime.writer.requests import RunCommand
from penstock_server.runtime.writer.selector_queue import SelectorQueue
from penstock_server.runtime.writer.unit_of_work import UnitOfWork
from penstock_testing.loop import pass_time, simulated
from tests.protocols import shop

pytestmark = pytest.mark.spec("F5")


def large(count: int, seed: int = 1) -> list[Event]:
    """Events with a long text each."""
    random = Random(seed)
    return [
        Event(b"%d" % n, properties={"n": n, "s": "".join(random.choices(LETTERS, k=1_000))})
        for n in range(count)
    ]


@pytest.mark.slow
@simulated
async def test_other_requests_are_served_while_a_hundred_selectors_are_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders")
        await lives.create("other")
        for n in range(100):
            await lives.durable("orders", f"d{n}", selector=costly(ChannelId(n)))
        elsewhere = Elsewhere(lives, monkeypatch)
        done = lives.send("orders", *large(128))
        served = 0
        while not done.done():
            await lives.put("other", Event(b"here"))  # an administrator waits no longer
            served += 1
        assert served > 50, "between slices"
        assert lives.realm.shard.selector_queue.slices > 50
        assert elsewhere.calls == lives.realm.shard.selector_queue.slices
        assert elsewhere.on_loop == 0, "the turn that stored it found all there"
        assert await done == (0, 128)
        for n in range(0, 100, 7):
            assert await outstanding(lives, "orders", f"d{n}") == await expected(
                lives, "orders", costly(ChannelId(n))
            )
    async with lives.life():
        for n in range(0, 100, 7):
            assert await outstanding(lives, "orders", f"d{n}") == await expected(
                lives, "orders", costly(ChannelId(n))
            )


@pytest.mark.slow
@simulated
async def test_later_publishes_to_the_channel_wait_and_other_channels_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders")
        await lives.create("other")
        await lives.durable("orders", "team", selector=costly(ChannelId(3)))
        elsewhere = Elsewhere(lives, monkeypatch)
        elsewhere.paused = asyncio.Event()
        slow = lives.send("orders", *large(200), producer="p", sequence=1)
        behind = [lives.send("orders", Event(b"%d" % n)) for n in range(5)]
        again = lives.send("orders", *large(200), producer="p", sequence=1)
        aside = lives.send("other", Event(b"other"))
        assert await aside == (0, 1)
        await pass_time(1.0)
        assert not any(publish.done() for publish in (slow, *behind, again))
        elsewhere.paused.set()
        assert await slow == (0, 200)
        assert [await publish for publish in behind] == [(200 + n, 201 + n) for n in range(5)]
        assert await again == (0, 200), "a retry is known, as ever"
        assert len(await lives.stored("orders")) == 205


@simulated
async def test_a_durable_created_during_evaluation_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders")
        await lives.durable("orders", "first", selector=costly(ChannelId(1)))
        elsewhere = Elsewhere(lives, monkeypatch)
        elsewhere.paused = asyncio.Event()
        done = lives.send("orders", *large(200))
        await pass_time(0.1)
        await lives.durable("orders", "second", selector=costly(ChannelId(2)))
        elsewhere.paused.set()
        await done
        assert elsewhere.on_loop == 0, "what it asks was asked in time, too"
        for durable, n in (("first", 1), ("second", 2)):
            events = await outstanding(lives, "orders", durable)
            assert events == await expected(lives, "orders", costly(ChannelId(n)))
            assert 0 < len(events) < 200


@pytest.mark.slow
@simulated
async def test_selectors_behind_joins_are_evaluated_in_a_thread_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        for name in ("orders", "some", "fewer"):
            await lives.create(name)
        await lives.realm.joins.create("orders", "some", costly(ChannelId(1)), archive=False)
        await lives.realm.joins.create("some", "fewer", "n >= 10", archive=False)
        await lives.durable("fewer", "team", selector=costly(ChannelId(2)))
        elsewhere = Elsewhere(lives, monkeypatch)
        await lives.put("orders", *large(300))
        assert elsewhere.on_loop == 0
        copied = datas(await lives.stored("some"))
        assert copied == datas(await lives.stored("orders", costly(ChannelId(1))))
        wanted = datas(
            await lives.stored(
                "orders", f"{costly(ChannelId(1))} AND {costly(ChannelId(2))} AND n >= 10"
            )
        )
        outstanding_events = await outstanding(lives, "fewer", "team")
        events = {event.event_id: event for event in await lives.stored("fewer")}
        assert datas([events[i] for i in outstanding_events]) == wanted
        assert 0 < len(wanted) < len(copied)


@pytest.mark.slow
@pytest.mark.spec("P1")
@simulated
async def test_a_name_is_a_message_field_only_on_channels_with_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, messages = Random(1), Messages("orders", shop())
    answers = [
        messages.event("shop.Order", {"note": "".join(random.choices(LETTERS, k=500))})
        for _ in range(200)
    ]
    for event in answers:
        event.properties["note"] = "".join(random.choices(LETTERS, k=500))
    text = costly(ChannelId(1)).replace("s LIKE", "note LIKE")
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders", descriptors=shop())
        await lives.create("copies")
        await lives.realm.joins.create("orders", "copies", "", archive=False)
        for name in ("orders", "copies"):
            await lives.durable(name, "team", selector=text)
        elsewhere = Elsewhere(lives, monkeypatch)
        await lives.put("orders", *answers)
        assert elsewhere.on_loop == 0
        by_field, by_property = [await outstanding(lives, n, "team") for n in ("orders", "copies")]
        assert by_field == await expected(lives, "orders", text)
        assert by_property == await expected(lives, "copies", text)
        assert by_field != by_property


@simulated
async def test_comparisons_of_ids_and_times_are_made_in_the_turn_that_sets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders", storage=Storage(priority=7, stamp_dictionary=True))
        await lives.put("orders", *[Event(b"before") for _ in range(10)])
        texts = [
            f"event_id >= 30 AND {costly(ChannelId(1))}",
            f"JMSPriority = 7 AND NOT ({costly(ChannelId(1))})",
            f"published <= NOW() AND {costly(ChannelId(2))}",
            f"tag IS NULL AND ({costly(ChannelId(1))} OR event_id < 20)",
        ]
        for n, text in enumerate(texts):
            await lives.durable("orders", f"d{n}", selector=f"{text} AND n >= 0")
        elsewhere = Elsewhere(lives, monkeypatch)
        await lives.put("orders", *large(200))
        assert elsewhere.on_loop == 0
        for n, text in enumerate(texts):
            events = await outstanding(lives, "orders", f"d{n}")
            assert events == await expected(lives, "orders", f"{text} AND n >= 0"), text
            assert events


@simulated
async def test_readers_transactions_and_units_of_work_wait_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("work", kind="queue")
        await lives.create("orders")
        reader = await lives.attach("work", window=1_000, selector=costly(ChannelId(5)))
        elsewhere = Elsewhere(lives, monkeypatch)
        await lives.transact("t1", {"work": large(150), "orders": large(3)})
        assert elsewhere.calls
        assert elsewhere.on_loop == 0
        wanted = await expected(lives, "work", costly(ChannelId(5)))
        assert [event.event_id for event in await reader.has(len(wanted))] == wanted
        assert len(await lives.stored("orders")) == 3


@simulated
async def test_publishes_wait_behind_a_transaction_on_each_of_its_channels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("asked")
        await lives.create("quiet")
        await lives.durable("asked", "team", selector=costly(ChannelId(5)))
        elsewhere = Elsewhere(lives, monkeypatch)
        elsewhere.paused = asyncio.Event()
        numbers = [lives.number(name) for name in ("asked", "quiet")]
        await lives.realm.transactions.begin("t1", numbers)
        commit = asyncio.get_running_loop().create_task(
            lives.commit("t1", {"asked": large(150), "quiet": [Event(b"first")]})
        )
        await asyncio.sleep(0)  # it has asked
        behind = lives.send("quiet", Event(b"second"))
        await pass_time(0.1)
        assert not commit.done()
        assert not behind.done()
        elsewhere.paused.set()
        await commit
        assert await behind == (1, 2)
        assert datas(await lives.stored("quiet")) == ["first", "second"]


@simulated
async def test_a_closing_realm_serves_waiting_publishes_and_a_failed_one_refuses_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life("closed"):
        await lives.create("orders")
        await lives.durable("orders", "team", selector=costly(ChannelId(3)))
        Elsewhere(lives, monkeypatch)
        done = lives.send("orders", *large(200))
    assert await done == (0, 200)
    async with lives.life("killed"):
        elsewhere = Elsewhere(lives, monkeypatch)
        elsewhere.paused = asyncio.Event()
        done = lives.send("orders", *large(200))
        await pass_time(0.1)
    with pytest.raises(PenstockError, match="closed"):
        await done


@simulated
async def test_a_failing_evaluation_affects_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders")
        await lives.durable("orders", "team", selector=costly(ChannelId(3)))
        elsewhere = Elsewhere(lives, monkeypatch)
        mask_in, is_broken = Selector.mask_in, True

        def breaks(*arguments: Any) -> Any:
            if is_broken:
                raise ValueError("nobody foresaw it")
            return mask_in(*arguments)

        monkeypatch.setattr(Selector, "mask_in", breaks)
        with pytest.raises(ValueError, match="foresaw"):
            await lives.put("orders", *large(200))
        is_broken = False
        assert await lives.put("orders", *large(200)) == (0, 200)
        assert elsewhere.calls


def patterns(work: int) -> str:
    """A selector of many patterns with at most this work, and not much less."""
    one = f"s LIKE '%0000{'a_' * 95}%'"
    count = work // Selector(one).work
    rest = work - count * Selector(one).work
    texts = [one.replace("0000", f"{number:04}") for number in range(count)]
    return " OR ".join([*texts, *(f"n = {n}" for n in range(rest))])


@simulated
async def test_the_work_of_selectors_on_a_channel_is_bounded() -> None:
    long, more = patterns(SELECTORS_WORK_MAX - 5), "n < 1 AND s LIKE '%a_b%c%d%e%f%g%'"
    total = Selector(long).work + Selector(more).work
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        for name in ("orders", "copies"):
            await lives.create(name)
        await lives.create("work", kind="queue")
        await lives.create("rates", engine="merge", keys={"n": 1})
        await lives.durable("orders", "one", selector=long)
        await lives.durable("orders", "another", selector=long)  # asked once for both
        with pytest.raises(LimitReached, match=f"the selectors on orders need {total} comparisons"):
            await lives.durable("orders", "two", selector=more)
        with pytest.raises(LimitReached, match="allowed are 10000"):
            await lives.realm.joins.create("orders", "copies", f"{long} OR {more}", archive=False)
        await lives.durable("orders", "cheap", selector="n = 1")
        assert [
            d.name
            for d in await lives.realm.subscriptions.durables(ChannelId(lives.number("orders")))
        ]
        assert not await lives.realm.joins.list()
        await lives.attach("work", window=10, selector=long)
        with pytest.raises(LimitReached):
            await lives.attach("work", window=10, selector=f"{long} OR {more}")
        with pytest.raises(LimitReached, match="allowed are 256"):
            await lives.durable("rates", "one", selector=long)


@simulated
async def test_comparisons_that_only_the_turn_can_make_are_few() -> None:
    many = " OR ".join(f"event_id = {n}" for n in range(STAMPED_PREDICATES_MAX - 3))
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders")
        await lives.durable("orders", "many", selector=many)
        await lives.durable("orders", "one", selector="event_id > 5 OR JMSPriority > 4 OR n > 1")
        await lives.durable("orders", "two", selector="JMSPriority > 4 AND published < NOW()")
        with pytest.raises(LimitReached, match="have 257 different comparisons of ids, times"):
            await lives.durable("orders", "three", selector="event_id > 6")
        await lives.durable("orders", "three", selector="n = 6 AND event_id > 5")


@simulated
async def test_properties_named_like_those_of_the_realm_are_evaluated_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        await lives.create("orders")
        for n, name in enumerate(("a$s", "JMSMessageID")):
            text = costly(ChannelId(1)).replace("s LIKE", f"{name} LIKE")
            await lives.durable("orders", f"d{n}", selector=text)
        elsewhere = Elsewhere(lives, monkeypatch)
        texts = [event.properties["s"] for event in large(200)]
        await lives.put(
            "orders",
            *[Event(b"", properties={"a$s": s}, headers={"message_id": s}) for s in texts],
        )
        assert elsewhere.calls
        assert elsewhere.on_loop == 0


@pytest.mark.parametrize("seed", [0, 1, 2, 3, pytest.param(4, marks=pytest.mark.slow), 5])
@simulated
async def test_every_durable_gets_its_matches_in_order_whatever_waits(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, random = Lives(seed, limits=SMALL_SLICES), Random(seed)
    async with lives.life():
        await lives.create("orders")
        await lives.create("copies")
        await lives.realm.joins.create("orders", "copies", "n > 3", archive=False)
        Elsewhere(lives, monkeypatch)
        sent: list[tuple[str, asyncio.Future[Span], int]] = []
        selectors: dict[tuple[str, str], str] = {}
        for n in range(30):
            name = random.choice(["orders", "copies"])
            match random.randrange(3):
                case 0:
                    selectors[name, f"d{n}"] = costly(ChannelId(random.randrange(64)))
                    await lives.durable(name, f"d{n}", selector=selectors[name, f"d{n}"])
                case 1:
                    count = random.choice([1, 5, 60, 150])
                    sent.append((name, lives.send(name, *large(count, n)), count))
                case _:
                    await pass_time(random.choice([0.0, 0.001, 0.1]))
        ends = {"orders": 0, "copies": 0}
        for name, done, count in sent:
            first, end = await done
            assert end - first == count
            assert first >= ends[name], "in the order they were sent"
            ends[name] = end
        for (name, durable), text in selectors.items():
            events = await outstanding(lives, name, durable)
            assert events == await expected(lives, name, text), (name, durable)
        await lives.conserved()


@simulated
async def test_a_browse_begins_at_the_stored_events_while_publishes_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(limits=SMALL_SLICES)
    async with lives.life():
        number = await lives.create("orders", engine="jms", type="mixed")
        waiting = Outlet("w", costly(ChannelId(3)))
        await lives.realm.subscriptions.subscribe(
            ChannelId(number), FromEarliest(), waiting, credit=1 << 20
        )
        elsewhere = Elsewhere(lives, monkeypatch)
        done = lives.send("orders", *large(200))
        await done
        assert elsewhere.on_loop == 0, "what nobody waits for was told aside"
        matching = IdSet.from_ids(waiting.ids)
        assert 0 < len(await waiting.has(1)) < 200
        assert len(matching) <= len(waiting.ids)


class Gates:
    """An offload that runs each evaluation when its gate opens."""

    def __init__(self, count: int) -> None:
        self.gates = [asyncio.Event() for _ in range(count)]
        self._closed = iter(self.gates)

    async def __call__(self, call: Callable[[], Any], /) -> Any:
        await next(self._closed).wait()
        return call()


@simulated
async def test_requests_behind_blocked_work_are_decided_in_the_order_of_their_arrival() -> None:
    offload, limits = Gates(4), SelectorLimits(slice_cost=1)
    choosing = Choosing(offload, SystemClock(), limits)
    queue = SelectorQueue(RealmState(Lives().rules), choosing, on_ready=lambda: None)
    postponed = RunCommand(3, Sweep(), order=0)
    first, second = RunCommand(1, Sweep(), order=1), RunCommand(2, Sweep(), order=2)
    selectors: list[dict[SelectorKey, int]] = [{(None, "n = 1"): 1}, {(None, "n = 2"): 1}]
    for work, evaluated in ((first, selectors[0]), (second, selectors[0] | selectors[1])):
        body = body_from_events(large(1))
        evaluation = NeedsEvaluation(work.channel_id, [(body, evaluated)], lambda: None)
        queue.hold_until_evaluated(work, evaluation)
    unit_of_both = UnitOfWork([(1, ()), (2, ())], (), 1 << 20, order=3)
    last = RunCommand(1, Sweep(), order=4)
    assert queue.holds(unit_of_both)
    assert queue.holds(last)
    for gate in offload.gates[:2]:
        gate.set()
    await pass_time(0.1)
    assert queue.begin_group([]) == [first]
    late, aside = RunCommand(1, Sweep(), order=5), RunCommand(3, Sweep(), order=6)
    assert queue.holds(late)
    assert not queue.holds(aside)
    offload.gates[2].set()
    await pass_time(0.1)

    decided = queue.begin_group([postponed, aside])
    assert decided == [postponed, second, unit_of_both, last, late, aside]
    assert queue.is_idle


@simulated
async def test_ready_requests_are_decided_between_waiting_ones_in_the_order_of_arrival() -> None:
    offload, limits = Gates(2), SelectorLimits(slice_cost=1)
    choosing = Choosing(offload, SystemClock(), limits)
    queue = SelectorQueue(RealmState(Lives().rules), choosing, on_ready=lambda: None)
    early, late = RunCommand(1, Sweep(), order=3), RunCommand(2, Sweep(), order=7)
    for work in (early, late):
        selectors: dict[SelectorKey, int] = {(None, f"n = {work.order}"): 1}
        evaluations = [(body_from_events(large(1)), selectors)]
        queue.hold_until_evaluated(
            work, NeedsEvaluation(work.channel_id, evaluations, lambda: None)
        )
    for gate in offload.gates:
        gate.set()
    await pass_time(0.1)

    between = RunCommand(1, Sweep(), order=5)
    assert queue.begin_group([between]) == [early, between, late]
