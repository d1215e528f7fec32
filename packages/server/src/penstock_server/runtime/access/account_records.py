"""Records of users, groups and rights in the registry."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.access.acl import Entry
from penstock_core.api.access import Verifier

USERS_KEY = "access/users"
"""Registry key of the record of all users and groups."""
ENTRIES_PREFIX = "access/entries/"
"""Beginning of the registry keys of grants."""


class UserRecord(Struct, frozen=True):
    """The stored record of a user."""

    created_us: int
    changed_us: int
    verifier: Verifier | None = None


class UsersRecord(Struct, frozen=True):
    """The record of all users and groups."""

    secret: bytes
    """Key for deriving the decoy challenges of unknown users."""
    users: dict[str, UserRecord] = {}
    groups: dict[str, tuple[str, ...]] = {}


class EntriesRecord(Struct, frozen=True):
    """The stored record of the grants on one resource."""

    kind: str
    name: str
    entries: tuple[Entry, ...]


def is_of_many(kind: str, name: str) -> bool:
    """Whether rights on this resource apply to more than one store."""
    return kind == "realm" or name == "*" or name.endswith("/*")
