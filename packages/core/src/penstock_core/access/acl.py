"""Access control lists: entries by resource, members of groups, and the resulting rights
(SEM A1-A3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from penstock_core.access.rights import (
    RIGHTS,
    Need,
    Principal,
    Subject,
    known_rights,
    parse_subject,
)
from penstock_core.vocabulary.errors import AccessDenied
from penstock_core.vocabulary.temporary import is_temporary

Resource = tuple[str, str]
"""Kind and name. The name of the realm is ``""``. A name that ends in ``/*`` stands for every
channel or queue below that folder, ``*`` for all of them. The name of a topic resource is an MQTT
topic filter, with ``%u`` for the user and ``%c`` for the client id."""
_Change = Callable[[tuple[str, ...]], set[str]]
"""Returns the rights of a subject after a change, given its earlier rights."""

_SENDING: frozenset[str] = frozenset(("publish", "push"))
"""Rights on a temporary destination that every user who knows its name has. The name has 128 random
bits, and only the intended repliers receive it (SEM R2)."""
REALM: Resource = ("realm", "")
_EVERYWHERE: Mapping[str, str] = {"full": "full", "manage_acl": "manage_acl"}
"""Rights on the realm that also apply to each channel and queue."""


class Entry(Struct, frozen=True):
    """The rights granted to one subject on one resource."""

    subject: str
    rights: tuple[str, ...]


class Acl:
    """The access control lists of a realm, and its groups."""

    __slots__ = ("_entries", "_groups", "_topics")

    def __init__(self) -> None:
        self._entries: dict[Resource, dict[Subject, tuple[str, ...]]] = {}
        self._groups: dict[str, frozenset[str]] = {}
        self._topics: dict[tuple[str, bool], list[tuple[str, Subject, tuple[str, ...]]]] = {}
        """Topic filters, subjects and rights of the grants on topics. The key is a name and whether
        it is the name of a group."""

    # --- entries -------------------------------------------------------------------------

    def entries(self, kind: str, name: str = "") -> list[Entry]:
        """Return the entries of one resource, ordered by subject."""
        rights_by_subject = self._entries.get((kind, name), {})
        entries = [Entry(str(subject), rights) for subject, rights in rights_by_subject.items()]
        return sorted(entries, key=lambda entry: entry.subject)

    def resources(self) -> list[Resource]:
        """Return all resources that have entries."""
        return sorted(self._entries)

    @property
    def groups(self) -> Mapping[str, frozenset[str]]:
        """The members of each group."""
        return self._groups

    # --- changes -------------------------------------------------------------------------

    def put(self, kind: str, name: str, entries: Sequence[Entry]) -> None:
        """Replace the entries of a resource."""
        rights_by_subject = {
            parse_subject(entry.subject): entry.rights for entry in entries if entry.rights
        }
        if rights_by_subject:
            self._entries[kind, name] = rights_by_subject
        else:
            self._entries.pop((kind, name), None)
        if kind == "topic":
            self._sort_topics()

    def _sort_topics(self) -> None:
        """Group the entries of topics by subject, for :meth:`on_topics`."""
        self._topics = {}
        for (kind, name), rights_by_subject in self._entries.items():
            if kind == "topic":
                for subject, rights in rights_by_subject.items():
                    key = subject.user, subject.is_group
                    self._topics.setdefault(key, []).append((name, subject, rights))

    def put_groups(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Replace the groups."""
        self._groups = {name: frozenset(members) for name, members in groups.items()}

    def granted(self, kind: str, name: str, subject: str, rights: Sequence[str]) -> list[Entry]:
        """Return the entries of a resource with ``rights`` added for ``subject``, without changing
        the stored entries."""
        return self._with(kind, name, subject, change=lambda held: {*held, *rights})

    def revoked(self, kind: str, name: str, subject: str, rights: Sequence[str]) -> list[Entry]:
        """Return the entries of a resource without ``rights`` for ``subject``, without changing the
        stored entries."""
        return self._with(kind, name, subject, change=lambda held: {*held} - {*rights})

    def _with(self, kind: str, name: str, subject: str, change: _Change) -> list[Entry]:
        """Return the entries of a resource after ``change`` was applied to the rights of
        ``subject``."""
        canonical_subject = str(parse_subject(subject))
        rights_by_subject = {entry.subject: entry.rights for entry in self.entries(kind, name)}
        new_rights = change(rights_by_subject.get(canonical_subject, ()))
        rights_by_subject[canonical_subject] = tuple(
            right for right in known_rights(kind) if right in new_rights
        )
        return [
            Entry(subject_text, rights)
            for subject_text, rights in sorted(rights_by_subject.items())
            if rights
        ]

    # --- resulting rights ----------------------------------------------------------------

    def groups_of(self, principal: Principal) -> frozenset[str]:
        """Return the groups of a principal: those that the realm keeps and those of its token."""
        realm_groups = {name for name, members in self._groups.items() if principal.user in members}
        return principal.groups | realm_groups

    def effective(self, principal: Principal, kind: str, name: str = "") -> frozenset[str]:
        """Return the rights of ``principal`` on a resource: the union of all matching entries
        (SEM A3).

        ``full`` implies every right of its kind; ``full`` and ``manage_acl`` on the realm also
        apply to each channel and queue.
        """
        if principal.trusted:
            return frozenset(RIGHTS[kind])
        groups = self.groups_of(principal)
        rights_held: set[str] = set()
        if kind != "realm":
            on_realm = self.effective(principal, "realm")
            rights_held |= {_EVERYWHERE[right] for right in on_realm if right in _EVERYWHERE}
        for resource in _resources(kind, name):
            for subject, rights in self._entries.get(resource, {}).items():
                if subject.covers(principal, groups):
                    rights_held |= {*rights}
        return frozenset(RIGHTS[kind]) if "full" in rights_held else frozenset(rights_held)

    def on_topics(self, principal: Principal, client_id: str) -> list[tuple[str, frozenset[str]]]:
        """Return the topic filters with grants for a principal and its client id, each with the
        granted rights (SEM M15). The cost depends on the number of grants of the principal, not of
        other users.

        A grant with ``%u`` or ``%c`` does not apply to a user or client id with ``+``, ``#`` or
        ``/``, because these characters would change the meaning of the filter.
        """
        groups = self.groups_of(principal)
        keys = [(principal.user, False), ("*", False), *((group, True) for group in sorted(groups))]
        filters = []
        for key in keys:
            for name, subject, rights in self._topics.get(key, ()):
                text = filled(name, principal.user, client_id)
                if text is not None and subject.covers(principal, groups):
                    granted = RIGHTS["topic"] if "full" in rights else rights
                    filters.append((text, frozenset(granted)))
        return filters

    def missing(
        self, principal: Principal, need: Need, name: str = "", *, by_number: bool = False
    ) -> AccessDenied | None:
        """Return the error for a principal without the rights of ``need``, or None if it has them.
        ``by_number`` is whether the client named the store by its number. Numbers can be guessed,
        so such a client has not proved that it knows the name of a temporary destination."""
        if principal.trusted:
            return None
        on_realm = self.effective(principal, "realm")
        if "access" not in on_realm:
            return denied(principal, "realm", "", rights=("access",))
        is_sending = any(right in _SENDING for right in need.rights)
        if is_sending and not by_number and is_temporary(name):
            return None
        rights_held = (
            on_realm if need.kind == "realm" else self.effective(principal, need.kind, name)
        )
        if any(right in rights_held for right in need.rights):
            return None
        if any(right in on_realm for right in need.realm):
            return None
        return denied(principal, need.kind, name, rights=need.rights)


def denied(principal: Principal, kind: str, name: str, rights: Sequence[str]) -> AccessDenied:
    """Return the error that names the missing right (SEM A3)."""
    all_rights = known_rights(kind)
    missing_rights = (
        "any right"
        if tuple(rights) == all_rights
        else " or ".join(f"{right!r}" for right in rights)
    )
    resource = f"{kind} {name}" if name else f"the {kind}"
    # If any right is enough, the message suggests an ordinary right, not an administrative one.
    suggested_right = rights[0] if tuple(rights) != all_rights else all_rights[3]
    grant = "realm" if kind == "realm" else f"{kind} {name}"
    return AccessDenied(
        f"{principal.name} lacks {missing_rights} on {resource}; a user with the right "
        f"'manage_acl' there can grant it: "
        f"penstock acl grant {grant} {principal.user}@* {suggested_right}"
    )


def filled(name: str, user: str, client_id: str) -> str | None:
    """Return the topic filter of a grant with ``%u`` and ``%c`` replaced for one client. Return
    None if the user or client id contains characters that are special in filters."""
    for mark, value in (("%u", user), ("%c", client_id)):
        if mark in name and (not value or value[0] == "$" or {*"+#/\0"} & {*value}):
            return None
    # Not two replacements in turn: a user name may contain %c.
    parts = name.split("%u")
    return user.join(part.replace("%c", client_id) for part in parts)


def _resources(kind: str, name: str) -> Iterator[Resource]:
    """Yield the resource itself and the patterns that cover it."""
    yield kind, name
    if kind in ("realm", "topic"):
        return
    folder = name
    while folder:  # from the nearest folder up to all stores, which is the pattern *
        folder = folder.rpartition("/")[0]
        yield kind, f"{folder}/*" if folder else "*"
