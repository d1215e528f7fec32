"""The state of a channel is exported from one realm, checked, and imported into another."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from packages.core.tests.plays import durable_play, outstanding, play_of
from penstock_core.channel.channel import ChannelMachine
from penstock_core.durables.shared import KIND as SHARED
from penstock_core.ids.ids import Span
from penstock_core.messages.publishing import Publish
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_core.messages.snapshots import ProducerState, Restored
from penstock_core.realm.exports import ExportedState, check, export_state, take_over
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DamagedExport, LimitReached
from penstock_server.bootstrap import rules
from penstock_testing.play import Play, delivered, publish, span

pytestmark = pytest.mark.spec("C7")


def halfway() -> Play:
    """Return a channel with ten events and a shared durable: 1 and 3 are acknowledged, 2 was rolled
    back twice, a client holds 4."""
    play = durable_play("shared", 5, events=10, retain_consumed=True)
    play.do(Ack(1, (span(1), span(3))))
    play.do(RollBack(1, (span(2),)))
    play.do(RollBack(1, (span(2),)))
    return play


def moved(play: Play) -> Play:
    """Return the channel in another realm."""
    state = play.channel.state
    exported = export_state(state)
    check(exported, rules())
    target = Play(ChannelMachine("elsewhere", state.definition, rules()), now_us=play.now_us)
    take_over(target.channel.state, exported)
    return target


def test_ids_durables_and_counts_go_on_where_they_were() -> None:
    play = halfway()
    imported = moved(play)

    assert outstanding(imported) == outstanding(play) == [0, 2, 4, 5, 6, 7, 8, 9]
    assert imported.channel.state.counters == play.channel.state.counters
    imported.do(publish(1))
    assert imported.answer == Span(10, 11)
    effects = imported.do(TakeSeat("d", 1, "s", window=20))
    assert delivered(effects) == {1: [0, 2, 4, 5, 6, 7, 8, 9, 10]}
    assert [deliver.redeliveries for deliver in effects if deliver.redeliveries] == [  # type: ignore[attr-defined]  # they are deliveries
        ((2, (span(2),)),)
    ]


def test_an_export_of_the_import_is_the_same_again() -> None:
    play = halfway()

    assert export_state(moved(play).channel.state) == export_state(play.channel.state)


def test_what_lives_in_memory_goes_along_and_is_still_in_memory_there() -> None:
    play = play_of(type="mixed")
    play.do(publish(4, volatile=(span(1), span(3))))
    imported = moved(play)

    assert list(imported.channel.state.stored) == [0, 1, 2, 3]
    imported.recorded = [imported.channel.snapshot()]
    imported.restart()
    assert list(imported.channel.state.stored) == [0, 2]


def test_a_queue_keeps_its_readers_and_what_they_rolled_back() -> None:
    play = play_of(kind="queue", events=3)
    play.do(TakeSeat("", 1, "s", window=1))
    play.do(RollBack(1, (span(0),)))
    play.do(Detach(1))
    imported = moved(play)

    assert outstanding(imported, "") == [0, 1, 2]
    (deliver,) = imported.do(TakeSeat("", 1, "s", window=1))
    assert deliver.redeliveries == play.do(TakeSeat("", 2, "s", window=1))[0].redeliveries  # type: ignore[attr-defined]  # they are deliveries


def test_a_publish_repeated_in_the_new_realm_is_stored_once() -> None:
    play = play_of()
    first = Publish(publish(2).digest, "p", 1)
    play.do(first)
    imported = moved(play)
    imported.do(first)

    assert imported.answer == Span(0, 2)
    assert len(imported.channel.state.stored) == 2


def test_what_is_passing_when_the_export_is_taken_counts_as_relayed() -> None:
    play = play_of(type="transient")
    decided = play.channel.decide(publish(3, transient=(span(0, 2),)), play.now_us)
    for fact in decided.facts:
        play.channel.apply(fact)
    exported = export_state(play.channel.state)

    check(exported, rules())
    assert exported.restored.counters.relayed == 3


# --- what cannot be -----------------------------------------------------------------------


def altered(**changes: Any) -> ExportedState:
    exported = export_state(halfway().channel.state)
    return replace(exported, restored=replace(exported.restored, **changes))


def with_durable(**changes: Any) -> ExportedState:
    (durable,) = export_state(halfway().channel.state).restored.durables
    return altered(durables=(replace(durable, **changes),))


def counted(**changes: int) -> Any:
    return replace(export_state(halfway().channel.state).restored.counters, **changes)


WRONG = {
    "ranges that do not ascend": (altered(stored=(span(5, 9), span(0, 4))), "ascending"),
    "an empty range": (altered(stored=(Span(3, 3),)), "ranges of ids are not in ascending order"),
    "a negative id": (altered(stored=(Span(-1, 3),)), "ranges of ids are not in ascending order"),
    "ranges of a TTL": (altered(own_expiry=((1, (Span(3, 2),)),)), "events with an event TTL"),
    "acknowledged and not stored": (
        altered(consumed=(span(30),)),
        "acknowledged events: some of the events are not stored",
    ),
    "outstanding and not stored": (
        with_durable(outstanding=(span(30),)),
        "durable d: some of the events are not stored",
    ),
    "an id given twice": (altered(next_id=9), "the next id is 9, the highest stored one 9"),
    "a negative next id": (
        altered(next_id=-1, stored=(), durables=(), consumed=()),
        "the next id is out of bounds: -1",
    ),
    "lost events": (altered(counters=counted(published=11)), "11 published, 10 live, 0 gone"),
    "two durables of one name": (
        altered(durables=export_state(halfway().channel.state).restored.durables * 2),
        "one name: d, d",
    ),
    "no such kind": (with_durable(kind="solitary"), "kind 'solitary'; allowed are"),
    "no such name": (with_durable(name="no\tname"), "control character"),
    "readers of a channel": (with_durable(name="", kind="queue"), "this is a channel"),
    "a queue without readers": (altered(definition=Definition(kind="queue")), "this is a queue"),
    "a position before all": (with_durable(head=-1), "out of bounds"),
    "deliveries beyond reason": (
        with_durable(max_deliveries=1_000_001),
        "'d': max_deliveries is out of bounds: 1000001; allowed are 0 to 1000000",
    ),
    "a timeout before now": (with_durable(ack_timeout=-1), "'d': ack_timeout is out of bounds"),
    "a property nobody can name": (
        with_durable(order_by="x" * 256),
        "'d': order_by 'x{40}'… has 256 characters; at most 255 are allowed",
    ),
    "a count of none": (with_durable(redelivered=((0, (span(2),)),)), "out of bounds"),
    "a count beyond reason": (with_durable(redelivered=((1 << 40, (span(2),)),)), "out of bounds"),
    "kept by a type that keeps nothing": (
        altered(definition=Definition(type="transient"), durables=()),
        "transient channel keeps none",
    ),
    "on disk by a type that has none": (
        altered(definition=Definition(type="reliable")),
        "10 events are not in memory, on a reliable channel",
    ),
    "publishes out of order": (
        altered(producers=(ProducerState("p", -1, 0, recent=((2, span(0)), (1, span(1)))),)),
        "not in order",
    ),
    "publishes of ids never given": (
        altered(producers=(ProducerState("p", -1, 0, recent=((1, span(90)),)),)),
        "never assigned",
    ),
    "publishes of no ids": (
        altered(producers=(ProducerState("p", -1, 0, recent=((1, Span(2, 2)),)),)),
        "producer p: the ranges of ids are not in ascending order",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_state_that_cannot_be_is_refused(what: str) -> None:
    exported, reason = WRONG[what]

    with pytest.raises(DamagedExport, match=reason):
        check(exported, rules())


def test_durables_with_too_long_selectors_are_refused() -> None:
    (durable,) = export_state(halfway().channel.state).restored.durables
    long = "k = '" + "x" * 60_000 + "'"
    durables = tuple(replace(durable, name=f"d{n}", selector=long) for n in range(80))

    with pytest.raises(LimitReached, match="4,800,480 characters together"):
        check(altered(durables=durables), rules())


def test_readers_of_a_queue_are_of_the_queues_own_kind() -> None:
    exported = export_state(play_of(kind="queue", events=1).channel.state)
    (readers,) = exported.restored.durables
    wrong_state = replace(exported.restored, durables=(replace(readers, kind=SHARED.name),))

    with pytest.raises(DamagedExport, match="kind 'shared'"):
        check(ExportedState(wrong_state, ()), rules())


def test_the_exported_state_is_one_fact_and_what_it_cannot_say() -> None:
    exported = export_state(halfway().channel.state)

    assert isinstance(exported.restored, Restored)
    assert exported.volatile == ()
