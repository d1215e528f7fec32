"""Plain subscribers with a selector share one place while they have been sent every event so far.

Published events are matched against the selectors of all these subscribers at once. Subscribers
that may want an event are singled out and served individually; the others cost nothing. This is
soft state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock_core.channel.engine import Engine
from penstock_core.durable.subscriber import Followed, Subscriber
from penstock_core.ids.ids import IdSet, Span, Spans


class Followers:
    """The plain subscribers of a channel: members, which share one place, and the others."""

    __slots__ = ("_place", "apart", "members")

    def __init__(self) -> None:
        self.apart: dict[int, Subscriber] = {}
        """Subscribers that are served individually, by subscription."""
        self.members: dict[int, Subscriber] = {}
        """Subscribers that share one place, by subscription."""
        self._place = Followed()

    @property
    def cursor(self) -> int:
        """The next id for the members: each has been sent all its events below this id."""
        return self._place.cursor

    @property
    def each_place(self) -> Iterator[Subscriber]:
        """The subscribers that are served individually, and one member, which represents all
        members."""
        yield from self.apart.values()
        for subscriber in self.members.values():
            yield subscriber
            return

    def add(self, subscriber: Subscriber) -> None:
        self.apart[subscriber.subscription] = subscriber

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber, after its own cursor was set to the shared place."""
        subscriber.follow(None)
        self.apart.pop(subscriber.subscription, None)
        self.members.pop(subscriber.subscription, None)

    def single_out(self, subscriptions: Iterable[int]) -> None:
        """Serve these subscriptions individually, from the position of the members."""
        for subscription in subscriptions:
            subscriber = self.members.pop(subscription, None)
            if subscriber is not None:
                subscriber.follow(None)
                self.apart[subscription] = subscriber

    def join(self, subscriber: Subscriber, end: int) -> None:
        """Make a subscriber a member; it has received everything below ``end``, the end of the
        channel. Does nothing if the members have not received everything yet."""
        # Moving the shared position would also move the members.
        if self.members and self.cursor != end:
            return
        self._place.cursor = end
        subscriber.follow(self._place)
        del self.apart[subscriber.subscription]
        self.members[subscriber.subscription] = subscriber

    def next_spans(self, readable: IdSet, end: int, chunk: int) -> Spans:
        """Return the next events below ``end`` that members may want, at most ``chunk`` events."""
        spans: list[Span] = []
        next_id = self.cursor
        while (
            chunk > 0
            and (span := readable.next_span(next_id, chunk)) is not None
            and span.first < end
        ):
            part = Span(span.first, min(span.end, end))
            spans.append(part)
            chunk -= part.size
            next_id = part.end
        return tuple(spans)

    def move_on(self, end: int) -> None:
        """Move the position of the members to ``end``: they have received all matching events below
        it."""
        self._place.cursor = max(self.cursor, end)


def may_follow(subscriber: Subscriber, engine: Engine, end: int) -> bool:
    """Whether a subscriber has been sent every event below ``end`` and only waits for new
    events."""
    if not subscriber.is_selective or engine.needs_interest or engine.merges:
        return False
    is_plain = subscriber.stop_id is None and subscriber.only is None and not subscriber.missed
    is_waiting = subscriber.hungry and not (subscriber.asks or subscriber.confirms)
    return is_plain and is_waiting and subscriber.cursor == end
