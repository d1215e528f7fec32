"""The protocol of fan-out engines (SEM J, K). Each engine is one file in ``penstock_core.engines``;
the rules ask it and never test for a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock_core.channel.interest import Interest
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span, Spans


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def needs_interest(self) -> bool:
        """Whether events stay only while somebody waits for them (SEM J2)."""
        ...

    @property
    def merges(self) -> bool:
        """Whether events may be deltas, merged into the state of their publish key (SEM K2). Such
        a state stays, whatever durables acknowledge (SEM D6)."""
        ...

    def first_id(self, asked: int, next_id: int) -> int:
        """Where a subscription or durable that asks to start at ``asked`` really starts."""
        ...

    def interest(
        self,
        durables: Iterable[Durable],
        awaited: IdSet,
        pulled: IdSet,
        span: Span,
        matched: Mapping[str, Spans],
    ) -> Interest:
        """Decide, where the engine :attr:`needs_interest`, which events of ``span`` are kept.

        ``awaited`` are the events that plain subscribers with deliveries wait for, ``pulled``
        those of plain subscribers that ask for each batch; ``matched`` has, by durable, the ids
        that its selector matches.
        """
        ...


Engines = Mapping[str, Engine]
