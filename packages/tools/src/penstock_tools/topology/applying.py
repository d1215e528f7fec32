"""Executes the steps of a plan through a session of the blocking client."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_never

from msgspec.structs import asdict

from penstock_core.vocabulary.definitions import Definition, attributes_of
from penstock_core.vocabulary.errors import IllegalState
from penstock_tools.topology.document import WantedDurable, WantedStore
from penstock_tools.topology.steps import (
    Act,
    ActOfAccess,
    ActOfStores,
    DurableToCreate,
    DurableToDelete,
    GroupToChange,
    GroupToCreate,
    GroupToDelete,
    JoinToCreate,
    JoinToDelete,
    PatternToCreate,
    PatternToDelete,
    Plan,
    PlannedStep,
    RightsToAdd,
    RightsToRevoke,
    StoreToCreate,
    StoreToDelete,
    StoreToEdit,
    UserToCreate,
    UserToDelete,
)
from penstock_tools.topology.writing import unusual

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session


def _ignore_step(step: PlannedStep) -> None:
    """Ignore a finished step; the default of ``done``."""


def apply(
    session: Session, plan: Plan, *, done: Callable[[PlannedStep], None] = _ignore_step
) -> None:
    """Execute the steps of a plan in order, and call ``done`` after each step.

    Raises ``IllegalState`` before the first change if the plan has items that cannot be changed in
    place. If the realm refuses a step, the error is raised and later steps are not executed.
    Earlier steps are not undone; a new plan contains the remaining steps.
    """
    if plan.immovable:
        names = ", ".join(item.what for item in plan.immovable)
        raise IllegalState(
            f"{names} cannot be changed in place, so nothing was changed; delete it, which loses "
            f"the data listed in the plan, and apply the file again"
        )
    for step in plan.steps:
        _execute(session, step.act)
        done(step)


def _execute(session: Session, act: Act) -> None:
    if isinstance(act, ActOfStores):
        _execute_on_store(session, act)
    elif isinstance(act, ActOfAccess):
        _execute_on_access(session, act)
    else:
        _execute_on_join(session, act)


def _execute_on_join(session: Session, act: JoinToCreate | JoinToDelete) -> None:
    match act:
        case JoinToCreate(join):
            session.joins.create(
                join.source, join.destination, selector=join.selector, archive=join.archive
            )
        case JoinToDelete(source, destination):
            session.joins.delete(source, destination)
        case _:
            assert_never(act)


def _execute_on_store(session: Session, act: ActOfStores) -> None:
    match act:
        case StoreToCreate(store):
            _stores(session, store.kind).create(store.name, **store_arguments(store))
        case StoreToEdit(kind, name, attributes):
            _stores(session, kind).get(name).edit(**attributes)
        case StoreToDelete(kind, name):
            _stores(session, kind).delete(name)
        case DurableToCreate(channel, durable):
            durables = session.channels.get(channel).durables
            durables.create(durable.name, **durable_arguments(durable))
        case DurableToDelete(channel, name):
            session.channels.get(channel).durables.delete(name)
        case PatternToCreate(durable):
            session.durables.create(durable.pattern, durable.name, **durable_arguments(durable))
        case PatternToDelete(pattern, name):
            session.durables.delete(pattern, name)
        case _:
            assert_never(act)


def _execute_on_access(session: Session, act: ActOfAccess) -> None:
    access = session.access
    match act:
        case UserToCreate(name):
            access.create_user(name)
        case UserToDelete(name):
            access.delete_user(name)
        case GroupToCreate(group):
            access.create_group(group.name, group.members)
        case GroupToChange(name, add, remove):
            access.change_group(name, add=add, remove=remove)
        case GroupToDelete(name):
            access.delete_group(name)
        case RightsToAdd(kind, name, subject, rights):
            access.grant(subject, *rights, **_resource_argument(kind, name))
        case RightsToRevoke(kind, name, subject, rights):
            access.revoke(subject, *rights, **_resource_argument(kind, name))
        case _:
            assert_never(act)


def durable_arguments(durable: WantedDurable) -> dict[str, Any]:
    """Return the arguments with which a durable is created."""
    return {
        "type": durable.type,
        "start": durable.start,
        "selector": durable.selector,
        "persistent": durable.persistent,
        **asdict(durable.attributes),
        "ack_timeout": timedelta(milliseconds=durable.attributes.ack_timeout),
    }


def _stores(session: Session, kind: str) -> Any:
    """Return the part of the session that manages stores of this kind."""
    return session.channels if kind == "channel" else session.queues


def store_arguments(store: WantedStore) -> dict[str, Any]:
    """Return the attributes of a new store that differ from their defaults."""
    attributes = unusual(store.definition, Definition())
    return {name: value for name, value in attributes.items() if name in attributes_of(store.kind)}


def _resource_argument(kind: str, name: str) -> dict[str, str]:
    """Return the argument that names the resource of a right; the realm needs none."""
    return {} if kind == "realm" else {kind: name}
