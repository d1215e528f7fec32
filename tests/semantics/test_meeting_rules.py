"""Combinations of rules: one test for each line of ``docs/guide/meeting-rules.md``."""

from __future__ import annotations

import pytest

import penstock
from packages.core.tests.plays import durable_play, outstanding, play_of
from penstock_core.channel.seeking import gone_since
from penstock_core.ids.ids import Span
from penstock_core.messages.definitions import Edit
from penstock_core.messages.delivery import ConfirmRecall
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.publishing import Publish
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.seeking import Seek
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.messages.subscribers import AddSubscriber
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.effects import Recall
from penstock_core.vocabulary.errors import CapacityReached, IllegalState, InvalidArgument
from penstock_server.bootstrap import rules
from penstock_testing.play import delivered, events, publish, redelivered, span

HONOURED = Storage(honour_capacity=True)
OWN_TTL = ((10, (Span(0, 1),)),)
"""The first event of a batch lives for 10 ms."""


# --- time to live -------------------------------------------------------------------------


@pytest.mark.spec("T2")
@pytest.mark.parametrize(
    "type_", ["persistent", "reliable", "simple", "transient", "off_heap", "paged"]
)
def test_event_ttl_on_a_type_other_than_mixed_does_not_count(type_: str) -> None:
    play = play_of(type=type_, ttl=100)
    play.do(publish(2, ttls=OWN_TTL))
    play.wait(10)
    play.sweep()

    assert list(play.channel.state.stored) == ([] if type_ == "transient" else [0, 1])


@pytest.mark.spec("T2")
def test_event_ttl_on_a_persistent_channel_that_honours_it_counts() -> None:
    play = play_of(event_ttl=True)
    play.do(publish(2, ttls=OWN_TTL))
    play.wait(10)
    play.sweep()

    assert list(play.channel.state.stored) == [1]


@pytest.mark.spec("T2", "C3")
def test_turning_event_ttl_on_counts_for_what_is_published_from_then_on() -> None:
    play = play_of()
    play.do(publish(1, ttls=OWN_TTL))
    play.do(Edit(Definition(type="persistent", event_ttl=True)))
    play.do(publish(1, ttls=OWN_TTL))
    play.wait(10)
    play.sweep()

    assert list(play.channel.state.stored) == [0]


@pytest.mark.spec("T2")
def test_event_ttl_longer_than_the_channels_wins() -> None:
    play = play_of(type="mixed", ttl=100)
    play.do(publish(2, ttls=((500, (Span(0, 1),)),)))
    play.wait(100)
    play.sweep()

    assert list(play.channel.state.stored) == [0]


@pytest.mark.spec("T1", "D7", "D15")
def test_an_event_that_expires_in_a_clients_hands_is_acknowledged_without_error() -> None:
    play = durable_play("shared", 5, ttl=100, events=1)
    play.wait(100)
    play.do(Ack(1, (span(0),)))

    assert play.channel.state.counters.expired == 1
    assert play.channel.state.counters.consumed == 0


@pytest.mark.spec("T1", "T4")
def test_expired_events_take_no_place_on_a_channel_that_honours_its_capacity() -> None:
    play = play_of(ttl=100, capacity=2, storage=HONOURED, events=2)
    play.wait(100)
    play.do(publish(2))

    assert list(play.channel.state.stored) == [2, 3]


# --- capacity -----------------------------------------------------------------------------


@pytest.mark.spec("T4", "X1")
def test_a_transaction_begun_below_capacity_is_stored_as_a_whole() -> None:
    play = play_of(capacity=3, storage=HONOURED, events=2)
    assert not play.channel.state.is_full
    play.do(publish(1))
    assert play.channel.state.is_full
    play.do(Publish(publish(4).digest, overshoot=True))

    assert play.answer == span(3, 6)
    with pytest.raises(CapacityReached):
        play.do(publish(1))


@pytest.mark.spec("T4", "X1")
def test_a_transaction_begun_on_a_full_channel_is_refused_as_a_whole() -> None:
    play = play_of(capacity=3, storage=HONOURED, events=2)
    with pytest.raises(CapacityReached):
        play.do(publish(4))

    assert list(play.channel.state.stored) == [0, 1]


@pytest.mark.spec("T3", "X1")
def test_a_transaction_larger_than_a_channel_that_evicts_keeps_its_end() -> None:
    play = play_of(capacity=3, events=2)
    play.do(publish(5))

    assert play.answer == span(2, 6)
    assert list(play.channel.state.stored) == [4, 5, 6]


@pytest.mark.spec("T3", "E6")
def test_who_is_connected_gets_what_a_channel_has_no_room_for() -> None:
    play = durable_play("shared", 9, capacity=2)
    play.do(AddSubscriber(2, "s", 0, credit=9))

    assert delivered(play.do(publish(5))) == {1: [0, 1, 2, 3, 4], 2: [0, 1, 2, 3, 4]}
    assert outstanding(play) == [3, 4]
    assert delivered(play.do(RollBack(1, (span(0, 4),)))) == {1: [3, 4]}


@pytest.mark.spec("C3", "T3")
def test_a_capacity_edited_below_the_count_evicts_the_oldest_at_once() -> None:
    play = durable_play("shared", 2, dead_event_store="dead", events=5)
    play.do(Edit(Definition(type="persistent", dead_event_store="dead", capacity=2)))

    assert list(play.channel.state.stored) == [3, 4]
    assert [(one.cause, events(one.dead)) for one in play.removed] == [
        (Cause.EVICTED, [0, 1, 2])
    ], "also from a client's hands"


@pytest.mark.spec("C3", "T4")
def test_a_capacity_edited_below_the_count_and_honoured_drops_nothing_and_refuses() -> None:
    play = play_of(events=5)
    play.do(Edit(Definition(type="persistent", capacity=2, storage=HONOURED)))
    assert len(play.channel.state.stored) == 5
    with pytest.raises(CapacityReached, match="5 of 2 events are stored"):
        play.do(publish(1))
    play.do(PurgeEvents((span(0, 3),)))
    play.do(publish(1))

    assert list(play.channel.state.stored) == [4, 5]


@pytest.mark.spec("D6", "T3")
def test_what_all_durables_have_acknowledged_takes_no_place() -> None:
    play = durable_play("shared", 5, capacity=2, events=2)
    play.do(Ack(1, (span(0, 1),)))
    play.do(publish(2))

    assert list(play.channel.state.stored) == [2, 3]
    assert play.channel.state.counters.evicted == 0


# --- dead events --------------------------------------------------------------------------


@pytest.mark.spec("T7")
def test_a_circle_of_dead_event_stores_is_refused() -> None:
    directory = Directory(rules())
    directory.apply(directory.decide_create("a", Definition()))
    directory.apply(directory.decide_create("b", Definition(dead_event_store="a")))

    with pytest.raises(InvalidArgument, match="a -> b -> a; dead events would move in a circle"):
        directory.checked("a", Definition(dead_event_store="b"))


@pytest.mark.spec("T4", "T7")
def test_a_full_dead_event_store_accepts_dead_events_despite_honoured_capacity() -> None:
    play = play_of(capacity=1, storage=HONOURED, events=1)
    play.do(Publish(publish(2).digest, forced=True))

    assert list(play.channel.state.stored) == [0, 1, 2]


@pytest.mark.spec("T3", "T5", "T7")
def test_a_full_dead_event_store_that_evicts_drops_its_oldest() -> None:
    play = play_of(capacity=1, events=1)
    play.do(Publish(publish(1).digest, forced=True))

    assert list(play.channel.state.stored) == [1]


@pytest.mark.spec("T3", "T4", "T10")
def test_a_redrive_evicts_nothing_and_is_refused_where_there_is_no_room() -> None:
    play = play_of(capacity=2, events=1)
    brought = publish(2).digest

    with pytest.raises(CapacityReached, match="1 of 2 events are stored and 2 more were offered"):
        play.do(Publish(brought, evicts=False))
    assert list(play.channel.state.stored) == [0]
    play.do(Publish(publish(1).digest, evicts=False))
    assert list(play.channel.state.stored) == [0, 1]


@pytest.mark.spec("T5", "T9")
def test_a_purge_never_makes_an_event_dead() -> None:
    play = play_of(dead_event_store="dead", ttl=100, events=1)
    play.do(PurgeEvents((span(0),)))

    assert play.channel.state.counters.dead == 0


@pytest.mark.spec("T5", "T6")
def test_an_expired_event_all_durables_have_acknowledged_is_not_dead() -> None:
    play = durable_play("shared", 5, dead_event_store="dead", ttl=100, events=1)
    play.do(AddSubscriber(9, "slow", 0))
    play.do(Ack(1, (span(0),)))
    assert list(play.channel.state.stored) == [0], "a subscriber has still to get it"
    play.wait(100)
    play.sweep()

    assert play.channel.state.counters.dead == 0
    assert play.channel.state.counters.expired == 1


@pytest.mark.spec("D6", "K2", "K4")
def test_a_state_that_all_durables_have_acknowledged_stays() -> None:
    play = durable_play("exclusive", None, engine="merge", keys={"k": 1}, events=2)
    play.do(Ack(1, (span(1),)))
    assert list(play.channel.state.stored) == [0, 1]
    play.do(publish(1, superseded=(span(0),)))
    play.do(Ack(1, (span(2),)))

    assert list(play.channel.state.stored) == [1, 2]


@pytest.mark.spec("T6", "T10")
def test_an_event_rolled_back_too_often_stays_for_the_durables_that_want_it() -> None:
    play = play_of(dead_event_store="dead")
    play.do(AddDurable("d", "shared", max_deliveries=1))
    play.do(AddDurable("e", "shared"))
    play.do(TakeSeat("d", 1, "s"))
    play.do(publish(1))
    play.do(RollBack(1, (span(0),)))

    assert outstanding(play, "d") == []
    assert outstanding(play, "e") == [0]


# --- in a client's hands ------------------------------------------------------------------


@pytest.mark.spec("T9", "D15")
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_a_purge_of_events_in_flight_takes_them_and_a_later_ack_is_no_error(kind: str) -> None:
    play = durable_play(kind, None, events=3)
    play.do(PurgeEvents((span(1, 2),)))
    assert play.answer == 2
    assert outstanding(play) == [0]
    play.do(Ack(1, (span(1),)))

    assert outstanding(play) == ([] if kind == "exclusive" else [0])
    assert play.channel.state.counters.purged == 2


@pytest.mark.spec("T9", "Q3")
def test_a_purge_of_events_in_flight_frees_the_window() -> None:
    play = durable_play("shared", 2, events=4)

    assert delivered(play.do(PurgeEvents((span(0, 1),)))) == {1: [2, 3]}


@pytest.mark.spec("D5", "D6")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_an_event_rolled_back_outlives_the_acknowledgement_of_a_later_one(kind: str) -> None:
    play = durable_play(kind, None, events=3)
    play.do(RollBack(1, (span(1),)))
    play.do(Ack(1, (span(2),)))

    assert (list(play.channel.state.stored), outstanding(play)) == ([1], [1])
    play.do(Detach(1))
    assert delivered(play.do(TakeSeat("d", 2, "s2"))) == {2: [1]}


@pytest.mark.spec("K1", "D15")
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_replacing_an_event_in_flight_takes_it_and_a_later_ack_is_no_error(kind: str) -> None:
    play = durable_play(kind, None, keys={"k": 1}, dead_event_store="dead", events=1)
    assert delivered(play.do(publish(1, superseded=(span(0),)))) == {1: [1]}
    play.do(Ack(1, (span(0),)))

    assert outstanding(play) == [1]
    assert play.channel.state.counters.replaced == 1
    assert play.channel.state.counters.dead == 0


@pytest.mark.spec("K1", "Q3")
def test_replacing_an_event_that_was_rolled_back_takes_its_count_along() -> None:
    play = durable_play("shared", 5, keys={"k": 1}, events=1)
    assert redelivered(play.do(RollBack(1, (span(0),)))) == {0: 1}
    effects = play.do(publish(1, superseded=(span(0),)))

    assert redelivered(effects) == {}
    assert play.channel.state.durables["d"].redelivered_count == 0


@pytest.mark.spec("K1", "T4")
def test_a_newer_value_on_a_full_channel_that_honours_its_capacity_is_stored() -> None:
    play = play_of(keys={"k": 1}, capacity=1, storage=HONOURED, events=1)
    play.do(publish(1, superseded=(span(0),)))

    assert list(play.channel.state.stored) == [1]


# --- transient events ---------------------------------------------------------------------


@pytest.mark.spec("E8", "T4")
def test_a_transient_event_on_a_full_channel_is_relayed() -> None:
    play = play_of(capacity=1, storage=HONOURED, events=1)
    play.do(AddSubscriber(1, "s", 1, credit=9))

    assert delivered(play.do(publish(1, transient=(Span(0, 1),)))) == {1: [1]}


@pytest.mark.spec("E8", "C1e")
def test_a_transient_event_on_a_queue_is_stored_like_any_other() -> None:
    play = play_of(kind="queue")
    play.do(publish(1, transient=(Span(0, 1),)))

    assert delivered(play.do(TakeSeat("", 1, "s"))) == {1: [0]}


@pytest.mark.spec("T1", "D7", "D18")
def test_an_event_that_waits_after_a_rollback_expires_as_any_other() -> None:
    play = durable_play("shared", 5, events=2, ttl=100)
    play.do(RollBack(1, (span(0),), delay_ms=200))
    play.wait(200)

    assert delivered(play.do(publish(1))) == {1: [2]}
    assert outstanding(play) == [2]


@pytest.mark.spec("T10", "D18")
def test_the_last_rollback_that_is_allowed_does_not_wait() -> None:
    play = play_of(dead_event_store="dead", events=1)
    play.do(AddDurable("d", "shared", max_deliveries=1, backoff=Backoff(1_000)))
    play.do(TakeSeat("d", 1, "s1", window=5))
    play.do(RollBack(1, (span(0),)))

    assert [(one.cause, events(one.dead)) for one in play.removed] == [(Cause.UNDELIVERABLE, [0])]
    assert not play.channel.state.wakes_us


@pytest.mark.spec("D13", "D18")
def test_the_client_of_a_durable_with_a_backoff_leaves_and_its_events_come_at_once() -> None:
    play = play_of(events=2)
    play.do(AddDurable("d", "shared", backoff=Backoff(1_000)))
    play.do(TakeSeat("d", 1, "s1", window=5))
    play.do(Detach(1))
    effects = play.do(TakeSeat("d", 2, "s2", window=5))

    assert (delivered(effects), redelivered(effects)) == ({2: [0, 1]}, {0: 1, 1: 1})


@pytest.mark.spec("D18", "D19")
def test_what_was_not_acknowledged_in_time_waits_as_after_any_failure() -> None:
    play = play_of(events=1)
    play.do(AddDurable("d", "shared", backoff=Backoff(5_000), ack_timeout=1_000))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(TakeSeat("d", 2, "s2", window=1))
    play.wait(1_010)
    assert delivered(play.do(publish(1))) == {2: [1]}, "and not the other, which waits"
    play.do(Ack(2, (span(1),)))
    play.wait(5_000)

    assert delivered(play.do(Detach(1))) == {2: [0]}


@pytest.mark.spec("T9", "D15", "D19")
def test_an_event_purged_in_the_hands_of_a_late_client_does_not_go_back() -> None:
    play = play_of(events=1)
    play.do(AddDurable("d", "shared", ack_timeout=1_000))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(PurgeEvents((span(0),)))
    play.wait(2_000)
    play.do(Ack(1, (span(0),)))

    assert play.channel.state.counters.redelivered == 0
    assert delivered(play.do(publish(1))) == {1: [1]}


@pytest.mark.spec("D21", "C3")
def test_what_had_come_of_a_deleted_channel_of_a_pattern_is_handed_out() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        session.channels.create("a/1").publish_many([penstock.Event(b"old") for _ in range(600)])
        with session.subscribe("a/*", start="earliest") as subscription:
            first = subscription.next_batch(30)
            session.channels.delete("a/1")
            session.channels.create("a/1").publish(b"new")
            payloads = [event.data for event in first or ()]
            while payloads[-1] != b"new":
                batch = subscription.next_batch(30)
                assert batch is not None
                payloads += [event.data for event in batch]

    assert payloads == [b"old"] * 600 + [b"new"]


@pytest.mark.spec("D21", "D15")
def test_an_acknowledgement_of_an_event_of_a_deleted_channel_of_a_pattern_is_no_error() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        channel = session.channels.create("a/1")
        channel.durables.create("d")
        channel.publish_many([penstock.Event() for _ in range(600)])
        with session.subscribe("a/*", durable="d") as subscription:
            batch = subscription.next_batch(30)
            assert batch is not None
            session.channels.delete("a/1")

            assert subscription.next_batch(0.1) is None
            batch[0].ack()
            batch.ack()
            subscription.flush()


@pytest.mark.spec("D22", "T10")
def test_a_channel_that_cannot_bury_is_not_made_for_a_pattern_that_has_to() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        session.durables.create("a/*", "billing", max_deliveries=3)
        with pytest.raises(InvalidArgument, match="durable billing of the pattern"):
            session.channels.create("a/1")

        assert session.channels.list() == []


# --- a durable that is moved ---------------------------------------------------------------


@pytest.mark.spec("D6", "D20")
def test_what_was_consumed_does_not_come_again_and_is_counted() -> None:
    play = durable_play("shared", 5, events=3)
    play.do(Ack(1, (span(0),)))
    with pytest.raises(IllegalState, match=r"event 0 of orders is not stored \(consumed\)"):
        play.do(Seek("d", 0, is_exact=True))
    play.do(Seek("d", 1))

    assert outstanding(play) == [1, 2]
    assert gone_since(play.channel.state, 0) == {"consumed": 1}


@pytest.mark.spec("D6", "D20")
def test_what_one_durable_skips_stays_for_another() -> None:
    play = play_of(events=2)
    play.do(AddDurable("d", "shared"))
    play.do(AddDurable("other", "shared"))
    play.do(Seek("d", 2))
    assert outstanding(play, "other") == [0, 1]
    play.do(Seek("other", 1))

    assert list(play.channel.state.stored) == [1]


@pytest.mark.spec("D18", "T10", "D20")
def test_what_waits_and_was_nearly_dead_comes_at_once_with_a_count_of_0() -> None:
    play = play_of(dead_event_store="dead", events=1)
    play.do(AddDurable("d", "shared", max_deliveries=2, backoff=Backoff(1_000)))
    play.do(TakeSeat("d", 1, "s1", window=5))
    play.do(RollBack(1, (span(0),)))
    effects = play.do(Seek("d", 0))

    assert (delivered(effects), redelivered(effects)) == ({1: [0]}, {})
    play.do(RollBack(1, (span(0),)))
    assert outstanding(play) == [0]


@pytest.mark.spec("D19", "D20")
def test_what_comes_again_has_its_whole_time() -> None:
    play = play_of(events=1)
    play.do(AddDurable("d", "shared", ack_timeout=1_000))
    play.do(TakeSeat("d", 1, "s1", window=5))
    play.wait(900)
    assert play.do(Seek("d", 0)) == [Recall(1, (span(0),))]
    play.wait(200)
    assert play.do(publish(1)) == [], "it was taken back, and not once more for being late"
    assert delivered(play.do(ConfirmRecall(1))) == {1: [0, 1]}
    play.wait(900)
    play.do(Ack(1, (span(0, 1),)))

    assert outstanding(play) == []


@pytest.mark.spec("D7", "D20")
def test_what_comes_again_expires_as_any_other() -> None:
    play = durable_play("shared", None, events=2, ttl=100, retain_consumed=True)
    play.do(Ack(1, (span(0, 1),)))
    play.do(Detach(1))
    play.do(Seek("d", 0))
    assert outstanding(play) == [0, 1]
    play.wait(100)
    play.sweep()

    assert outstanding(play) == []


@pytest.mark.spec("K1", "D20")
def test_only_the_newest_value_of_a_key_comes_again() -> None:
    play = durable_play("shared", 5, keys={"k": 1}, retain_consumed=True, events=1)
    play.do(publish(1, superseded=(span(0),)))
    play.do(Ack(1, (span(1),)))
    with pytest.raises(IllegalState, match=r"event 0 of orders is not stored \(replaced\)"):
        play.do(Seek("d", 0, is_exact=True))

    assert delivered(play.do(Seek("d", 0))) == {1: [1]}


@pytest.mark.spec("D11", "D20")
def test_a_strict_durable_that_is_moved_back_goes_on_in_order() -> None:
    play = play_of(events=4, retain_consumed=True)
    play.do(AddDurable("d", "serial", strict_order=True))
    play.do(TakeSeat("d", 1, "s1", window=5))
    play.do(Ack(1, (span(0, 2),)))
    assert play.do(Seek("d", 1)) == [Recall(1, (span(3),))]

    assert delivered(play.do(ConfirmRecall(1))) == {1: [1, 2, 3]}


@pytest.mark.spec("J4", "D20")
def test_on_the_jms_engine_what_is_stored_comes_again_and_what_passed_does_not() -> None:
    play = play_of(engine="jms")
    play.do(AddSubscriber(1, "s", 0, credit=9))
    play.do(publish(1))
    play.do(AddDurable("other", "shared"))
    play.do(AddDurable("d", "shared"))
    play.do(publish(1))
    play.do(Seek("d", 2))
    assert outstanding(play) == []

    play.do(Seek("d", 0))

    assert outstanding(play) == [1]


@pytest.mark.spec("K2", "D20")
def test_on_a_merge_channel_the_states_come_again() -> None:
    play = durable_play("shared", 5, engine="merge", keys={"k": 1}, events=1)
    play.do(publish(1, superseded=(span(0),)))
    play.do(Ack(1, (span(1),)))
    assert outstanding(play) == []

    assert delivered(play.do(Seek("d", 0))) == {1: [1]}
