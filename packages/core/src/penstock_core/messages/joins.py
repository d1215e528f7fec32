"""Joins between stores (SEM L)."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.messages.kinds import RealmFact


class Join(Struct, frozen=True, array_like=True):
    source: int
    destination: int
    """Numbers of the stores."""
    selector: str = ""
    archive: bool = False
    """To a queue, which keeps duplicates that come on two routes (SEM L3)."""
    owner: str = ""
    """``user@host`` that made it, whose rights it copies with; empty: the realm's own."""
    groups: tuple[str, ...] = ()
    """Groups the owner's token or certificate named."""
    source_name: str = ""
    """Set where the destination is an outbox: the name of the source, which may be deleted before
    everything has left (SEM N9)."""
    outbox: str = ""
    """How the destination knows the outbox: drawn when the join is made, and by no other join."""
    ending: bool = False
    """Whether nothing more is copied, and what is in the outbox still leaves."""

    @property
    def leads_out(self) -> bool:
        """Whether its copies leave through an outbox, for another realm (SEM N9)."""
        return bool(self.source_name)


class JoinCreated(RealmFact, frozen=True):
    join: Join


class JoinDeleted(RealmFact, frozen=True):
    source: int
    destination: int
