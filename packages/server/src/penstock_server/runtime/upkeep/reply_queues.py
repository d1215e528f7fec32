"""Reply queues: made for sessions that ask, found by those that reply, and removed (SEM R2, R3).

The temporary destinations of AMQP count with them for what a session and a user may have (R4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakValueDictionary

from msgspec import Struct

from penstock_core.access.rights import Principal
from penstock_core.api.channels import ChannelOpened, CreateChannel
from penstock_core.api.operations import operation_on
from penstock_core.api.requests import Kind
from penstock_core.api.subscriptions import Attach
from penstock_core.durable.queue import READERS
from penstock_core.realm.directory import HIDDEN_KINDS
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    DurableInUse,
    InvalidArgument,
    LimitReached,
    NameDoesNotExist,
)
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.temporary import (
    REPLY_QUEUE_PREFIX,
    SESSION_STORES_MAX,
    TEMPORARY,
    IdleReplyQueues,
    is_reply_queue,
    is_temporary,
    name_in_address,
)
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.store.tail_batch import ShareMeter


class CreateStore(Protocol):
    """Makes a channel or queue; with ``temporary`` a temporary destination."""

    async def __call__(
        self, name: str, definition: Definition, *, temporary: bool = False
    ) -> ChannelOpened: ...


class StoreOperations(Struct, frozen=True):
    """What the realm does with a channel or queue of a name."""

    create: CreateStore
    open: Callable[[str, Kind], Awaitable[ChannelOpened]]
    delete: Callable[[str, Kind], Awaitable[None]]


class _Owned(Struct):
    share: ShareMeter
    is_made: bool = False


class TemporaryOwners:
    """The temporary destinations of each session. A restart of the realm forgets the sessions, and
    the events in memory; a reply queue is then its user's, and that of the session which reads it
    first."""

    def __init__(self, state: RealmState) -> None:
        self._state = state
        self._sessions: dict[str, dict[str, _Owned]] = {}
        """By session, and the name of the destination."""
        self._session_of: dict[str, str] = {}
        """By the name of the destination."""
        self._shares: WeakValueDictionary[str, ShareMeter] = WeakValueDictionary()
        """By user; empty where the realm does not know its users."""

    @contextmanager
    def making(self, name: str, session: str, user: str) -> Iterator[None]:
        """Held while a session makes a destination. Raises ``LimitReached``."""
        share = self._share_of(user)
        made = self._own(session, name, share)
        owned = self._sessions[session]
        try:
            yield
        except BaseException:
            del owned[name]
            self._session_of.pop(name, None)
            raise
        made.is_made = True
        number = self._state.directory.find(name)
        if number is not None:
            self._state.stores[number].charge(share)

    def restore(self, user_of: Callable[[str], str]) -> None:
        """Count what is published to the reply queues of before the start with their users.
        ``user_of`` tells the user of a destination; empty where the realm does not know it."""
        for number, machine in self._state.directory.temporary.items():
            if is_reply_queue(machine.state.name):
                self._state.stores[number].charge(self._share_of(user_of(machine.state.name)))

    def ended(self) -> list[tuple[str, Kind]]:
        """The temporary queues and topics whose connections a restart has ended."""
        return [
            (machine.state.name, "queue" if machine.state.definition.kind == "queue" else "channel")
            for machine in self._state.directory.temporary.values()
            if machine.state.name not in self._session_of and not is_reply_queue(machine.state.name)
        ]

    def check(self, number: int, session_of: Callable[[str], str]) -> None:
        """Raise ``DurableInUse`` where a temporary destination belongs to another session than the
        one that would consume from it (SEM R2). ``session_of`` has that for a name. After a restart
        the first session that may consume owns it. Raises ``LimitReached``, too."""
        machine = self._state.directory.temporary.get(number)
        if machine is None:
            return
        name = machine.state.name
        session, owner = session_of(name), self._session_of.get(name)
        share = self._state.stores[number].share
        if owner is None and is_reply_queue(name) and share is not None:
            self._own(session, name, share).is_made = True
        elif owner != session:
            raise DurableInUse(
                f"{name} was made by another session, which alone may consume from it; make a "
                f"temporary destination in this session"
            )

    def _share_of(self, user: str) -> ShareMeter:
        share = self._shares.get(user)
        if share is None:
            share = self._shares[user] = ShareMeter(self._state.meter)
        return share

    def _own(self, session: str, name: str, share: ShareMeter) -> _Owned:
        """Raises ``LimitReached``."""
        self._forget_deleted(session)
        owned = self._sessions.setdefault(session, {})
        if len(owned) >= SESSION_STORES_MAX:
            raise LimitReached(
                f"the session has {len(owned)} temporary queues and topics; allowed are "
                f"{SESSION_STORES_MAX}; delete one, or use one for several requests"
            )
        self._session_of[name] = session
        owned[name] = _Owned(share)
        return owned[name]

    def forget_deleted(self) -> None:
        """Forget the destinations that do not exist any more."""
        for session in list(self._sessions):
            self._forget_deleted(session)

    def _forget_deleted(self, session: str) -> None:
        owned, find = self._sessions.get(session, {}), self._state.directory.find
        for name in [name for name, it in owned.items() if it.is_made and find(name) is None]:
            del owned[name]
            self._session_of.pop(name, None)  # a later one of its name may be another session's
        if not owned:
            self._sessions.pop(session, None)


class ReplyQueues:
    """Held by the realm as ``realm.reply_queues``."""

    def __init__(self, state: RealmState, stores: StoreOperations) -> None:
        self._directory = state.directory
        self._stores = stores
        self._idle = IdleReplyQueues(state.directory.rules.event_timeout_us)
        self.owners = TemporaryOwners(state)

    async def open(
        self, access: AccessControl, by: Principal, name: str, session: str, user: str
    ) -> ChannelOpened:
        """Create the queue for its user, or open it again for that user alone. ``user`` is empty
        where the realm does not know its users. Raises ``InvalidArgument``, ``AccessDenied``,
        ``LimitReached``."""
        _check(name)
        async with access.naming(name):
            if self._directory.find(name) is not None:
                access.require(by, operation_on(Attach, "queue"), name)
                return await self._stores.open(name, "queue")
            with self.owners.making(name, session, user):
                opened = await self._stores.create(name, TEMPORARY["queue"], temporary=True)
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
        have ended without a word. Temporary queues and topics end with their connection, also
        where a restart has ended it."""
        self.owners.forget_deleted()
        await self.remove_ended(access)
        now_us = int(asyncio.get_running_loop().time() * 1_000_000)
        for name in self._idle.due(self._found(), now_us):
            async with access.naming(name):
                await self._remove(access, name)

    async def remove_ended(self, access: AccessControl) -> None:
        """Remove the temporary queues and topics whose connections a restart has ended."""
        for name, kind in self.owners.ended():
            async with access.naming(name):
                await self._remove(access, name, kind)

    async def make_temporary(
        self, access: AccessControl, by: Principal, kind: Kind, name: str, session: str, user: str
    ) -> ChannelOpened:
        """Create a temporary queue or topic for its connection: it counts with the reply queues for
        what a session and a user may have. Raises ``AccessDenied``, ``LimitReached``."""
        async with (
            access.naming(name),
            access.act(by, operation_on(CreateChannel, kind), "", target=name),
        ):
            with self.owners.making(name, session, user):
                opened = await self._stores.create(name, TEMPORARY[kind], temporary=True)
            await access.created(by, kind, name)
        return opened

    async def _remove(self, access: AccessControl, name: str, kind: Kind = "queue") -> None:
        try:
            await self._stores.delete(name, kind)
        except NameDoesNotExist:
            return
        await access.deleted(kind, name)

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
