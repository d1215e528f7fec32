"""Reply queues of requesting sessions: their creation, the look-up by replying clients, and their
removal (SEM R2, R3).

Reply queues and the temporary destinations of AMQP count together for the limits of a session and
of a user (R4)."""

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
    """Creates a channel or queue; with ``temporary`` a temporary destination."""

    async def __call__(
        self, name: str, definition: Definition, *, temporary: bool = False
    ) -> ChannelOpened: ...


class StoreOperations(Struct, frozen=True):
    """The realm's operations on channels and queues that reply queues need."""

    create: CreateStore
    open: Callable[[str, Kind], Awaitable[ChannelOpened]]
    delete: Callable[[str, Kind], Awaitable[None]]


class _OwnedStore(Struct):
    """A temporary destination of a session."""

    share: ShareMeter
    """Meter of the memory that the temporary destinations of the session's user take."""
    is_made: bool = False
    """Whether the destination was created; False while it is being created."""


class TemporaryOwners:
    """The temporary destinations of each session. A restart of the realm ends all sessions and
    loses the events in memory. After a restart a reply queue belongs to its user, and later to the
    first session of this user that reads it."""

    def __init__(self, state: RealmState) -> None:
        self._state = state
        self._sessions: dict[str, dict[str, _OwnedStore]] = {}
        """Owned destinations by session and name."""
        self._session_of: dict[str, str] = {}
        """Sessions by the name of the destination."""
        self._shares: WeakValueDictionary[str, ShareMeter] = WeakValueDictionary()
        """Memory shares by user; the user is empty if the realm does not authenticate users."""

    @contextmanager
    def making(self, name: str, session: str, user: str) -> Iterator[None]:
        """Reserve a destination for a session while the ``with`` block creates it. Raises
        ``LimitReached``."""
        share = self._share_of(user)
        # Reserved before the creation, so that concurrent requests cannot exceed the limit.
        destination = self._claim(session, name, share)
        owned = self._sessions[session]
        try:
            yield
        except BaseException:
            del owned[name]
            self._session_of.pop(name, None)
            raise
        destination.is_made = True
        number = self._state.directory.find(name)
        if number is not None:
            self._state.stores[number].charge(share)

    def restore(self, user_of: Callable[[str], str]) -> None:
        """Charge events in the reply queues of earlier runs to their users. ``user_of`` returns the
        user of a destination; empty if the user is not known."""
        for number, machine in self._state.directory.temporary.items():
            if is_reply_queue(machine.state.name):
                self._state.stores[number].charge(self._share_of(user_of(machine.state.name)))

    def ended(self) -> list[tuple[str, Kind]]:
        """Return the temporary queues and topics whose connections a restart has ended."""
        return [
            (machine.state.name, "queue" if machine.state.definition.kind == "queue" else "channel")
            for machine in self._state.directory.temporary.values()
            if machine.state.name not in self._session_of and not is_reply_queue(machine.state.name)
        ]

    def check(self, number: int, session_for: Callable[[str], str]) -> None:
        """Raise ``DurableInUse`` if a temporary destination does not belong to the session that
        wants to consume from it (SEM R2).

        ``session_for`` returns the session that wants to consume; over HTTP it has the name of the
        destination itself. A reply queue without an owner after a restart goes to the first session
        that consumes from it, which may raise ``LimitReached``.
        """
        machine = self._state.directory.temporary.get(number)
        if machine is None:
            return
        name = machine.state.name
        session, owner = session_for(name), self._session_of.get(name)
        share = self._state.stores[number].share
        if owner is None and is_reply_queue(name) and share is not None:
            self._claim(session, name, share).is_made = True
        elif owner != session:
            raise DurableInUse(
                f"{name} belongs to another session, and only that session may consume from it; "
                f"create a temporary destination in this session"
            )

    def _share_of(self, user: str) -> ShareMeter:
        """Return the meter of a user's temporary destinations; a new one for a new user."""
        share = self._shares.get(user)
        if share is None:
            share = self._shares[user] = ShareMeter(self._state.meter)
        return share

    def _claim(self, session: str, name: str, share: ShareMeter) -> _OwnedStore:
        """Record a destination of a session. Raises ``LimitReached``."""
        self._forget_deleted(session)
        owned = self._sessions.setdefault(session, {})
        if len(owned) >= SESSION_STORES_MAX:
            raise LimitReached(
                f"the session has {len(owned)} temporary queues and topics; allowed are "
                f"{SESSION_STORES_MAX}; delete one, or use one for several requests"
            )
        self._session_of[name] = session
        owned[name] = _OwnedStore(share)
        return owned[name]

    def forget_deleted(self) -> None:
        """Forget the destinations that were deleted."""
        for session in list(self._sessions):
            self._forget_deleted(session)

    def _forget_deleted(self, session: str) -> None:
        owned, find = self._sessions.get(session, {}), self._state.directory.find
        # A destination that is being created does not exist yet, but counts already.
        deleted = [
            name
            for name, destination in owned.items()
            if destination.is_made and find(name) is None
        ]
        for name in deleted:
            del owned[name]
            self._session_of.pop(name, None)  # another session may create this name again
        if not owned:
            self._sessions.pop(session, None)


class ReplyQueues:
    """Creates, finds and removes reply queues; it is ``realm.reply_queues``."""

    def __init__(self, state: RealmState, stores: StoreOperations) -> None:
        self._directory = state.directory
        self._stores = stores
        self._idle = IdleReplyQueues(state.directory.rules.event_timeout_us)
        self.owners = TemporaryOwners(state)

    async def open(
        self, access: AccessControl, by: Principal, name: str, session: str, user: str
    ) -> ChannelOpened:
        """Create the reply queue ``name`` of a session, or open it if it exists and the principal
        may read it. ``user`` is empty if the realm does not authenticate users. Raises
        ``InvalidArgument``, ``AccessDenied``, ``LimitReached``."""
        _check(name)
        # The lock is held until the queue has its rights, so that no other session can open it
        # before.
        async with access.naming(name):
            if self._directory.find(name) is not None:
                access.require(by, operation_on(Attach, "queue"), name)
                return await self._stores.open(name, "queue")
            with self.owners.making(name, session, user):
                opened = await self._stores.create(name, TEMPORARY["queue"], temporary=True)
            await access.grant_temporary(by, "queue", name)
        return opened

    async def close(self, access: AccessControl, by: Principal, name: str) -> None:
        """Remove a queue for its user; a queue that was removed before raises no error. Raises
        ``InvalidArgument``, ``AccessDenied``."""
        _check(name)
        async with access.naming(name):
            if self._directory.find(name) is None:
                return
            access.require(by, operation_on(Attach, "queue"), name)
            await self._remove(access, name)

    async def open_address(self, address: str) -> ChannelOpened:
        """Return the channel or queue that a reply is published to. Raises ``NameDoesNotExist``,
        ``InvalidName``."""
        name = destination_name(name_in_address(address))
        number = self._directory.find(name)
        kind = None if number is None else self._directory.channels[number].state.definition.kind
        if kind is None or kind in HIDDEN_KINDS:
            if is_temporary(name):
                raise NameDoesNotExist(
                    f"{name} no longer exists: the requesting session has ended, so this reply is "
                    "not needed"
                )
            raise NameDoesNotExist(
                f"channel or queue {name}, to which the request wants its reply, does not exist"
            )
        return await self._stores.open(name, "queue" if kind == "queue" else "channel")

    async def remove_idle(self, access: AccessControl) -> None:
        """Remove the reply queues that had no reader for the realm's ``event_timeout``, because
        their sessions have ended without removing them. Also remove the temporary queues and topics
        whose connections a restart has ended."""
        self.owners.forget_deleted()
        await self.remove_ended(access)
        now_us = int(asyncio.get_running_loop().time() * 1_000_000)
        for name in self._idle.due(self._with_readers(), now_us):
            async with access.naming(name):
                await self._remove(access, name)

    async def remove_ended(self, access: AccessControl) -> None:
        """Remove the temporary queues and topics that :meth:`TemporaryOwners.ended` returns."""
        for name, kind in self.owners.ended():
            async with access.naming(name):
                await self._remove(access, name, kind)

    async def make_temporary(
        self, access: AccessControl, by: Principal, kind: Kind, name: str, session: str, user: str
    ) -> ChannelOpened:
        """Create a temporary queue or topic for its connection. It counts for the same limits as
        reply queues. Raises ``AccessDenied``, ``LimitReached``."""
        async with (
            access.naming(name),
            access.act(by, operation_on(CreateChannel, kind), "", target=name),
        ):
            with self.owners.making(name, session, user):
                opened = await self._stores.create(name, TEMPORARY[kind], temporary=True)
            await access.created(by, kind, name)
        return opened

    async def _remove(self, access: AccessControl, name: str, kind: Kind = "queue") -> None:
        """Delete a store and the rights on it, if it still exists."""
        try:
            await self._stores.delete(name, kind)
        except NameDoesNotExist:
            return
        await access.deleted(kind, name)

    def _with_readers(self) -> Iterator[tuple[str, bool]]:
        """Yield the name of each reply queue, and whether it has a reader."""
        for channel in self._directory.temporary.values():
            if not is_reply_queue(channel.state.name):
                continue
            readers = channel.state.durables.get(READERS)
            yield channel.state.name, readers is not None and bool(readers.seats)


def _check(name: str) -> None:
    if not is_reply_queue(name):
        raise InvalidArgument(
            f"{name[:80]!r} is not a valid name of a reply queue; use {REPLY_QUEUE_PREFIX} and 32 "
            "random hexadecimal digits"
        )
