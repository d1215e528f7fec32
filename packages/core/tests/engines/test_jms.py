"""The JMS engine keeps an event while a client waits for it, and delivers no earlier events."""

from __future__ import annotations

import pytest

from packages.core.tests.engines.jms_channels import conserved, jms, live, removed_by_cause, written
from packages.core.tests.plays import outstanding
from penstock_core.engines.jms import ENGINE
from penstock_core.ids.ids import IdSet
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.durables import AddDurable, RemoveDurable
from penstock_core.messages.publishing import IdsReserved, Publish
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.messages.subscribers import AddSubscriber, GrantCredit
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.digest import Digest
from penstock_testing.play import delivered, publish, span

KINDS = ("exclusive", "priority", "shared", "serial", "shared_queued")
INDIVIDUAL = ("shared", "serial", "shared_queued")


# --- J2: interest ---------------------------------------------------------------------------


@pytest.mark.spec("J2", "T8")
def test_an_event_nobody_waits_for_has_an_id_and_is_gone() -> None:
    play = jms()

    assert play.do(publish(3)) == []

    assert play.answer == span(0, 2)
    assert play.channel.state.next_id == 3
    assert (live(play), written(play)) == ([], [])
    assert [type(fact) for fact in play.recorded] == [IdsReserved]
    assert play.channel.state.counters.dropped == 3
    assert conserved(play)


@pytest.mark.spec("J2", "E4")
def test_ids_of_dropped_events_are_not_given_again_after_a_restart() -> None:
    play = jms(events=3)
    play.restart()

    play.do(publish())

    assert isinstance(play.answer, tuple)
    assert play.answer[0] >= 3


@pytest.mark.spec("J2", "J4")
def test_an_event_for_a_subscriber_stays_in_memory_until_it_has_gone_out() -> None:
    play = jms()
    play.do(AddSubscriber(1, "a", 0, credit=2))
    play.do(publish(5))

    assert live(play) == [2, 3, 4]
    assert written(play) == []
    play.do(GrantCredit(1, 10))
    assert live(play) == []
    assert removed_by_cause(play) == {"dropped": 5}
    assert conserved(play)


@pytest.mark.spec("J2")
def test_the_slowest_subscriber_decides_how_long_an_event_stays() -> None:
    play = jms()
    play.do(AddSubscriber(1, "a", 0, credit=100))
    play.do(AddSubscriber(2, "b", 0, credit=1))

    assert delivered(play.do(publish(4))) == {1: [0, 1, 2, 3], 2: [0]}

    assert live(play) == [1, 2, 3]
    play.do(Detach(2))
    assert live(play) == []
    assert removed_by_cause(play) == {"dropped": 4}


@pytest.mark.spec("J2")
def test_a_browse_is_no_interest() -> None:
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(publish(3))
    play.do(AddSubscriber(1, "browser", 0, stop_id=3, credit=0))
    play.do(RemoveDurable("d"))

    assert live(play) == []
    play.do(publish())
    assert live(play) == []


@pytest.mark.spec("J2", "D6")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_durable_wants_is_written_and_leaves_with_its_acknowledgement(kind: str) -> None:
    play = jms()
    play.do(AddDurable("d", kind))
    play.do(publish(3))
    assert [fact.span for fact in written(play)] == [span(0, 2)]
    play.do(TakeSeat("d", 1, "s"))

    play.do(Ack(1, (span(0, 1),)))

    assert live(play) == [2]
    assert removed_by_cause(play) == {"consumed": 2}
    assert conserved(play)


@pytest.mark.spec("J2")
def test_with_its_last_durable_deleted_an_event_is_dropped() -> None:
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(AddDurable("e", "exclusive"))
    play.do(publish(3))
    play.do(TakeSeat("d", 1, "s"))
    play.do(Ack(1, (span(1),)))
    play.do(RemoveDurable("d"))
    assert live(play) == [0, 1, 2]

    play.do(RemoveDurable("e"))

    assert live(play) == []
    assert removed_by_cause(play) == {"dropped": 2, "consumed": 1}
    assert conserved(play)


@pytest.mark.spec("J2", "T5")
def test_what_nobody_waits_for_any_more_is_not_dead() -> None:
    play = jms(dead_event_store="dead")
    play.do(publish(2))
    play.do(AddDurable("d", "shared"))
    play.do(publish(2))
    play.do(RemoveDurable("d"))

    assert removed_by_cause(play) == {"dropped": 2}
    assert all(removed.dead == () for removed in play.removed)
    assert play.channel.state.counters.dead == 0


@pytest.mark.spec("J2", "T5", "T6")
def test_what_expires_while_a_durable_waits_for_it_is_dead() -> None:
    play = jms(dead_event_store="dead", ttl=1_000)
    play.do(AddDurable("d", "shared"))
    play.do(publish(2))
    play.wait(1_001)
    play.sweep()

    assert [(removed.cause.value, removed.dead) for removed in play.removed] == [
        ("expired", (span(0, 1),))
    ]


@pytest.mark.spec("J2", "T3")
def test_only_events_that_stay_count_against_the_capacity() -> None:
    play = jms(capacity=2, storage=Storage(honour_capacity=True))
    play.do(publish(10))
    play.do(AddDurable("d", "shared", selector="x"))

    play.do(publish(10, matched={"x": (span(3, 4),)}))

    assert live(play) == [13, 14]
    assert play.channel.state.is_full


@pytest.mark.spec("J2", "T3")
def test_events_that_are_dropped_evict_none() -> None:
    play = jms(capacity=2)
    play.do(AddDurable("d", "shared", selector="x"))
    play.do(publish(2, matched={"x": (span(0, 1),)}))

    play.do(publish(5, matched={"x": ()}))

    assert live(play) == [0, 1]


@pytest.mark.spec("J2", "T9")
def test_a_purge_takes_events_from_those_who_wait() -> None:
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(AddSubscriber(1, "a", 0, credit=0))
    play.do(publish(3))

    play.do(PurgeEvents((span(0, 1),)))

    assert (live(play), outstanding(play)) == ([2], [2])
    assert removed_by_cause(play) == {"purged": 2}
    assert conserved(play)


@pytest.mark.spec("J2", "D4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_keeps_what_durables_still_want_and_drops_the_rest(kind: str) -> None:
    play = jms()
    play.do(AddDurable("d", kind))
    play.do(AddDurable("fleeting", "shared", persistent=False))
    play.do(publish(4))
    play.do(TakeSeat("d", 1, "s"))
    play.do(Ack(1, (span(0),)))
    assert live(play) == [0, 1, 2, 3]

    play.restart()
    play.sweep()

    assert live(play) == [1, 2, 3]
    assert outstanding(play) == [1, 2, 3]


@pytest.mark.spec("D6", "J2")
def test_consumed_events_are_retained_where_the_channel_says_so_and_others_are_not() -> None:
    play = jms(retain_consumed=True)
    play.do(publish(1))
    play.do(AddDurable("d", "shared"))
    play.do(publish(2))
    play.do(TakeSeat("d", 1, "s"))
    play.do(Ack(1, (span(1),)))
    play.do(RemoveDurable("d"))

    assert live(play) == [1]
    assert removed_by_cause(play) == {"dropped": 1}


@pytest.mark.spec("J2", "X3")
def test_a_publish_that_comes_again_is_answered_though_its_events_are_gone() -> None:
    play = jms()
    first = Publish(Digest(2, 200, 100), "p", 1)
    play.do(first)

    play.do(first)

    assert play.answer == span(0, 1)
    assert play.channel.state.next_id == 2


# --- J3: no replay --------------------------------------------------------------------------


@pytest.mark.spec("J3")
@pytest.mark.parametrize("first_id", [0, 3, 5, 99])
def test_a_subscription_starts_after_the_last_id_whatever_it_asks_for(first_id: int) -> None:
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(publish(5))

    assert ENGINE.first_id(first_id, next_id=50) == 50
    assert play.do(AddSubscriber(1, "a", first_id, credit=10)) == []
    assert delivered(play.do(publish(2))) == {1: [5, 6]}


@pytest.mark.spec("J3")
@pytest.mark.parametrize("selector", ["", "x"])
def test_a_durable_starts_after_the_last_id_whatever_it_asks_for(selector: str) -> None:
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(publish(5))
    matched = (span(0, 4),) if selector else ()

    play.do(AddDurable("late", "shared", 0, selector=selector, matched=matched))

    assert outstanding(play, "late") == []
    play.do(publish(2, matched={"x": (span(1),)}))
    assert outstanding(play, "late") == ([6] if selector else [5, 6])


@pytest.mark.spec("J3")
def test_a_browse_still_sees_what_is_there() -> None:
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(publish(3))

    assert delivered(play.do(AddSubscriber(1, "b", 1, stop_id=3, credit=10))) == {1: [1, 2]}


# --- J6: exact per event --------------------------------------------------------------------


@pytest.mark.spec("J6", "D6")
@pytest.mark.parametrize("kind", INDIVIDUAL)
def test_events_leave_in_the_middle(kind: str) -> None:
    play = jms()
    play.do(AddDurable("d", kind))
    play.do(TakeSeat("d", 1, "s", window=100))
    play.do(publish(10))

    play.do(Ack(1, (span(3), span(5, 6))))

    assert live(play) == [0, 1, 2, 4, 7, 8, 9]


@pytest.mark.spec("J6")
@pytest.mark.parametrize("first", INDIVIDUAL)
@pytest.mark.parametrize("second", KINDS)
def test_an_event_leaves_with_the_last_of_its_interests(first: str, second: str) -> None:
    play = jms()
    play.do(AddDurable("a", first, selector="even" if first != "shared_queued" else ""))
    play.do(AddDurable("b", second))
    play.do(AddSubscriber(9, "plain", 0, credit=0))
    play.do(TakeSeat("a", 1, "s1", window=100))
    play.do(TakeSeat("b", 2, "s2"))
    evens = tuple(span(n) for n in range(0, 6, 2))
    play.do(publish(6, matched={"even": evens}))
    wants_all = first == "shared_queued"

    play.do(Ack(1, evens))
    assert live(play) == [0, 1, 2, 3, 4, 5]
    play.do(Ack(2, (span(0, 5),)))
    assert live(play) == [0, 1, 2, 3, 4, 5]
    play.do(GrantCredit(9, 5))
    play.sweep()
    assert live(play) == ([1, 3, 5] if wants_all else [5])
    play.do(GrantCredit(9, 5))
    play.sweep()

    assert live(play) == ([1, 3, 5] if wants_all else [])
    assert conserved(play)


@pytest.mark.spec("J6")
def test_a_filter_that_does_not_match_is_no_interest() -> None:
    play = jms()
    play.do(AddDurable("d", "shared", selector="x"))

    play.do(publish(4, matched={"x": (span(1), span(3))}))

    assert live(play) == [1, 3]
    assert play.channel.state.counters.dropped == 2
    assert [fact.absent for fact in written(play)] == [(span(0), span(2))]
    play.restart()
    play.sweep()
    assert (live(play), outstanding(play)) == ([1, 3], [1, 3])


@pytest.mark.spec("J6")
def test_an_idle_durable_pins_only_what_it_has_not_consumed() -> None:
    play = jms()
    play.do(AddDurable("idle", "shared", selector="x"))
    play.do(AddDurable("busy", "shared"))
    play.do(TakeSeat("busy", 1, "s", window=1_000))
    for _ in range(10):
        play.do(publish(10, matched={"x": (span(7),)}))
        end = play.channel.state.next_id
        play.do(Ack(1, (span(end - 10, end - 1),)))

    assert live(play) == list(range(7, 100, 10))


@pytest.mark.spec("J6", "E9")
def test_a_rolled_back_event_is_still_wanted() -> None:
    play = jms()
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s"))
    play.do(publish(2))
    play.do(RollBack(1, (span(0),)))
    play.do(Ack(1, (span(1),)))

    assert live(play) == [0]


@pytest.mark.spec("J6", "E8")
def test_a_transient_event_is_relayed_as_on_any_channel() -> None:
    play = jms()
    play.do(AddDurable("d", "exclusive"))
    play.do(AddSubscriber(1, "a", 0, credit=10))

    effects = play.do(publish(3, transient=(span(1),)))

    assert delivered(effects) == {1: [0, 1, 2]}
    assert live(play) == [0, 2]
    assert play.channel.state.counters.relayed == 1
    assert conserved(play)


@pytest.mark.spec("J4")
@pytest.mark.parametrize(
    ("type_", "on_disk"),
    [
        ("persistent", [0, 1, 2]),
        ("paged", [0, 1, 2]),
        ("mixed", [0, 2]),
        ("reliable", []),
        ("off_heap", []),
        ("simple", []),
    ],
)
def test_a_subscriber_that_asks_for_events_has_them_kept_as_the_type_says(
    type_: str, on_disk: list[int]
) -> None:
    play = jms(type=type_)
    play.do(AddSubscriber(1, "s", 0))
    play.do(SetDemand(1, 0))
    play.do(publish(3, volatile=(span(1),)))

    state = play.channel.state
    assert live(play) == [0, 1, 2]
    assert not state.passing
    assert sorted(set(state.stored) - set(state.volatile)) == on_disk
    kept = [fact for fact in written(play) if fact.span.size > len(IdSet(fact.absent))]
    assert bool(kept) == bool(on_disk)
    assert delivered(play.do(GrantCredit(1, 2))) == {1: [0, 1]}
    assert delivered(play.do(GrantCredit(1, 2))) == {1: [2]}
    play.sweep()
    assert live(play) == []
    assert conserved(play)


@pytest.mark.spec("J4")
def test_one_that_is_sent_events_beside_it_changes_nothing() -> None:
    play = jms(type="persistent")
    play.do(AddSubscriber(1, "s", 0, credit=9))
    play.do(AddSubscriber(2, "t", 0, selector="even"))
    play.do(SetDemand(2, 0))
    play.do(publish(3, matched={"even": (span(0), span(2))}))

    assert live(play) == [0, 2]
    assert not play.channel.state.volatile
    play.do(Detach(2))
    play.sweep()
    assert live(play) == []


@pytest.mark.spec("J4")
def test_a_restart_keeps_nothing_for_one_that_asked() -> None:
    play = jms(type="persistent")
    play.do(AddSubscriber(1, "s", 0))
    play.do(SetDemand(1, 0))
    play.do(publish(2))
    play.restart()
    play.sweep()

    assert live(play) == []
    assert conserved(play)
