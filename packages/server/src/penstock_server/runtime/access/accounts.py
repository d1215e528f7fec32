"""Users, groups and granted rights: stored in the registry, changed one at a time (SEM A1-A3)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock_core.access.acl import Acl, Entry
from penstock_core.access.rights import (
    ANONYMOUS,
    checked_name,
    checked_rights,
    checked_user,
    known_rights,
    parse_subject,
)
from penstock_core.api.access import SALT_BYTES, AclInfo, GroupInfo, UserInfo, Verifier
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    Damaged,
    IllegalState,
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.ports import Clock, Offload, Registry
from penstock_core.vocabulary.topics import filter_fault
from penstock_core.wire.scram import NONCE_BYTES, ROUNDS_MAX, ROUNDS_MIN, check_length, verifier
from penstock_server.runtime.access.account_records import (
    ENTRIES_PREFIX,
    USERS_KEY,
    EntriesRecord,
    UserRecord,
    UsersRecord,
    is_of_many,
)
from penstock_server.runtime.access.shared_accounts import SharedAccounts

FIRST_USER = "admin"


_log = logger("penstock.access")


class RightsListener(Protocol):
    """A function called after each change of rights. ``may_lose_rights`` is True if a subject may
    have lost rights by the change."""

    def __call__(self, *, may_lose_rights: bool) -> None: ...


class Accounts:
    """Users, groups and rights of the realm. A change is on disk and in effect when the method that
    makes it returns."""

    def __init__(
        self,
        registry: Registry | None,
        clock: Clock,
        offload: Offload,
        *,
        rounds: int = ROUNDS_MIN,
        length_min: int = 1,
        shared: SharedAccounts | None = None,
    ) -> None:
        """Create empty accounts; :meth:`load` reads them from the ``registry``.

        Without a ``registry`` nothing is stored and changes are refused. With ``shared``, users,
        groups and rights on more than one store come from a cluster and are changed there.
        """
        self._registry = registry
        self.shared = None if registry is None else shared
        self._clock = clock
        self._offload = offload
        self.rounds = rounds
        """Rounds of PBKDF2 for new passwords."""
        self.length_min = length_min
        """Smallest number of characters of a new password."""
        self._record = UsersRecord(b"")
        self._versions: dict[str, int] = {}
        self._changing = asyncio.Lock()
        self.acl = Acl()
        self.on_rights_changed: RightsListener = lambda *, may_lose_rights: None
        """Called after each change of users, groups or rights."""
        self.user_changed: Callable[[str], None] = lambda user: None
        """Called with a user whose password has changed or who was deleted."""

    async def load(self) -> None:
        """Read the registry. Raises ``Damaged`` when the users cannot be read."""
        registry = self._registry
        if registry is None:
            return
        if self.shared is not None:
            self._load_shared(self.shared)
        else:
            users_record = await registry.get(USERS_KEY)
            if users_record is not None:
                self._versions[USERS_KEY] = users_record.version
            self._load_users(None if users_record is None else users_record.value)
        for key in await registry.list(ENTRIES_PREFIX):
            try:
                record = await registry.get(key)
            except Damaged as error:  # these rights are lost until they are granted again
                _log.error("access.entries_damaged", reason=str(error))
                continue
            assert record is not None, "records that are listed exist, because none is removed"
            self._versions[key] = record.version
            grants = msgspec.msgpack.decode(record.value, type=EntriesRecord)
            self.acl.put(grants.kind, grants.name, grants.entries)

    def _load_users(self, value: bytes | None) -> None:
        if value is None:
            self._record = UsersRecord(secrets.token_bytes(32))
        else:
            self._record = msgspec.msgpack.decode(value, type=UsersRecord)
        self.acl.put_groups(self._record.groups)

    def _load_shared(self, shared: SharedAccounts) -> None:
        self._load_users(shared.users)
        for grants in shared.entries.values():
            self.acl.put(grants.kind, grants.name, grants.entries)

    async def follow(self) -> None:
        """Apply changes of the shared accounts, and remove the local rights of users and groups
        that were deleted in the cluster."""
        assert self.shared is not None, "only shared accounts can be followed"
        before = self._record
        self._load_shared(self.shared)
        after = self._record
        deleted_users = before.users.keys() - after.users
        deleted_groups = before.groups.keys() - after.groups
        if deleted_users or deleted_groups:
            await self._remove_subjects(
                lambda subject: (
                    subject.user in (deleted_groups if subject.is_group else deleted_users)
                )
            )
        for user, record in before.users.items():
            if user in deleted_users or after.users[user].verifier != record.verifier:
                self.user_changed(user)
        self.on_rights_changed(may_lose_rights=True)

    def _refuse_shared(self) -> None:
        """Raise ``IllegalState`` if the accounts belong to the whole cluster."""
        if self.shared is not None:
            raise IllegalState(
                "users, groups and rights on more than one channel belong to the whole cluster: "
                "change them in its realm; this realm holds the local channels of one node"
            )

    # --- users ---------------------------------------------------------------------------

    def verifier_of(self, user: str) -> Verifier | None:
        """Return the verifier of a user's password; None without the user or a password."""
        record = self._record.users.get(user)
        return record.verifier if record is not None else None

    def password_mark(self, user: str) -> bytes | None:
        """Return a digest that identifies a user's password without revealing it; None without
        the user or a password. Setting the same password again yields another digest."""
        verifier = self.verifier_of(user)
        if verifier is None:
            return None
        return hashlib.sha256(verifier.salt + verifier.stored_key).digest()

    def decoy(self, user: str) -> Verifier:
        """Return a verifier for a user without a password, which looks like that of a real user.

        Salt and rounds depend on the name only, because those of a real user do not change between
        sign-ins. The number of rounds is one that real users have, because any other number would
        reveal a decoy.
        """
        salt = self._derived(user)[:SALT_BYTES]
        records = self._record.users.values()
        used = {record.verifier.rounds for record in records if record.verifier}
        # Rendezvous hashing: another number of rounds in use changes the decoys of few names.
        rounds = max(used or {self.rounds}, key=lambda count: self._derived(f"{count} {user}"))
        return Verifier(salt, rounds, secrets.token_bytes(32), server_key=secrets.token_bytes(32))

    def _derived(self, text: str) -> bytes:
        """Return bytes that only this realm can derive from ``text``."""
        return hmac.digest(self._record.secret, text.encode(), "sha256")

    def knows(self, user: str) -> bool:
        return user in self._record.users

    def users(self) -> list[UserInfo]:
        """Return all users, sorted by name."""
        return [self.user(name) for name in sorted(self._record.users)]

    def user(self, name: str) -> UserInfo:
        """Return a user. Raises ``NameDoesNotExist``."""
        record = self._user(name)
        return UserInfo(
            name=name,
            groups=tuple(self._groups_of(name)),
            has_password=record.verifier is not None,
            created_us=record.created_us,
            changed_us=record.changed_us,
        )

    def _groups_of(self, user: str) -> list[str]:
        return sorted(group for group, members in self._record.groups.items() if user in members)

    def audited_user(self, name: str) -> dict[str, str]:
        """Describe a user for the audit log. The password is represented by the time of its last
        change."""
        record = self._record.users.get(name)
        if record is None:
            return {}
        password = "none" if record.verifier is None else f"of {record.changed_us}"
        groups = ", ".join(self._groups_of(name)) or "none"
        return {"user": name, "password": password, "groups": groups}

    def audited_group(self, name: str) -> dict[str, str]:
        """Describe a group for the audit log."""
        members = self._record.groups.get(name)
        return {} if members is None else {"group": name, "members": ", ".join(members) or "none"}

    async def create_user(self, name: str, password: str | Verifier | None = None) -> UserInfo:
        """Create a user. A user without a password can sign in only with a token or certificate.

        Raises ``NameAlreadyBound``, ``InvalidArgument``.
        """
        checked_name(name, "user")
        if name == ANONYMOUS:
            raise InvalidArgument(
                f"{ANONYMOUS} is the name of clients that do not sign in; choose another"
            )
        verifier = await self._verifier(password)

        def create(users: UsersRecord) -> UsersRecord:
            if name in users.users:
                raise NameAlreadyBound(f"a user {name} already exists")
            now_us = self._clock.now_us()
            record = UserRecord(now_us, now_us, verifier)
            return replace(users, users={**users.users, name: record})

        await self._change(create)
        _log.info("user.created", name=name)
        return self.user(name)

    async def set_password(self, name: str, password: str | Verifier) -> None:
        """Give a user a new password; open connections of the user stay. Raises
        ``NameDoesNotExist``, ``InvalidArgument``."""
        self._user(name)
        verifier = await self._verifier(password)

        def change(users: UsersRecord) -> UsersRecord:
            # Looked up again, because the user may have been deleted while the verifier was
            # computed.
            user = replace(self._user(name), verifier=verifier, changed_us=self._clock.now_us())
            return replace(users, users={**users.users, name: user})

        await self._change(change)
        self.user_changed(name)

    async def delete_user(self, name: str) -> None:
        """Delete a user with its sessions, memberships and entries. Raises ``NameDoesNotExist``,
        and ``IllegalState`` for the last user who may grant rights."""
        self._refuse_shared()
        self._user(name)
        self._keep_an_administrator(name)

        def delete(users: UsersRecord) -> UsersRecord:
            remaining = {user: record for user, record in users.users.items() if user != name}
            groups = {
                group: tuple(member for member in members if member != name)
                for group, members in users.groups.items()
            }
            return replace(users, users=remaining, groups=groups)

        # The entries are removed before the user. After a crash in between, deleting the user again
        # completes the removal. In the other order, entries without a user could remain, and a
        # later user of the same name would get their rights.
        await self._remove_subjects(lambda subject: not subject.is_group and subject.user == name)
        await self._change(delete)
        _log.info("user.deleted", name=name)
        self.user_changed(name)

    def _keep_an_administrator(self, name: str) -> None:
        """Raise ``IllegalState`` if only the user ``name`` may grant rights on the realm."""
        on_realm = self.acl.entries("realm")
        for entry in on_realm:
            subject = parse_subject(entry.subject)
            is_other = subject.is_group or subject.user != name
            if is_other and {"full", "manage_acl"} & {*entry.rights}:
                return
        raise IllegalState(
            f"{name} is the last user who may grant rights; give another user that right first"
        )

    def _user(self, name: str) -> UserRecord:
        """Return the record of a user. Raises ``NameDoesNotExist``."""
        record = self._record.users.get(name)
        if record is None:
            raise NameDoesNotExist(
                f"user {name} does not exist; create it first, or list the users"
            )
        return record

    async def _verifier(self, password: str | Verifier | None) -> Verifier | None:
        """Return the verifier of a new password, which is computed here unless the client has done
        so. Raises ``InvalidArgument`` for a number of rounds out of bounds or a password that is
        too short."""
        if not isinstance(password, str):
            if password is not None and not self.rounds <= password.rounds <= ROUNDS_MAX:
                raise InvalidArgument(
                    f"the password has {password.rounds} rounds; allowed are {self.rounds} "
                    f"(access.password_rounds) to {ROUNDS_MAX}"
                )
            return password
        check_length(password, self.length_min)
        salt = secrets.token_bytes(SALT_BYTES)
        computed = await self._offload(lambda: verifier(password, salt, self.rounds))
        return computed

    # --- groups --------------------------------------------------------------------------

    def groups(self) -> list[GroupInfo]:
        """Return all groups, sorted by name."""
        return [self.group(name) for name in sorted(self._record.groups)]

    def group(self, name: str) -> GroupInfo:
        """Return a group. Raises ``NameDoesNotExist``."""
        members = self._record.groups.get(name)
        if members is None:
            raise NameDoesNotExist(
                f"group {name} does not exist; create it first, or list the groups"
            )
        return GroupInfo(name=name, members=members)

    async def create_group(self, name: str, members: Sequence[str] = ()) -> GroupInfo:
        """Create a group. Members are names of users, also of users that only tokens and
        certificates name.

        Raises ``NameAlreadyBound``, ``InvalidArgument``.
        """
        checked_name(name, "group")

        def create(users: UsersRecord) -> UsersRecord:
            if name in users.groups:
                raise NameAlreadyBound(f"a group {name} already exists")
            return _with_group(users, name, set(members))

        await self._change(create)
        return self.group(name)

    async def change_group(
        self, name: str, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> GroupInfo:
        """Add members to a group and remove others. Raises ``NameDoesNotExist``,
        ``InvalidArgument``."""

        def change(users: UsersRecord) -> UsersRecord:
            return _with_group(users, name, ({*self.group(name).members} | {*add}) - {*remove})

        await self._change(change)
        return self.group(name)

    async def delete_group(self, name: str) -> None:
        """Remove a group and its rights. Raises ``NameDoesNotExist``."""
        self._refuse_shared()
        self.group(name)

        def delete(users: UsersRecord) -> UsersRecord:
            groups = {group: members for group, members in users.groups.items() if group != name}
            return replace(users, groups=groups)

        await self._remove_subjects(lambda subject: subject.is_group and subject.user == name)
        await self._change(delete)

    # --- entries -------------------------------------------------------------------------

    def entries(self, kind: str, name: str = "") -> AclInfo:
        """Return the rights granted on a resource; for kind ``topic`` without a name, return all
        topic filters on which rights are granted."""
        resource = checked_resource(kind, name)
        if kind == "topic" and not name:
            resources = self.acl.resources()
            filters = (
                resource for resource_kind, resource in resources if resource_kind == "topic"
            )
            return AclInfo(kind=kind, topics=tuple(filters))
        return AclInfo(kind=kind, name=resource, entries=tuple(self.acl.entries(kind, resource)))

    async def grant(self, kind: str, name: str, subject: str, rights: Sequence[str]) -> AclInfo:
        """Grant further rights to a subject. A group need not exist yet, because a token may name
        it. Raises ``InvalidArgument``."""
        resource, new_rights = checked_resource(kind, name), checked_rights(kind, tuple(rights))
        if kind == "topic" and not resource:
            raise InvalidArgument("a grant on topics needs a topic filter, such as dev/%c/#")
        grantee = parse_subject(subject)
        if grantee.is_group and grantee.user not in self._record.groups:
            _log.info("access.group_unknown", group=grantee.user)  # a token may name it
        async with self._changing:
            # Computed with the lock held, because the new entries are based on the present ones.
            granted = self.acl.granted(kind, resource, subject, rights=new_rights)
            await self._store(kind, resource, granted)
        return self.entries(kind, resource)

    async def revoke(
        self, kind: str, name: str, subject: str, rights: Sequence[str] = ()
    ) -> AclInfo:
        """Remove ``rights`` of a subject on a resource; if empty, remove all its rights there.
        Raises ``InvalidArgument``."""
        resource = checked_resource(kind, name)
        revoked = checked_rights(kind, tuple(rights)) if rights else known_rights(kind)
        async with self._changing:
            remaining = self.acl.revoked(kind, resource, subject, rights=revoked)
            await self._store(kind, resource, remaining)
        return self.entries(kind, resource)

    async def replace_entries(self, kind: str, name: str, entries: Sequence[Entry]) -> None:
        """Replace all entries of a resource, for example by one for the creator of a new store (SEM
        A3)."""
        if not entries and not self.acl.entries(kind, name):
            return
        async with self._changing:
            await self._store(kind, name, entries)

    # --- storage -------------------------------------------------------------------------

    async def _remove_subjects(self, is_removed: Callable[[Any], bool]) -> None:
        """Remove all entries whose subject satisfies ``is_removed``."""
        async with self._changing:
            for kind, name in self.acl.resources():
                if self.shared is not None and is_of_many(kind, name):
                    continue  # these entries belong to the cluster, which changes them itself
                entries = self.acl.entries(kind, name)
                remaining = [
                    entry for entry in entries if not is_removed(parse_subject(entry.subject))
                ]
                if remaining != entries:
                    await self._store(kind, name, remaining)

    async def _change(self, change: Callable[[UsersRecord], UsersRecord]) -> None:
        """Change the record of users and groups, first in the registry."""
        self._refuse_shared()
        async with self._changing:
            changed = change(self._record)
            await self._put(USERS_KEY, changed)
            self._record = changed
            self.acl.put_groups(changed.groups)
        self.on_rights_changed(may_lose_rights=True)

    async def _store(self, kind: str, name: str, entries: Sequence[Entry]) -> None:
        """Replace the entries of a resource, first in the registry."""
        if is_of_many(kind, name):
            self._refuse_shared()
        digest = hashlib.sha256(f"{kind}:{name}".encode()).hexdigest()[:32]
        # Stored before it takes effect, so that a failed write never withdraws a right that was
        # in effect.
        await self._put(f"{ENTRIES_PREFIX}{digest}", EntriesRecord(kind, name, tuple(entries)))
        before = {entry.subject: entry.rights for entry in self.acl.entries(kind, name)}
        after = {entry.subject: entry.rights for entry in entries}
        self.acl.put(kind, name, entries)
        may_lose_rights = any(
            {*rights} - {*after.get(subject, ())} for subject, rights in before.items()
        )
        self.on_rights_changed(may_lose_rights=may_lose_rights)

    async def _put(self, key: str, record: Struct) -> None:
        """Store a record in the registry. Raises ``IllegalState`` without authentication."""
        if self._registry is None:
            raise IllegalState(
                "this realm has no authentication (access.mode is off), so it keeps no users, "
                "groups and rights; set access.mode to optional or mandatory"
            )
        version = self._versions.get(key, 0)
        value = msgspec.msgpack.encode(record)
        self._versions[key] = await self._registry.cas(key, version, value)


def _with_group(users: UsersRecord, name: str, members: set[str]) -> UsersRecord:
    """Return the record with a group of these members. Raises ``InvalidArgument`` for an invalid
    name."""
    checked = tuple(sorted(map(checked_user, members)))
    return replace(users, groups={**users.groups, name: checked})


def checked_resource(kind: str, name: str) -> str:
    """Return ``name`` in the form that entries are stored under. Raises ``InvalidArgument``,
    ``InvalidName``."""
    known_rights(kind)
    if kind == "realm":
        if name:
            raise InvalidArgument(f"a grant on the realm takes no name, but {name!r} was given")
        return ""
    if kind == "topic":
        if name and (fault := filter_fault(name)):
            raise InvalidArgument(f"{name!r} is not a topic filter: {fault}")
        if name.startswith("$"):
            raise InvalidArgument(
                f"{name!r} begins with $; such topics are reserved for the realm: grant rights on "
                f"other topics"
            )
        return name
    if name == "*":
        return name
    folder, star, rest = name.rpartition("/*")
    if star and not rest:
        return f"{destination_name(folder)}/*"
    return destination_name(name)


def new_password() -> str:
    """Generate a password of 120 random bits, short enough to type."""
    return secrets.token_urlsafe(NONCE_BYTES)[:20]
