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
"""Maximum number of events in a batch."""
LEASE_MS_MAX = 12 * 3_600_000
"""Longest duration of a lease in milliseconds."""
WAIT_MS_MAX = 30_000
"""Longest wait for events in milliseconds."""
IDS_MAX = 10_000
"""Largest number of ids in a request, for each channel."""

LeaseMs = Annotated[
    int,
    Meta(
        ge=ACK_TIMEOUT_MS_MIN,
        le=LEASE_MS_MAX,
        description="Duration of the lease, in milliseconds.",
    ),
]


class Fetch(RequestBody, frozen=True):
    count: Annotated[
        int, Meta(ge=1, le=FETCH_MAX, description="Maximum number of events in the batch.")
    ] = LIMIT_DEFAULT
    lease_ms: LeaseMs = 30_000
    wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=WAIT_MS_MAX,
            description="Maximum wait for the first event, in milliseconds.",
        ),
    ] = 0
    selector: Selector = ""


class FetchedAnswer(Answer, frozen=True):
    lease: str | None
    """Id of the lease, which settles these events; null in an answer without events."""
    ends: Moment | None
    """Time at which events that are not settled go back, by the realm's clock."""
    lease_ms: int
    """Duration of the lease. It is shorter than requested if the durable's ``ack_timeout`` is."""
    items: list[EventAnswer]
    """The events with all their data, in the order in which to process them."""


class OfLease(RequestBody, frozen=True, kw_only=True):
    """Selects events of a lease; exactly one of the three fields is set."""

    ids: Annotated[list[Id], Meta(min_length=1, max_length=IDS_MAX)] | None = None
    up_to: Id | None = None
    """Every event up to and including this id."""
    all: bool = False
    """All events of the lease."""
    how: ClassVar[How] = "ack"

    @property
    def chosen(self) -> LeasedEvents:
        """The selected events. Raises ``InvalidArgument`` unless exactly one field is set."""
        if (self.ids is not None) + (self.up_to is not None) + self.all != 1:
            raise InvalidArgument(
                'name the events in exactly one way: {"ids": [1, 2]}, {"up_to": 2} or {"all": true}'
            )
        return LeasedEvents(None if self.ids is None else _spans(self.ids), self.up_to)


class RollBackBody(OfLease, frozen=True, kw_only=True):
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None = None
    """Delay before the events are delivered again, in milliseconds (SEM D18); null uses the
    backoff."""
    how: ClassVar[How] = "roll_back"


class RejectBody(OfLease, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=65_536)]
    """Reason, stored with the dead events."""
    how: ClassVar[How] = "reject"


class ExtendBody(OfLease, frozen=True, kw_only=True):
    lease_ms: LeaseMs


IdsByChannel = Annotated[
    dict[Name, Annotated[list[Id], Meta(min_length=1, max_length=IDS_MAX)]],
    Meta(min_length=1, max_length=FETCH_MAX),
]


class OfPatternLease(RequestBody, frozen=True, kw_only=True):
    """Selects events of a lease over a pattern; exactly one of the three fields is set."""

    ids: IdsByChannel | None = None
    """Ids by the name of their channel."""
    up_to: Annotated[dict[Name, Id], Meta(min_length=1, max_length=FETCH_MAX)] | None = None
    """The last id, inclusive, for each named channel."""
    all: bool = False
    """All events of the lease, of all channels."""
    how: ClassVar[How] = "ack"

    @property
    def channels(self) -> dict[str, LeasedEvents] | None:
        """The selected events by channel; None for all events of the lease.

        Raises ``InvalidArgument`` unless exactly one field is set, and if two spellings name the
        same channel.
        """
        if (self.ids is not None) + (self.up_to is not None) + self.all != 1:
            raise InvalidArgument(
                "name the events in exactly one way, by channel: "
                '{"ids": {"orders/de": [1, 2]}}, {"up_to": {"orders/de": 2}} or {"all": true}'
            )
        if self.all:
            return None
        if self.ids is not None:
            pairs = [(name, LeasedEvents(_spans(ids))) for name, ids in self.ids.items()]
        else:
            pairs = [(name, LeasedEvents(None, last)) for name, last in (self.up_to or {}).items()]
        by_channel = {destination_name(name): events for name, events in pairs}
        if len(by_channel) < len(pairs):
            raise InvalidArgument(
                "one channel is named in two spellings; name it once, with all of its ids"
            )
        return by_channel


class RollBackPatternBody(OfPatternLease, frozen=True, kw_only=True):
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None = None
    """Delay before the events are delivered again, in milliseconds (SEM D18); null uses the
    backoff."""
    how: ClassVar[How] = "roll_back"


class RejectPatternBody(OfPatternLease, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=65_536)]
    """Reason, stored with the dead events."""
    how: ClassVar[How] = "reject"


class ExtendPatternBody(OfPatternLease, frozen=True, kw_only=True):
    lease_ms: LeaseMs


SettledAnswer = shown(Settled, "SettledAnswer", moments=("ends_us",))


def _spans(ids: Sequence[int]) -> tuple[Span, ...]:
    return IdSet.from_ids(sorted(set(ids))).spans
