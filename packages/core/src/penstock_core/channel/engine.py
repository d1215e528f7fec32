"""The protocol of fan-out engines (SEM J, K). Each engine is one file in ``penstock_core.engines``;
the rules call its members and never compare its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock_core.channel.interest import Interest
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span, Spans


class Engine(Protocol):
    """The rules of one engine. Implementations have no state."""

    @property
    def name(self) -> str: ...

    @property
    def needs_interest(self) -> bool:
        """Whether events stay only while a subscriber or durable waits for them (SEM J2)."""
        ...

    @property
    def merges(self) -> bool:
        """Whether events may be deltas that are merged into the state of their publish key (SEM
        K2). Such a state stays even when all durables have acknowledged it (SEM D6)."""
        ...

    def first_id(self, requested: int, next_id: int) -> int:
        """Return the id at which a subscription or durable starts if it requests the id
        ``requested``. ``next_id`` is the channel's next id."""
        ...

    def interest(
        self,
        durables: Iterable[Durable],
        awaited: IdSet,
        pulled: IdSet,
        span: Span,
        matched: Mapping[str, Spans],
    ) -> Interest:
        """Return which events of ``span``, about to be published, are not kept. Called only if the
        engine :attr:`needs_interest`.

        ``awaited`` are the events that plain subscribers with pushed deliveries wait for, and
        ``pulled`` the events that synchronous consumers wait for. ``matched``
        contains the ids that the selector of each durable matches, by the durable's name.
        """
        ...


Engines = Mapping[str, Engine]
