"""Users, groups and rights of a realm: ``session.access`` (SEM A)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.if_missing import created, deleted, found_or_created
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
    change_said,
)
from penstock_core.api.channels import ListChannels
from penstock_core.vocabulary.errors import InvalidArgument, NameAlreadyBound, NameDoesNotExist
from penstock_core.wire.scram import check_length, check_rounds, proof_of, verifier

_USERS: Any = list[UserInfo]
_GROUPS: Any = list[GroupInfo]
_RECORDS: Any = list[AuditRecord]


class Access:
    """Who may do what. All but :meth:`me` and one's own password need rights on the realm,
    :meth:`grant` and :meth:`revoke` on a channel or queue ``manage_acl`` there."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    async def me(self) -> Me:
        """Who this session is, and its rights on the realm."""
        return await self._connection.ask(WhoAmI(), Me)

    # --- users ---------------------------------------------------------------------------

    async def users(self) -> list[UserInfo]:
        """All users, by name."""
        return await self._connection.ask(ListUsers(), _USERS)

    async def create_user(
        self, name: str, password: str | None = None, *, if_missing: bool = False
    ) -> UserInfo:
        """Without a password the user signs in with a token or certificate only. Only what
        verifies the password is sent. With ``if_missing`` a user that exists stays as it is,
        password and all. Raises ``NameAlreadyBound``, ``InvalidArgument``."""

        async def create() -> UserInfo:
            made = await self._verifier(password) if password is not None else None
            return await self._connection.ask(CreateUser(name, made), UserInfo, resend=if_missing)

        if not if_missing:
            return await create()
        found, _ = await found_or_created(lambda: self._user(name), create)
        return found

    async def _user(self, name: str) -> UserInfo:
        for each in await self.users():
            if each.name == name:
                return each
        raise NameDoesNotExist(f"there is no user {name}")

    async def set_password(self, name: str, password: str, old: str | None = None) -> None:
        """Set the password of a user; for one's own, the ``old`` one is needed. Raises
        ``NameDoesNotExist``, ``InvalidArgument``, ``AuthenticationFailed``."""
        made = await self._verifier(password)
        proof = b"" if old is None else await self._proof(name, made, old)
        message = SetPassword(name, made, proof)
        async with near_names(name, self._user_names):
            await self._connection.request(message, resend=old is None)  # a proof is valid once

    async def _proof(self, name: str, made: Verifier, old: str) -> bytes:
        """That the old password is known; it does not leave this process either."""
        asked = await self._connection.ask(BeginPassword(), PasswordChallenge)
        check_rounds(asked.rounds)
        said = change_said(asked.nonce, name, made)
        return await asyncio.to_thread(proof_of, old, asked.salt, rounds=asked.rounds, said=said)

    async def delete_user(self, name: str) -> None:
        """The user's sessions end at once. Raises ``NameDoesNotExist``, ``IllegalState`` for the
        last one who may administer."""
        message = DeleteUser(name)
        find = partial(self._user, name)
        async with near_names(name, self._user_names):
            await deleted(lambda: self._connection.request(message, resend=False), find)

    async def _user_names(self) -> Sequence[str]:
        return [each.name for each in await self.users()]

    async def _verifier(self, password: str) -> Verifier:
        """A verifier for a password, computed as slowly as the realm's settings want it; the
        password does not leave this process."""
        me = await self.me()
        check_length(password, me.password_length_min)
        check_rounds(me.password_rounds)
        salt = secrets.token_bytes(SALT_BYTES)
        return await asyncio.to_thread(verifier, password, salt, rounds=me.password_rounds)

    # --- groups --------------------------------------------------------------------------

    async def groups(self) -> list[GroupInfo]:
        """All groups, by name."""
        return await self._connection.ask(ListGroups(), _GROUPS)

    async def create_group(
        self, name: str, members: Iterable[str] = (), *, if_missing: bool = False
    ) -> GroupInfo:
        """With ``if_missing`` a group that exists is given out if it has these members, and
        perhaps others. Raises ``NameAlreadyBound``, ``InvalidArgument``."""
        message = CreateGroup(name, tuple(members))

        async def create(*, resend: bool) -> GroupInfo:
            return await self._connection.ask(message, GroupInfo, resend=resend)

        def check(found: GroupInfo) -> None:
            if lacking := sorted({*message.members} - {*found.members}):
                raise NameAlreadyBound(
                    f"group {name} exists without {', '.join(lacking)}; change_group adds members"
                )

        find = partial(self._group, name)
        return await created(find, create, check, if_missing=if_missing)

    async def _group(self, name: str) -> GroupInfo:
        for each in await self.groups():
            if each.name == name:
                return each
        raise NameDoesNotExist(f"there is no group {name}")

    async def change_group(
        self, name: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> GroupInfo:
        """Members are names of users. Raises ``NameDoesNotExist``."""
        message = ChangeGroup(name, tuple(add), tuple(remove))
        async with near_names(name, self._group_names):
            return await self._connection.ask(message, GroupInfo)

    async def delete_group(self, name: str) -> None:
        """Delete a group with what was granted to it. Raises ``NameDoesNotExist``."""
        message = DeleteGroup(name)
        find = partial(self._group, name)
        async with near_names(name, self._group_names):
            await deleted(lambda: self._connection.request(message, resend=False), find)

    async def _group_names(self) -> Sequence[str]:
        return [each.name for each in await self.groups()]

    # --- rights --------------------------------------------------------------------------

    async def entries(self, *, channel: str = "", queue: str = "", topic: str = "") -> AclInfo:
        """What is granted on a channel, a queue, a topic filter of MQTT, or the realm."""
        kind, name = _resource(channel, queue, topic)
        return await self._connection.ask(ListEntries(kind, name), AclInfo)

    async def _stores(self, kind: str) -> Sequence[str]:
        """The names that rights of this kind may be for; none for topics and the realm."""
        if kind not in ("channel", "queue"):
            return []
        names: list[str] = await self._connection.request(
            ListChannels("channel" if kind == "channel" else "queue")
        )
        return names

    async def topics(self) -> list[str]:
        """The topic filters of MQTT on which something is granted (SEM M15)."""
        return [*(await self._connection.ask(ListEntries("topic"), AclInfo)).topics]

    async def grant(
        self, subject: str, *rights: str, channel: str = "", queue: str = "", topic: str = ""
    ) -> AclInfo:
        """Add rights on a channel, a queue, a topic filter of MQTT (SEM M15), or the realm; gives
        all that is granted there now.

        A subject is ``user@host``, with ``*`` for any of either, or ``group:name``. Raises
        ``InvalidArgument``, ``NameDoesNotExist``.
        """
        kind, name = _resource(channel, queue, topic)
        message = Grant(kind, name, subject, rights=rights)
        async with near_names(name, partial(self._stores, kind)):
            return await self._connection.ask(message, AclInfo)

    async def revoke(
        self, subject: str, *rights: str, channel: str = "", queue: str = "", topic: str = ""
    ) -> AclInfo:
        """Revoke rights, or all of them if none is named. Subscriptions that lose a right they need
        end at once with ``AccessDenied``."""
        kind, name = _resource(channel, queue, topic)
        message = Revoke(kind, name, subject, rights=rights)
        return await self._connection.ask(message, AclInfo)

    async def audit(
        self, limit: int = 100, *, before: int | None = None, kind: str = "acts"
    ) -> list[AuditRecord]:
        """The newest acts of administration, or the newest below number ``before``; the newest
        first. ``kind`` is ``acts``, ``sign-ins`` or ``refusals``."""
        return await self._connection.ask(ReadAudit(limit, before, kind), _RECORDS)


def _resource(channel: str, queue: str, topic: str) -> tuple[str, str]:
    named = {"channel": channel, "queue": queue, "topic": topic}
    given = [(kind, name) for kind, name in named.items() if name]
    if len(given) > 1:
        raise InvalidArgument("give a channel, a queue or a topic, and not two of them")
    return given[0] if given else ("realm", "")
