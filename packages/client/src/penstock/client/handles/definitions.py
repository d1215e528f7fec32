"""Attributes of channels and queues, as users give them, and their creation with these."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from penstock.client.connection.arguments import milliseconds
from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.if_missing import (
    created,
    deleted,
    differing_attributes,
    refuse_differences,
)
from penstock_core.api.channels import ChannelOpened, CreateChannel, DeleteChannel, OpenChannel
from penstock_core.api.requests import Kind
from penstock_core.columns.events.durations import whole_ms
from penstock_core.vocabulary.argument_errors import PYTHON, explain
from penstock_core.vocabulary.backoff import Backoff, check_backoff
from penstock_core.vocabulary.definitions import Definition, Storage, attributes_of
from penstock_core.vocabulary.errors import InvalidArgument

T = TypeVar("T", Definition, Backoff)


async def create_store(
    connection: RealmConnection,
    name: str,
    kind: Kind,
    attributes: Mapping[str, Any],
    if_missing: bool,
) -> ChannelOpened:
    """Create a channel or queue; with ``if_missing`` open the one that has these attributes.

    Raises ``InvalidName``, ``NameAlreadyBound``, ``InvalidArgument``.
    """
    wanted = definition_of(attributes, kind)

    async def find() -> ChannelOpened:
        return await connection.ask(OpenChannel(name, kind), ChannelOpened)

    async def create(*, resend: bool) -> ChannelOpened:
        return await connection.ask(CreateChannel(name, wanted), ChannelOpened, resend=resend)

    def check(there: ChannelOpened) -> None:
        differing = differing_attributes(attributes, wanted, there.definition)
        refuse_differences(f"{kind} {there.name}", differing)

    return await created(find, create, check, if_missing=if_missing)


async def delete_store(connection: RealmConnection, name: str, kind: Kind) -> None:
    """Remove a channel or queue. Raises ``NameDoesNotExist``."""

    async def find() -> ChannelOpened:
        return await connection.ask(OpenChannel(name, kind), ChannelOpened)

    await deleted(lambda: connection.request(DeleteChannel(name, kind), resend=False), find)


def definition_of(
    attributes: Mapping[str, Any],
    kind: Kind = "channel",
    current: Definition | None = None,
    *,
    words: Mapping[str, str] = PYTHON,
) -> Definition:
    """A new definition from ``attributes``, or the ``current`` one with them. Raises
    ``InvalidArgument``, which says what is wrong in the ``words`` for kinds of values."""
    tree: dict[str, Any] = msgspec.to_builtins(current) if current is not None else {}
    own = attributes_of(kind)
    known = [name for name in Definition.__struct_fields__ if name in own]
    unknown = sorted(set(attributes) - set(known))
    if unknown:
        raise InvalidArgument(
            f"no {kind} attribute {', '.join(unknown)}; there are {', '.join(known)}"
        )
    storage = attributes.get("storage")
    if storage is not None and not isinstance(storage, Mapping):
        raise InvalidArgument(f"storage must be a dictionary, not {type(storage).__name__}")
    _check_storage(storage or {})
    changed = {**tree.get("storage", {}), **(storage or {})}
    if attributes.get("backoff") is not None:
        attributes = {**attributes, "backoff": backoff_of(attributes["backoff"], words=words)}
    if "ttl" in attributes:
        attributes = {**attributes, "ttl": whole_ms(attributes["ttl"])}
    if attributes.get("descriptors"):
        attributes = {**attributes, "descriptors": _descriptors(attributes["descriptors"])}
    if isinstance(topics := attributes.get("topics"), str):
        attributes = {**attributes, "topics": [topics] if topics else []}
    tree = {**tree, **attributes, "storage": changed, "kind": kind}
    definition = _converted(tree, Definition, f"the {kind}", words=words)
    _check_integers(tree)
    return definition


def backoff_of(given: object, *, words: Mapping[str, str] = PYTHON) -> Backoff | None:
    """A backoff as users give it: times in milliseconds, or as texts such as ``"5s"``. Raises
    ``InvalidArgument``."""
    if given is None or isinstance(given, Backoff):
        return given
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"backoff is {given!r}; give a dictionary such as {{'first': '1s', 'most': '5m'}}"
        )
    known = [field.name for field in msgspec.structs.fields(Backoff)]
    if unknown := sorted(str(name) for name in set(given) - set(known)):
        raise InvalidArgument(f"backoff has no {', '.join(unknown)}; there are {', '.join(known)}")
    tree = dict(given)
    for name in ("first", "most"):
        if isinstance(tree.get(name), str | timedelta):
            tree[name] = milliseconds(tree[name], f"backoff.{name}")
    backoff = _converted(tree, Backoff, "backoff", words=words)
    check_backoff(backoff)
    return backoff


def _converted(tree: Mapping[str, Any], kind: type[T], whole: str, words: Mapping[str, str]) -> T:
    """A ``kind`` with the values of ``tree``. Raises ``InvalidArgument``, which names the value
    that is wrong."""
    try:
        return msgspec.convert(tree, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidArgument(explain(error, tree, kind=kind, whole=whole, words=words)) from error


def _check_integers(tree: Mapping[str, Any], prefix: str = "") -> None:
    """Raises ``InvalidArgument`` for a number that is too large to be sent."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _check_integers(value, f"{prefix}{name}.")
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise InvalidArgument(f"{prefix}{name} must fit into 64 bits, not {value}")


def _descriptors(given: object) -> bytes:
    from penstock_core.columns.protobuf import descriptor_set  # imports Arrow
    from penstock_core.columns.protobuf.descriptors import check_size

    try:
        found = descriptor_set(given)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"descriptors: {error}") from error
    check_size(found)
    return found


def _check_storage(given: Mapping[str, Any]) -> None:
    known = [field.name for field in msgspec.structs.fields(Storage)]
    unknown = sorted(str(name) for name in set(given) - set(known))
    if unknown:
        raise InvalidArgument(
            f"no storage property {', '.join(unknown)}; there are {', '.join(known)}"
        )
    if given.get("sync", "group") not in ("group", "none"):
        raise InvalidArgument(f"storage.sync must be 'group' or 'none', not {given['sync']!r}")
