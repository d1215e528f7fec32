"""Handlers of requests about users, groups and rights."""

from __future__ import annotations

import secrets

from penstock_core.api import access
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.wire.scram import NONCE_BYTES, is_proven
from penstock_server.runtime.access.accounts import new_password
from penstock_server.runtime.operations.callers import Caller


async def log_in(by: Caller, asked: access.LogIn) -> access.LoggedIn:
    to = by.realm.access
    host = by.principal.host
    checked = to.accounts.password_mark(asked.user)  # it may change while it is checked
    principal = await to.password(asked.user, asked.password, host, secure=by.is_secure)
    to.require(principal, "session.open")
    opened = await to.logins.open(principal, checked)
    to.signed_in(principal, "console")
    return access.LoggedIn(id=opened.id, csrf=opened.csrf, me=to.me(principal))


async def log_out(by: Caller, asked: access.LogOut) -> None:
    await by.realm.access.logins.close(asked.id)


async def change_password(by: Caller, asked: access.ChangePassword) -> None:
    to = by.realm.access
    to.check_private(by.principal.host, secure=by.is_secure)
    await to.change_own(by.principal, asked.old, asked.new)


async def reset_password(by: Caller, asked: access.ResetPassword) -> None:
    to = by.realm.access
    if to.is_own_password(by.principal, asked.name):
        raise IllegalState(
            "change your own password at me/password, which also asks for the old one"
        )
    await to.accounts.set_password(asked.name, asked.password)


async def add_user(by: Caller, asked: access.AddUser) -> access.CreatedUser:
    password = new_password() if asked.password is None else asked.password
    made = await by.realm.access.accounts.create_user(asked.name, password)
    return access.CreatedUser(name=made.name, password=password if asked.password is None else None)


async def who(by: Caller, _: access.WhoAmI) -> access.Me:
    return by.realm.access.me(by.principal)


async def users(by: Caller, _: access.ListUsers) -> list[access.UserInfo]:
    return by.realm.access.accounts.users()


async def groups(by: Caller, _: access.ListGroups) -> list[access.GroupInfo]:
    return by.realm.access.accounts.groups()


async def entries(by: Caller, asked: access.ListEntries) -> access.AclInfo:
    return by.realm.access.accounts.entries(asked.kind, asked.name)


async def begin_password(by: Caller, _: access.BeginPassword) -> access.PasswordChallenge:
    known = by.realm.access.own_verifier(by.principal)
    by.password_nonce = secrets.token_bytes(NONCE_BYTES)
    return access.PasswordChallenge(salt=known.salt, rounds=known.rounds, nonce=by.password_nonce)


async def set_password(by: Caller, asked: access.SetPassword) -> None:
    to = by.realm.access
    nonce, by.password_nonce = by.password_nonce, b""  # each nonce is valid for one try
    if to.is_own_password(by.principal, asked.name):
        said = access.change_said(nonce, asked.name, asked.verifier)
        await to.check_old(
            by.principal, lambda known: bool(nonce) and is_proven(asked.proof, known, said)
        )
    await to.accounts.set_password(asked.name, asked.verifier)


def check_exists(directory: Directory, kind: str, name: str) -> None:
    """Raise ``NameDoesNotExist`` for a grant on a channel or queue that does not exist. Patterns
    such as ``orders/*`` may be granted before anything matches them."""
    if kind in ("channel", "queue") and not name.endswith("*"):
        directory.channel_id_of(name, kind)


async def grant(by: Caller, asked: access.Grant) -> access.AclInfo:
    check_exists(by.realm.directory, asked.kind, asked.name)
    return await by.realm.access.accounts.grant(
        asked.kind, asked.name, asked.subject, rights=asked.rights
    )


async def delete_user(by: Caller, asked: access.DeleteUser) -> None:
    """Delete a user, and end the sessions of MQTT that would outlive it."""
    await by.realm.access.accounts.delete_user(asked.name)
    if by.realm.connections.mqtt is not None:
        await by.realm.connections.mqtt.end_sessions_of(asked.name)
