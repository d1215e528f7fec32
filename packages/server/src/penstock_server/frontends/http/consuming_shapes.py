"""Bodies and answers of consumers over HTTP (SEM H)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from penstock_core.api.consuming import How, LeasedEvents, Settled
from penstock_core.channel.timeouts import ACK_TIMEOUT_MS_MIN
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.backoff import DELAY_MS_MAX
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.names import destination_name
from penstock_server.frontends.http.shapes import (
    LIMIT_DEFAULT,
    Answer,
    EventAnswer,
    Id,
    Moment,
    Name,
    RequestBody,
    Selector,
    shown,
)

FETCH_MAX = 10_000
"""Most events of one batch."""
LEASE_MS_MAX = 12 * 3_600_000
WAIT_MS_MAX = 30_000
IDS_MAX = 10_000

LeaseMs = Annotated[
    int,
    Meta(
        ge=ACK_TIMEOUT_MS_MIN,
        le=LEASE_MS_MAX,
        description="For how long the client has the events, in milliseconds.",
    ),
]


class Fetch(RequestBody, frozen=True):
    count: Annotated[int, Meta(ge=1, le=FETCH_MAX, description="Most events of the batch.")] = (
        LIMIT_DEFAULT
    )
    lease_ms: LeaseMs = 30_000
    wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=WAIT_MS_MAX,
            description="How long to wait for the first event if none is there.",
        ),
    ] = 0
    selector: Selector = ""


class FetchedAnswer(Answer, frozen=True):
    lease: str | None
    """By which these events are settled; null: there are none."""
    ends: Moment | None
    """When what is not settled goes back, by the realm's clock."""
    lease_ms: int
    """What that is from when they were handed out; the durable's ``ack_timeout`` may be shorter
    than what was asked for."""
    items: list[EventAnswer]
    """The events with all of their data, in the order in which they are to be worked on."""


class OfLease(RequestBody, frozen=True, kw_only=True):
    """Which events are meant: exactly one of the three."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=IDS_MAX)] | None = None
    up_to: Id | None = None
    """Every event up to and including this id."""
    all: bool = False
    """All that the lease holds."""
    how: ClassVar[How] = "ack"

    @property
    def chosen(self) -> LeasedEvents:
        """Raises ``InvalidArgument`` unless exactly one of the three is given."""
        if (self.ids is not None) + (self.up_to is not None) + self.all != 1:
            raise InvalidArgument(
                "say which events are meant, in one way: "
                '{"ids": [1, 2]}, {"up_to": 2} or {"all": true}'
            )
        return LeasedEvents(None if self.ids is None else _spans(self.ids), self.up_to)


class RollBackBody(OfLease, frozen=True, kw_only=True):
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None = None
    """How long they wait before they come again (SEM D18); null: as the backoff says."""
    how: ClassVar[How] = "roll_back"


class RejectBody(OfLease, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=65_536)]
    """Why; it is stored with the dead events."""
    how: ClassVar[How] = "reject"


class ExtendBody(OfLease, frozen=True, kw_only=True):
    lease_ms: LeaseMs


IdsByChannel = Annotated[
    dict[Name, Annotated[list[Id], Meta(min_length=1, max_length=IDS_MAX)]],
    Meta(min_length=1, max_length=FETCH_MAX),
]


class OfPatternLease(RequestBody, frozen=True, kw_only=True):
    """Which events of a lease over a pattern are meant: exactly one of the three."""

    ids: IdsByChannel | None = None
    """By the names of the channels that the events are of."""
    up_to: Annotated[dict[Name, Id], Meta(min_length=1, max_length=FETCH_MAX)] | None = None
    """Every event up to and including this id, for each channel named; of others nothing."""
    all: bool = False
    """All that the lease holds, of all channels."""
    how: ClassVar[How] = "ack"

    @property
    def channels(self) -> dict[str, LeasedEvents] | None:
        """The events by channel; None: all of the lease. Raises ``InvalidArgument`` unless exactly
        one of the three is given, and where a channel has two names."""
        if (self.ids is not None) + (self.up_to is not None) + self.all != 1:
            raise InvalidArgument(
                "say which events are meant, in one way, by channel: "
                '{"ids": {"orders/de": [1, 2]}}, {"up_to": {"orders/de": 2}} or {"all": true}'
            )
        if self.all:
            return None
        if self.ids is not None:
            given = [(name, LeasedEvents(_spans(ids))) for name, ids in self.ids.items()]
        else:
            given = [(name, LeasedEvents(None, last)) for name, last in (self.up_to or {}).items()]
        chosen = {destination_name(name): events for name, events in given}
        if len(chosen) < len(given):
            raise InvalidArgument(
                "one channel is named in two ways; name it once, with all of its ids"
            )
        return chosen


class RollBackPatternBody(OfPatternLease, frozen=True, kw_only=True):
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None = None
    """How long they wait before they come again (SEM D18); null: as the backoff says."""
    how: ClassVar[How] = "roll_back"


class RejectPatternBody(OfPatternLease, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=65_536)]
    """Why; it is stored with the dead events."""
    how: ClassVar[How] = "reject"


class ExtendPatternBody(OfPatternLease, frozen=True, kw_only=True):
    lease_ms: LeaseMs


SettledAnswer = shown(Settled, "SettledAnswer", moments=("ends_us",))


def _spans(ids: Sequence[int]) -> tuple[Span, ...]:
    return IdSet.from_ids(sorted(set(ids))).spans
