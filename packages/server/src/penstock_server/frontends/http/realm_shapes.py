"""Bodies and answers of requests about joins, durables over patterns, dead events, connections,
pipelines and counters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, defstruct

from penstock_core.api.patterns import PatternDurableInfo
from penstock_core.api.realm import ChannelRates, DurableRates
from penstock_core.bounds import GivenName
from penstock_server.frontends.http.shapes import (
    LIMIT_DEFAULT,
    Answer,
    CounterAnswer,
    Limit,
    Moment,
    Name,
    NewDurable,
    PendingCount,
    QueryParameters,
    RequestBody,
    Selector,
    shown,
)


class NamesQuery(QueryParameters, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=50_000)] = 50_000
    after: Annotated[str, Meta(max_length=1_024)] = ""
    durables: bool = False
    """Also list the durables of channels, for those who may see them."""


class NameAnswer(Answer, frozen=True, omit_defaults=True):
    name: str
    kind: Literal["channel", "queue"]
    durables: tuple[str, ...] = ()
    """Names of its durables, in order; left out if there are none, or none were asked for."""


class ImportQuery(QueryParameters, frozen=True):
    name: GivenName = ""
    """Name of the imported channel or queue; empty: as exported."""


class NewJoin(RequestBody, frozen=True):
    source: Name
    destination: Name
    selector: Selector = ""
    archive: bool = False
    """To a queue that keeps duplicates (SEM L3)."""


class JoinAnswer(Answer, frozen=True):
    id: str
    """The id that ``DELETE joins/{id}`` takes."""
    source: str
    destination: str
    selector: str
    archive: bool
    copied: int
    dropped: int
    owner: str = ""
    """The user who created it; it ends when they lose the right to create it."""
    leads_out: bool = False
    """Whether it leads from a local channel of a node to a store of the whole cluster."""
    waiting: int = 0
    """Events in its outbox: copied, and not in the cluster yet."""
    waiting_bytes: int = 0
    waiting_ms: int = 0
    """How long the oldest of them has waited."""
    waits_for: str = ""
    """Why they wait; empty: they are on their way."""
    ending: bool = False
    """Whether it was deleted, and what it had copied before still leaves."""


NewPatternDurable: Any = defstruct(
    "NewPatternDurable",
    [("pattern", Annotated[str, Meta(min_length=1, max_length=4_096)])],
    bases=(NewDurable,),
    frozen=True,
    kw_only=True,
    module=__name__,
)
"""A durable, and the channels that have it; its ``start`` is for those that are there."""
PatternDurableAnswer = shown(
    PatternDurableInfo,
    "PatternDurableAnswer",
    doc="What ``penstock durable list --format json`` prints of each durable over a pattern.",
    persistent=bool | None,
)


class DeadQuery(QueryParameters, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    """Most dead events to count; the newest ones beyond are left out."""


class Redrive(RequestBody, frozen=True):
    source: Name
    destination: GivenName = ""
    """Where to publish them; empty: each to where it came from."""
    selector: Selector = ""
    dry_run: bool = False


class ScheduleQuery(QueryParameters, frozen=True):
    channel: Name | None = None
    """Only events that wait for this channel or queue."""
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""


class ConnectionAnswer(Answer, frozen=True):
    id: str
    session: str
    user: str
    """``user@host``."""
    client: str
    """Name and version of the client software."""
    protocol: str
    opened: Moment
    idle_ms: int
    """Milliseconds since it last sent something."""
    subscriptions: int
    requests: int
    """Requests in progress."""
    unsent_bytes: int
    """Bytes that wait because the client does not read them."""
    is_stalled: bool


# --- live counters ------------------------------------------------------------------------


DurableRate = shown(DurableRates, "DurableRate", pending=PendingCount)
ChannelRate = shown(ChannelRates, "ChannelRate", counters=CounterAnswer)


class Rates(Answer, frozen=True):
    """The counters of one second; plot the differences of consecutive ones."""

    at: Moment
    channels: list[ChannelRate]  # type: ignore[valid-type]  # made above
    durables: list[DurableRate]  # type: ignore[valid-type]  # made above
    connections: int
    journal_bytes: int
    memory_bytes: int
    left_out: int = 0
    """Channels that are left out because there are too many."""


class RatesQuery(QueryParameters, frozen=True):
    channel: Name | None = None
    """Only this channel or queue with its durables."""


class HistoryAnswer(Answer, frozen=True):
    """Figures of the last 24 hours, the oldest first. A figure is null where nothing is known."""

    begun: Moment
    """Since when there are figures: they begin anew when the realm starts."""
    first: Moment
    """The end of the first step."""
    step_ms: int
    """From the end of a step to that of the next."""
    is_kept: bool
    """Whether there is room for figures of what was asked for."""
    published: list[float | None]
    """Events in a second; none of a durable."""
    delivered: list[float | None]
    acknowledged: list[float | None]
    outstanding: list[int | None]
    """Events that are not acknowledged at the end of the step, at all durables and queues."""
    delivery_ms: list[float | None]
    """The time that 99 % of the deliveries did not exceed, from the publish on; null where nothing
    was delivered for the first time."""
    sync_ms: list[float | None]
    """The time that 99 % of the syncs of the journal did not exceed; only of the realm."""


class HistoryQuery(QueryParameters, frozen=True):
    channel: Name | None = None
    """Only this channel or queue."""
    durable: Name | None = None
    """Only this durable of it."""
