"""Merge: as default, and of each value of the one publish key there is one event: its state, into
which deltas are merged (SEM K2-K4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.durable import Durable
from penstock.core.engine import Engine
from penstock.core.ids import IdSet, Span
from penstock.core.interest import Interest
from penstock.core.messages import Spans


class Merge:
    name = "merge"
    needs_interest = False
    merges = True

    def first_id(self, asked: int, next_id: int) -> int:
        return asked

    def interest(
        self,
        durables: Iterable[Durable],
        awaited: IdSet,
        span: Span,
        matched: Mapping[str, Spans],
    ) -> Interest:
        return Interest(IdSet(), IdSet())


ENGINE: Engine = Merge()
