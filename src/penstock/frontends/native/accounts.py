"""Requests about users, groups, rights and the audit log (SEM A1-A3)."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from penstock.api import access as wire
from penstock.core.realm.directory import Directory
from penstock.wire.scram import NONCE_BYTES, is_proven

if TYPE_CHECKING:
    from penstock.frontends.native.connection import Connection


class AccountRequests:
    """Those of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._realm = connection.realm
        self._nonce = b""
        """Of the change of a password that has begun."""

    async def answer(self, message: wire.AccessRequest) -> Any:
        """Do what ``message`` asks; whether it may was asked before."""
        access = self._realm.access
        match message:
            case wire.WhoAmI():
                principal = self._connection.principal
                assert principal is not None, "it was welcomed"
                return access.me(principal)
            case wire.ListUsers():
                return access.accounts.users()
            case wire.ListGroups():
                return access.accounts.groups()
            case wire.ListEntries(_, kind, name):
                return access.accounts.entries(kind, name)
            case wire.BeginPassword():
                return self._challenge()
            case wire.ReadAudit(_, limit, before, kind):
                return await access.audit.read(kind=kind, before=before, limit=limit)
            case _:
                return await self._changed(message)

    def _challenge(self) -> wire.PasswordChallenge:
        principal = self._connection.principal
        assert principal is not None, "it was welcomed"
        known = self._realm.access.own_verifier(principal)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        return wire.PasswordChallenge(salt=known.salt, rounds=known.rounds, nonce=self._nonce)

    async def _set_password(self, message: wire.SetPassword) -> None:
        access, principal = self._realm.access, self._connection.principal
        assert principal is not None, "it was welcomed"
        nonce, self._nonce = self._nonce, b""  # each is good for one try
        if access.is_own_password(principal, message.name):
            said = wire.change_said(nonce, message.name, message.verifier)
            await access.check_old(
                principal, lambda known: bool(nonce) and is_proven(message.proof, known, said)
            )
        await access.accounts.set_password(message.name, message.verifier)

    def _changed(self, message: wire.AccessRequest) -> Awaitable[Any]:
        accounts = self._realm.access.accounts
        match message:
            case wire.CreateUser(_, name, verifier):
                return accounts.create_user(name, verifier)
            case wire.SetPassword():
                return self._set_password(message)
            case wire.DeleteUser(_, name):
                return accounts.delete_user(name)
            case wire.CreateGroup(_, name, members):
                return accounts.create_group(name, members)
            case wire.ChangeGroup(_, name, add, remove):
                return accounts.change_group(name, add, remove)
            case wire.DeleteGroup(_, name):
                return accounts.delete_group(name)
            case wire.Grant(_, kind, name, subject, rights):
                check_exists(self._realm.directory, kind, name)
                return accounts.grant(kind, name, subject, rights)
            case wire.Revoke(_, kind, name, subject, rights):
                return accounts.revoke(kind, name, subject, rights)
            case _:
                raise AssertionError(f"{type(message).__name__} changes nothing")


def check_exists(directory: Directory, kind: str, name: str) -> None:
    """Raises ``NameDoesNotExist`` for a grant on a channel or queue there is not; patterns such as
    ``orders/*`` may come before what they are about."""
    if kind in ("channel", "queue") and not name.endswith("*"):
        directory.number_of(name, kind)
