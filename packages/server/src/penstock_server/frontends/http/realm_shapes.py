"""Bodies and answers for joins, durables over patterns, dead events, connections, pipelines and
counters."""

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
    """Whether to also list the durables of channels, if the user may see them."""


class NameAnswer(Answer, frozen=True, omit_defaults=True):
    name: str
    kind: Literal["channel", "queue"]
    durables: tuple[str, ...] = ()
    """Sorted names of its durables; omitted if it has none or they were not requested."""


class ImportQuery(QueryParameters, frozen=True):
    name: GivenName = ""
    """Name of the imported channel or queue; empty for the exported name."""


Pause = body_of(PausePublishing, "Pause")
NewJoin = body_of(CreateJoin, "NewJoin")
JoinAnswer = shown(JoinInfo, "JoinAnswer", first=(("id", str),), optional_from="owner")
"""A join; ``id`` is its id in ``DELETE joins/{id}``."""


NewPatternDurable: Any = defstruct(
    "NewPatternDurable",
    [("pattern", Annotated[str, Meta(min_length=1, max_length=4_096)])],
    bases=(NewDurable,),
    frozen=True,
    kw_only=True,
    module=__name__,
)
"""A durable and the pattern of its channels; ``start`` applies to the existing channels."""
PatternDurableAnswer = shown(
    PatternDurableInfo,
    "PatternDurableAnswer",
    doc="The document of a durable over a pattern in ``penstock durable list --format json``.",
    persistent=bool | None,
)


class DeadQuery(QueryParameters, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    """Maximum number of dead events to count, beginning with the oldest."""


Redrive = body_of(RedriveDead, "Redrive")


class ScheduleQuery(QueryParameters, frozen=True):
    channel: Name | None = None
    """Only events that are scheduled on this channel or queue."""
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
    doc="Samples of the last 24 hours, oldest first. A value is null if it is unknown.",
    moments=("begun_us", "first_us"),
)
HistoryQuery = body_of(
    ReadHistory, "HistoryQuery", base=QueryParameters, channel=Name | None, durable=Name | None
)
