"""A plain subscription: a cursor on a channel, forgotten with its session (SEM E6, J1)."""

from __future__ import annotations

from penstock.core.ids import IdSet, Span
from penstock.core.messages import Spans


class Subscriber:
    __slots__ = (
        "credit",
        "cursor",
        "durable",
        "only",
        "session",
        "stalled",
        "stop_id",
        "subscription",
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
    ) -> None:
        self.subscription = subscription
        self.session = session
        self.cursor = cursor
        """The next id it wants: everything below has been sent or was never for it."""
        self.stop_id = stop_id
        self.credit = credit
        self.only = None if only is None else IdSet(only)
        self.durable = durable
        """The durable whose redelivery counts it shows."""
        self.stalled = False

    @property
    def has_interest(self) -> bool:
        """Whether it waits for what is published; a browse does not."""
        return self.stop_id is None

    @property
    def hungry(self) -> bool:
        return self.credit > 0 and not self.stalled

    def advance(self, stored: IdSet, end: int, chunk: int) -> Spans:
        """The next events below ``end`` to send, at most its credit and ``chunk``; moves the
        cursor past them."""
        end = end if self.stop_id is None else min(self.stop_id, end)
        limit = min(self.credit, chunk)
        source = stored if self.only is None else self.only.overlap(stored)
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
        return tuple(taken)

    @property
    def is_finished(self) -> bool:
        return self.stop_id is not None and self.cursor >= self.stop_id
