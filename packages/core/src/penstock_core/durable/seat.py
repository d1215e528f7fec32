"""Seats of a durable, and the protocol of durable types (SEM D).

A seat is an attached subscription; a :class:`DurableKind` says who may attach and who is served
next. Each kind is one file in ``penstock_core.durables``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from penstock_core.durable.pace import Pace
from penstock_core.ids.ids import IdSet, Span, Spans

DEALT_MAX: Final = 10
"""Clients whose windows are no larger get the waiting events one by one in turn. With a larger
window each gets a run of ids, which is stored, sent and acknowledged as one."""


class Seat:
    """An attached subscription, its window, and the unsettled events it holds."""

    __slots__ = (
        "ack_timeout_ms",
        "auto_ack",
        "demand",
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
        """What it is known by to the next connection of its session (SEM N6)."""
        self.rank = 0
        """Lower than those of all seats that were taken later."""
        self.ack_timeout_ms = ack_timeout_ms
        """How long its client may have an event in hand; 0: as long as it likes (SEM D19)."""
        self.sole = sole
        """Whether it holds the durable alone, and takes events by id."""
        self.auto_ack = auto_ack
        """Whether the client acknowledges events as it hands them out, without being told to (SEM
        D5)."""
        self.subscription = subscription
        self.session = session
        self.window = window
        self.demand: int | None = 0 if pull else None
        """A synchronous consumer's open wish; None: events are pushed."""
        self.in_flight = IdSet()
        self.handed = 0
        """Events it was given so far, each time again."""
        self.pace = pace
        """How fast its client is, where that decides how large the window is."""
        self.reach = 0
        """The end of the newest span handed to this seat."""
        self.stalled = False
        """The session's connection cannot take more right now."""
        self.is_full = False
        """Whether its client has no room for more bytes now."""
        self.is_choosing = False
        """Its own selector is being put to what it is to get next."""
        self.recalls: list[IdSet] = []
        """Sent and taken back since (SEM D11); the client has not said yet that it knows."""
        self.sought = IdSet()
        """The part of it that a seek has taken back (SEM D20)."""
        self.refused = IdSet()
        """Events its client does not want again, though another client may have them."""
        self.selector = selector
        """The reader's own selector; the durable's is applied before it (SEM Q1)."""
        self.wanted = IdSet(matched) if selector else None
        """With a selector, the stored ids that it matches; otherwise None."""

    @property
    def in_time(self) -> str:
        """Why an event may have gone back by itself, in words (SEM D19)."""
        if not self.ack_timeout_ms:
            return ""
        return (
            f", for it goes back when it is not acknowledged within {self.ack_timeout_ms / 1_000:g}"
            " s (ack_timeout)"
        )

    @property
    def credit(self) -> int:
        can_take = not (self.stalled or self.is_full or self.is_choosing)
        if not can_take or self.recalls or self.sole:
            return 0
        if self.demand is not None:
            return self.demand  # SEM D9: synchronous fetches are not limited by the window
        return self.window - len(self.in_flight)

    def hand(self, spans: Spans) -> int:
        """Give it these; gives how many they are."""
        size = 0
        for span in spans:
            self.in_flight.add(span)
            self.reach = max(self.reach, span.end)
            size += span.size
        self.handed += size
        if self.demand is not None:
            self.demand -= size
        return size

    def not_sent(self, count: int) -> None:
        """So many of what it was given did not reach its client."""
        self.handed -= count
        if self.demand is not None:
            self.demand += count

    def acknowledged(self, now_us: int) -> None:
        """Its client has acknowledged something: its window may grow (SEM D9)."""
        if self.pace is not None:
            self.window = self.pace.window(self.window, self._settled_count, now_us)

    def gave_back(self, now_us: int) -> None:
        """Its client has rolled something back: its window is as it was at first (SEM D9)."""
        if self.pace is not None:
            self.window = self.pace.again(self._settled_count, now_us)

    @property
    def _settled_count(self) -> int:
        """Events that its client has had and has no more."""
        return self.handed - len(self.in_flight)


def has_small_windows(seats: Sequence[Seat]) -> bool:
    """Whether no window is larger than :data:`DEALT_MAX` (SEM D8)."""
    return all([seat.window <= DEALT_MAX for seat in seats])


def dealt(seats: Sequence[Seat], spans: Spans) -> list[tuple[Seat, Spans]]:
    """The events of ``spans`` one by one to ``seats`` in turn (SEM D8): one share for each seat
    that gets any, that of the seat served last at the end."""
    ids = [event_id for span in spans for event_id in range(*span)]
    first = len(ids) % len(seats)
    turns = (*range(first, len(seats)), *range(first))
    own = ((seats[turn], ids[turn :: len(seats)]) for turn in turns)
    return [(seat, tuple([Span(i, i + 1) for i in part])) for seat, part in own if part]


class KeptPlace(NamedTuple):
    """A seat of which the next owner of the shard knows."""

    rank: int
    """Lower than those of all seats that were taken later."""
    session: str
    sole: bool
    waited_us: int = 0
    """How long owners have waited for its session, whichever they were."""


class DurableKind(Protocol):
    """The rules of one durable type. Stateless."""

    @property
    def name(self) -> str: ...

    @property
    def cumulative(self) -> bool:
        """Whether settling an event settles every earlier one too."""
        ...

    @property
    def redelivers_at_once(self) -> bool:
        """Whether a rolled back event returns now, counted, or after the next attach, uncounted."""
        ...

    @property
    def waits_in_order(self) -> bool:
        """Whether an event that waits after a rollback holds up those behind it (SEM D18)."""
        ...

    @property
    def stores_selector(self) -> bool:
        """Whether the durable has one selector, or each subscription its own."""
        ...

    @property
    def takes_window(self) -> bool: ...

    @property
    def takes_transient(self) -> bool:
        """Whether a client of it gets transient events, which nothing keeps (SEM E8)."""
        ...

    @property
    def purgeable(self) -> bool:
        """Whether events can be taken out of this durable alone (SEM D)."""
        ...

    @property
    def orders_strictly(self) -> bool:
        """Whether a durable of this kind may have ``strict_order``: only if one client is served at
        a time, and events that are rolled back return at once (SEM D11)."""
        ...

    @property
    def window_default(self) -> int: ...

    @property
    def window_grows(self) -> bool:
        """Whether the window of a client that asked for none grows by what it settles (SEM D9)."""
        ...

    @property
    def seats_wait(self) -> bool:
        """Whether a client's seat is kept for it for a while when another node takes over (SEM
        N6)."""
        ...

    def waits_for(self, seats: Sequence[Seat], absent: Sequence[int]) -> bool:
        """Whether nobody is served until seats with the ranks ``absent``, of which there is at
        least one, are taken again by their sessions."""
        ...

    def may_attach(self, seats: Sequence[Seat]) -> bool: ...

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        """The seats that may get events now, in turn; ``seats`` starts with the one served
        longest ago."""
        ...


Kinds = Mapping[str, DurableKind]
