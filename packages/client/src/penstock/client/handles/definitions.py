"""Creates and deletes channels and queues, and converts their attributes to definitions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec

from penstock.client.connection.arguments import milliseconds
from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.if_missing import (
    created,
    deleted,
    differing_attributes,
    refuse_differences,
)
from penstock.client.handles.named import with_names
from penstock_core.api.channels import ChannelOpened, CreateChannel, DeleteChannel, OpenChannel
from penstock_core.api.requests import Kind
from penstock_core.columns.events.durations import EXAMPLES, whole_ms
from penstock_core.vocabulary.argument_errors import PYTHON, explain
from penstock_core.vocabulary.backoff import Backoff, check_backoff
from penstock_core.vocabulary.definitions import Definition, Storage, attributes_of
from penstock_core.vocabulary.errors import InvalidArgument

T = TypeVar("T", Definition, Backoff)

_GROUP_TIME: Final = "sync_batch_time"
"""The storage property that is a duration."""


async def create_store(
    connection: RealmConnection,
    name: str,
    kind: Kind,
    attributes: Mapping[str, Any],
    if_missing: bool,
) -> ChannelOpened:
    """Create a channel or queue. With ``if_missing``, open the existing one instead if it has the
    given attributes.

    Raises ``InvalidName``, ``InvalidArgument``, and ``NameAlreadyBound`` if the name is in use or
    the existing store has other attributes.
    """
    attributes = with_names(attributes)
    definition = definition_of(attributes, kind)

    async def find() -> ChannelOpened:
        return await connection.ask(OpenChannel(name, kind), ChannelOpened)

    async def create(*, resend: bool) -> ChannelOpened:
        return await connection.ask(CreateChannel(name, definition), ChannelOpened, resend=resend)

    def check(existing: ChannelOpened) -> None:
        differences = differing_attributes(attributes, definition, existing.definition)
        refuse_differences(f"{kind} {existing.name}", differences)

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
    """Return the definition of a channel or queue with ``attributes``. The other attributes are
    those of ``current``, or the defaults without it.

    Raises ``InvalidArgument``. ``words`` are the names of types in the text of that error, as they
    are written in Python or in JSON.
    """
    attributes = with_names(attributes)
    tree: dict[str, Any] = msgspec.to_builtins(current) if current is not None else {}
    allowed = attributes_of(kind)
    names = [name for name in Definition.__struct_fields__ if name in allowed]
    unknown = sorted(set(attributes) - set(names))
    if unknown:
        raise InvalidArgument(
            f"a {kind} has no attribute {', '.join(unknown)}; allowed are {', '.join(names)}"
        )
    storage = attributes.get("storage")
    if storage is not None and not isinstance(storage, Mapping):
        raise InvalidArgument(f"storage must be a dictionary, not {type(storage).__name__}")
    _check_storage(storage or {})
    merged_storage = {**tree.get("storage", {}), **(storage or {})}
    if _GROUP_TIME in merged_storage:
        group_time = _milliseconds(merged_storage[_GROUP_TIME], f"storage.{_GROUP_TIME}", words)
        merged_storage[_GROUP_TIME] = group_time
    if attributes.get("backoff") is not None:
        attributes = {**attributes, "backoff": backoff_of(attributes["backoff"], words=words)}
    if "ttl" in attributes:
        attributes = {**attributes, "ttl": _milliseconds(attributes["ttl"], "ttl", words)}
    if attributes.get("descriptors"):
        attributes = {**attributes, "descriptors": _descriptors(attributes["descriptors"])}
    if isinstance(topics := attributes.get("topics"), str):
        attributes = {**attributes, "topics": [topics] if topics else []}
    tree = {**tree, **attributes, "storage": merged_storage, "kind": kind}
    definition = _converted(tree, Definition, f"the {kind}", words=words)
    _check_integers(tree)
    return definition


def backoff_of(value: object, *, words: Mapping[str, str] = PYTHON) -> Backoff | None:
    """Convert the backoff that a user passes: a dictionary whose times are milliseconds, texts such
    as ``"5s"`` or timedeltas. None means no backoff.

    Raises ``InvalidArgument``. ``words`` are the names of types in the text of that error.
    """
    if value is None or isinstance(value, Backoff):
        return value
    if not isinstance(value, Mapping):
        raise InvalidArgument(
            f"backoff is {value!r}; give a dictionary such as {{'first': '1s', 'most': '5m'}}"
        )
    names = [field.name for field in msgspec.structs.fields(Backoff)]
    if unknown := sorted(str(name) for name in set(value) - set(names)):
        raise InvalidArgument(
            f"backoff has no {', '.join(unknown)}; allowed are {', '.join(names)}"
        )
    tree = dict(value)
    for name in ("first", "most"):
        if isinstance(tree.get(name), str | timedelta):
            tree[name] = milliseconds(tree[name], f"backoff.{name}")
    backoff = _converted(tree, Backoff, "backoff", words=words)
    check_backoff(backoff)
    return backoff


def _milliseconds(value: object, name: str, words: Mapping[str, str]) -> object:
    """Return a duration in whole milliseconds, and any value that is neither a text nor a
    ``timedelta`` unchanged.

    Raises ``InvalidArgument``, which calls the value ``name``, for other texts and negative times.
    """
    ms = whole_ms(value)
    if isinstance(ms, str | timedelta) and words is PYTHON:
        raise InvalidArgument(
            f"{name} is {value!r}; give whole milliseconds, 0 or more, {EXAMPLES}"
        )
    return ms


def _converted(tree: Mapping[str, Any], kind: type[T], whole: str, words: Mapping[str, str]) -> T:
    """Convert ``tree`` to an object of the class ``kind``.

    Raises ``InvalidArgument``, which names the wrong value, or ``whole`` if the error concerns no
    single value.
    """
    try:
        return msgspec.convert(tree, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidArgument(explain(error, tree, kind=kind, whole=whole, words=words)) from error


def _check_integers(tree: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ``InvalidArgument`` if ``tree`` contains an integer that MessagePack cannot encode.
    ``prefix`` begins the names in the error."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _check_integers(value, f"{prefix}{name}.")
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise InvalidArgument(f"{prefix}{name} must fit into 64 bits, not {value}")


def _descriptors(value: object) -> bytes:
    """Return the serialized Protocol Buffers descriptors of ``value``.

    Raises ``InvalidArgument`` if ``value`` does not contain descriptors, or if they are too large.
    """
    # Imported here, because it loads Arrow.
    from penstock_core.columns.protobuf import descriptor_set
    from penstock_core.columns.protobuf.descriptors import check_size

    try:
        descriptors = descriptor_set(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"descriptors: {error}") from error
    check_size(descriptors)
    return descriptors


def _check_storage(storage: Mapping[str, Any]) -> None:
    """Raise ``InvalidArgument`` for storage properties that do not exist or cannot be sent."""
    names = [field.name for field in msgspec.structs.fields(Storage)]
    unknown = sorted(str(name) for name in set(storage) - set(names))
    if unknown:
        raise InvalidArgument(
            f"storage has no property {', '.join(unknown)}; allowed are {', '.join(names)}"
        )
    if storage.get("sync", "group") not in ("group", "none"):
        raise InvalidArgument(f"storage.sync must be 'group' or 'none', not {storage['sync']!r}")
