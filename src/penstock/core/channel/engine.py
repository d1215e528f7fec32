"""What tells one fan-out engine from another (SEM J, K). Each engine is one file in
``core.engines``; the mechanism asks, the engine answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.core.channel.interest import Interest
from penstock.core.durable.durable import Durable
from penstock.core.ids.ids import IdSet, Span
from penstock.core.vocabulary.messages import Spans


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def needs_interest(self) -> bool:
        """Whether an event stays only while somebody waits for it (SEM J2)."""
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
        """What becomes of the events ``span`` as they are published, where the engine
        :attr:`needs_interest`. ``awaited`` is what plain subscribers wait for who are sent
        it, ``pulled`` what those do who ask for it; ``matched``, by durable, the ids its
        selector matches."""
        ...


Engines = Mapping[str, Engine]
