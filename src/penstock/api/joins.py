"""Joins between channels and queues, and dead events that are published again."""

from __future__ import annotations

from msgspec import Struct

from penstock.api.requests import Request
from penstock.core.bounds import GivenName, SelectorText


class JoinInfo(Struct, frozen=True, kw_only=True):
    source: str
    destination: str
    selector: str = ""
    archive: bool = False
    copied: int = 0
    """Since the realm started."""
    dropped: int = 0
    """Not copied because of a loop or too many hops (SEM L2), since the realm started."""
    owner: str = ""
    """``user@host`` that made it: it ends when they could not make it any more."""


class Redriven(Struct, frozen=True):
    """What a redrive moved, or would move (SEM T10)."""

    moved: int
    destinations: dict[str, int]
    """By store: how many."""
    left: int
    """Dead events that stay: not selected, or without a place to go back to."""
    dry_run: bool = False


class CreateJoin(Request[JoinInfo], frozen=True):
    """Copy what is published on one store to another (SEM L1)."""

    source: GivenName
    destination: GivenName
    selector: SelectorText = ""
    archive: bool = False
    """To a queue, duplicates kept (SEM L3)."""


class DeleteJoin(Request[None], frozen=True):
    source: GivenName
    destination: GivenName


class ListJoins(Request[list[JoinInfo]], frozen=True):
    pass


class Redrive(Request[Redriven], frozen=True):
    """Publish dead events again, each once, and take them out of their store (SEM T10)."""

    source: GivenName
    destination: GivenName = ""
    """Empty: each to where it came from."""
    selector: SelectorText = ""
    dry_run: bool = False

    @property
    def tells(self) -> bool:
        """Whether its answer tells something about the events, beside that they were moved."""
        return bool(self.destination or self.selector or self.dry_run)
