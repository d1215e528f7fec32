"""Which events are dead when they leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from packages.core.tests.plays import dying, play_of, reader, removals
from penstock_core.channel.dead import (
    MOVED_BYTES_MAX,
    MOVED_EVENTS_MAX,
    Missed,
    missed,
    moved_at_once,
)
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.definitions import Edit
from penstock_core.messages.durables import AddDurable, RemoveDurable
from penstock_core.messages.kinds import Command
from penstock_core.messages.publishing import Publish
from penstock_core.messages.retention import EndRelay, PurgeEvents, Quarantine, RemoveRedriven
from penstock_core.messages.seats import TakeSeat
from penstock_core.messages.settlements import Ack, BuryEvents, RollBack
from penstock_core.messages.subscribers import AddSubscriber, Disconnect, GrantCredit
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.digest import Digest
from penstock_testing.play import Play, delivered, events, publish, span

# --- T5: what goes, what never does -------------------------------------------------------


@pytest.mark.spec("T5", "T1")
def test_what_outlives_the_channels_ttl_is_dead() -> None:
    play = dying(ttl=100, events=2)
    play.wait(100)
    play.sweep()

    assert removals(play) == [(Cause.EXPIRED, [0, 1], [0, 1])]
    assert play.channel.state.counters.dead == 2
    assert play.channel.state.counters.expired == 0


@pytest.mark.spec("T5", "T2")
def test_what_outlives_its_own_ttl_is_dead() -> None:
    play = dying(type="mixed")
    play.do(publish(3, ttls=((10, (Span(1, 2),)),)))
    play.wait(10)
    play.sweep()

    assert removals(play) == [(Cause.EXPIRED, [1], [1])]


@pytest.mark.spec("T5", "T3")
def test_what_a_full_channel_evicts_is_dead_even_of_the_batch_that_evicts() -> None:
    play = dying(capacity=2, events=1)
    play.do(publish(4))

    assert removals(play) == [(Cause.EVICTED, [0, 1, 2], [0, 1, 2])]
    assert play.channel.state.counters.dead == 3


@pytest.mark.spec("T5", "C3")
def test_what_a_smaller_capacity_evicts_is_dead() -> None:
    play = dying(events=5)
    play.do(Edit(Definition(type="persistent", dead_event_store="dead", capacity=2)))

    assert removals(play) == [(Cause.EVICTED, [0, 1, 2], [0, 1, 2])]


@pytest.mark.spec("T5")
@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (PurgeEvents((span(0, 1),)), Cause.PURGED),
        (RemoveRedriven((span(0, 1),)), Cause.REDRIVEN),
        (Quarantine((span(0, 1),)), Cause.QUARANTINED),
        (publish(1, superseded=(Span(0, 2),)), Cause.REPLACED),
    ],
    ids=lambda it: it.value if isinstance(it, Cause) else "",
)
def test_what_somebody_took_out_is_never_dead(command: Command, cause: Cause) -> None:
    play = dying(events=3)
    play.do(command)

    assert removals(play) == [(cause, [0, 1], [])]
    assert play.channel.state.counters.dead == 0


@pytest.mark.spec("T5", "E8")
def test_what_is_relayed_is_never_dead() -> None:
    play = dying(capacity=1)
    play.do(publish(3, transient=(Span(0, 3),)))
    play.do(EndRelay())

    assert removals(play) == [(Cause.RELAYED, [0, 1, 2], [])]


@pytest.mark.spec("T5", "T4")
def test_what_is_refused_is_never_dead() -> None:
    play = dying(capacity=1, storage=Storage(honour_capacity=True), events=1)
    with pytest.raises(Exception, match="1 of 1 events"):
        play.do(publish(1))

    assert removals(play) == []
    assert play.channel.state.counters.published == 1


@pytest.mark.spec("T5")
def test_what_every_interested_durable_has_consumed_is_never_dead() -> None:
    play = dying(ttl=100, retain_consumed=True)
    reader(play, "d", "shared", subscription=1)
    play.do(publish(3))
    play.do(Ack(1, (span(0, 1),)))
    play.wait(100)
    play.sweep()

    assert removals(play) == [(Cause.EXPIRED, [0, 1, 2], [2])]
    assert (play.channel.state.counters.dead, play.channel.state.counters.expired) == (1, 2)


@pytest.mark.spec("T5", "D6")
def test_what_leaves_because_all_have_consumed_it_is_never_dead() -> None:
    play = dying()
    reader(play, "d", "shared", subscription=1)
    play.do(publish(2))
    play.do(Ack(1, (span(0, 1),)))

    assert removals(play) == [(Cause.CONSUMED, [0, 1], [])]


def test_without_a_dead_event_store_nothing_is_dead() -> None:
    play = play_of(ttl=100, capacity=2, events=3)
    play.wait(100)
    play.sweep()

    assert removals(play) == [(Cause.EVICTED, [0], []), (Cause.EXPIRED, [1, 2], [])]


@pytest.mark.spec("T5", "Q5")
def test_what_no_reader_of_a_queue_has_committed_is_dead() -> None:
    play = dying(kind="queue", ttl=100, retain_consumed=True)
    play.do(TakeSeat("", 1, "s", window=2))
    play.do(publish(3))
    play.do(Ack(1, (span(0),)))
    play.wait(100)
    play.sweep()

    assert removals(play)[-1] == (Cause.EXPIRED, [0, 1, 2], [1, 2])


# --- T6: unconsumed -----------------------------------------------------------------------


def expired(play: Play) -> list[int]:
    """Let all events expire; return the dead ones."""
    play.wait(1_000)
    play.sweep()
    return [event_id for one in play.removed for event_id in events(one.dead)]


@pytest.mark.spec("T6")
def test_with_no_durable_every_event_is_unconsumed_though_a_subscriber_saw_it() -> None:
    play = dying(ttl=1_000)
    play.do(AddSubscriber(1, "s", 0, credit=9))
    assert delivered(play.do(publish(2))) == {1: [0, 1]}

    assert expired(play) == [0, 1]


@pytest.mark.spec("T6")
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_with_one_durable_what_it_has_not_acknowledged_is_dead(kind: str) -> None:
    play = dying(ttl=1_000, retain_consumed=True)
    reader(play, "d", kind, subscription=1)
    play.do(publish(4))
    play.do(Ack(1, (span(1),)))

    assert expired(play) == ([2, 3] if kind == "exclusive" else [0, 2, 3])


@pytest.mark.spec("T6")
def test_a_filtered_durable_that_does_not_match_does_not_count() -> None:
    play = dying(ttl=1_000)
    play.do(AddDurable("even", "shared", selector="even"))
    play.do(publish(4, matched={"even": (Span(0, 1), Span(2, 3))}))

    assert expired(play) == [0, 2]


@pytest.mark.spec("T6")
def test_a_durable_that_began_later_does_not_count_for_what_came_before() -> None:
    play = dying(ttl=1_000, events=2)
    play.do(AddDurable("d", "shared", start_id=2))
    play.do(publish(2))

    assert expired(play) == [2, 3]


@pytest.mark.spec("T6")
def test_in_a_mix_one_durable_that_misses_an_event_is_enough() -> None:
    play = dying(ttl=1_000)
    reader(play, "exclusive", "exclusive", subscription=1)
    reader(play, "shared", "shared", subscription=2)
    reader(play, "odd", "shared", subscription=3, selector="odd")
    play.do(publish(6, matched={"odd": (Span(1, 2), Span(3, 4), Span(5, 6))}))
    play.do(Ack(1, (span(3),)))
    play.do(Ack(2, (span(0, 2), span(4))))
    play.do(Ack(3, (span(1),)))

    assert list(play.channel.state.stored) == [3, 4, 5], "0, 1 and 2 are consumed by all"
    assert expired(play) == [3, 4, 5]


@pytest.mark.spec("T6", "T3")
def test_the_same_holds_for_what_is_evicted() -> None:
    play = dying(capacity=4, retain_consumed=True)
    reader(play, "shared", "shared", subscription=1)
    play.do(AddDurable("odd", "shared", selector="odd"))
    odd = {"odd": (Span(1, 2), Span(3, 4))}
    play.do(publish(4, matched=odd))
    play.do(Ack(1, (span(0, 3),)))
    play.do(publish(4, matched=odd))

    assert removals(play) == [(Cause.EVICTED, [0, 1, 2, 3], [1, 3])]


@pytest.mark.spec("T6", "T3")
def test_of_a_batch_larger_than_the_channel_what_nobody_wants_is_not_dead() -> None:
    play = dying(capacity=1)
    play.do(AddDurable("odd", "shared", selector="odd"))
    play.do(AddDurable("later", "shared", start_id=3))
    play.do(publish(6, matched={"odd": (Span(1, 2), Span(3, 4), Span(5, 6))}))

    assert removals(play) == [(Cause.EVICTED, [0, 1, 2, 3, 4], [1, 3, 4])]


@pytest.mark.spec("T6")
def test_who_missed_it_and_how_often_it_was_delivered_again_is_told() -> None:
    play = dying(ttl=1_000)
    reader(play, "a", "shared", subscription=1)
    reader(play, "b", "shared", subscription=2)
    play.do(publish(5))
    play.do(Ack(1, (span(0), span(3))))
    play.do(Ack(2, (span(3, 4),)))
    play.do(RollBack(1, (span(1, 2),)))
    play.do(RollBack(1, (span(2),)))
    play.do(RollBack(2, (span(2),)))
    misses = missed(play.channel.state, (span(0, 2), span(4)))

    assert misses == Missed(
        durables=((("a", "b"), (span(1, 2),)), (("a",), (span(4),)), (("b",), (span(0),))),
        redeliveries=((2, (span(2),)), (1, (span(1),))),
    )


@pytest.mark.spec("T6")
def test_a_queue_names_no_durable_of_its_own() -> None:
    play = dying(kind="queue", events=2)
    play.do(TakeSeat("", 1, "s"))
    play.do(RollBack(1, (span(1),)))

    assert missed(play.channel.state, (span(0, 1),)) == Missed((), ((1, (span(1),)),))


# --- moving in small steps ----------------------------------------------------------------


def test_the_lowest_of_some_ids() -> None:
    ids = IdSet([Span(2, 4), Span(7, 9)])

    assert list(ids.lowest_part(3)) == [2, 3, 7]
    assert list(ids.lowest_part(9)) == [2, 3, 7, 8]
    assert list(ids) == [2, 3, 7, 8]


@pytest.mark.parametrize("limit", [1, 2, 999, 4_999, 5_000, 6_000])
def test_of_scattered_ids_exactly_the_lowest_go(limit: int) -> None:
    scattered = IdSet.from_ids([7, *range(1_000, 11_000, 2)])

    assert list(scattered.lowest_part(limit)) == [7, *range(1_000, 11_000, 2)][:limit]
    assert len(scattered) == 5_001


@pytest.mark.spec("T1", "T7")
def test_events_that_expire_by_the_thousand_move_in_steps_and_are_seen_by_nobody() -> None:
    play = dying(ttl=1_000)
    play.do(publish(25_000))
    play.wait(1_000)
    browse = AddSubscriber(1, "s", 0, stop_id=25_000, credit=100_000)
    effects, steps = play.do(browse), 2  # before and after the command
    while play.channel.state.overdue:
        play.sweep()
        steps += 1
        effects += play.offers()

    assert delivered(effects) == {}
    assert steps == 3
    assert [len(events(one.dead)) for one in play.removed] == [10_000, 10_000, 5_000]
    assert play.channel.state.counters.dead == 25_000


@pytest.mark.spec("T1")
def test_publishing_goes_on_meanwhile_and_is_delivered_after() -> None:
    storage = Storage(honour_capacity=True)
    play = dying(ttl=1_000, capacity=50_000, storage=storage)
    play.do(AddSubscriber(1, "s", 50_000, credit=9))
    play.do(publish(50_000))
    play.wait(1_000)
    assert not delivered(play.do(publish(2))), "expired events take no place and come first"
    while play.channel.state.overdue:
        play.sweep()

    assert delivered(play.offers()) == {1: [50_000, 50_001]}


@pytest.mark.spec("C3", "T7")
def test_a_capacity_lowered_far_moves_in_steps_the_oldest_first() -> None:
    play = dying(capacity=60_000)
    play.do(publish(50_000))
    play.do(AddSubscriber(1, "s", 0, credit=100_000))
    lowered = Definition(type="persistent", dead_event_store="dead", capacity=10)
    play.do(Edit(lowered))
    while play.channel.state.overdue:
        play.sweep()

    assert {one.cause for one in play.removed} == {Cause.EVICTED}
    assert max(len(events(one.dead)) for one in play.removed) == MOVED_EVENTS_MAX
    assert list(play.channel.state.stored) == list(range(49_990, 50_000))
    assert play.channel.state.counters.dead == 49_990


@pytest.mark.spec("T1", "C3")
def test_what_is_no_longer_too_old_is_delivered_again() -> None:
    play = dying(ttl=1_000)
    play.do(AddSubscriber(1, "s", 0, credit=0))
    play.do(publish(50_000))
    play.wait(1_000)
    play.sweep()
    assert play.channel.state.overdue
    play.do(Edit(Definition(type="persistent", dead_event_store="dead")))

    assert not play.channel.state.overdue
    assert not play.channel.needs_sweep(play.now_us)
    assert delivered(play.do(GrantCredit(1, 1))) == {1: [play.channel.state.stored.lowest]}


def test_large_events_move_fewer_at_once() -> None:
    play = dying()
    play.do(Publish(Digest(100, 100, 1)))
    state = play.channel.state
    assert len(moved_at_once(state, state.stored)) == 100
    play.do(Publish(Digest(9, 9 * (4 << 20), 4 << 20)))
    state.stored.remove(Span(0, 100))

    assert len(moved_at_once(state, state.stored)) == 2
    assert len(moved_at_once(state, state.stored, work=2)) == 1


def _publish_large_then_small(play: Play) -> None:
    for _ in range(20):
        play.do(Publish(Digest(1, 1 << 20, 1 << 20)))
    for _ in range(10):
        play.do(Publish(Digest(200, 2_000, 10)))


def _most_bytes_at_once(play: Play) -> int:
    return max(
        sum((1 << 20) if event_id < 20 else 10 for event_id in events(one.dead))
        for one in play.removed
    )


@pytest.mark.spec("T1", "T7")
def test_a_step_is_bounded_in_bytes_where_the_oldest_expired_events_are_the_largest() -> None:
    play = dying(ttl=1_000)
    _publish_large_then_small(play)
    play.wait(1_000)
    play.sweep()
    while play.channel.state.overdue:
        play.sweep()

    assert _most_bytes_at_once(play) <= MOVED_BYTES_MAX
    assert len(play.removed) == 3
    assert play.channel.state.counters.dead == 2_020


@pytest.mark.spec("C3", "T7")
def test_a_lowered_capacity_moves_a_bounded_number_of_bytes_in_a_step() -> None:
    play = dying(capacity=10_000)
    _publish_large_then_small(play)
    play.do(Edit(Definition(type="persistent", dead_event_store="dead", capacity=10)))
    while play.channel.state.overdue:
        play.sweep()

    assert _most_bytes_at_once(play) <= MOVED_BYTES_MAX
    assert play.channel.state.counters.dead == 2_010


@pytest.mark.spec("T3", "T7")
def test_a_publish_that_evicts_moves_a_bounded_number_of_bytes() -> None:
    play = dying(capacity=2_020)
    _publish_large_then_small(play)
    play.do(publish(5))

    assert removals(play) == [(Cause.EVICTED, list(range(5)), list(range(5)))]


@pytest.mark.spec("T6", "T8", "T10")
@pytest.mark.parametrize("again", [Play.restart, Play.restart_from_snapshot])
def test_copies_in_a_dead_event_store_are_counted_by_durable_and_cause(
    again: Callable[[Play], None],
) -> None:
    play = dying(capacity=4)
    for name in ("d", "e"):
        play.do(AddDurable(name, "shared", max_deliveries=1))
    play.do(TakeSeat("d", 1, "s1", window=10))
    play.do(publish(4))
    play.do(RollBack(1, (span(0, 1),)))
    play.do(BuryEvents(1, (span(2),)))
    play.do(TakeSeat("e", 2, "s2", window=10))
    play.do(Ack(2, (span(0),)))
    play.do(RollBack(2, (span(1),)))
    play.do(publish(4))

    died = {
        ("d", "redelivery_limit"): 2,
        ("d", "rejected"): 1,
        ("e", "redelivery_limit"): 1,
        ("", "evicted"): 2,
    }
    assert play.channel.state.died == died
    again(play)
    assert play.channel.state.died == died
    play.do(RemoveDurable("d"))
    assert play.channel.state.died == {("e", "redelivery_limit"): 1, ("", "evicted"): 2}


@pytest.mark.spec("T10", "Q1")
def test_what_readers_of_a_queue_bring_back_too_often_is_counted_as_theirs() -> None:
    play = dying(kind="queue", max_deliveries=1)
    play.do(TakeSeat("", 1, "s1", window=10))
    play.do(publish(3))
    play.do(RollBack(1, (span(0, 1),)))

    assert play.channel.state.died == {("", "redelivery_limit"): 2}


@pytest.mark.spec("T6", "J2")
def test_on_the_jms_engine_what_a_subscriber_receives_is_not_dead_although_it_is_evicted() -> None:
    play = dying(engine="jms", capacity=10)
    play.do(AddSubscriber(1, "s", 0, credit=100))

    assert delivered(play.do(publish(30))) == {1: list(range(30))}

    assert not any(dead for _, _, dead in removals(play))


@pytest.mark.spec("T6", "J2")
def test_on_the_jms_engine_what_a_subscriber_cannot_take_is_dead_when_it_is_evicted() -> None:
    play = dying(engine="jms", capacity=10)
    play.do(AddSubscriber(1, "s", 0, credit=5))

    assert delivered(play.do(publish(30))) == {1: [0, 1, 2, 3, 4]}

    assert [dead_event for _, _, dead in removals(play) for dead_event in dead] == list(
        range(5, 20)
    )


@pytest.mark.spec("T6", "T7", "J5")
def test_on_the_jms_engine_what_moves_in_a_later_step_is_dead_although_a_place_ends_meanwhile() -> (
    None
):
    play = dying(engine="jms", ttl=100)
    play.do(AddSubscriber(1, "s", 0, credit=100))
    play.do(Disconnect(1))
    play.do(Publish(Digest(3, 12 << 20, 4 << 20)))
    play.wait(60_000)

    play.sweep()
    play.sweep()

    assert removals(play) == [(Cause.EXPIRED, [0, 1], [0, 1]), (Cause.EXPIRED, [2], [2])]
    assert play.channel.state.absent == 0


@pytest.mark.spec("T6", "J2")
def test_on_the_jms_engine_a_durable_that_does_not_want_an_event_changes_nothing() -> None:
    play = dying(engine="jms", capacity=10)
    play.do(AddDurable("odd", "shared", selector="odd"))
    play.do(AddSubscriber(1, "s", 0, credit=5))

    assert delivered(play.do(publish(30, matched={"odd": (Span(1, 2),)}))) == {1: [0, 1, 2, 3, 4]}

    assert [dead_event for _, _, dead in removals(play) for dead_event in dead] == [
        1,
        *range(5, 20),
    ]


@pytest.mark.spec("T6", "J5")
def test_on_the_jms_engine_what_an_absent_subscriber_missed_is_dead_beside_a_durable() -> None:
    play = dying(engine="jms", ttl=100)
    reader(play, "d", "shared", subscription=2)
    play.do(AddSubscriber(1, "s", 0, credit=100))
    play.do(Disconnect(1))
    play.do(publish(2))
    play.do(Ack(2, (span(0, 1),)))
    play.wait(100)
    play.sweep()

    assert removals(play) == [(Cause.EXPIRED, [0, 1], [0, 1])]


@pytest.mark.spec("T6", "J2")
def test_on_the_jms_engine_an_event_that_a_durable_has_not_acknowledged_is_dead() -> None:
    play = dying(engine="jms", capacity=10)
    reader(play, "d", "shared", subscription=2)
    play.do(AddSubscriber(1, "s", 0, credit=100))

    assert delivered(play.do(publish(12)))[1] == list(range(12))

    assert [dead_event for _, _, dead in removals(play) for dead_event in dead] == [0, 1]
