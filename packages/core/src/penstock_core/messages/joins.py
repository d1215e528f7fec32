"""Joins, which copy the events of one store to another, and the facts about them (SEM L)."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.messages.kinds import RealmFact


class Join(Struct, frozen=True, array_like=True):
    """A rule that copies the events of one store to another."""

    source: int
    destination: int
    """``source`` and ``destination`` are channel ids."""
    selector: str = ""
    archive: bool = False
    """Whether the destination is a queue that keeps duplicates which arrive on two routes
    (SEM L3)."""
    owner: str = ""
    """``user@host`` that created the join, which copies with the rights of this user. Empty if the
    join belongs to the realm."""
    groups: tuple[str, ...] = ()
    """Groups named by the owner's token or certificate."""
    source_name: str = ""
    """Name of the source if the destination is an outbox; the source may be deleted before the
    outbox is empty (SEM N9)."""
    outbox: str = ""
    """Unique random name of the outbox for its destination, drawn when the join is created."""
    ending: bool = False
    """Whether the join copies no new events and only the remaining events of the outbox leave."""

    @property
    def leads_out(self) -> bool:
        """Whether copies leave through an outbox, for another realm (SEM N9)."""
        return bool(self.source_name)


class JoinCreated(RealmFact, frozen=True):
    join: Join


class JoinDeleted(RealmFact, frozen=True):
    source: int
    destination: int
