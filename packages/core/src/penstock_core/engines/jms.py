"""JMS: an event stays only while a subscriber or durable waits for it; nothing is replayed (SEM
J2-J4, J6).

Some events pass through memory only: those wanted only by connected clients that take events
without requesting them. Such clients are plain subscribers, and clients of exclusive and priority
durables that acknowledge automatically. For all other events the channel's type decides where they
are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_core.channel.engine import Engine
from penstock_core.channel.interest import Interest, wanted_of
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span, Spans


class Jms:
    """The rules of the JMS engine."""

    name = "jms"
    needs_interest = True
    merges = False

    def first_id(self, requested: int, next_id: int) -> int:
        return next_id  # whatever is requested, because no event is replayed

    def interest(
        self,
        durables: Iterable[Durable],
        awaited: IdSet,
        pulled: IdSet,
        span: Span,
        matched: Mapping[str, Spans],
    ) -> Interest:
        """Return the events of ``span`` that only pass through memory, and the events without
        interest. The channel's type decides how all other events are kept."""
        kept, passing = pulled.copy(), awaited.copy()
        for durable in durables:
            wanted = wanted_of(durable, span, matched.get(durable.name, ()))
            (passing if durable.is_fed else kept).add_all(wanted)
        passing.discard_all(kept)
        dropped = IdSet((span,))
        dropped.discard_all(kept)
        dropped.discard_all(passing)
        return Interest(passing, dropped)


ENGINE: Engine = Jms()
