"""Handlers of requests about users, groups and rights."""

from __future__ import annotations

import secrets

from penstock_core.api import access
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.wire.scram import NONCE_BYTES, is_proven
from penstock_server.runtime.access.access import TOKEN_S
from penstock_server.runtime.access.accounts import new_password
from penstock_server.runtime.access.logins import BrowserLogin, Logins
from penstock_server.runtime.operations.callers import Caller


async def log_in(caller: Caller, request: access.LogIn) -> access.LoggedIn:
    control = caller.realm.access
    login = await _open_session(control.logins, caller, request)
    control.signed_in(login.principal, "console")
    return access.LoggedIn(id=login.id, csrf=login.csrf, me=control.me(login.principal))


async def issue_token(caller: Caller, request: access.IssueToken) -> access.IssuedToken:
    control = caller.realm.access
    if control.is_open:
        # A realm without authentication ignores passwords and tokens, so that a program that signs
        # in works with every realm.
        login = await control.issued_tokens.open(control.anonymous(caller.principal.host))
    else:
        login = await _open_session(control.issued_tokens, caller, request)
        control.signed_in(login.principal, "token")
    return access.IssuedToken(token=login.id, lifetime_s=TOKEN_S)


async def _open_session(
    logins: Logins, caller: Caller, request: access.LogIn | access.IssueToken
) -> BrowserLogin:
    """Check a password and open a session in ``logins``. Raises ``AuthenticationFailed``,
    ``SignInLocked``, ``InsecureConnection``, ``AccessDenied``."""
    control = caller.realm.access
    host = caller.principal.host
    # Read before the check. If the password changes during the check, the digest is outdated and
    # the new session ends immediately.
    checked_password = control.accounts.password_mark(request.user)
    principal = await control.password(
        request.user, request.password, host, secure=caller.is_secure
    )
    control.require(principal, "session.open")
    return await logins.open(principal, checked_password)


async def log_out(caller: Caller, request: access.LogOut) -> None:
    await caller.realm.access.logins.close(request.id)


async def change_password(caller: Caller, request: access.ChangePassword) -> None:
    control = caller.realm.access
    control.check_private(caller.principal.host, secure=caller.is_secure)
    await control.change_own(caller.principal, request.old, request.new)


async def reset_password(caller: Caller, request: access.ResetPassword) -> None:
    control = caller.realm.access
    if control.is_own_password(caller.principal, request.name):
        raise IllegalState(
            "change your own password at me/password, which also requires the old one"
        )
    await control.accounts.set_password(request.name, request.password)


async def add_user(caller: Caller, request: access.AddUser) -> access.CreatedUser:
    password = new_password() if request.password is None else request.password
    user = await caller.realm.access.accounts.create_user(request.name, password)
    return access.CreatedUser(
        name=user.name, password=password if request.password is None else None
    )


async def describe_caller(caller: Caller, _: access.WhoAmI) -> access.Me:
    return caller.realm.access.me(caller.principal)


async def list_users(caller: Caller, _: access.ListUsers) -> list[access.UserInfo]:
    return caller.realm.access.accounts.users()


async def list_groups(caller: Caller, _: access.ListGroups) -> list[access.GroupInfo]:
    return caller.realm.access.accounts.groups()


async def list_entries(caller: Caller, request: access.ListEntries) -> access.AclInfo:
    return caller.realm.access.accounts.entries(request.kind, request.name)


async def begin_password(caller: Caller, _: access.BeginPassword) -> access.PasswordChallenge:
    verifier = caller.realm.access.own_verifier(caller.principal)
    caller.password_nonce = secrets.token_bytes(NONCE_BYTES)
    return access.PasswordChallenge(
        salt=verifier.salt, rounds=verifier.rounds, nonce=caller.password_nonce
    )


async def set_password(caller: Caller, request: access.SetPassword) -> None:
    control = caller.realm.access
    nonce, caller.password_nonce = caller.password_nonce, b""  # each nonce is valid for one try
    if control.is_own_password(caller.principal, request.name):
        message = access.password_change_message(nonce, request.name, request.verifier)
        await control.check_old(
            caller.principal,
            lambda verifier: bool(nonce) and is_proven(request.proof, verifier, message),
        )
    await control.accounts.set_password(request.name, request.verifier)


def check_exists(directory: Directory, kind: str, name: str) -> None:
    """Raise ``NameDoesNotExist`` for a grant on a channel or queue that does not exist. Rights on a
    pattern such as ``orders/*`` may be granted before a channel matches it."""
    if kind in ("channel", "queue") and not name.endswith("*"):
        directory.channel_id_of(name, kind)


async def grant(caller: Caller, request: access.Grant) -> access.AclInfo:
    check_exists(caller.realm.directory, request.kind, request.name)
    return await caller.realm.access.accounts.grant(
        request.kind, request.name, request.subject, rights=request.rights
    )


async def delete_user(caller: Caller, request: access.DeleteUser) -> None:
    """Delete a user, and end the user's MQTT sessions, which would otherwise stay."""
    await caller.realm.access.accounts.delete_user(request.name)
    if caller.realm.connections.mqtt is not None:
        await caller.realm.connections.mqtt.end_sessions_of(request.name)
