"""Resolves AMQP addresses to channels and queues, which are created at their first use."""

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
"""Capabilities of a terminus: with those in ``TOPIC`` a client asks for a topic, with those in
``QUEUE`` for a queue."""
_SCHEMES: Final[dict[str, Kind]] = {"topic://": "channel", "queue://": "queue"}

TOPIC_DEFINITION: Final = Definition(engine="jms")
"""Definition of a topic created at its first use: a channel with the rules of JMS."""
QUEUE_DEFINITION: Final = Definition(kind="queue")


class LinkDestination(Struct, frozen=True):
    """The channel or queue that a link sends to or receives from."""

    number: ChannelId
    """Id of the channel or queue."""
    name: str
    kind: Kind
    is_jms: bool = False
    """Whether the rules of JMS topics apply."""


def kind_in(capabilities: frozenset[str]) -> Kind | None:
    """Return the kind of destination named by a terminus's capabilities, or None."""
    if capabilities & TOPIC:
        return "channel"
    return "queue" if capabilities & QUEUE else None


def parse_address(address: str, kind: Kind | None) -> tuple[str, Kind | None]:
    """Return the name in an address, and ``kind`` or the kind that the address's scheme implies.
    Raises ``InvalidName``."""
    for scheme, scheme_kind in _SCHEMES.items():
        if address.startswith(scheme):
            return destination_name(address.removeprefix(scheme)), kind or scheme_kind
    return destination_name(address), kind


SEND_OPERATIONS: Final[dict[Kind, str]] = {
    "queue": operation_on(PublishEvents, "queue"),
    "channel": operation_on(PublishEvents, "channel"),
}
READ_OPERATIONS: Final[dict[Kind, str]] = {
    "queue": operation_on(Attach, "queue"),
    "channel": operation_on(Subscribe, "channel"),
}
BROWSE_OPERATIONS: Final[dict[Kind, str]] = {
    "queue": operation_on(WatchEvents, "queue"),
    "channel": operation_on(Subscribe, "channel"),
}
"""The operations that a link needs the right to, by kind of destination: for sending, for consuming
and for browsing."""


async def resolve_destination(
    realm: RunningRealm,
    principal: Principal,
    address: str,
    kind: Kind | None,
    needs: dict[Kind, str],
) -> LinkDestination:
    """Return the destination that an address names. A missing one is created if the client has the
    right to create it.

    ``needs`` names the operation that the client needs the right to, by kind. Raises
    ``NameDoesNotExist`` if the destination is a queue and a topic is expected, or the reverse, and
    if it was temporary and has been deleted; ``InvalidName``; ``AccessDenied``.
    """
    name, kind = parse_address(address, kind)
    destination = find_destination(realm, principal, name, kind=kind, needs=needs)
    if destination is not None:
        return destination
    if is_temporary(name):
        raise NameDoesNotExist(f"temporary destination {name} no longer exists")
    # The same refusal as for an existing destination that the client may not see: an error must not
    # reveal which names exist.
    if not realm.access.allows(principal, operation_on(CreateChannel, kind or "queue")):
        raise _access_denied(principal, name, kind, needs=needs)
    kind = kind or "queue"
    definition = TOPIC_DEFINITION if kind == "channel" else QUEUE_DEFINITION
    return await create_destination(realm, principal, name, kind=kind, definition=definition)


def find_destination(
    realm: RunningRealm,
    principal: Principal,
    name: str,
    kind: Kind | None,
    needs: dict[Kind, str],
) -> LinkDestination | None:
    """Return the destination with a name; None if it does not exist. Raises ``NameDoesNotExist`` if
    it has another kind, ``AccessDenied`` if ``principal`` may not see it."""
    store = realm.view.named(name)
    if store is None:
        return None
    actual_kind = store.definition.kind
    link_kind: Kind = "queue" if actual_kind == "queue" else "channel"
    is_visible = realm.access.visible(principal, link_kind, [name])
    if not is_visible and not realm.access.allows(principal, needs[link_kind], name):
        raise _access_denied(principal, name, kind, needs=needs)
    if actual_kind != link_kind or (kind is not None and actual_kind != kind):
        expected_kind = "topic" if kind == "channel" else "queue"
        raise NameDoesNotExist(f"{name} is a {actual_kind}, not a {expected_kind}")
    return LinkDestination(store.number, name, link_kind, store.is_jms)


def _access_denied(
    principal: Principal, name: str, kind: Kind | None, needs: dict[Kind, str]
) -> AccessDenied:
    """Return the error for a destination that is missing or hidden; the text is the same for both.
    A ``kind`` of None stands for any kind."""
    kinds: tuple[Kind, ...] = (kind,) if kind else ("queue", "channel")
    rights = " or ".join(repr(needs[named_kind].partition(".")[2]) for named_kind in kinds)
    return AccessDenied(
        f"{principal.name} lacks {rights} on {name}, or the right 'channels' to create "
        "it if it does not exist; a user with the right 'manage_acl' can grant these rights"
    )


async def create_destination(
    realm: RunningRealm, principal: Principal, name: str, kind: Kind, definition: Definition
) -> LinkDestination:
    """Create a destination, or return the one that another client has just created. Raises
    ``AccessDenied``."""
    try:
        created = await execute(Caller(realm, principal), CreateChannel(name, definition))
    except NameAlreadyBound:
        destination = find_destination(realm, principal, name, kind=kind, needs=SEND_OPERATIONS)
        if destination is None:
            raise
        return destination
    return LinkDestination(created.channel, name, kind, is_jms=definition.engine == "jms")


def temporary_name(kind: Kind) -> str:
    """Return a new random name for a temporary destination. Other clients cannot guess it."""
    return f"temp-{'topic' if kind == 'channel' else 'queue'}-{secrets.token_hex(16)}"


async def delete_temporary(realm: RunningRealm, destination: LinkDestination) -> None:
    """Delete a temporary destination at the end of its link or connection."""
    async with realm.access.naming(destination.name):
        try:
            await realm.delete_channel(destination.name, destination.kind)
        except NameDoesNotExist:
            return
        await realm.access.deleted(destination.kind, destination.name)


# --- names of durables --------------------------------------------------------------------

_PLAIN: Final = re.compile(r"[A-Za-z0-9/\-_.]")
"""Characters that names of durables contain unchanged. Others are escaped, also ``:`` and ``@``,
which separate the parts of the name."""


def durable_name_of(client: str, name: str, *, volatile: bool) -> str:
    """Return the name of a subscription's durable: ``client:name``, or ``name`` without a client.
    Characters that are not allowed in names become ``#`` and their UTF-8 bytes in hex.

    Raises ``InvalidName`` if the subscription's name is empty or the result is too long.
    """
    text = f"{_escaped(client)}:{_escaped(name)}" if client else _escaped(name)
    if volatile:
        text += "@volatile"
    if not name or len(text) > NAME_LENGTH_MAX:
        raise InvalidName(
            f"subscription {name[:40]!r} of client {client[:40]!r} needs a durable name of "
            f"{len(text)} characters; allowed are 1 to {NAME_LENGTH_MAX}"
        )
    return text


def _escaped(text: str) -> str:
    return "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"#{byte:02x}" for byte in char.encode())
        for char in text
    )
