"""What requests about joins, dead events, connections, pipelines and counters carry, and what they
are answered with."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from penstock.core.bounds import GivenName
from penstock.frontends.http.shapes import (
    LIMIT_DEFAULT,
    Answer,
    Body,
    CounterAnswer,
    EventAnswer,
    Limit,
    Moment,
    Name,
    PendingCount,
    Query,
    Selector,
)


class NamesQuery(Query, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=50_000)] = 50_000
    after: Annotated[str, Meta(max_length=1_024)] = ""
    durables: bool = False
    """Also the names of channels' durables, of those who may see them."""


class NameAnswer(Answer, frozen=True, omit_defaults=True):
    name: str
    kind: Literal["channel", "queue"]
    durables: tuple[str, ...] = ()
    """By name; left out where there are none, or none were asked for."""


class ImportQuery(Query, frozen=True):
    name: GivenName = ""
    """What it is called from now on; as before, if nothing is said."""


class NewJoin(Body, frozen=True):
    source: Name
    destination: Name
    selector: Selector = ""
    archive: bool = False
    """To a queue, duplicates kept (SEM L3)."""


class JoinAnswer(Answer, frozen=True):
    id: str
    """What ``DELETE joins/{id}`` takes."""
    source: str
    destination: str
    selector: str
    archive: bool
    copied: int
    dropped: int
    owner: str = ""
    """Who made it; it ends when they could not make it any more."""


class DeadQuery(Query, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    """Dead events looked at, at most, the newest first left out."""


class DeadGroup(Answer, frozen=True):
    store: str
    """Where they came from."""
    cause: str
    """Why they died: ``expired``, ``evicted``, ``redelivery_limit``, ``buried``, …"""
    reason: str
    """What the client said that buried them; empty for the other causes."""
    events: int
    first_id: int
    last_id: int
    oldest: Moment
    newest: Moment
    """When they died."""


class DeadAnswer(Answer, frozen=True):
    events: int
    """Looked at."""
    is_complete: bool
    groups: list[DeadGroup]


class Redrive(Body, frozen=True):
    source: Name
    destination: GivenName = ""
    """Empty: each to where it came from."""
    selector: Selector = ""
    dry_run: bool = False


class RedrivenAnswer(Answer, frozen=True):
    moved: int
    destinations: dict[str, int]
    left: int
    dry_run: bool


class ScheduleQuery(Query, frozen=True):
    channel: Name | None = None
    """Only what waits for this channel or queue."""
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""


class ScheduledAnswer(Answer, frozen=True):
    destination: str
    kind: str
    number: int
    deliver_at: Moment
    event: EventAnswer


class ConnectionAnswer(Answer, frozen=True):
    id: str
    session: str
    user: str
    """``user@host``."""
    client: str
    """Name and version of its software."""
    protocol: str
    opened: Moment
    idle_ms: int
    """Since it was last heard."""
    subscriptions: int
    requests: int
    """Being worked on."""
    unsent_bytes: int
    """What waits because it does not take it."""
    is_stalled: bool


# --- live counters ------------------------------------------------------------------------


class DurableRate(Answer, frozen=True):
    channel: str
    name: str
    outstanding: int
    in_flight: int
    """Delivered, and not acknowledged."""
    pending: PendingCount
    redelivered: int
    clients: int
    position: int
    """Events below it have been offered or settled."""
    oldest_outstanding_ms: int | None
    delivered: int
    """To its clients since the realm started, each time it was delivered again too."""
    acknowledged: int
    """Since the realm started, also events purged for this durable alone."""


class ChannelRate(Answer, frozen=True):
    name: str
    kind: str
    events: int
    bytes: int
    last_event_id: int
    counters: CounterAnswer
    delivered: int
    """To the clients of its durables and to subscribers without one, since the realm started; who
    browses does not count."""
    acknowledged: int
    """At all of its durables, since the realm started."""


class Rates(Answer, frozen=True):
    """One second's counters: what a plot needs are differences of two of them."""

    at: Moment
    channels: list[ChannelRate]
    durables: list[DurableRate]
    connections: int
    journal_bytes: int
    memory_bytes: int
    left_out: int = 0
    """Channels beyond the most that are told of."""


class RatesQuery(Query, frozen=True):
    channel: Name | None = None
    """Only this channel or queue, and its durables."""
