"""Bodies and answers of requests about joins, durables over patterns, dead events, connections,
pipelines and counters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, defstruct

from penstock_core.api.joins import CreateJoin, JoinInfo
from penstock_core.api.joins import Redrive as RedriveDead
from penstock_core.api.patterns import PatternDurableInfo
from penstock_core.api.realm import (
    ChannelRates,
    ConnectionInfo,
    DurableRates,
    HistoryInfo,
    PausePublishing,
    RatesNow,
    ReadHistory,
    ReadRates,
)
from penstock_core.bounds import GivenName
from penstock_server.frontends.http.shapes import (
    LIMIT_DEFAULT,
    Answer,
    CounterAnswer,
    Limit,
    Name,
    NewDurable,
    PendingCount,
    QueryParameters,
    body_of,
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


Pause = body_of(PausePublishing, "Pause")
NewJoin = body_of(CreateJoin, "NewJoin")
JoinAnswer = shown(JoinInfo, "JoinAnswer", first=(("id", str),), optional_from="owner")
"""``id``: what ``DELETE joins/{id}`` takes."""


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


Redrive = body_of(RedriveDead, "Redrive")


class ScheduleQuery(QueryParameters, frozen=True):
    channel: Name | None = None
    """Only events that wait for this channel or queue."""
    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(max_length=1_024)] = ""


ConnectionAnswer = shown(ConnectionInfo, "ConnectionAnswer", moments=("opened_us",))


# --- live counters ------------------------------------------------------------------------


DurableRate = shown(DurableRates, "DurableRate", pending=PendingCount)
ChannelRate = shown(ChannelRates, "ChannelRate", counters=CounterAnswer)


Rates = shown(
    RatesNow,
    "Rates",
    moments=("at_us",),
    channels=list[ChannelRate],  # type: ignore[valid-type]  # made above
    durables=list[DurableRate],  # type: ignore[valid-type]  # made above
)
RatesQuery = body_of(ReadRates, "RatesQuery", base=QueryParameters, channel=Name | None)
HistoryAnswer = shown(
    HistoryInfo,
    "HistoryAnswer",
    doc="Figures of the last 24 hours, the oldest first. A figure is null where nothing is known.",
    moments=("begun_us", "first_us"),
)
HistoryQuery = body_of(
    ReadHistory, "HistoryQuery", base=QueryParameters, channel=Name | None, durable=Name | None
)
