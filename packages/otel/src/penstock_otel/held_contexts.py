"""The contexts of events that clients hold, so that the span of a settlement links to them."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from opentelemetry.trace import SpanContext

from penstock_core.messages.kinds import Command
from penstock_core.messages.settlements import AckPrevious
from penstock_otel.contexts import LINKS_MAX, ContextRun, distinct

HELD_MAX: Final = 10_000
"""Maximum number of contexts that are remembered, about 5 MB. Beyond it, those of the client that
got no events for the longest time are forgotten, and its settlements have no links."""

Holder = int | str
"""A client that holds events: the number of its subscription, or the name of its lease."""

_last_id: Final = attrgetter("last_id")


class HeldContexts:
    """Contexts of delivered events by holder and channel, in the order of event ids."""

    def __init__(self) -> None:
        self._runs: OrderedDict[Holder, dict[str, list[ContextRun]]] = OrderedDict()
        self.count = 0
        """Number of remembered contexts."""

    def add(self, holder: Holder, runs: Sequence[ContextRun], channel: str = "") -> None:
        """Remember the contexts of a delivery. A holder of events from several channels names the
        channel, because event ids are unique in a channel only."""
        if not runs:
            return
        held_runs = self._runs.setdefault(holder, {}).setdefault(channel, [])
        self._runs.move_to_end(holder)
        for run in runs:
            place = bisect_left(held_runs, run.last_id, key=_last_id)
            if held_runs[place : place + 1] == [run]:  # a redelivery
                continue
            held_runs.insert(place, run)
            self.count += 1
        self._forget_oldest()

    def channels_of(self, holder: Holder) -> Sequence[str]:
        """Return the channels that a holder has contexts of."""
        return tuple(self._runs.get(holder, ()))

    def settle(
        self, holder: Holder, spans: Iterable[tuple[int, int]], channel: str = ""
    ) -> list[SpanContext]:
        """Return the different contexts of settled events, at most ``LINKS_MAX``, and forget them
        for these events."""
        runs_by_channel = self._runs.get(holder, {})
        held_runs = runs_by_channel.get(channel)
        if held_runs is None:
            return []
        contexts: list[SpanContext] = []
        # A client may settle very many ranges at once, whose search would block the event loop.
        for first, end in islice(spans, LINKS_MAX):
            place = last = bisect_left(held_runs, first, key=_last_id)
            remaining: list[ContextRun] = []
            while last < len(held_runs) and held_runs[last].first_id < end:
                run = held_runs[last]
                contexts.append(run.context)
                remaining += _without(run, first, end)
                last += 1
            self.count += len(remaining) - (last - place)
            held_runs[place:last] = remaining
        if not held_runs:
            del runs_by_channel[channel]
        if not runs_by_channel:
            del self._runs[holder]
        self._forget_oldest()
        return distinct(contexts)

    def _forget_oldest(self) -> None:
        while self.count > HELD_MAX:
            _, dropped_runs = self._runs.popitem(last=False)
            self.count -= sum(map(len, dropped_runs.values()))


def _without(run: ContextRun, first: int, end: int) -> Iterator[ContextRun]:
    """Yield the parts of a run that are outside the span from ``first`` to below ``end``."""
    if run.first_id < first:
        yield run._replace(last_id=first - 1)
    if run.last_id >= end:
        yield run._replace(first_id=end)


def settled_by(command: Command) -> Iterable[tuple[int, int]]:
    """Return the spans of the events that a command settles."""
    if isinstance(command, AckPrevious):
        return ((0, command.event_id + 1),)
    spans: Iterable[tuple[int, int]] = command.spans  # type: ignore[attr-defined]  # all others have spans
    return spans
