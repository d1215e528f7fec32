"""Publishes that follow from a decision, as data. A group carries them out in the same block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock_server.runtime.store.bodies import Body

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


class ReachedStores:
    """The stores that the events of one publish have reached in this step. An event that reaches a
    store by two routes is stored there once (SEM L1); archive joins keep each copy (SEM L3)."""

    __slots__ = ("roots", "rows")

    def __init__(self, roots: Rows, rows: dict[str, Bools]) -> None:
        self.roots = roots
        """The row of the first publish that each row is a copy of."""
        self.rows = rows
        """Mask of the rows of the first publish that have reached a store, by the store's name. An
        outbox counts under the name of its destination."""

    def of_copies(self, roots: Rows) -> ReachedStores:
        """Return the same record for copies of the rows ``roots``."""
        return ReachedStores(roots, self.rows)

    def has(self, name: str, roots: Rows) -> Bools:
        """Return a mask of the rows ``roots`` that have reached the store ``name``."""
        rows = self.rows.get(name)
        return np.zeros(len(roots), dtype=np.bool_) if rows is None else rows[roots]

    def add(self, name: str, roots: Rows) -> None:
        """Record that the rows ``roots`` have reached the store ``name``."""
        size = len(next(iter(self.rows.values())))
        self.rows.setdefault(name, np.zeros(size, dtype=np.bool_))[roots] = True


class FollowingPublish(NamedTuple):
    """A publish of dead events, of scheduled events, or of the copies that a join makes."""

    channel_id: int
    bodies: list[Body]
    publisher: str
    reached: ReachedStores | None = None
    """The stores that the events have reached in this step; only for copies of joins."""
