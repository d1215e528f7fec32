"""Users, groups, rights, and the audit log (SEM A)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from penstock_core.access.acl import Entry
from penstock_core.api.requests import Request
from penstock_core.bounds import ENTRIES_MAX, Count, GivenName, Name, Number, Subject

SALT_BYTES = 16
"""Length of the salt of a verifier."""
KEY_BYTES = 32
"""Length of the keys of a verifier, and of a proof of a password."""


class Verifier(Struct, frozen=True):
    """The stored form of a password. It verifies the password, but cannot recover it."""

    salt: Annotated[bytes, Meta(min_length=SALT_BYTES, max_length=SALT_BYTES)]
    rounds: Number
    """The PBKDF2 iteration count."""
    stored_key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    server_key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]

    def __repr__(self) -> str:
        return f"Verifier(rounds={self.rounds})"


class CreatedUser(Struct, frozen=True, kw_only=True):
    """A user that was created."""

    name: str
    password: str | None
    """The password if the realm generated it; it cannot be read again."""

    def __repr__(self) -> str:
        return f"CreatedUser({self.name})"


class PasswordChallenge(Struct, frozen=True, kw_only=True):
    """The parameters of the stored old password, and a nonce that makes its proof valid for one
    change only."""

    salt: bytes
    rounds: int
    nonce: bytes


def password_change_message(nonce: bytes, name: str, verifier: Verifier) -> bytes:
    """Return the bytes that a proof of the old password signs, so that it is valid for this change
    only."""
    fields = (nonce, name, verifier.salt, verifier.rounds, verifier.stored_key, verifier.server_key)
    return b"password change " + msgspec.msgpack.encode(fields)


class UserInfo(Struct, frozen=True, kw_only=True):
    """The description of a user."""

    name: str
    groups: tuple[str, ...] = ()
    """Groups of the realm that the user belongs to."""
    has_password: bool = True
    created_us: int = 0
    changed_us: int = 0


class GroupInfo(Struct, frozen=True, kw_only=True):
    """The description of a group of the realm."""

    name: str
    members: tuple[str, ...] = ()


class AclInfo(Struct, frozen=True, kw_only=True):
    """The access control list of one resource."""

    kind: str
    """``realm``, ``channel``, ``queue`` or ``topic``."""
    name: str = ""
    """Name of the channel or queue, or a topic filter of MQTT; empty for the realm. ``folder/*``
    and ``*`` stand for all channels or queues below a folder or of the realm."""
    entries: tuple[Entry, ...] = ()
    topics: tuple[str, ...] = ()
    """The topic filters that have grants, in the answer to a request about topics without a
    name."""


class Me(Struct, frozen=True, kw_only=True):
    """The present user, as the realm sees it."""

    user: str
    host: str
    groups: tuple[str, ...] = ()
    mode: str = "off"
    """Whether the realm has authentication: ``off``, ``optional``, ``mandatory``."""
    realm: tuple[str, ...] = ()
    """Rights of the user on the realm."""
    password_rounds: int = 200_000
    """The PBKDF2 iteration count for verifiers of new passwords; fewer are refused."""
    password_length_min: int = 1
    """Minimum length of a new password in characters. The client checks it, because the realm
    receives only a verifier."""


class AuditRecord(Struct, frozen=True, kw_only=True):
    """An entry of the audit log."""

    number: int
    at_us: int
    principal: str
    """The user who performed the operation, as ``user@host``."""
    operation: str
    target: str = ""
    outcome: str = "done"
    """``done``, or the code of the error."""
    detail: dict[str, Any] = {}


class LoggedIn(Struct, frozen=True, kw_only=True):
    """A browser session that was opened. ``repr`` does not show its secrets."""

    id: str
    """The secret that the browser sends with each request."""
    csrf: str
    """The token that the browser sends with every request that changes state."""
    me: Me

    def __repr__(self) -> str:
        return f"LoggedIn({self.me.user})"


class WhoAmI(Request[Me], frozen=True):
    """Describe the current user."""


class LogIn(Request[LoggedIn], frozen=True):
    """Open a browser session with a password. Every client that can connect may send this
    request."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"LogIn({self.user!r})"


class IssuedToken(Struct, frozen=True, kw_only=True):
    """A token that stands for a user's password. ``repr`` does not show it."""

    token: str
    lifetime_s: int

    def __repr__(self) -> str:
        return f"IssuedToken({self.lifetime_s})"


class IssueToken(Request[IssuedToken], frozen=True):
    """Issue a token for a password, with the rights of its user. Every client that can connect
    may send this request."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"IssueToken({self.user!r})"


class LogOut(Request[None], frozen=True):
    """End the browser session with this id, if it exists."""

    id: str

    def __repr__(self) -> str:
        return "LogOut()"


class ListUsers(Request[list[UserInfo]], frozen=True):
    pass


class CreateUser(Request[UserInfo], frozen=True):
    name: Name
    verifier: Verifier | None
    """Verifier of the password, which itself stays with the client; None if the user signs in with
    a token or a certificate."""


class AddUser(Request[CreatedUser], frozen=True):
    """Create a user as :class:`CreateUser` does, but with a password that is in the request or that
    the realm generates."""

    name: str
    password: str | None
    """The password; None if the realm generates it."""

    def __repr__(self) -> str:
        return f"AddUser({self.name!r})"


class SetPassword(Request[None], frozen=True):
    """Change a password. Users may change their own password without a right, but must prove that
    they know the old one."""

    name: Name
    verifier: Verifier
    proof: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""
    """Proof of the old password, for :func:`password_change_message`; required only from users who
    change their own password."""


class ResetPassword(Request[None], frozen=True):
    """Set another user's password. The request contains the new password in plain text."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"ResetPassword({self.name!r})"


class ChangePassword(Request[None], frozen=True):
    """Change one's own password. The request contains the old and the new password in plain
    text."""

    old: str
    new: str

    def __repr__(self) -> str:
        return "ChangePassword()"


class BeginPassword(Request[PasswordChallenge], frozen=True):
    """Begin to change one's own password."""


class DeleteUser(Request[None], frozen=True):
    name: Name


class ListGroups(Request[list[GroupInfo]], frozen=True):
    pass


class CreateGroup(Request[GroupInfo], frozen=True):
    name: Name
    members: Annotated[tuple[Name, ...], Meta(max_length=ENTRIES_MAX)] = ()


class ChangeGroup(Request[GroupInfo], frozen=True):
    name: Name
    add: Annotated[tuple[Name, ...], Meta(max_length=ENTRIES_MAX)] = ()
    remove: Annotated[tuple[Name, ...], Meta(max_length=ENTRIES_MAX)] = ()


class DeleteGroup(Request[None], frozen=True):
    name: Name


class ListEntries(Request[AclInfo], frozen=True):
    """List the entries of the realm, a channel, a queue or a topic filter. For topics without a
    name, list the topic filters that have entries."""

    kind: Name
    name: GivenName = ""


class Grant(Request[AclInfo], frozen=True):
    kind: Name
    name: GivenName
    subject: Subject
    rights: Annotated[tuple[Name, ...], Meta(max_length=ENTRIES_MAX)]


class Revoke(Request[AclInfo], frozen=True):
    """Revoke rights of a subject on a resource; without ``rights``, revoke all rights that the
    subject has on the resource."""

    kind: Name
    name: GivenName
    subject: Subject
    rights: Annotated[tuple[Name, ...], Meta(max_length=ENTRIES_MAX)] = ()


class ReadAudit(Request[list[AuditRecord]], frozen=True):
    """Read the newest records of the audit log, newest first; with ``before``, only records with
    lower numbers."""

    limit: Count = 100
    before: Number | None = None
    kind: Name = "acts"
    """``acts``, ``sign-ins`` or ``refusals``."""
