"""Requests about joins, and about dead events that are published again."""

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
    """Events copied since the realm started."""
    dropped: int = 0
    """Events not copied since the realm started, because of a loop or too many hops (SEM L2)."""
    owner: str = ""
    """The user (``user@host``) that created it; it ends when they lose the right to create it."""


class Redriven(Struct, frozen=True):
    """The result of a redrive, or of its dry run (SEM T10)."""

    moved: int
    destinations: dict[str, int]
    """How many events went to each store."""
    left: int
    """Dead events that stay: not selected, or without a store to go back to."""
    dry_run: bool = False


class CreateJoin(Request[JoinInfo], frozen=True):
    """Create a join: events published on one store are copied to another (SEM L1)."""

    source: GivenName
    destination: GivenName
    selector: SelectorText = ""
    archive: bool = False
    """To a queue that keeps duplicates (SEM L3)."""


class DeleteJoin(Request[None], frozen=True):
    source: GivenName
    destination: GivenName


class ListJoins(Request[list[JoinInfo]], frozen=True):
    pass


class Redrive(Request[Redriven], frozen=True):
    """Publish dead events again, each once, and remove them from their store (SEM T10)."""

    source: GivenName
    destination: GivenName = ""
    """Where to publish them; empty: each to where it came from."""
    selector: SelectorText = ""
    dry_run: bool = False

    @property
    def tells(self) -> bool:
        """Whether the answer reveals something about the events besides that they were moved."""
        return bool(self.destination or self.selector or self.dry_run)
