"""Seats of a durable, and the protocol of durable types (SEM D).

A seat is an attached subscription. A :class:`DurableKind` decides what subscription may attach and
which seat is served next. Each kind is one file in ``penstock_core.durables``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from penstock_core.durable.grant_times import GrantTimes
from penstock_core.durable.pace import Pace
from penstock_core.ids.ids import IdSet, Span, Spans

DEALT_MAX: Final = 10
"""Largest window, in events, whose clients get ready events one by one in turn. With larger windows
each client gets a run of ids, which is stored, sent and acknowledged as one span."""


class Seat:
    """An attached subscription, its window, and the unsettled events it holds."""

    __slots__ = (
        "ack_timeout_ms",
        "auto_ack",
        "demand",
        "granted_at",
        "handed",
        "in_flight",
        "is_choosing",
        "is_full",
        "pace",
        "place",
        "rank",
        "reach",
        "recalls",
        "refused",
        "selector",
        "session",
        "sole",
        "sought",
        "stalled",
        "subscription",
        "wanted",
        "window",
    )

    def __init__(
        self,
        subscription: int,
        session: str,
        window: int,
        *,
        pull: bool,
        selector: str = "",
        matched: Spans = (),
        auto_ack: bool = False,
        sole: bool = False,
        ack_timeout_ms: int = 0,
        place: str = "",
        pace: Pace | None = None,
    ) -> None:
        self.place = place
        """Identifies the seat to the next connection of its session (SEM N6)."""
        self.rank = 0
        """Order of taking: seats taken later have a higher rank."""
        self.ack_timeout_ms = ack_timeout_ms
        """Longest time that the client may hold an event, in ms; 0 means no limit (SEM D19)."""
        self.sole = sole
        """Whether the client holds the durable as a whole and requests events by id."""
        self.auto_ack = auto_ack
        """Whether the client library acknowledges events automatically as it passes them to the
        application (SEM D5)."""
        self.subscription, self.session = subscription, session
        self.window = window
        self.demand: int | None = 0 if pull else None
        """Number of events that a synchronous consumer has requested and not received; None if
        events are pushed."""
        self.in_flight = IdSet()
        """Events that the client holds: sent to it and not settled."""
        self.granted_at: GrantTimes | None = None
        """Times at which the client got the events that it holds; None until the first delivery."""
        self.handed = 0
        """Events granted so far; redeliveries count again."""
        self.pace = pace
        """Measures the speed of the client if the window size depends on it."""
        self.reach = 0
        """The id after the highest event granted to this seat; 0 if no event was granted."""
        self.stalled = False
        """Whether the send buffer of the session's connection is full."""
        self.is_full = False
        """Whether the client has announced that it cannot receive more bytes now."""
        self.is_choosing = False
        """Whether the selector of the seat is being applied to the next events."""
        self.recalls: list[IdSet] = []
        """Unconfirmed recalls (SEM D11), oldest first, each with the recalled events."""
        self.sought = IdSet()
        """The recalled events that a seek has taken back (SEM D20)."""
        self.refused = IdSet()
        """Events that the client has returned and does not want again; other clients may get
        them."""
        self.selector = selector
        """The reader's selector, applied after that of the durable (SEM Q1)."""
        self.wanted = IdSet(matched) if selector else None
        """Stored ids that the selector matches; None without a selector."""

    @property
    def in_time(self) -> str:
        """The clause of an error text that explains why an event may have been taken back
        (SEM D19); empty without a time limit."""
        if not self.ack_timeout_ms:
            return ""
        return (
            " because it was not acknowledged within "
            f"{self.ack_timeout_ms / 1_000:g} s (ack_timeout)"
        )

    @property
    def credit(self) -> int:
        """Number of events that may be granted to the seat now."""
        can_take = not (self.stalled or self.is_full or self.is_choosing)
        # No event may be sent before the client has confirmed its recalls (SEM D11).
        if not can_take or self.recalls or self.sole:
            return 0
        if self.demand is not None:
            return self.demand  # SEM D9: synchronous fetches are not limited by the window
        return self.window - len(self.in_flight)

    def hand(self, spans: Spans) -> int:
        """Grant ``spans`` to the seat; return the number of events."""
        size = 0
        for span in spans:
            self.in_flight.add(span)
            self.reach = max(self.reach, span.end)
            size += span.size
        self.handed += size
        if self.demand is not None:
            self.demand -= size
        return size

    def record_grant(self, spans: Spans, at_us: int) -> None:
        """Record when ``spans`` were granted, in microseconds since 1970."""
        if self.granted_at is None:
            self.granted_at = GrantTimes()
        self.granted_at.record(spans, at_us, self.in_flight)

    def not_sent(self, count: int) -> None:
        """Undo the grant of ``count`` events that were not sent to the client."""
        self.handed -= count
        if self.demand is not None:
            self.demand += count

    def adjust_window(self, now_us: int) -> None:
        """Adjust the window after the client has acknowledged events (SEM D9)."""
        if self.pace is not None:
            self.window = self.pace.window(self.window, self._settled_count, now_us)

    def gave_back(self, now_us: int) -> None:
        """Reset the window after the client has rolled events back (SEM D9)."""
        if self.pace is not None:
            self.window = self.pace.again(self._settled_count, now_us)

    @property
    def _settled_count(self) -> int:
        """Number of granted events that the client does not hold any more."""
        return self.handed - len(self.in_flight)


def has_small_windows(seats: Sequence[Seat]) -> bool:
    """Whether no window is larger than :data:`DEALT_MAX` (SEM D8)."""
    return all([seat.window <= DEALT_MAX for seat in seats])


def dealt(seats: Sequence[Seat], spans: Spans) -> list[tuple[Seat, Spans]]:
    """Deal the events of ``spans`` one by one to ``seats`` in turn (SEM D8). Return the share of
    each seat that gets any; the seat served last is at the end."""
    ids = [event_id for span in spans for event_id in range(*span)]
    # The seats that get one event less than the first ones are listed first, so that the next round
    # begins with them.
    first = len(ids) % len(seats)
    turns = (*range(first, len(seats)), *range(first))
    shares = ((seats[turn], ids[turn :: len(seats)]) for turn in turns)
    return [(seat, tuple([Span(i, i + 1) for i in share])) for seat, share in shares if share]


class KeptPlace(NamedTuple):
    """A seat that is recorded in facts, so that the next owner of the shard can reserve it."""

    rank: int
    """Order of taking: seats taken later have a higher rank."""
    session: str
    sole: bool
    waited_us: int = 0
    """Time that all owners together have waited for the session of the seat."""


class DurableKind(Protocol):
    """The rules of one durable type. Implementations have no state."""

    @property
    def name(self) -> str: ...

    @property
    def cumulative(self) -> bool:
        """Whether settling an event also settles all earlier events."""
        ...

    @property
    def redelivers_at_once(self) -> bool:
        """Whether a rolled-back event becomes ready immediately and the redelivery is counted.
        Otherwise it becomes ready at the next attach, and no redelivery is counted."""
        ...

    @property
    def waits_in_order(self) -> bool:
        """Whether a delayed event holds up the events after it (SEM D18)."""
        ...

    @property
    def stores_selector(self) -> bool:
        """Whether the durable has a selector, instead of each subscription."""
        ...

    @property
    def takes_window(self) -> bool: ...

    @property
    def takes_transient(self) -> bool:
        """Whether the durable's clients get transient events, which are never stored (SEM E8)."""
        ...

    @property
    def purgeable(self) -> bool:
        """Whether events can be purged for this durable alone (SEM D)."""
        ...

    @property
    def orders_strictly(self) -> bool:
        """Whether a durable of this kind may have ``strict_order``. It requires that one client is
        served at a time and rolled-back events return immediately (SEM D11)."""
        ...

    @property
    def window_default(self) -> int: ...

    @property
    def window_grows(self) -> bool:
        """Whether the default window of a client grows with the speed at which it settles
        (SEM D9)."""
        ...

    @property
    def seats_wait(self) -> bool:
        """Whether a client's seat is reserved for some time after a failover (SEM N6)."""
        ...

    def waits_for(self, seats: Sequence[Seat], absent_ranks: Sequence[int]) -> bool:
        """Whether no seat is served until the sessions of absent seats reconnect. ``absent_ranks``
        are the ranks of these seats, at least one."""
        ...

    def may_attach(self, seats: Sequence[Seat]) -> bool: ...

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        """Return the seats that may get events now, in turn. ``seats`` starts with the one served
        longest ago."""
        ...


Kinds = Mapping[str, DurableKind]
