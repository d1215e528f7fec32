"""Default: events stay until TTL, capacity, purge or consumption by all durables; subscribers
replay from any id (SEM J1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.core.durable import Durable
from penstock.core.engine import Engine
from penstock.core.ids import Span
from penstock.core.interest import Interest
from penstock.core.messages import Spans
from penstock.core.subscriber import Subscriber


class Default:
    name = "default"
    needs_interest = False

    def first_id(self, asked: int, next_id: int) -> int:
        return asked

    def interest(
        self,
        durables: Collection[Durable],
        subscribers: Collection[Subscriber],
        span: Span,
        matched: Mapping[str, Spans],
    ) -> Interest | None:
        return None


ENGINE: Engine = Default()
