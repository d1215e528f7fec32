"""Finds channels and queues by the names in a path, and checks rights on them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from penstock.api.operations import READING, WRITING
from penstock.api.requests import Kind
from penstock.core.vocabulary.errors import InvalidArgument
from penstock.core.vocabulary.identities import ChannelId
from penstock.core.vocabulary.messages import Definition
from penstock.core.vocabulary.names import destination_name
from penstock.core.vocabulary.start_positions import (
    AnyStart,
    FromEarliest,
    FromId,
    FromLatest,
    FromTime,
)
from penstock.frontends.http.routing import Call, named
from penstock.runtime.realm import RunningRealm

_MICROSECONDS = 1_000_000


class Store(Struct, frozen=True):
    """A channel or queue, as it was when it was looked up."""

    number: ChannelId
    name: str
    kind: Kind
    definition: Definition


async def found(call: Call[Any, Any]) -> Store:
    """The channel or queue that the path names. Raises ``NameDoesNotExist``, ``InvalidName``."""
    return await store_of(call.realm, *named(call))


async def store_of(realm: RunningRealm, name: str, kind: Kind) -> Store:
    """The channel or queue of a name. Raises ``NameDoesNotExist``, ``InvalidName``."""
    opened = await realm.open_channel(name, kind)
    return Store(opened.channel, opened.name, kind, opened.definition)


def may_read(call: Call[Any, Any], store: Store) -> None:
    """Check the right to read a store. Selecting and counting events reveals something about them,
    so this is asked for besides the operation's own right. Raises ``AccessDenied``."""
    call.may(READING[store.kind], store.name)


def may_read_at(call: Call[Any, Any], name: str) -> None:
    """Check the right to read the channel or queue of a name that a client gave. Raises
    ``AccessDenied``, ``InvalidName``."""
    known = destination_name(name)
    call.may(READING[call.seen_as(known)], known)


def may_write_at(call: Call[Any, Any], name: str) -> None:
    """Check the right to publish to the channel or queue of a name that a client gave. Raises
    ``AccessDenied``, ``InvalidName``."""
    known = destination_name(name)
    call.may(WRITING[call.seen_as(known)], known)


def start_of(text: str) -> AnyStart:
    """Parse a start position (SEM E6). Raises ``InvalidArgument``."""
    if text == "earliest":
        return FromEarliest()
    if text == "latest":
        return FromLatest()
    if text.isdecimal() and len(text) < 19:
        return FromId(int(text))
    try:
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return FromTime(int(aware.timestamp() * _MICROSECONDS))
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{text!r} is not a start position; give earliest, latest, an event id such as 42, or "
            f"a time such as 2026-05-04T12:00:00"
        ) from None


def cursor_of(text: str) -> int | None:
    """The event id in ``after``; None if it is empty. Raises ``InvalidArgument``."""
    if not text:
        return None
    if text.isdecimal() and len(text) < 19:
        return int(text)
    raise InvalidArgument(f"after={text!r}: pass the value of 'next' from the page before")
