"""Deciding a command does not change the state."""

from __future__ import annotations

import pytest

from packages.core.tests.plays import durable_play, outstanding, play_of
from penstock_core.bounds import DURABLE_SELECTORS_CHARACTERS_MAX, SELECTOR_CHARACTERS_MAX
from penstock_core.ids.ids import Span
from penstock_core.messages.definitions import Edit
from penstock_core.messages.durables import AddDurable, RemoveDurable
from penstock_core.messages.kinds import Command
from penstock_core.messages.retention import PurgeEvents, Quarantine, Removed, Sweep
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import (
    CapacityReached,
    IllegalState,
    InvalidArgument,
    LimitReached,
    NameDoesNotExist,
    Refused,
)
from penstock_testing.play import publish, span

COMMANDS: list[Command] = [
    publish(2),
    Ack(1, (span(0),)),
    AckPrevious(1, 1),
    RollBack(1, (span(0),)),
    Detach(1),
    TakeSeat("d", 2, "s2"),
    AddDurable("e", "shared"),
    RemoveDurable("d"),
    PurgeEvents((span(0, 9),)),
    Quarantine((span(0),)),
    Edit(Definition(type="persistent", capacity=1)),
    Sweep(),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_deciding_changes_nothing(command: Command) -> None:
    play = durable_play("shared", 3, events=5)
    before = play.channel.snapshot(), outstanding(play)
    first = play.channel.decide(command, play.now_us)

    assert (play.channel.snapshot(), outstanding(play)) == before
    assert play.channel.decide(command, play.now_us) == first


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Ack(7, (span(0),)), IllegalState),
        (RollBack(7, (span(0),)), IllegalState),
        (AckPrevious(7, 0), IllegalState),
        (TakeSeat("x", 2, "s"), NameDoesNotExist),
        (RemoveDurable("x"), NameDoesNotExist),
    ],
)
def test_a_refusal_changes_nothing(command: Command, error: type[Refused]) -> None:
    play = durable_play("shared", 3, events=5)
    record_count = len(play.recorded)
    with pytest.raises(error):
        play.do(command)

    assert len(play.recorded) == record_count


@pytest.mark.spec("T9")
def test_a_purge_answers_with_what_it_removed() -> None:
    play = play_of(events=5)
    play.do(PurgeEvents((span(1, 3),)))
    assert play.answer == 3
    play.do(PurgeEvents((span(0, 99),)))
    assert play.answer == 2
    play.do(PurgeEvents((span(0, 99),)))

    assert play.answer == 0
    assert play.channel.state.counters.purged == 5


@pytest.mark.spec("S1")
def test_unreadable_events_are_counted_by_themselves() -> None:
    play = play_of(events=3)
    play.do(Quarantine((span(1),)))

    assert play.recorded[-1] == Removed((Span(1, 2),), Cause.QUARANTINED)
    assert play.channel.state.counters.quarantined == 1


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    "wanted",
    [
        Definition(type="mixed"),
        Definition(type="persistent", engine="jms"),
        Definition(type="persistent", start_event_id=9),
        Definition(type="persistent", kind="queue"),
        Definition(type="persistent", keys={"k": 1}),
    ],
)
def test_what_is_fixed_at_creation_stays(wanted: Definition) -> None:
    with pytest.raises(InvalidArgument, match="is fixed at creation"):
        play_of().do(Edit(wanted))


@pytest.mark.spec("C3")
def test_the_other_attributes_can_be_edited_and_apply_at_once() -> None:
    play = play_of(type="mixed", events=1)
    wanted = Definition(
        ttl=100,
        capacity=4,
        dead_event_store="dead",
        retain_consumed=True,
        event_ttl=True,
        storage=Storage(honour_capacity=True, priority=7, read_buffer_size=4_096),
    )
    play.do(Edit(wanted))
    assert play.channel.state.definition == wanted
    play.restart()
    assert play.channel.state.definition == wanted

    with pytest.raises(CapacityReached):
        play.do(publish(4))
    play.wait(100)
    play.sweep()
    assert play.removed[-1] == Removed((span(0),), Cause.EXPIRED, (span(0),))


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    "wanted",
    [
        Definition(type="persistent", ttl=-1),
        Definition(type="persistent", capacity=-1),
        Definition(type="persistent", storage=Storage(priority=10)),
    ],
)
def test_an_edit_out_of_bounds_changes_nothing(wanted: Definition) -> None:
    play = play_of()
    with pytest.raises(InvalidArgument):
        play.do(Edit(wanted))

    assert play.channel.state.definition == Definition(type="persistent")


@pytest.mark.spec("C3", "T3")
def test_a_smaller_capacity_applies_at_once() -> None:
    play = play_of(events=5)
    play.do(Edit(Definition(type="persistent", capacity=2)))

    assert list(play.channel.state.stored) == [3, 4]
    assert play.channel.state.counters.evicted == 3


@pytest.mark.spec("C3", "T4")
def test_a_smaller_capacity_that_is_honoured_drops_nothing() -> None:
    play = play_of(events=5)
    storage = Storage(honour_capacity=True)
    play.do(Edit(Definition(type="persistent", capacity=2, storage=storage)))

    assert len(play.channel.state.stored) == 5


def test_a_command_of_no_channel_is_a_broken_belief() -> None:
    with pytest.raises(AssertionError, match="does not know Command"):
        play_of().do(Command())


def selector_of(characters: int) -> str:
    text = "k = '"
    return text + "x" * (characters - len(text) - 1) + "'"


def test_long_selectors_are_refused_beyond_their_limit_and_short_ones_are_taken() -> None:
    play = play_of()
    longest = selector_of(SELECTOR_CHARACTERS_MAX)
    count = DURABLE_SELECTORS_CHARACTERS_MAX // SELECTOR_CHARACTERS_MAX
    for number in range(count):
        play.do(AddDurable(f"d{number}", "shared", selector=longest))

    with pytest.raises(LimitReached, match=r"selectors of the durables of \w+.*4,194,304"):
        play.do(AddDurable("long", "shared", selector=selector_of(401)))
    play.do(AddDurable("short", "shared", selector=selector_of(400)))
    play.do(AddDurable("all", "shared"))

    play.do(RemoveDurable("d0"))
    play.do(AddDurable("long", "shared", selector=selector_of(401)))
