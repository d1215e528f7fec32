"""A plain subscription: a cursor on a channel, forgotten with its session (SEM E6, J1)."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet, Span, Spans


class Followed:
    """The place that several subscribers have in common."""

    __slots__ = ("through",)

    def __init__(self) -> None:
        self.through = 0
        """They have everything below."""


class Subscriber:
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
        """Whether the shell finds out which events may be for it, by a selector of its own."""
        self.stop_id = stop_id
        self.credit = credit
        self.only = IdSet(only or ()) if selector or only is not None else None
        """If there is one: no other id is for it."""
        self.selector = selector
        """Asked of every event as it is published: ``only`` has the ids that match (SEM J2)."""
        self.durable = durable
        """The durable whose redelivery counts it shows."""
        self.stalled = False
        self.is_full = False
        """Whether its client has no room for more bytes, whatever its credit."""
        self.is_choosing = False
        """Its selector is being put to what it is to get next."""
        self.asks = False
        """Whether it has to be told once it has everything, or no credit is left."""
        self.pulls = False
        """Whether it has asked for what there is, and so takes events when it likes: a synchronous
        consumer (SEM J)."""
        self.confirms = confirms
        """Whether it confirms what has arrived; events not confirmed may have to be sent again (SEM
        J5)."""
        self.place = ""
        """What it is known by to the next connection of its session, where that is kept over the
        end of an owner."""
        self.taken_over_at: int | None = None
        """The channel's next id when another node has found it among the facts: nobody knows which
        earlier events it has."""
        self.unconfirmed = IdSet()
        self.lost_us: int | None = None
        """When its connection was lost; None: it is connected."""
        self.until = 1 << 62
        """Id from which on nothing is kept for it, because it was away for too long."""
        self.missed = IdSet()
        """Events that are no longer kept for it, and events that arrived out of order before its
        connection was lost."""

    @property
    def cursor(self) -> int:
        """The next id it wants: everything below has been sent or was never for it."""
        return self._cursor if self._followed is None else self._followed.through

    @cursor.setter
    def cursor(self, event_id: int) -> None:
        assert self._followed is None, "it was singled out before"
        self._cursor = event_id

    def follow(self, followed: Followed | None) -> None:
        """Have a place in common with others; None: one of its own again, where that was."""
        self._cursor = self.cursor
        self._followed = followed

    @property
    def has_interest(self) -> bool:
        """Whether it waits for what is published; a browse does not."""
        return self.stop_id is None and not self.is_given_up

    def waits_for(self, ids: IdSet) -> IdSet:
        """The part of ``ids`` it has not received yet, and still is to."""
        if self.stop_id is not None:
            return IdSet()
        found = ids.within(Span(self.cursor, self.until))
        if self.only is not None:
            found = found.overlap(self.only)
        found.discard_all(self.missed)
        if self.unconfirmed:
            found.add_all(self.unconfirmed.overlap(ids))
        return found

    def confirmed(self, through: IdSet) -> IdSet:
        """Note that events have arrived, or were not for it; gives those that are new."""
        return self.unconfirmed.remove_all(through)

    def forget(self, ids: IdSet) -> None:
        """Forget events that have left the channel."""
        for own in (self.only, self.unconfirmed, self.missed):
            if own:
                own.discard_all(ids)

    @property
    def resumes_at(self) -> int:
        """The first id it may not have received."""
        lowest = self.unconfirmed.lowest
        return self.cursor if lowest is None else min(lowest, self.cursor)

    def lost(self, now_us: int) -> None:
        """Note that its connection is lost: what has not arrived has to be sent again."""
        self.lost_us = now_us
        self.credit = 0
        if self.unconfirmed:
            arrived = IdSet((Span(self.resumes_at, self.cursor),))
            arrived.discard_all(self.unconfirmed)
            self.missed.add_all(arrived)
        self.cursor = self.resumes_at
        self.unconfirmed = IdSet()

    def takes_place_of(self, former: Subscriber, next_id: int) -> None:
        """Continue in the place of ``former``, with the same selector. Events that it was away for
        too long for do not come any more."""
        self.only, self.missed, self.pulls = former.only, former.missed, former.pulls
        self.missed.add(Span(former.until, max(former.until, next_id)))

    @property
    def is_given_up(self) -> bool:
        return self.until < 1 << 62

    @property
    def hungry(self) -> bool:
        can_take = not (self.stalled or self.is_full or self.is_choosing)
        return self.credit > 0 and can_take and self.lost_us is None

    def advance(self, stored: IdSet, end: int, chunk: int) -> Spans:
        """The next events below ``end`` to send, at most its credit and ``chunk``; moves the
        cursor past them."""
        end = end if self.stop_id is None else min(self.stop_id, end)
        limit = min(self.credit, chunk)
        source = stored if self.only is None else self.only.overlap(stored)
        if self.missed:
            source = source.copy()
            source.discard_all(self.missed)
        taken: list[Span] = []
        while limit > 0:
            span = source.next_span(self.cursor, limit)
            if span is None or span.first >= end:
                self.cursor = max(self.cursor, end)
                break
            span = Span(span.first, min(span.end, end))
            taken.append(span)
            limit -= span.size
            self.credit -= span.size
            self.cursor = span.end
        if self.confirms:
            self.unconfirmed.add_all(IdSet(taken))
        if self.only and self.selector:
            self.only.remove(Span(0, self.resumes_at))
        if self.missed:
            self.missed.remove(Span(0, self.resumes_at))
        return tuple(taken)

    def withheld(self, spans: Spans) -> None:
        """Note that ``spans``, the last ones granted to it, were not sent: it continues with
        them."""
        if spans:
            self.cursor = min(self.cursor, spans[0][0])
            self.credit += sum(end - first for first, end in spans)
            self.unconfirmed.discard_all(IdSet(spans))

    def counted(self, spans: Spans) -> int:
        """How many events of ``spans`` count as delivered; for a browse none."""
        return 0 if self.stop_id is not None else sum(span.size for span in spans)

    def answers(self, end: int) -> bool:
        """Whether it has to be told now that there is nothing from ``end`` on; true once."""
        told = self.asks and (self.cursor >= end or not self.credit)
        self.asks = self.asks and not told
        return told

    @property
    def is_finished(self) -> bool:
        return self.stop_id is not None and self.cursor >= self.stop_id
