"""AMQP addresses: each names a channel or queue of the realm, created at its first use."""

from __future__ import annotations

import re
import secrets
from typing import Final, Literal

from msgspec import Struct

from penstock_core.access.rights import Principal
from penstock_core.api.channels import CreateChannel
from penstock_core.api.operations import operation_on
from penstock_core.api.publishing import PublishEvents
from penstock_core.api.reading import WatchEvents
from penstock_core.api.subscriptions import Attach, Subscribe
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    AccessDenied,
    InvalidName,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import NAME_LENGTH_MAX, destination_name
from penstock_core.vocabulary.temporary import is_temporary
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import execute
from penstock_server.runtime.realm import RunningRealm

Kind = Literal["channel", "queue"]

TOPIC: Final = frozenset({"topic", "temporary-topic"})
QUEUE: Final = frozenset({"queue", "temporary-queue"})
_SCHEMES: Final[dict[str, Kind]] = {"topic://": "channel", "queue://": "queue"}

TOPIC_DEFINITION: Final = Definition(engine="jms")
"""Definition of a topic that is created at its first use: a channel with the rules of JMS."""
QUEUE_DEFINITION: Final = Definition(kind="queue")


class LinkDestination(Struct, frozen=True):
    """A channel or queue, as a link knows it."""

    number: ChannelId
    name: str
    kind: Kind
    is_jms: bool = False
    """Whether the rules of JMS topics apply."""


def wanted_kind(capabilities: frozenset[str]) -> Kind | None:
    """The kind of destination that the capabilities of a terminus name; None: either kind."""
    if capabilities & TOPIC:
        return "channel"
    return "queue" if capabilities & QUEUE else None


def parsed(address: str, kind: Kind | None) -> tuple[str, Kind | None]:
    """The name in an address, and the kind that its scheme says. Raises ``InvalidName``."""
    for scheme, meant in _SCHEMES.items():
        if address.startswith(scheme):
            return destination_name(address.removeprefix(scheme)), kind or meant
    return destination_name(address), kind


SENDS: Final[dict[Kind, str]] = {
    "queue": operation_on(PublishEvents, "queue"),
    "channel": operation_on(PublishEvents, "channel"),
}
TAKES: Final[dict[Kind, str]] = {
    "queue": operation_on(Attach, "queue"),
    "channel": operation_on(Subscribe, "channel"),
}
LOOKS: Final[dict[Kind, str]] = {
    "queue": operation_on(WatchEvents, "queue"),
    "channel": operation_on(Subscribe, "channel"),
}
"""The operation that a link needs, by kind of destination: to send, to take events, to browse."""


async def resolved(
    realm: RunningRealm,
    principal: Principal,
    address: str,
    kind: Kind | None,
    needs: dict[Kind, str],
) -> LinkDestination:
    """The destination that an address names. A missing one is created if the client may create it.

    A client that may neither see nor create it gets one and the same refusal, whether it exists or
    not.

    Raises ``NameDoesNotExist`` for a queue where a topic is meant and the reverse, and for
    temporary destinations that are gone; ``InvalidName``, ``AccessDenied``.
    """
    name, kind = parsed(address, kind)
    known = found(realm, principal, name, kind=kind, needs=needs)
    if known is not None:
        return known
    if is_temporary(name):
        raise NameDoesNotExist(f"temporary destination {name} no longer exists")
    if not realm.access.allows(principal, operation_on(CreateChannel, kind or "queue")):
        raise _hidden(principal, name, kind, needs=needs)
    kind = kind or "queue"
    definition = TOPIC_DEFINITION if kind == "channel" else QUEUE_DEFINITION
    return await made(realm, principal, name, kind=kind, definition=definition)


def found(
    realm: RunningRealm,
    principal: Principal,
    name: str,
    kind: Kind | None,
    needs: dict[Kind, str],
) -> LinkDestination | None:
    """The destination of a name, if it exists. Raises ``NameDoesNotExist`` for one of another kind,
    and ``AccessDenied`` for one that ``principal`` may not even see."""
    store = realm.view.named(name)
    if store is None:
        return None
    is_kind = store.definition.kind
    seen_as: Kind = "queue" if is_kind == "queue" else "channel"
    is_seen = realm.access.visible(principal, seen_as, [name])
    if not is_seen and not realm.access.allows(principal, needs[seen_as], name):
        raise _hidden(principal, name, kind, needs=needs)
    if is_kind != seen_as or (kind is not None and is_kind != kind):
        wanted = "topic" if kind == "channel" else "queue"
        raise NameDoesNotExist(f"{name} is a {is_kind}, not a {wanted}")
    return LinkDestination(store.number, name, seen_as, store.is_jms)


def _hidden(
    principal: Principal, name: str, kind: Kind | None, needs: dict[Kind, str]
) -> AccessDenied:
    kinds: tuple[Kind, ...] = (kind,) if kind else ("queue", "channel")
    rights = " or ".join(repr(needs[each].partition(".")[2]) for each in kinds)
    return AccessDenied(
        f"{principal.name} lacks {rights} on {name}, or it does not exist and 'channels', the "
        "right to make it, is missing; a user with the right 'manage_acl' can grant it"
    )


async def made(
    realm: RunningRealm, principal: Principal, name: str, kind: Kind, definition: Definition
) -> LinkDestination:
    """Create a destination, or use the one that somebody else created meanwhile. Raises
    ``AccessDenied``."""
    try:
        opened = await execute(Caller(realm, principal), CreateChannel(name, definition))
    except NameAlreadyBound:
        known = found(realm, principal, name, kind=kind, needs=SENDS)
        if known is None:
            raise
        return known
    return LinkDestination(opened.channel, name, kind, is_jms=definition.engine == "jms")


def temporary_name(kind: Kind) -> str:
    """Choose a name that cannot be guessed."""
    return f"temp-{'topic' if kind == 'channel' else 'queue'}-{secrets.token_hex(16)}"


async def remove(realm: RunningRealm, destination: LinkDestination) -> None:
    """Delete a temporary destination; it lives as long as its connection."""
    async with realm.access.naming(destination.name):
        try:
            await realm.delete_channel(destination.name, destination.kind)
        except NameDoesNotExist:
            return
        await realm.access.deleted(destination.kind, destination.name)


# --- names of durables --------------------------------------------------------------------

_PLAIN: Final = re.compile(r"[A-Za-z0-9/\-_.]")


def durable_name_of(client: str, name: str, *, volatile: bool) -> str:
    """The name of a subscription's durable, ``client:name``; without a client just ``name``.
    Characters that names must not have are written as ``#`` and their UTF-8 in hex.

    Raises ``InvalidName`` for a name that is too long.
    """
    text = f"{_escaped(client)}:{_escaped(name)}" if client else _escaped(name)
    if volatile:
        text += "@volatile"
    if not name or len(text) > NAME_LENGTH_MAX:
        raise InvalidName(
            f"subscription {name[:40]!r} of client {client[:40]!r} makes a name of {len(text)} "
            f"characters; a name may have 1 to {NAME_LENGTH_MAX}"
        )
    return text


def _escaped(text: str) -> str:
    return "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"#{byte:02x}" for byte in char.encode())
        for char in text
    )
