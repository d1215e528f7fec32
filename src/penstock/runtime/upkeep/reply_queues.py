"""Reply queues: made for sessions that ask, found by those that reply, and removed (SEM R2, R3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from msgspec import Struct

from penstock.api.channels import ChannelOpened
from penstock.api.operations import operation_on
from penstock.api.requests import Kind
from penstock.api.subscriptions import Attach
from penstock.core.access.rights import Principal
from penstock.core.durable.queue import READERS
from penstock.core.realm.directory import HIDDEN_KINDS, Directory
from penstock.core.vocabulary.errors import InvalidArgument, NameDoesNotExist
from penstock.core.vocabulary.messages import Definition
from penstock.core.vocabulary.names import destination_name
from penstock.core.vocabulary.temporary import (
    REPLY_QUEUE_PREFIX,
    TEMPORARY,
    IdleReplyQueues,
    is_reply_queue,
    is_temporary,
    name_in_address,
)
from penstock.runtime.access.access import AccessControl


class StoreOperations(Struct, frozen=True):
    """What the realm does with a channel or queue of a name."""

    create: Callable[[str, Definition], Awaitable[ChannelOpened]]
    open: Callable[[str, Kind], Awaitable[ChannelOpened]]
    delete: Callable[[str, Kind], Awaitable[None]]


class ReplyQueues:
    """Held by the realm as ``realm.reply_queues``."""

    def __init__(self, directory: Directory, stores: StoreOperations) -> None:
        self._directory = directory
        self._stores = stores
        self._idle = IdleReplyQueues(directory.rules.event_timeout_us)

    async def open(self, access: AccessControl, by: Principal, name: str) -> ChannelOpened:
        """Create the queue for its user, or open it again for that user alone. Raises
        ``InvalidArgument``, ``AccessDenied``."""
        _check(name)
        async with access.naming(name):
            if self._directory.find(name) is not None:
                access.require(by, operation_on(Attach, "queue"), name)
                return await self._stores.open(name, "queue")
            opened = await self._stores.create(name, TEMPORARY["queue"])
            await access.lent(by, "queue", name)
        return opened

    async def close(self, access: AccessControl, by: Principal, name: str) -> None:
        """Remove the queue of its user; one that is gone already is no mistake. Raises
        ``InvalidArgument``, ``AccessDenied``."""
        _check(name)
        async with access.naming(name):
            if self._directory.find(name) is None:
                return
            access.require(by, operation_on(Attach, "queue"), name)
            await self._remove(access, name)

    async def open_address(self, address: str) -> ChannelOpened:
        """Find where a reply goes: a channel or a queue, whichever has the name. Raises
        ``NameDoesNotExist``, ``InvalidName``."""
        name = destination_name(name_in_address(address))
        number = self._directory.find(name)
        kind = None if number is None else self._directory.channels[number].state.definition.kind
        if kind is None or kind in HIDDEN_KINDS:
            if is_temporary(name):
                raise NameDoesNotExist(
                    f"{name} no longer exists: the session that asked has ended, and nobody waits "
                    "for this reply"
                )
            raise NameDoesNotExist(
                f"there is no channel or queue {name}, where the request wants its reply"
            )
        return await self._stores.open(name, "queue" if kind == "queue" else "channel")

    async def remove_idle(self, access: AccessControl) -> None:
        """Remove the queues that nobody has read for the realm's ``event_timeout``: their sessions
        have ended without a word."""
        now_us = int(asyncio.get_running_loop().time() * 1_000_000)
        for name in self._idle.due(self._found(), now_us):
            async with access.naming(name):
                await self._remove(access, name)

    async def _remove(self, access: AccessControl, name: str) -> None:
        try:
            await self._stores.delete(name, "queue")
        except NameDoesNotExist:
            return
        await access.deleted("queue", name)

    def _found(self) -> Iterator[tuple[str, bool]]:
        """Each reply queue, and whether it has a reader."""
        for channel in self._directory.temporary.values():
            if not is_reply_queue(channel.state.name):
                continue
            readers = channel.state.durables.get(READERS)
            yield channel.state.name, readers is not None and bool(readers.seats)


def _check(name: str) -> None:
    if not is_reply_queue(name):
        raise InvalidArgument(
            f"{name[:80]!r} is no name of a reply queue; choose {REPLY_QUEUE_PREFIX} and 32 "
            "random hexadecimal digits"
        )
