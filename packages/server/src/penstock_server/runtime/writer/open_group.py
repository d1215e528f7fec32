"""A group that is still being decided, as the functions see it that add to it: dead events, copies
of joins, late writes, selectors on stored events.
:class:`~penstock_server.runtime.writer.group.Group` calls them, so they do not import it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock_core.channel.channel import ChannelMachine
from penstock_core.ids.ids import Span
from penstock_core.messages.retention import Sweep
from penstock_core.messages.unions import AnyFact, StoredFact
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.ports import Buffer
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.records import BodyRef
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.selector_cache import LookedAhead, NeedsLook

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


class Way:
    """The stores that the events of one publish have reached in this step. An event that reaches a
    store by two routes is stored there once (SEM L1); archive joins keep each copy (SEM L3)."""

    __slots__ = ("roots", "seen")

    def __init__(self, roots: Rows, seen: dict[str, Bools]) -> None:
        self.roots = roots
        """The row of the first publish that each row is a copy of."""
        self.seen = seen
        """Rows that have reached each store, by its name: outboxes have that of where they lead."""

    def on(self, roots: Rows) -> Way:
        return Way(roots, self.seen)

    def has_been(self, name: str, roots: Rows) -> Bools:
        there = self.seen.get(name)
        return np.zeros(len(roots), dtype=np.bool_) if there is None else there[roots]

    def comes_to(self, name: str, roots: Rows) -> None:
        size = len(next(iter(self.seen.values())))
        self.seen.setdefault(name, np.zeros(size, dtype=np.bool_))[roots] = True


class OpenGroup(Protocol):
    """The members of a group that these functions use."""

    state: RealmState
    now_us: int
    bodies: list[Buffer]
    """The bodies of the group's block."""
    looked_ahead: LookedAhead
    looks: list[NeedsLook]
    """What selectors are to be evaluated on after this group."""
    sweeping: Sweep

    @property
    def is_half_done(self) -> bool:
        """Whether the work at hand has changed something already: then all of it has to be done."""
        ...

    def may_look(self, cost: int) -> bool:
        """Whether selectors may be evaluated in this turn, at this cost; if so, the cost counts."""
        ...

    def apply(self, number: int, channel: ChannelMachine, fact: StoredFact) -> None:
        """Make a fact true, here and in the block."""
        ...

    def record(
        self, number: int, fact: AnyFact, refs: tuple[BodyRef, ...] = (), *, sync: bool = True
    ) -> None:
        """Write a fact to the block."""
        ...

    def publish(
        self,
        number: int,
        bodies: Sequence[Body],
        digest: Digest,
        *,
        forced: bool = False,
        in_journal: bool = False,
        publisher: str = "",
        way: Way | None = None,
    ) -> Span:
        """Store events on a channel and do what follows from it. Raises ``Refused``."""
        ...
