"""Principals, subjects and rights (SEM A1, A2).

:mod:`penstock_core.api.operations` declares which right each operation needs;
:mod:`penstock_core.access.acl` stores the granted rights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument

ResourceKind = Literal["realm", "channel", "queue", "topic"]
"""A kind of resource on which rights are granted."""
Proof = Literal["none", "password", "token", "certificate", "ldap"]
"""A way of signing in: ``password`` is a password of the realm, ``ldap`` one of the directory."""

RIGHTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "realm": (
            "manage_acl",
            "full",
            "access",
            "configure",
            "channels",
            "realm",
            "admin",
            "monitor",
        ),
        "channel": ("manage_acl", "full", "purge", "subscribe", "publish", "durable"),
        "queue": ("manage_acl", "full", "purge", "peek", "push", "pop"),
        "topic": ("manage_acl", "full", "subscribe", "publish", "durable"),
    }
)
"""The rights on each kind of resource (SEM A2). ``full`` implies all rights of its kind."""

ANONYMOUS = "anonymous"
"""The user of a session that has not signed in."""
GROUP_PREFIX = "group:"
"""Prefix of a subject that is a group."""
PROOF_PREFIXES: Mapping[str, str] = MappingProxyType(
    {"token": "token:", "certificate": "certificate:", "ldap": "ldap:"}
)
"""Prefixes of user names that come from a token, a certificate or a directory, so that the
``admin`` of a token is not the realm's user ``admin``."""
NAME_LENGTH_MAX = 128
"""Maximum number of characters of the name of a user or group."""


class Principal(Struct, frozen=True):
    """A user at a host."""

    user: str
    host: str
    groups: frozenset[str] = frozenset()
    """The groups named by a token or a directory; the realm adds the groups that it keeps."""
    trusted: bool = False
    """Whether the principal has every right: this process, or any user of a realm without
    authentication."""
    proof: Proof = "none"
    """The way in which the user signed in."""
    until_us: int = 0
    """Expiry of the token, certificate or sign-in at a directory, in microseconds since 1970; 0 if
    it does not expire."""
    certificate: tuple[str, ...] = ()
    """The client certificate, identified as in revocation lists: see
    ``penstock_server.runtime.access.access.issued_as``."""

    @property
    def name(self) -> str:
        """``user@host``; it is also the publisher of the user's events (SEM E3)."""
        return f"{self.user}@{self.host}"

    @property
    def called(self) -> str:
        """The user's name without the prefix that shows how the user signs in, such as
        ``token:``."""
        return self.user.removeprefix(PROOF_PREFIXES.get(self.proof, ""))


class Subject(Struct, frozen=True):
    """The users that an entry of an access control list applies to (SEM A1)."""

    user: str
    host: str = "*"
    is_group: bool = False

    def __str__(self) -> str:
        return f"{GROUP_PREFIX}{self.user}" if self.is_group else f"{self.user}@{self.host}"

    def covers(self, principal: Principal, groups: frozenset[str]) -> bool:
        """Whether the subject includes ``principal``, a member of ``groups``."""
        if self.is_group:
            return self.user in groups
        return self.user in ("*", principal.user) and self.host in ("*", principal.host)


def parse_subject(text: str) -> Subject:
    """Parse ``user@host``, ``user@*``, ``*@host``, ``*@*`` or ``group:name``. The host begins after
    the last ``@``. Raises ``InvalidArgument`` for other texts."""
    if text.startswith(GROUP_PREFIX):
        return Subject(checked_name(text.removeprefix(GROUP_PREFIX), "group"), is_group=True)
    user, separator, host = text.rpartition("@")
    if not separator or not user or not host:
        raise InvalidArgument(
            f"{text!r} is not a subject; give user@host, with * for any user or host: "
            "alice@*, *@10.0.0.5, *@*; or group:name"
        )
    if any(character.isspace() for character in host) or ("*" in host and host != "*"):
        raise InvalidArgument(
            f"{host!r} in {text!r} is not a host; give an address, or * for any host"
        )
    return Subject(user if user == "*" else checked_user(user), host)


def checked_user(text: str) -> str:
    """Return ``text`` if it is a valid user name, with or without the prefix of a token,
    certificate or directory. Raises ``InvalidArgument`` otherwise."""
    for prefix in PROOF_PREFIXES.values():
        if text.startswith(prefix):
            return prefix + checked_name(text.removeprefix(prefix), "user")
    return checked_name(text, "user")


def checked_name(text: str, kind: str) -> str:
    """Return ``text`` if it is a valid name of a user or group. Raises ``InvalidArgument``
    otherwise."""
    allowed = text.isprintable() and not any(
        character.isspace() or character in "*:," for character in text
    )
    if not 0 < len(text) <= NAME_LENGTH_MAX or not allowed:
        raise InvalidArgument(
            f"{text!r} is not a valid name of a {kind}; give 1 to {NAME_LENGTH_MAX} characters "
            f"without blanks, '*', ':' and ','"
        )
    return text


def checked_rights(kind: str, rights: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``rights`` in canonical order without duplicates. Raises ``InvalidArgument`` if a
    right is unknown or ``rights`` is empty."""
    allowed = known_rights(kind)
    for right in rights:
        if right not in allowed:
            raise InvalidArgument(
                f"{right!r} is not a right on a {kind}; the rights are {', '.join(allowed)}"
            )
    if not rights:
        raise InvalidArgument(f"name at least one right on the {kind}: {', '.join(allowed)}")
    return tuple(right for right in allowed if right in rights)


def known_rights(kind: str) -> tuple[str, ...]:
    """Return the rights on a kind of resource. Raises ``InvalidArgument`` for an unknown kind."""
    rights = RIGHTS.get(kind)
    if rights is None:
        raise InvalidArgument(
            f"{kind!r} is not a kind of resource with rights; allowed are {', '.join(RIGHTS)}"
        )
    return rights


class Need(Struct, frozen=True):
    """The rights that an operation needs: one of ``rights`` on its resource, or one of ``realm`` on
    the realm.

    In addition, every operation needs ``access`` to the realm.
    """

    kind: ResourceKind
    rights: tuple[str, ...]
    realm: tuple[str, ...] = ()
    audited: bool = False
    """Whether the operation is administrative and is written to the audit log."""
