"""An event that is rolled back too often is dead (SEM T10)."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.plays import dying, outstanding, play_of, reader, removals
from penstock_core.messages.definitions import Edit
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import PurgeEvents
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, Buried, RollBack
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_testing.play import Play, publish, redelivered, span


def limited(limit: int, **attributes: Any) -> Play:
    play = dying(**attributes)
    play.do(AddDurable("d", "shared", max_deliveries=limit))
    play.do(TakeSeat("d", 1, "s1"))
    return play


@pytest.mark.spec("T10")
@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("how", ["roll back", "disconnect", "each in turn"])
def test_an_event_dies_at_its_last_delivery_however_it_comes_back(limit: int, how: str) -> None:
    play = limited(limit)
    play.do(publish(1))
    client = 1
    for delivery in range(1, limit + 1):
        assert outstanding(play) == [0], f"alive before delivery {delivery} comes back"
        if how == "disconnect" or (how == "each in turn" and delivery % 2):
            play.do(Detach(client))
            client += 1
            play.do(TakeSeat("d", client, "s"))
        else:
            play.do(RollBack(client, (span(0),)))

    assert removals(play) == [(Cause.UNDELIVERABLE, [0], [0])]
    assert play.channel.state.counters.dead == 1
    assert not play.channel.state.stored


@pytest.mark.spec("T10")
@pytest.mark.parametrize("limit", [2, 5])
def test_the_client_is_told_each_count_up_to_the_last(limit: int) -> None:
    play = limited(limit)
    counts = [redelivered(play.do(publish(1))).get(0, 0)]
    while outstanding(play):
        effects = play.do(RollBack(1, (span(0),)))
        counts += redelivered(effects).values()

    assert counts == list(range(limit))


@pytest.mark.spec("T10", "T6")
def test_while_another_durable_wants_it_the_event_is_dead_for_the_one_alone() -> None:
    play = limited(1)
    reader(play, "other", "shared", subscription=2)
    play.do(publish(2))
    play.do(RollBack(1, (span(0, 1),)))
    assert play.recorded[-1] == Buried("d", (span(0, 1),))
    assert outstanding(play) == []
    assert outstanding(play, "other") == [0, 1]

    play.do(Ack(2, (span(0),)))
    assert removals(play) == [(Cause.CONSUMED, [0], [])]
    play.do(PurgeEvents((span(1),)))
    counters = play.channel.state.counters
    assert counters.published == counters.departed_count == 2


@pytest.mark.spec("T10", "D6")
def test_where_consumed_events_are_retained_a_dead_one_stays_for_replay() -> None:
    play = limited(1, retain_consumed=True)
    play.do(publish(1))
    play.do(RollBack(1, (span(0),)))

    assert play.recorded[-1] == Buried("d", (span(0),))
    assert list(play.channel.state.stored) == [0]
    assert outstanding(play) == []


@pytest.mark.spec("T10")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot", "close"])
def test_the_limit_and_the_count_survive_a_restart(how: str) -> None:
    play = limited(3)
    play.do(publish(1))
    play.do(RollBack(1, (span(0),)))
    play.do(RollBack(1, (span(0),)))
    getattr(play, how)()
    effects = play.do(TakeSeat("d", 2, "s"))
    assert redelivered(effects) == {0: 2}
    play.do(RollBack(2, (span(0),)))

    assert removals(play) == [(Cause.UNDELIVERABLE, [0], [0])]


@pytest.mark.spec("T10")
def test_acknowledged_in_time_it_is_consumed() -> None:
    play = limited(2)
    play.do(publish(1))
    play.do(RollBack(1, (span(0),)))
    play.do(Ack(1, (span(0),)))

    assert removals(play) == [(Cause.CONSUMED, [0], [])]


@pytest.mark.spec("T10", "Q3")
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_queue_has_the_limit_itself(limit: int) -> None:
    play = dying(kind="queue", max_deliveries=limit)
    play.do(TakeSeat("", 1, "s"))
    play.do(publish(1))
    for _ in range(limit):
        assert removals(play) == []
        play.do(RollBack(1, (span(0),)))

    assert removals(play) == [(Cause.UNDELIVERABLE, [0], [0])]


@pytest.mark.spec("T10", "C3")
@pytest.mark.parametrize("how", ["restart", "restart_from_snapshot"])
def test_a_queues_limit_can_be_edited(how: str) -> None:
    play = dying(kind="queue", max_deliveries=9, events=1)
    mine = play.channel.state.definition
    play.do(Edit(Definition(type=mine.type, kind="queue", dead_event_store="dead")))
    wanted = Definition(type=mine.type, kind="queue", dead_event_store="dead", max_deliveries=1)
    play.do(Edit(wanted))
    getattr(play, how)()
    play.do(TakeSeat("", 1, "s"))
    play.do(RollBack(1, (span(0),)))

    assert removals(play) == [(Cause.UNDELIVERABLE, [0], [0])]


@pytest.mark.spec("T10")
@pytest.mark.parametrize(
    ("command", "attributes", "reason"),
    [
        (
            AddDurable("d", "exclusive", max_deliveries=2),
            {"dead_event_store": "dead"},
            "exclusive does not count redeliveries",
        ),
        (AddDurable("d", "shared", max_deliveries=2), {}, "needs a dead event store"),
        (
            AddDurable("d", "shared", max_deliveries=-1),
            {"dead_event_store": "dead"},
            "max_deliveries is -1; allowed are 0 to 1000000",
        ),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(
    command: AddDurable, attributes: dict[str, Any], reason: str
) -> None:
    play = play_of(**attributes)
    with pytest.raises(InvalidArgument, match=reason):
        play.do(command)

    assert not play.channel.state.durables


@pytest.mark.spec("T10", "C3")
def test_the_store_a_limit_needs_is_not_taken_away() -> None:
    play = limited(2)
    with pytest.raises(InvalidArgument, match="durable d of orders has max_deliveries"):
        play.do(Edit(Definition(type="persistent")))

    assert play.channel.state.definition.dead_event_store == "dead"
