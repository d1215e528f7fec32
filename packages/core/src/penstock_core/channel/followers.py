"""Plain subscribers that choose by a selector and have everything so far: they move on together.

What is published is looked up in the selectors of all of them at once. Whoever it may be for is
singled out and served like any other subscriber; for the others it costs nothing. Soft state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock_core.channel.engine import Engine
from penstock_core.durable.subscriber import Followed, Subscriber
from penstock_core.ids.ids import IdSet, Span, Spans


class Followers:
    """The plain subscribers of a channel: those that move on together, and the others."""

    __slots__ = ("_place", "apart", "members")

    def __init__(self) -> None:
        self.apart: dict[int, Subscriber] = {}
        """Subscribers that are served one by one."""
        self.members: dict[int, Subscriber] = {}
        self._place = Followed()

    @property
    def through(self) -> int:
        """The id below which the members have everything."""
        return self._place.through

    @property
    def each_place(self) -> Iterator[Subscriber]:
        """The others, and one of the members: these have one place."""
        yield from self.apart.values()
        for subscriber in self.members.values():
            yield subscriber
            return

    def add(self, subscriber: Subscriber) -> None:
        self.apart[subscriber.subscription] = subscriber

    def remove(self, subscriber: Subscriber) -> None:
        subscriber.follow(None)
        self.apart.pop(subscriber.subscription, None)
        self.members.pop(subscriber.subscription, None)

    def single_out(self, subscriptions: Iterable[int]) -> None:
        """Let these subscriptions continue by themselves, from where all of them are."""
        for subscription in subscriptions:
            subscriber = self.members.pop(subscription, None)
            if subscriber is not None:
                subscriber.follow(None)
                self.apart[subscription] = subscriber

    def join(self, subscriber: Subscriber, end: int) -> None:
        """One that has everything below ``end``, where the channel ends, joins the members."""
        if self.members and self.through != end:
            return
        self._place.through = end
        subscriber.follow(self._place)
        del self.apart[subscriber.subscription]
        self.members[subscriber.subscription] = subscriber

    def next_spans(self, there: IdSet, end: int, chunk: int) -> Spans:
        """The next events below ``end`` that members may want, at most ``chunk``."""
        found: list[Span] = []
        at = self.through
        while chunk > 0 and (span := there.next_span(at, chunk)) is not None and span.first < end:
            part = Span(span.first, min(span.end, end))
            found.append(part)
            chunk -= part.size
            at = part.end
        return tuple(found)

    def move_on(self, end: int) -> None:
        """The members have everything below ``end`` that is for them."""
        self._place.through = max(self.through, end)


def may_follow(subscriber: Subscriber, engine: Engine, end: int) -> bool:
    """Whether a subscriber has everything below ``end``, and waits for no more than what is
    published next."""
    if not subscriber.is_selective or engine.needs_interest or engine.merges:
        return False
    is_plain = subscriber.stop_id is None and subscriber.only is None and not subscriber.missed
    is_waiting = subscriber.hungry and not (subscriber.asks or subscriber.confirms)
    return is_plain and is_waiting and subscriber.cursor == end
