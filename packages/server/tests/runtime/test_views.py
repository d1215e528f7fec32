"""The description of a channel for clients."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import PurgeEvents, Sweep
from penstock_core.vocabulary.definitions import Definition
from penstock_server.bootstrap import rules
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.tail_batch import Meter
from penstock_server.runtime.subscriptions.views import channel_info, durable_info
from penstock_testing.play import Play, publish, span


@pytest.mark.spec("E5")
@pytest.mark.parametrize("start", [0, 100])
def test_the_last_event_id_is_minus_one_before_first_use_and_never_goes_back(start: int) -> None:
    definition = Definition(type="persistent", start_event_id=start)
    play = Play(ChannelMachine("orders", definition, rules()))
    store = ChannelStore(Meter())
    seen = [channel_info(play.channel.state, store).last_event_id]
    for command in (publish(2), PurgeEvents((span(0, 500),)), publish(1)):
        play.do(command)
        play.restart()
        seen.append(channel_info(play.channel.state, store).last_event_id)

    assert seen == [-1, start + 1, start + 1, start + 2]


@pytest.mark.spec("T1", "T8")
def test_events_about_to_move_to_the_dead_event_store_are_neither_available_nor_lost() -> None:
    definition = Definition(ttl=1_000, dead_event_store="dead")
    play = Play(ChannelMachine("orders", definition, rules()))
    play.do(publish(3))

    play.channel.attend(Sweep(), play.now_us + 2_000_000)
    info = channel_info(play.channel.state, ChannelStore(Meter()))

    assert (info.events, info.overdue, info.counters.departed_count) == (0, 3, 0)
    assert info.counters.published == info.events + info.overdue + info.counters.departed_count


@pytest.mark.parametrize("selector", ["", "n > 1"])
def test_a_durable_is_described_without_a_list_of_all_it_has(selector: str) -> None:
    """A durable may have a million ranges, and metrics describe it every few seconds."""
    play = Play(ChannelMachine("orders", Definition(), rules()))
    play.do(AddDurable("d", "shared", selector=selector))
    play.do(publish(20_000, matched={selector: (span(0, 19_999),)} if selector else {}))
    play.do(PurgeEvents(tuple(span(id) for id in range(0, 20_000, 2))))
    state = play.channel.state
    durable = state.durables["d"]
    tracemalloc.start()
    info = durable_info(state, durable, play.now_us)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert info.outstanding == 10_000
    assert info.oldest_outstanding_ms is not None
    assert most < 50_000
