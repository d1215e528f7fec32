"""Principals, subjects and rights (SEM A1, A2).

:mod:`penstock_core.api.operations` declares which right each operation needs;
:mod:`penstock_core.access.acl` holds what is granted to whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument

ResourceKind = Literal["realm", "channel", "queue", "topic"]
Proof = Literal["none", "password", "token", "certificate"]

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
"""The rights on each kind of resource (SEM A2). ``full`` stands for all of its kind."""

ANONYMOUS = "anonymous"
"""The user of a session that has not signed in."""
GROUP_PREFIX = "group:"
PROOF_PREFIXES: Mapping[str, str] = MappingProxyType(
    {"token": "token:", "certificate": "certificate:"}
)
"""Before the name of a user whom a token or certificate has named: an ``admin`` of theirs is not
the realm's own."""
NAME_LENGTH_MAX = 128


class Principal(Struct, frozen=True):
    """A user at a host."""

    user: str
    host: str
    groups: frozenset[str] = frozenset()
    """The groups named by a token or certificate. Groups that the realm keeps are added to them."""
    trusted: bool = False
    """Whether it has every right: this process, or anybody on a realm without authentication."""
    proof: Proof = "none"
    """How it has signed in."""
    until_us: int = 0
    """When its proof ends, as a token or certificate does, in microseconds since 1970; 0: never."""
    certificate: tuple[str, ...] = ()
    """The certificate that was shown, as revocation lists name it: see ``issued_as``."""

    @property
    def name(self) -> str:
        """``user@host``: also the publisher of its events (SEM E3)."""
        return f"{self.user}@{self.host}"

    @property
    def called(self) -> str:
        """The user's name as the proof gives it, without the prefix of its kind of proof."""
        return self.user.removeprefix(PROOF_PREFIXES.get(self.proof, ""))


class Subject(Struct, frozen=True):
    """Whom an entry of an access control list means (SEM A1)."""

    user: str
    host: str = "*"
    is_group: bool = False

    def __str__(self) -> str:
        return f"{GROUP_PREFIX}{self.user}" if self.is_group else f"{self.user}@{self.host}"

    def covers(self, principal: Principal, groups: frozenset[str]) -> bool:
        """Whether ``principal``, a member of ``groups``, is meant."""
        if self.is_group:
            return self.user in groups
        return self.user in ("*", principal.user) and self.host in ("*", principal.host)


def parse_subject(text: str) -> Subject:
    """``user@host``, ``user@*``, ``*@host``, ``*@*`` or ``group:name``. The host is what follows
    the last ``@``. Raises ``InvalidArgument``."""
    if text.startswith(GROUP_PREFIX):
        return Subject(checked_name(text.removeprefix(GROUP_PREFIX), "group"), is_group=True)
    user, at, host = text.rpartition("@")
    if not at or not user or not host:
        raise InvalidArgument(
            f"{text!r} is not a subject; give user@host, with * for any user or host: "
            "alice@*, *@10.0.0.5, *@*; or group:name"
        )
    if any(each.isspace() for each in host) or ("*" in host and host != "*"):
        raise InvalidArgument(
            f"{host!r} in {text!r} is not a host; give an address, or * for any host"
        )
    return Subject(user if user == "*" else checked_user(user), host)


def checked_user(text: str) -> str:
    """``text`` as the name of a user with a password, or of one whom a token or certificate
    names. Raises ``InvalidArgument``."""
    for prefix in PROOF_PREFIXES.values():
        if text.startswith(prefix):
            return prefix + checked_name(text.removeprefix(prefix), "user")
    return checked_name(text, "user")


def checked_name(text: str, what: str) -> str:
    """``text`` as the name of a user or group. Raises ``InvalidArgument``."""
    allowed = text.isprintable() and not any(each.isspace() or each in "*:," for each in text)
    if not 0 < len(text) <= NAME_LENGTH_MAX or not allowed:
        raise InvalidArgument(
            f"{text!r} is not a valid name of a {what}; give 1 to {NAME_LENGTH_MAX} characters "
            f"without blanks, '*', ':' and ','"
        )
    return text


def checked_rights(kind: str, rights: tuple[str, ...]) -> tuple[str, ...]:
    """``rights`` in their order, each once. Raises ``InvalidArgument`` for what is none."""
    known = known_rights(kind)
    for right in rights:
        if right not in known:
            raise InvalidArgument(
                f"{right!r} is not a right on a {kind}; the rights are {', '.join(known)}"
            )
    if not rights:
        raise InvalidArgument(f"name at least one right on the {kind}: {', '.join(known)}")
    return tuple(right for right in known if right in rights)


def known_rights(kind: str) -> tuple[str, ...]:
    """The rights on a kind of resource. Raises ``InvalidArgument`` for what is no such kind."""
    known = RIGHTS.get(kind)
    if known is None:
        raise InvalidArgument(f"{kind!r} has no rights; there are {', '.join(RIGHTS)}")
    return known


class Need(Struct, frozen=True):
    """The rights an operation needs: any one of ``rights`` on its resource, or of ``realm`` rights.

    Besides, every operation asks for ``access`` to the realm.
    """

    kind: ResourceKind
    rights: tuple[str, ...]
    realm: tuple[str, ...] = ()
    audited: bool = False
    """An act of administration: it is written to the audit log."""
