"""Interest in events, and durables that get events from memory while their clients are
connected."""

from __future__ import annotations

from typing import Any

import pytest

from packages.core.tests.engines.jms_channels import conserved, jms, live, removed_by_cause, written
from packages.core.tests.plays import outstanding
from penstock_core.channel.interest import unwanted, wanted_of
from penstock_core.durable.durable import Durable
from penstock_core.durable.subscriber import Subscriber
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import PersistedLate
from penstock_core.messages.seats import Detach, TakeSeat
from penstock_core.messages.settlements import Ack, RollBack
from penstock_server.bootstrap import rules
from penstock_testing.play import Play, delivered, publish, span


def durable(head: int, *, selector: str = "") -> Durable:
    return Durable("d", rules().kinds["shared"], head, selector=selector)


@pytest.mark.spec("J2", "J6")
def test_what_a_durable_has_not_acknowledged_and_what_lies_at_a_cursor_is_wanted() -> None:
    owed = durable(6)
    owed.outstanding = IdSet((span(2),))
    matching = durable(9, selector="x")
    matching.outstanding = IdSet((span(3, 4),))
    browse = Subscriber(1, "b", 0, stop_id=9, credit=5)
    ids = IdSet((span(0, 8),))

    assert unwanted(ids, [owed], [browse]) == IdSet((span(0, 1), span(3, 5)))
    assert unwanted(ids, [matching], []) == IdSet((span(0, 2), span(5, 8)))
    assert unwanted(ids, [], [Subscriber(2, "s", 5, stop_id=None, credit=0)]) == IdSet(
        (span(0, 4),)
    )
    assert unwanted(ids, [], []) == ids


@pytest.mark.spec("J6", "D3")
@pytest.mark.parametrize(
    ("head", "selector", "expected"),
    [
        (0, "", (10, 20)),
        (15, "", (15, 20)),
        (99, "", None),
        (0, "x", (12, 14)),
        (13, "x", (13, 14)),
    ],
)
def test_a_durable_wants_what_matches_from_where_it_begins(
    head: int, selector: str, expected: tuple[int, int] | None
) -> None:
    wanted = wanted_of(durable(head, selector=selector), Span(10, 20), (Span(12, 14),))

    assert wanted == (IdSet((Span(*expected),)) if expected else IdSet())


def fed(kind: str = "exclusive", **attributes: Any) -> Play:
    play = jms(**attributes)
    play.do(AddDurable("d", kind))
    play.do(TakeSeat("d", 1, "s", auto_ack=True))
    return play


@pytest.mark.spec("J7")
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_a_client_that_acknowledges_by_itself_is_fed_from_memory(kind: str) -> None:
    play = fed(kind)

    assert delivered(play.do(publish(3))) == {1: [0, 1, 2]}
    assert (written(play), live(play)) == ([], [0, 1, 2])
    play.do(Ack(1, (span(0, 2),)))

    assert live(play) == []
    assert removed_by_cause(play) == {"consumed": 3}
    assert conserved(play)


@pytest.mark.spec("J7")
@pytest.mark.parametrize("type", ["persistent", "mixed", "paged"])
@pytest.mark.parametrize("kind", ["exclusive", "priority"])
def test_what_it_has_not_acknowledged_as_it_leaves_is_kept_from_then_on(
    kind: str, type: str
) -> None:
    play = fed(kind, type=type)
    play.do(publish(5))
    play.do(Ack(1, (span(0, 1),)))

    play.do(Detach(1))

    assert [fact.spans for fact in play.recorded if isinstance(fact, PersistedLate)] == [
        (span(2, 4),)
    ]
    assert len(play.channel.state.volatile) == 0
    play.restart()
    play.sweep()
    assert (live(play), outstanding(play)) == ([2, 3, 4], [2, 3, 4])
    assert delivered(play.do(TakeSeat("d", 1, "s", auto_ack=True))) == {1: [2, 3, 4]}
    assert conserved(play)


@pytest.mark.spec("J7")
def test_where_the_type_has_events_in_memory_they_stay_there() -> None:
    play = fed(type="reliable")
    play.do(publish(3))

    play.do(Detach(1))

    assert (live(play), outstanding(play)) == ([0, 1, 2], [0, 1, 2])
    assert len(play.channel.state.passing) == 0
    assert not any(isinstance(fact, PersistedLate) for fact in play.recorded)


@pytest.mark.spec("J7")
def test_an_event_that_is_not_persistent_on_a_mixed_channel_is_not_written() -> None:
    play = fed(type="mixed")
    play.do(publish(4, volatile=(span(1, 2),)))

    play.do(Detach(1))

    written_now = [fact.spans for fact in play.recorded if isinstance(fact, PersistedLate)]
    assert written_now == [(span(0),), (span(3),)] or written_now == [(span(0), span(3))]
    assert live(play) == [0, 1, 2, 3]
    play.restart()
    play.sweep()
    assert (live(play), outstanding(play)) == ([0, 3], [0, 3])


@pytest.mark.spec("J7")
def test_another_client_of_the_same_durable_takes_over_from_memory() -> None:
    play = fed("priority")
    play.do(TakeSeat("d", 2, "t", auto_ack=True))
    play.do(publish(3))

    assert delivered(play.do(Detach(1))) == {2: [0, 1, 2]}
    assert not any(isinstance(fact, PersistedLate) for fact in play.recorded)
    play.do(Detach(2))
    assert any(isinstance(fact, PersistedLate) for fact in play.recorded)


@pytest.mark.spec("J7", "D4")
def test_what_one_durable_has_acknowledged_does_not_come_back_with_what_another_is_owed() -> None:
    play = fed()
    play.do(AddDurable("e", "exclusive"))
    play.do(TakeSeat("e", 2, "t", auto_ack=True))
    play.do(publish(4))
    play.do(Ack(2, (span(0, 3),)))

    play.do(Detach(1))
    play.restart()
    play.sweep()

    assert outstanding(play, "d") == [0, 1, 2, 3]
    assert outstanding(play, "e") == []


@pytest.mark.spec("J7", "D4")
def test_what_a_fed_client_gives_back_is_kept_and_comes_again() -> None:
    """The event is stored and redelivered, whatever the client acknowledges later and even after a
    restart."""
    play = fed()
    play.do(publish(5))
    play.do(Ack(1, (span(0),)))
    play.do(RollBack(1, (span(1),)))
    play.do(Ack(1, (span(4),)))

    assert (live(play), outstanding(play)) == ([1], [1])
    play.restart()
    play.sweep()
    assert (live(play), outstanding(play)) == ([1], [1])
    assert delivered(play.do(TakeSeat("d", 2, "t", auto_ack=True))) == {2: [1]}


@pytest.mark.spec("J7", "T1")
def test_the_age_of_what_was_kept_late_is_its_own() -> None:
    play = fed(ttl=10_000)
    play.do(publish())
    play.wait(5_000)
    play.do(Detach(1))
    play.do(publish())
    play.restart()
    play.wait(5_001)
    play.sweep()

    assert live(play) == [1]


@pytest.mark.spec("J4", "J7")
def test_a_client_that_acknowledges_itself_joins_and_what_the_durable_is_owed_is_kept() -> None:
    play = fed("priority")
    play.do(publish(3))
    play.do(Ack(1, (span(0),)))

    play.do(TakeSeat("d", 2, "t"))

    assert [fact.spans for fact in play.recorded if isinstance(fact, PersistedLate)] == [
        (span(1, 2),)
    ]
    play.restart()
    play.sweep()
    assert outstanding(play) == [1, 2]


@pytest.mark.spec("J7", "D4")
def test_what_is_kept_after_a_snapshot_was_taken_is_owed_after_a_restart() -> None:
    play = fed()
    play.do(publish(4))
    play.do(Ack(1, (span(0),)))
    play.snapshot()

    play.do(Detach(1))
    play.restart()
    play.sweep()

    assert (live(play), outstanding(play)) == ([1, 2, 3], [1, 2, 3])
    assert delivered(play.do(TakeSeat("d", 1, "s"))) == {1: [1, 2, 3]}


@pytest.mark.spec("J7", "D4")
@pytest.mark.parametrize("has_snapshot", [False, True])
def test_events_before_a_rolled_back_one_are_owed_after_a_restart(*, has_snapshot: bool) -> None:
    play = fed()
    play.do(publish(4))
    play.do(RollBack(1, (span(2),)))
    if has_snapshot:
        play.snapshot()

    play.do(Detach(1))
    play.restart()
    play.sweep()

    assert (live(play), outstanding(play)) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert delivered(play.do(TakeSeat("d", 1, "s"))) == {1: [0, 1, 2, 3]}


@pytest.mark.spec("J4")
def test_what_a_snapshot_finds_in_memory_is_gone_after_a_restart() -> None:
    play = fed()
    play.do(publish(4))

    play.restart_from_snapshot()
    play.sweep()

    assert (live(play), outstanding(play)) == ([], [])
    assert len(play.channel.state.durables["d"].ready) == 0
    assert delivered(play.do(TakeSeat("d", 1, "s", auto_ack=True))) == {}
    assert conserved(play)
