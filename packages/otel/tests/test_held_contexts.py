"""Settlements find the contexts of their events among those that a client holds."""

from __future__ import annotations

from opentelemetry.trace import SpanContext

from packages.otel.tests.conftest import parent
from penstock_core.messages.settlements import Ack, AckPrevious
from penstock_otel.contexts import LINKS_MAX, ContextRun, span_context_of
from penstock_otel.held_contexts import HELD_MAX, HeldContexts, settled_by


def run(number: int, first_id: int, last_id: int | None = None) -> ContextRun:
    context = span_context_of((parent(number), "a=1"))
    return ContextRun(context, first_id, first_id if last_id is None else last_id)


def numbers(contexts: list[SpanContext]) -> list[int]:
    return [context.span_id for context in contexts]


def test_a_settlement_takes_the_contexts_of_its_events_only() -> None:
    held = HeldContexts()
    held.add(1, [run(1, 0, 9), run(2, 10), run(3, 12, 13)])

    assert numbers(held.settle(2, [(0, 100)])) == []
    assert numbers(held.settle(1, [(4, 6)])) == [1]
    assert numbers(held.settle(1, [(0, 1), (10, 11)])) == [1, 2]
    assert numbers(held.settle(1, [(4, 6), (10, 11)])) == []
    assert numbers(held.settle(1, [(0, 100)])) == [1, 3]
    assert held.count == 0


def test_a_redelivery_is_remembered_once() -> None:
    held = HeldContexts()
    held.add(1, [run(1, 5)])
    held.add(1, [run(1, 5), run(2, 3)])

    assert held.count == 2
    assert numbers(held.settle(1, [(0, 9)])) == [2, 1]


def test_the_client_without_events_for_the_longest_time_is_forgotten_first() -> None:
    held = HeldContexts()
    held.add("lease", [run(1, 0)])
    held.add(2, [run(2, number) for number in range(HELD_MAX - 1)])
    held.add("lease", [run(1, 7)])

    assert held.count == 2
    assert numbers(held.settle("lease", [(0, 9)])) == [1]
    assert numbers(held.settle(2, [(0, 9)])) == []


def test_equal_event_ids_of_several_channels_are_held_apart() -> None:
    held = HeldContexts()
    held.add("lease", [run(1, 0)], "north")
    held.add("lease", [run(2, 0)], "south")
    held.add("lease", [], "west")

    assert held.channels_of("lease") == ("north", "south")
    assert numbers(held.settle("lease", [(0, 1)], "south")) == [2]
    assert held.channels_of("lease") == ("north",)
    assert numbers(held.settle("lease", [(0, 1)], "north")) == [1]
    assert (held.channels_of("lease"), held.count) == ((), 0)


def test_a_forgotten_client_is_forgotten_in_all_its_channels() -> None:
    held = HeldContexts()
    for name in ("north", "south"):
        held.add("lease", [run(1, 0)], name)
    held.add(2, [run(2, number) for number in range(HELD_MAX - 1)])

    assert held.channels_of("lease") == ()
    assert held.count == HELD_MAX - 1


def test_a_settlement_of_parts_does_not_grow_without_a_bound() -> None:
    held = HeldContexts()
    held.add(1, [run(1, 0, 10 * HELD_MAX)])
    for event_id in range(1, 2 * HELD_MAX + 2, 2):
        held.settle(1, [(event_id, event_id + 1)])

    assert held.count <= HELD_MAX


def test_links_of_a_settlement_are_bounded() -> None:
    held = HeldContexts()
    held.add(1, [run(number + 1, number) for number in range(2 * LINKS_MAX)])

    assert len(held.settle(1, [(0, 2 * LINKS_MAX)])) == LINKS_MAX


def test_a_cumulative_acknowledgement_settles_all_earlier_events() -> None:
    assert list(settled_by(AckPrevious(1, 4))) == [(0, 5)]
    assert list(settled_by(Ack(1, ((2, 3),)))) == [(2, 3)]  # type: ignore[arg-type]  # as decoded
