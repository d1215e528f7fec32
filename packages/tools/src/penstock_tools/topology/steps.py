"""The structs of a plan: its steps, and differences that cannot be resolved in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from penstock_core.api.requests import Kind
from penstock_tools.topology.document import WantedDurable, WantedGroup, WantedJoin, WantedStore

Sign = Literal["+", "~", "-"]
"""Create, change in place, or delete."""


# The actions of the steps, each with the values that a session needs to execute it.


class StoreToCreate(Struct, frozen=True):
    store: WantedStore


class StoreToEdit(Struct, frozen=True):
    kind: Kind
    name: str
    attributes: Mapping[str, Any]
    """New values of the attributes that differ."""


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


class RightsToRevoke(Struct, frozen=True):
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
    | RightsToRevoke
)
Act = ActOfStores | JoinToCreate | JoinToDelete | ActOfAccess


class PlannedStep(Struct, frozen=True, kw_only=True):
    """One change of a realm."""

    sign: Sign
    what: str
    """Kind and name of the changed object."""
    act: Act
    details: tuple[str, ...] = ()
    """One text for each changed attribute, with its value before and after."""
    loses: str = ""
    """The data that the step destroys; empty if it destroys none."""


class Immovable(Struct, frozen=True, kw_only=True):
    """An object of the realm that differs from the file and cannot be changed in place."""

    what: str
    details: tuple[str, ...]
    loses: str
    """The data that would be destroyed if it were deleted and created again."""
    remedy: str
    """The command that deletes it, so that the next plan creates it."""


class Plan(Struct, frozen=True, kw_only=True):
    """The changes that make a realm match its topology."""

    steps: tuple[PlannedStep, ...] = ()
    immovable: tuple[Immovable, ...] = ()
    """If this is not empty, the plan cannot be applied."""
    unnamed: tuple[str, ...] = ()
    """Objects of the realm that the file does not name and that stay because ``prune`` is off."""
    kept: tuple[str, ...] = ()
    """Objects that are not pruned because the caller, or the last administrator, would lose
    access."""

    @property
    def losses(self) -> tuple[PlannedStep, ...]:
        """The steps that destroy data."""
        return tuple(step for step in self.steps if step.loses)
