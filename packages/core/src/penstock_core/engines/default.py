"""Default: events stay until TTL, capacity, purge or consumption by all durables; subscribers
replay from any id (SEM J1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_core.channel.engine import Engine
from penstock_core.channel.interest import Interest
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span, Spans


class Default:
    """The rules of the default engine."""

    name = "default"
    needs_interest = False
    merges = False

    def first_id(self, requested: int, next_id: int) -> int:
        return requested

    def interest(
        self,
        durables: Iterable[Durable],
        awaited: IdSet,
        pulled: IdSet,
        span: Span,
        matched: Mapping[str, Spans],
    ) -> Interest:
        return Interest(IdSet(), IdSet())  # all events are kept


ENGINE: Engine = Default()
