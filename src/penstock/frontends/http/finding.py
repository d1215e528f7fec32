"""Channels and queues by the names in a path."""

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
    """A channel or queue that was there a moment ago."""

    number: ChannelId
    name: str
    kind: Kind
    definition: Definition


async def found(call: Call[Any, Any]) -> Store:
    """The channel or queue that a path names. Raises ``NameDoesNotExist``, ``InvalidName``."""
    return await store_of(call.realm, *named(call))


async def store_of(realm: RunningRealm, name: str, kind: Kind) -> Store:
    """Raises ``NameDoesNotExist``, ``InvalidName``."""
    opened = await realm.open_channel(name, kind)
    return Store(opened.channel, opened.name, kind, opened.definition)


def may_read(call: Call[Any, Any], store: Store) -> None:
    """What chooses or counts events tells something about them: it asks for the right to read
    them, beside the right of what is done. Raises ``AccessDenied``."""
    call.may(READING[store.kind], store.name)


def may_read_at(call: Call[Any, Any], name: str) -> None:
    """As :func:`may_read`, of a name that was given. Raises ``AccessDenied``, ``InvalidName``."""
    known = destination_name(name)
    call.may(READING[call.seen_as(known)], known)


def may_write_at(call: Call[Any, Any], name: str) -> None:
    """Publishing, or pushing, there. Raises ``AccessDenied``, ``InvalidName``."""
    known = destination_name(name)
    call.may(WRITING[call.seen_as(known)], known)


def start_of(text: str) -> AnyStart:
    """Where a read begins (SEM E6). Raises ``InvalidArgument``."""
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
    """The event id in ``after``; None: there is none. Raises ``InvalidArgument``."""
    if not text:
        return None
    if text.isdecimal() and len(text) < 19:
        return int(text)
    raise InvalidArgument(f"after={text!r}: pass the value of 'next' from the page before")
