"""Users, groups and rights of a realm: ``session.access`` (SEM A)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.if_missing import created, deleted, found_or_created
from penstock.client.handles.named import StoreLike, name_of_store
from penstock.client.handles.near_names import near_names
from penstock_core.api.access import (
    SALT_BYTES,
    AclInfo,
    AuditRecord,
    BeginPassword,
    ChangeGroup,
    CreateGroup,
    CreateUser,
    DeleteGroup,
    DeleteUser,
    Grant,
    GroupInfo,
    ListEntries,
    ListGroups,
    ListUsers,
    Me,
    PasswordChallenge,
    ReadAudit,
    Revoke,
    SetPassword,
    UserInfo,
    Verifier,
    WhoAmI,
    password_change_message,
)
from penstock_core.api.channels import ListChannels
from penstock_core.display import safe_repr
from penstock_core.vocabulary.errors import InvalidArgument, NameAlreadyBound, NameDoesNotExist
from penstock_core.wire.scram import check_length, check_rounds, proof_of, verifier

_USERS: Any = list[UserInfo]
_GROUPS: Any = list[GroupInfo]
_RECORDS: Any = list[AuditRecord]


class Access:
    """The users, groups and rights of a realm: ``session.access`` (SEM A).

    :meth:`me` and changing one's own password need no right. :meth:`grant` and :meth:`revoke`
    on a channel or queue need ``manage_acl`` there; all other methods need rights on the realm.
    """

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    @safe_repr
    def __repr__(self) -> str:
        return f"<Access {self._connection.standing}>"

    async def me(self) -> Me:
        """Return the user of this session and its rights on the realm."""
        return await self._connection.ask(WhoAmI(), Me)

    # --- users ---------------------------------------------------------------------------

    async def users(self) -> list[UserInfo]:
        """Return all users, by name."""
        return await self._connection.ask(ListUsers(), _USERS)

    async def create_user(
        self, name: str, password: str | None = None, *, if_missing: bool = False
    ) -> UserInfo:
        """Create a user. Without ``password``, the user can only sign in with a token or a
        certificate.

        The password does not leave this process; the realm receives a verifier. With
        ``if_missing``, an existing user is returned unchanged, with the password it has. Raises
        ``NameAlreadyBound``, ``InvalidArgument``.
        """

        async def create() -> UserInfo:
            verifier = await self._verifier(password) if password is not None else None
            return await self._connection.ask(
                CreateUser(name, verifier), UserInfo, resend=if_missing
            )

        if not if_missing:
            return await create()
        user, _ = await found_or_created(lambda: self._user(name), create)
        return user

    async def _user(self, name: str) -> UserInfo:
        """Return the description of a user. Raises ``NameDoesNotExist``."""
        for user in await self.users():
            if user.name == name:
                return user
        raise NameDoesNotExist(f"user {name} does not exist")

    async def set_password(self, name: str, password: str, old: str | None = None) -> None:
        """Set the password of a user. Users who change their own password pass the present one as
        ``old``.

        Neither password leaves this process. Raises ``NameDoesNotExist``, ``InvalidArgument``, and
        ``AuthenticationFailed`` if ``old`` is wrong.
        """
        verifier = await self._verifier(password)
        proof = b"" if old is None else await self._proof(name, verifier, old)
        message = SetPassword(name, verifier, proof)
        async with near_names(name, self._user_names):
            # A proof is valid once, so a request with a proof cannot be sent again.
            await self._connection.request(message, resend=old is None)

    async def _proof(self, name: str, verifier: Verifier, old: str) -> bytes:
        """Return a proof that the caller knows the old password. It is valid only for a nonce of
        the realm and for the new verifier."""
        challenge = await self._connection.ask(BeginPassword(), PasswordChallenge)
        # A hostile server could ask for so many rounds that the client computes for hours.
        check_rounds(challenge.rounds)
        change = password_change_message(challenge.nonce, name, verifier)
        return await asyncio.to_thread(
            proof_of, old, challenge.salt, rounds=challenge.rounds, message=change
        )

    async def delete_user(self, name: str) -> None:
        """Delete a user and end its sessions immediately. Raises ``NameDoesNotExist``, and
        ``IllegalState`` for the last user with administrative rights."""
        message = DeleteUser(name)
        find = partial(self._user, name)
        async with near_names(name, self._user_names):
            await deleted(lambda: self._connection.request(message, resend=False), find)

    async def _user_names(self) -> Sequence[str]:
        return [user.name for user in await self.users()]

    async def _verifier(self, password: str) -> Verifier:
        """Return a verifier for a password, computed with the number of rounds that the realm's
        settings require."""
        me = await self.me()
        check_length(password, me.password_length_min)
        check_rounds(me.password_rounds)
        salt = secrets.token_bytes(SALT_BYTES)
        return await asyncio.to_thread(verifier, password, salt, rounds=me.password_rounds)

    # --- groups --------------------------------------------------------------------------

    async def groups(self) -> list[GroupInfo]:
        """Return all groups, by name."""
        return await self._connection.ask(ListGroups(), _GROUPS)

    async def create_group(
        self, name: str, members: Iterable[str] = (), *, if_missing: bool = False
    ) -> GroupInfo:
        """Create a group of users. With ``if_missing``, an existing group is returned if it
        contains all of ``members``; it may contain more. Raises ``NameAlreadyBound``,
        ``InvalidArgument``."""
        message = CreateGroup(name, tuple(members))

        async def create(*, resend: bool) -> GroupInfo:
            return await self._connection.ask(message, GroupInfo, resend=resend)

        def check(group: GroupInfo) -> None:
            if missing_members := sorted({*message.members} - {*group.members}):
                raise NameAlreadyBound(
                    f"group {name} exists without {', '.join(missing_members)}; change_group adds "
                    f"members"
                )

        find = partial(self._group, name)
        return await created(find, create, check, if_missing=if_missing)

    async def _group(self, name: str) -> GroupInfo:
        """Return the description of a group. Raises ``NameDoesNotExist``."""
        for group in await self.groups():
            if group.name == name:
                return group
        raise NameDoesNotExist(f"group {name} does not exist")

    async def change_group(
        self, name: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> GroupInfo:
        """Add users to a group and remove users from it, by name. Return the group. Raises
        ``NameDoesNotExist``."""
        message = ChangeGroup(name, tuple(add), tuple(remove))
        async with near_names(name, self._group_names):
            return await self._connection.ask(message, GroupInfo)

    async def delete_group(self, name: str) -> None:
        """Delete a group and revoke all rights granted to it. Raises ``NameDoesNotExist``."""
        message = DeleteGroup(name)
        find = partial(self._group, name)
        async with near_names(name, self._group_names):
            await deleted(lambda: self._connection.request(message, resend=False), find)

    async def _group_names(self) -> Sequence[str]:
        return [group.name for group in await self.groups()]

    # --- rights --------------------------------------------------------------------------

    async def entries(
        self, *, channel: StoreLike = "", queue: StoreLike = "", topic: str = ""
    ) -> AclInfo:
        """Return the rights granted on a channel, a queue or an MQTT topic filter. If none of the
        three is named, return the rights granted on the realm."""
        kind, name = _resource(channel, queue, topic)
        return await self._connection.ask(ListEntries(kind, name), AclInfo)

    async def _stores(self, kind: str) -> Sequence[str]:
        """Return the names of all channels or queues; an empty list for other kinds."""
        if kind not in ("channel", "queue"):
            return []
        names: list[str] = await self._connection.request(
            ListChannels("channel" if kind == "channel" else "queue")
        )
        return names

    async def topics(self) -> list[str]:
        """Return the MQTT topic filters on which rights are granted (SEM M15)."""
        return [*(await self._connection.ask(ListEntries("topic"), AclInfo)).topics]

    async def grant(
        self,
        subject: str,
        *rights: str,
        channel: StoreLike = "",
        queue: StoreLike = "",
        topic: str = "",
    ) -> AclInfo:
        """Grant rights on a channel, a queue or an MQTT topic filter (SEM M15), or on the realm if
        none of the three is named. Return all rights granted there now::

            await session.access.grant("ann@*", "publish", "subscribe", channel="orders")

        A subject is ``user@host``, with ``*`` for any user or host, or ``group:name``. Raises
        ``InvalidArgument``, ``NameDoesNotExist``.
        """
        kind, name = _resource(channel, queue, topic)
        message = Grant(kind, name, subject, rights=rights)
        async with near_names(name, partial(self._stores, kind)):
            return await self._connection.ask(message, AclInfo)

    async def revoke(
        self,
        subject: str,
        *rights: str,
        channel: StoreLike = "",
        queue: StoreLike = "",
        topic: str = "",
    ) -> AclInfo:
        """Revoke rights of a subject on a channel, queue, MQTT topic filter or the realm; if
        ``rights`` is empty, all its rights there. Return all rights granted there now.

        Subscriptions that lose a required right end immediately with ``AccessDenied``.
        """
        kind, name = _resource(channel, queue, topic)
        message = Revoke(kind, name, subject, rights=rights)
        return await self._connection.ask(message, AclInfo)

    async def audit(
        self, limit: int = 100, *, before: int | None = None, kind: str = "acts"
    ) -> list[AuditRecord]:
        """Return up to ``limit`` audit records, newest first. With ``before``, only records with a
        lower number are returned.

        ``kind`` is ``"acts"`` (administration), ``"sign-ins"`` or ``"refusals"``.
        """
        return await self._connection.ask(ReadAudit(limit, before, kind), _RECORDS)


def _resource(channel: StoreLike, queue: StoreLike, topic: str) -> tuple[str, str]:
    """Return the kind and name of the resource whose argument is not empty; the kind ``realm`` if
    all are empty. Raises ``InvalidArgument`` if several are not empty."""
    names = {"channel": name_of_store(channel), "queue": name_of_store(queue), "topic": topic}
    resources = [(kind, name) for kind, name in names.items() if name]
    if len(resources) > 1:
        raise InvalidArgument(
            "rights are for one resource; give only one of channel, queue and topic"
        )
    return resources[0] if resources else ("realm", "")
