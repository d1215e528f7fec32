"""Access control lists: entries by resource, members of groups, and the rights that follow
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
"""Kind and name; the realm has the name ``""``. A name that ends in ``/*`` stands for every
channel or queue below that folder, ``*`` for all of them. That of a topic is a filter of MQTT, with
``%u`` for the user and ``%c`` for the client id."""
_Change = Callable[[tuple[str, ...]], set[str]]

_SENDING: frozenset[str] = frozenset(("publish", "push"))
"""Rights that everybody who knows the name of a temporary destination has on it: the name has 128
random bits, and only those learn it who are to reply (SEM R2)."""
REALM: Resource = ("realm", "")
_EVERYWHERE: Mapping[str, str] = {"full": "full", "manage_acl": "manage_acl"}
"""Rights on the realm that are rights on each channel and queue as well."""


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
        """What is granted on topics, by user or group."""

    # --- what there is -------------------------------------------------------------------

    def entries(self, kind: str, name: str = "") -> list[Entry]:
        """The entries of one resource, ordered by subject."""
        held = self._entries.get((kind, name), {})
        found = [Entry(str(subject), rights) for subject, rights in held.items()]
        return sorted(found, key=lambda entry: entry.subject)

    def resources(self) -> list[Resource]:
        """All resources that have entries."""
        return sorted(self._entries)

    @property
    def groups(self) -> Mapping[str, frozenset[str]]:
        """The members of each group."""
        return self._groups

    # --- changing it ---------------------------------------------------------------------

    def put(self, kind: str, name: str, entries: Sequence[Entry]) -> None:
        """Replace the entries of a resource."""
        held = {parse_subject(entry.subject): entry.rights for entry in entries if entry.rights}
        if held:
            self._entries[kind, name] = held
        else:
            self._entries.pop((kind, name), None)
        if kind == "topic":
            self._sort_topics()

    def _sort_topics(self) -> None:
        self._topics = {}
        for (kind, name), held in self._entries.items():
            if kind == "topic":
                for subject, rights in held.items():
                    key = subject.user, subject.is_group
                    self._topics.setdefault(key, []).append((name, subject, rights))

    def put_groups(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Replace the groups."""
        self._groups = {name: frozenset(members) for name, members in groups.items()}

    def granted(self, kind: str, name: str, subject: str, rights: Sequence[str]) -> list[Entry]:
        """The entries of a resource with ``rights`` added for ``subject``; changes nothing."""
        return self._with(kind, name, subject, change=lambda held: {*held, *rights})

    def revoked(self, kind: str, name: str, subject: str, rights: Sequence[str]) -> list[Entry]:
        """The entries of a resource without ``rights`` for ``subject``; changes nothing."""
        return self._with(kind, name, subject, change=lambda held: {*held} - {*rights})

    def _with(self, kind: str, name: str, subject: str, change: _Change) -> list[Entry]:
        wanted = str(parse_subject(subject))
        found = {entry.subject: entry.rights for entry in self.entries(kind, name)}
        now = change(found.get(wanted, ()))
        found[wanted] = tuple(right for right in known_rights(kind) if right in now)
        return [Entry(each, rights) for each, rights in sorted(found.items()) if rights]

    # --- what follows --------------------------------------------------------------------

    def groups_of(self, principal: Principal) -> frozenset[str]:
        """The groups a principal belongs to: the realm's own and those of its token."""
        known = {name for name, members in self._groups.items() if principal.user in members}
        return principal.groups | known

    def effective(self, principal: Principal, kind: str, name: str = "") -> frozenset[str]:
        """The rights of ``principal`` on a resource: the union of all that match (SEM A3).

        ``full`` stands for every right of its kind; ``full`` and ``manage_acl`` on the realm hold
        on each channel and queue too.
        """
        if principal.trusted:
            return frozenset(RIGHTS[kind])
        groups = self.groups_of(principal)
        found: set[str] = set()
        if kind != "realm":
            on_realm = self.effective(principal, "realm")
            found |= {_EVERYWHERE[right] for right in on_realm if right in _EVERYWHERE}
        for resource in _resources(kind, name):
            for subject, rights in self._entries.get(resource, {}).items():
                if subject.covers(principal, groups):
                    found |= {*rights}
        return frozenset(RIGHTS[kind]) if "full" in found else frozenset(found)

    def on_topics(self, principal: Principal, client_id: str) -> list[tuple[str, frozenset[str]]]:
        """The topic filters on which something is granted to a principal whose client has this id,
        with the rights (SEM M15). It costs what it finds, not what is granted to others.

        A name in which ``+``, ``#`` or ``/`` would become part of a filter is granted nothing by
        it.
        """
        groups = self.groups_of(principal)
        keys = [(principal.user, False), ("*", False), *((each, True) for each in sorted(groups))]
        found = []
        for key in keys:
            for name, subject, rights in self._topics.get(key, ()):
                text = filled(name, principal.user, client_id)
                if text is not None and subject.covers(principal, groups):
                    every = RIGHTS["topic"] if "full" in rights else rights
                    found.append((text, frozenset(every)))
        return found

    def missing(
        self, principal: Principal, need: Need, name: str = "", *, by_number: bool = False
    ) -> AccessDenied | None:
        """Why ``principal`` may not do what ``need`` asks for; None: it may. With ``by_number`` the
        client has not shown that it knows the name: numbers of stores can be tried one by one."""
        if principal.trusted:
            return None
        on_realm = self.effective(principal, "realm")
        if "access" not in on_realm:
            return denied(principal, "realm", "", rights=("access",))
        is_sending = any(right in _SENDING for right in need.rights)
        if is_sending and not by_number and is_temporary(name):
            return None
        held = on_realm if need.kind == "realm" else self.effective(principal, need.kind, name)
        if any(right in held for right in need.rights):
            return None
        if any(right in on_realm for right in need.realm):
            return None
        return denied(principal, need.kind, name, rights=need.rights)


def denied(principal: Principal, kind: str, name: str, rights: Sequence[str]) -> AccessDenied:
    """The refusal that names the missing right (SEM A3)."""
    every = known_rights(kind)
    which = "any right" if tuple(rights) == every else " or ".join(f"{right!r}" for right in rights)
    where = f"{kind} {name}" if name else f"the {kind}"
    how = rights[0] if tuple(rights) != every else every[3]  # for the message
    grant = "realm" if kind == "realm" else f"{kind} {name}"
    return AccessDenied(
        f"{principal.name} lacks {which} on {where}; a user with the right 'manage_acl' there can "
        f"grant it: "
        f"penstock acl grant {grant} {principal.user}@* {how}"
    )


def filled(name: str, user: str, client_id: str) -> str | None:
    """The topic filter of a grant for one client; None: its name can be no part of one."""
    for mark, value in (("%u", user), ("%c", client_id)):
        if mark in name and (not value or value[0] == "$" or {*"+#/\0"} & {*value}):
            return None
    parts = name.split("%u")
    return user.join(part.replace("%c", client_id) for part in parts)


def _resources(kind: str, name: str) -> Iterator[Resource]:
    """The resource itself, and the patterns it falls under."""
    yield kind, name
    if kind in ("realm", "topic"):
        return
    folder = name
    while folder:
        folder = folder.rpartition("/")[0]
        yield kind, f"{folder}/*" if folder else "*"
