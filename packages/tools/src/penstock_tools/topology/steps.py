"""What a plan consists of: its steps, and what cannot be done in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from penstock_core.api.requests import Kind
from penstock_tools.topology.document import WantedDurable, WantedGroup, WantedJoin, WantedStore

Sign = Literal["+", "~", "-"]
"""Something is created, changed in place, or deleted."""


class StoreToCreate(Struct, frozen=True):
    store: WantedStore


class StoreToEdit(Struct, frozen=True):
    kind: Kind
    name: str
    attributes: Mapping[str, Any]


class StoreToDelete(Struct, frozen=True):
    kind: Kind
    name: str


class DurableToCreate(Struct, frozen=True):
    channel: str
    durable: WantedDurable


class DurableToDelete(Struct, frozen=True):
    channel: str
    name: str


class PatternToCreate(Struct, frozen=True):
    durable: WantedDurable


class PatternToDelete(Struct, frozen=True):
    pattern: str
    name: str


class JoinToCreate(Struct, frozen=True):
    join: WantedJoin


class JoinToDelete(Struct, frozen=True):
    source: str
    destination: str


class UserToCreate(Struct, frozen=True):
    name: str


class UserToDelete(Struct, frozen=True):
    name: str


class GroupToCreate(Struct, frozen=True):
    group: WantedGroup


class GroupToChange(Struct, frozen=True):
    name: str
    add: tuple[str, ...]
    remove: tuple[str, ...]


class GroupToDelete(Struct, frozen=True):
    name: str


class RightsToAdd(Struct, frozen=True):
    kind: str
    name: str
    subject: str
    rights: tuple[str, ...]


class RightsToTake(Struct, frozen=True):
    kind: str
    name: str
    subject: str
    rights: tuple[str, ...]


ActOfStores = (
    StoreToCreate
    | StoreToEdit
    | StoreToDelete
    | DurableToCreate
    | DurableToDelete
    | PatternToCreate
    | PatternToDelete
)
ActOfAccess = (
    UserToCreate
    | UserToDelete
    | GroupToCreate
    | GroupToChange
    | GroupToDelete
    | RightsToAdd
    | RightsToTake
)
Act = ActOfStores | JoinToCreate | JoinToDelete | ActOfAccess


class PlannedStep(Struct, frozen=True, kw_only=True):
    """One change of a realm."""

    sign: Sign
    what: str
    """Kind and name of what is changed."""
    act: Act
    details: tuple[str, ...] = ()
    """Each attribute that changes, as it is and as it will be."""
    loses: str = ""
    """What is lost by it; empty: nothing."""


class Immovable(Struct, frozen=True, kw_only=True):
    """Something that differs from the file and cannot be changed in place."""

    what: str
    details: tuple[str, ...]
    loses: str
    """What would be lost if it were deleted and created again."""
    remedy: str
    """What deletes it, so that the next plan creates it."""


class Plan(Struct, frozen=True, kw_only=True):
    """What has to be done so that a realm is as its topology says."""

    steps: tuple[PlannedStep, ...] = ()
    immovable: tuple[Immovable, ...] = ()
    """While there are any, nothing is done."""
    unnamed: tuple[str, ...] = ()
    """What the realm has and the file does not name, and what stays because nothing is pruned."""
    kept: tuple[str, ...] = ()
    """What is not pruned, so that whoever applies the file, and somebody at all, may go on."""

    @property
    def losses(self) -> tuple[PlannedStep, ...]:
        """The steps by which something is lost."""
        return tuple(step for step in self.steps if step.loses)
