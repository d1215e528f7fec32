"""A plain subscription: a cursor on a channel, forgotten with its session (SEM E6, J1)."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet, Span, Spans


class Followed:
    """The place on a channel that several subscribers share."""

    __slots__ = ("cursor",)

    def __init__(self) -> None:
        self.cursor = 0
        """The next id for all subscribers at this place: each has been sent all its events below
        this id."""


class Subscriber:
    """A plain subscription with its cursor, credit and unconfirmed events."""

    __slots__ = (
        "_cursor",
        "_followed",
        "asks",
        "confirms",
        "credit",
        "durable",
        "is_choosing",
        "is_full",
        "is_selective",
        "lost_us",
        "missed",
        "only",
        "place",
        "pulls",
        "selector",
        "session",
        "stalled",
        "stop_id",
        "subscription",
        "taken_over_at",
        "unconfirmed",
        "until",
    )

    def __init__(
        self,
        subscription: int,
        session: str,
        cursor: int,
        stop_id: int | None,
        credit: int,
        only: Spans | None = None,
        durable: str | None = None,
        *,
        confirms: bool = False,
        selector: str = "",
        is_selective: bool = False,
    ) -> None:
        self.subscription = subscription
        self.session = session
        self._cursor = cursor
        self._followed: Followed | None = None
        self.is_selective = is_selective
        """Whether the shell applies a selector to decide which events the subscriber gets."""
        self.stop_id = stop_id
        self.credit = credit
        self.only = IdSet(only or ()) if selector or only is not None else None
        """The only ids that the subscriber may get; None if it may get every id."""
        self.selector = selector
        """The subscriber's selector, applied to every event when it is published; ``only`` holds
        the matching ids (SEM J2)."""
        self.durable = durable
        """The durable whose redelivery counts a browse shows."""
        self.stalled = False
        self.is_full = False
        """Whether the client has announced that it cannot receive more bytes, independent of
        credit."""
        self.is_choosing = False
        """Whether the subscriber's selector is being applied to the next events."""
        self.asks = False
        """Whether the subscriber has requested a report when it has received everything or its
        credit is used up."""
        self.pulls = False
        """Whether the subscriber requests events: it is a synchronous consumer (SEM J)."""
        self.confirms = confirms
        """Whether the subscriber confirms arrived events; unconfirmed ones may have to be sent
        again (SEM J5)."""
        self.place = ""
        """Identifies the subscriber to the next connection of its session if its interest survives
        a failover; otherwise empty."""
        self.taken_over_at: int | None = None
        """The channel's next id at the failover that restored the subscriber from facts; None if no
        failover did. The facts do not contain which earlier events it has received."""
        self.unconfirmed = IdSet()
        """Events that were sent and whose arrival is not confirmed."""
        self.lost_us: int | None = None
        """Time when the subscriber's connection was lost; None while it is connected."""
        self.until = 1 << 62
        """Events with this or a higher id are not kept for the subscriber, because it was
        disconnected for too long. A number above all ids otherwise."""
        self.missed = IdSet()
        """Events that are not kept for the subscriber any more, and events that arrived out of
        order before the connection was lost."""

    @property
    def cursor(self) -> int:
        """The next id that the subscriber wants: events below it were sent or did not match."""
        return self._cursor if self._followed is None else self._followed.cursor

    @cursor.setter
    def cursor(self, event_id: int) -> None:
        assert self._followed is None, "a follower is singled out before it moves"
        self._cursor = event_id

    def follow(self, followed: Followed | None) -> None:
        """Share the position ``followed`` with other subscribers. If it is None, continue alone
        from the shared position."""
        # The property reads the position that was shared so far.
        self._cursor = self.cursor
        self._followed = followed

    @property
    def has_interest(self) -> bool:
        """Whether the subscriber waits for new events; a browse does not."""
        return self.stop_id is None and not self.is_given_up

    def waits_for(self, ids: IdSet) -> IdSet:
        """Return the part of ``ids`` that the subscriber still has to receive."""
        if self.stop_id is not None:
            return IdSet()
        awaited = ids.within(Span(self.cursor, self.until))
        if self.only is not None:
            awaited = awaited.overlap(self.only)
        awaited.discard_all(self.missed)
        if self.unconfirmed:
            awaited.add_all(self.unconfirmed.overlap(ids))
        return awaited

    def confirmed(self, ids: IdSet) -> IdSet:
        """Record that events have arrived or did not match; return those not confirmed earlier."""
        return self.unconfirmed.remove_all(ids)

    def forget(self, ids: IdSet) -> None:
        """Drop events that have left the channel."""
        for events in (self.only, self.unconfirmed, self.missed):
            if events:
                events.discard_all(ids)

    @property
    def resumes_at(self) -> int:
        """The first id that the subscriber may not have received."""
        lowest = self.unconfirmed.lowest
        return self.cursor if lowest is None else min(lowest, self.cursor)

    def record_lost_connection(self, now_us: int) -> None:
        """Record that the subscriber's connection is lost: unconfirmed events have to be sent
        again."""
        self.lost_us = now_us
        self.credit = 0
        # The cursor moves back to the first unconfirmed event; events behind it that have arrived
        # must not be sent again.
        if self.unconfirmed:
            arrived = IdSet((Span(self.resumes_at, self.cursor),))
            arrived.discard_all(self.unconfirmed)
            self.missed.add_all(arrived)
        self.cursor = self.resumes_at
        self.unconfirmed = IdSet()

    def takes_place_of(self, former: Subscriber, next_id: int) -> None:
        """Continue at the position of ``former``, which has the same selector. Events that were not
        kept for ``former`` any more are skipped."""
        self.only, self.missed, self.pulls = former.only, former.missed, former.pulls
        self.missed.add(Span(former.until, max(former.until, next_id)))

    @property
    def is_given_up(self) -> bool:
        """Whether new events are not kept for the subscriber any more, because it was disconnected
        for too long."""
        return self.until < 1 << 62

    @property
    def hungry(self) -> bool:
        """Whether events may be sent to the subscriber now."""
        can_take = not (self.stalled or self.is_full or self.is_choosing)
        return self.credit > 0 and can_take and self.lost_us is None

    def advance(self, stored: IdSet, end: int, chunk: int) -> Spans:
        """Return the next events below ``end`` to send, limited by the credit and ``chunk``, and
        move the cursor past them."""
        end = end if self.stop_id is None else min(self.stop_id, end)
        limit = min(self.credit, chunk)
        candidates = stored if self.only is None else self.only.overlap(stored)
        if self.missed:
            candidates = candidates.copy()
            candidates.discard_all(self.missed)
        spans: list[Span] = []
        while limit > 0:
            span = candidates.next_span(self.cursor, limit)
            if span is None or span.first >= end:
                # No further event below `end` is for this subscriber.
                self.cursor = max(self.cursor, end)
                break
            span = Span(span.first, min(span.end, end))
            spans.append(span)
            limit -= span.size
            self.credit -= span.size
            self.cursor = span.end
        if self.confirms:
            self.unconfirmed.add_all(IdSet(spans))
        # Ids that were received are never sent again, so they need no memory.
        if self.only and self.selector:
            self.only.remove(Span(0, self.resumes_at))
        if self.missed:
            self.missed.remove(Span(0, self.resumes_at))
        return tuple(spans)

    def take_back_withheld(self, spans: Spans) -> None:
        """Undo the grant of ``spans``, the last ones granted, which were not sent."""
        if spans:
            self.cursor = min(self.cursor, spans[0][0])
            self.credit += sum(end - first for first, end in spans)
            self.unconfirmed.discard_all(IdSet(spans))

    def delivered_count(self, spans: Spans) -> int:
        """Return how many events of ``spans`` count as delivered; 0 for a browse."""
        return 0 if self.stop_id is not None else sum(span.size for span in spans)

    def answers(self, end: int) -> bool:
        """Whether to send the requested report now, because the subscriber has been sent every
        event below ``end`` or its credit is used up. The result is true only once for each
        request."""
        is_due = self.asks and (self.cursor >= end or not self.credit)
        self.asks = self.asks and not is_due
        return is_due

    @property
    def is_finished(self) -> bool:
        """Whether the subscriber is a browse that has reached its end."""
        return self.stop_id is not None and self.cursor >= self.stop_id
