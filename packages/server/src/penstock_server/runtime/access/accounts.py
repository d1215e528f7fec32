"""Users, groups and what was granted: kept in the registry, changed one at a time (SEM A1-A3)."""

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
    """A function called after each change of rights; ``lost`` says whether a subject may have lost
    some."""

    def __call__(self, *, lost: bool) -> None: ...


class Accounts:
    """Users, groups and rights of the realm. Changes are on disk when a method returns, and count
    at once."""

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
        """Without a ``registry`` nothing is kept and nothing can be changed. With ``shared`` users,
        groups and what is granted on more than one store are those of a cluster, and are changed
        there."""
        self._registry = registry
        self.shared = None if registry is None else shared
        self._clock = clock
        self._offload = offload
        self.rounds = rounds
        """Rounds of PBKDF2 for new passwords."""
        self.length_min = length_min
        """Fewest characters of a new password."""
        self._record = UsersRecord(b"")
        self._versions: dict[str, int] = {}
        self._changing = asyncio.Lock()
        self.acl = Acl()
        self.changed: RightsListener = lambda *, lost: None
        """Called after each change."""
        self.user_changed: Callable[[str], None] = lambda user: None

    async def load(self) -> None:
        """Read the registry. Raises ``Damaged`` when the users cannot be read."""
        registry = self._registry
        if registry is None:
            return
        if self.shared is not None:
            self._take_shared(self.shared)
        else:
            held = await registry.get(USERS_KEY)
            if held is not None:
                self._versions[USERS_KEY] = held.version
            self._take_users(None if held is None else held.value)
        for key in await registry.list(ENTRIES_PREFIX):
            try:
                record = await registry.get(key)
            except Damaged as error:  # nobody has these rights until they are granted again
                _log.error("access.entries_damaged", reason=str(error))
                continue
            assert record is not None, "it was listed, and nobody removes records"
            self._versions[key] = record.version
            found = msgspec.msgpack.decode(record.value, type=EntriesRecord)
            self.acl.put(found.kind, found.name, found.entries)

    def _take_users(self, value: bytes | None) -> None:
        if value is None:
            self._record = UsersRecord(secrets.token_bytes(32))
        else:
            self._record = msgspec.msgpack.decode(value, type=UsersRecord)
        self.acl.put_groups(self._record.groups)

    def _take_shared(self, shared: SharedAccounts) -> None:
        self._take_users(shared.users)
        for found in shared.entries.values():
            self.acl.put(found.kind, found.name, found.entries)

    async def follow(self) -> None:
        """What is shared has changed. Rights that users and groups had here, and which are gone,
        are forgotten."""
        assert self.shared is not None, "there is something to follow"
        before = self._record
        self._take_shared(self.shared)
        now = self._record
        users, groups = before.users.keys() - now.users, before.groups.keys() - now.groups
        if users or groups:
            await self._forget(
                lambda subject: subject.user in (groups if subject.is_group else users)
            )
        for user, known in before.users.items():
            if user in users or now.users[user].verifier != known.verifier:
                self.user_changed(user)
        self.changed(lost=True)

    def _refuse_shared(self) -> None:
        if self.shared is not None:
            raise IllegalState(
                "users, groups and rights on more than one channel are those of the whole cluster: "
                "change them in its realm; here are the local channels of one node"
            )

    # --- users ---------------------------------------------------------------------------

    def verifier_of(self, user: str) -> Verifier | None:
        """The record of a user's password, if there is one."""
        known = self._record.users.get(user)
        return known.verifier if known is not None else None

    def password_mark(self, user: str) -> bytes | None:
        """What tells the password of a user from each one before it, also from the same password
        given again, and reveals nothing of it; None: there is no such user, or no password."""
        known = self.verifier_of(user)
        return None if known is None else hashlib.sha256(known.salt + known.stored_key).digest()

    def decoy(self, user: str) -> Verifier:
        """A verifier for a user without a password, always the same for one name, as for a real
        user. Its number of rounds is one in use; otherwise the rounds of earlier settings would
        reveal real users."""
        salt = self._drawn(user)[:SALT_BYTES]
        used = {each.verifier.rounds for each in self._record.users.values() if each.verifier}
        # Each number of rounds draws a lot for this user, so another number in use changes few
        # users' rounds.
        rounds = max(used or {self.rounds}, key=lambda each: self._drawn(f"{each} {user}"))
        return Verifier(salt, rounds, secrets.token_bytes(32), server_key=secrets.token_bytes(32))

    def _drawn(self, text: str) -> bytes:
        return hmac.digest(self._record.secret, text.encode(), "sha256")

    def knows(self, user: str) -> bool:
        return user in self._record.users

    def users(self) -> list[UserInfo]:
        """All users, by name."""
        return [self.user(name) for name in sorted(self._record.users)]

    def user(self, name: str) -> UserInfo:
        """Raises ``NameDoesNotExist``."""
        known = self._user(name)
        groups = sorted(group for group, own in self._record.groups.items() if name in own)
        return UserInfo(
            name=name,
            groups=tuple(groups),
            has_password=known.verifier is not None,
            created_us=known.created_us,
            changed_us=known.changed_us,
        )

    def audited_user(self, name: str) -> dict[str, str]:
        """Describe a user for the audit log; of the password it tells only that it was changed."""
        known = self._record.users.get(name)
        if known is None:
            return {}
        kept = "none" if known.verifier is None else f"of {known.changed_us}"
        groups = sorted(group for group, own in self._record.groups.items() if name in own)
        return {"user": name, "password": kept, "groups": ", ".join(groups) or "none"}

    def audited_group(self, name: str) -> dict[str, str]:
        """Likewise of a group."""
        members = self._record.groups.get(name)
        return {} if members is None else {"group": name, "members": ", ".join(members) or "none"}

    async def create_user(self, name: str, password: str | Verifier | None = None) -> UserInfo:
        """Without a password the user signs in with a token or certificate only.

        Raises ``NameAlreadyBound``, ``InvalidArgument``.
        """
        checked_name(name, "user")
        if name == ANONYMOUS:
            raise InvalidArgument(
                f"{ANONYMOUS} is the name of clients that do not sign in; choose another"
            )
        made = await self._verifier(password)

        def create(users: UsersRecord) -> UsersRecord:
            if name in users.users:
                raise NameAlreadyBound(f"a user {name} already exists")
            now_us = self._clock.now_us()
            return replace(users, users={**users.users, name: UserRecord(now_us, now_us, made)})

        await self._change(create)
        _log.info("user.created", name=name)
        return self.user(name)

    async def set_password(self, name: str, password: str | Verifier) -> None:
        """Give a user a new password; whoever has signed in stays. Raises ``NameDoesNotExist``,
        ``InvalidArgument``."""
        self._user(name)
        made = await self._verifier(password)

        def change(users: UsersRecord) -> UsersRecord:
            user = replace(self._user(name), verifier=made, changed_us=self._clock.now_us())
            return replace(users, users={**users.users, name: user})

        await self._change(change)
        self.user_changed(name)

    async def delete_user(self, name: str) -> None:
        """The user's sessions end, its memberships and entries too. Raises
        ``NameDoesNotExist``, and ``IllegalState`` for the last one who may administer."""
        self._refuse_shared()
        self._user(name)
        self._keep_an_administrator(name)

        def delete(users: UsersRecord) -> UsersRecord:
            rest = {each: user for each, user in users.users.items() if each != name}
            groups = {
                group: tuple(each for each in members if each != name)
                for group, members in users.groups.items()
            }
            return replace(users, users=rest, groups=groups)

        await self._forget(lambda subject: not subject.is_group and subject.user == name)
        await self._change(delete)
        _log.info("user.deleted", name=name)
        self.user_changed(name)

    def _keep_an_administrator(self, name: str) -> None:
        on_realm = self.acl.entries("realm")
        for entry in on_realm:
            subject = parse_subject(entry.subject)
            others = {"full", "manage_acl"} & {*entry.rights} and (
                subject.is_group or subject.user != name
            )
            if others:
                return
        raise IllegalState(
            f"{name} is the last user who may grant rights; give another user that right first"
        )

    def _user(self, name: str) -> UserRecord:
        known = self._record.users.get(name)
        if known is None:
            raise NameDoesNotExist(f"there is no user {name}; create it first, or list the users")
        return known

    async def _verifier(self, password: str | Verifier | None) -> Verifier | None:
        if not isinstance(password, str):
            if password is not None and not self.rounds <= password.rounds <= ROUNDS_MAX:
                raise InvalidArgument(
                    f"the password has {password.rounds} rounds; allowed are {self.rounds} "
                    f"(access.password_rounds) to {ROUNDS_MAX}"
                )
            return password
        check_length(password, self.length_min)
        salt = secrets.token_bytes(SALT_BYTES)
        made = await self._offload(lambda: verifier(password, salt, self.rounds))
        return made

    # --- groups --------------------------------------------------------------------------

    def groups(self) -> list[GroupInfo]:
        """All groups, by name."""
        return [self.group(name) for name in sorted(self._record.groups)]

    def group(self, name: str) -> GroupInfo:
        """Raises ``NameDoesNotExist``."""
        members = self._record.groups.get(name)
        if members is None:
            raise NameDoesNotExist(f"there is no group {name}; create it first, or list the groups")
        return GroupInfo(name=name, members=members)

    async def create_group(self, name: str, members: Sequence[str] = ()) -> GroupInfo:
        """Members are names of users, known here or by their tokens and certificates.

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
        """Raises ``NameDoesNotExist``, ``InvalidArgument``."""

        def change(users: UsersRecord) -> UsersRecord:
            return _with_group(users, name, ({*self.group(name).members} | {*add}) - {*remove})

        await self._change(change)
        return self.group(name)

    async def delete_group(self, name: str) -> None:
        """Remove a group and its rights. Raises ``NameDoesNotExist``."""
        self._refuse_shared()
        self.group(name)

        def delete(users: UsersRecord) -> UsersRecord:
            groups = {each: own for each, own in users.groups.items() if each != name}
            return replace(users, groups=groups)

        await self._forget(lambda subject: subject.is_group and subject.user == name)
        await self._change(delete)

    # --- entries -------------------------------------------------------------------------

    def entries(self, kind: str, name: str = "") -> AclInfo:
        """The rights granted on a resource."""
        resource = checked_resource(kind, name)
        if kind == "topic" and not name:
            found = (own for of, own in self.acl.resources() if of == kind)
            return AclInfo(kind=kind, topics=tuple(found))
        return AclInfo(kind=kind, name=resource, entries=tuple(self.acl.entries(kind, resource)))

    async def grant(self, kind: str, name: str, subject: str, rights: Sequence[str]) -> AclInfo:
        """Grant rights to a subject, in addition to those it has. Raises ``InvalidArgument``, and
        ``NameDoesNotExist`` for a group that does not exist."""
        resource, wanted = checked_resource(kind, name), checked_rights(kind, tuple(rights))
        if kind == "topic" and not resource:
            raise InvalidArgument("a grant on topics takes a filter, such as dev/%c/#")
        meant = parse_subject(subject)
        if meant.is_group and meant.user not in self._record.groups:
            _log.info("access.group_unknown", group=meant.user)  # a token may name it
        async with self._changing:
            granted = self.acl.granted(kind, resource, subject, rights=wanted)
            await self._store(kind, resource, granted)
        return self.entries(kind, resource)

    async def revoke(
        self, kind: str, name: str, subject: str, rights: Sequence[str] = ()
    ) -> AclInfo:
        """Take rights from a subject; none named: all. Raises ``InvalidArgument``."""
        resource = checked_resource(kind, name)
        taken = checked_rights(kind, tuple(rights)) if rights else known_rights(kind)
        async with self._changing:
            left = self.acl.revoked(kind, resource, subject, rights=taken)
            await self._store(kind, resource, left)
        return self.entries(kind, resource)

    async def replace_entries(self, kind: str, name: str, entries: Sequence[Entry]) -> None:
        """Replace all entries of a resource: a store just made gets its creator's (SEM A3)."""
        if not entries and not self.acl.entries(kind, name):
            return
        async with self._changing:
            await self._store(kind, name, entries)

    # --- keeping it ----------------------------------------------------------------------

    async def _forget(self, is_gone: Callable[[Any], bool]) -> None:
        """Remove the entries of subjects that are gone."""
        async with self._changing:
            for kind, name in self.acl.resources():
                if self.shared is not None and is_of_many(kind, name):
                    continue
                held = self.acl.entries(kind, name)
                left = [each for each in held if not is_gone(parse_subject(each.subject))]
                if left != held:
                    await self._store(kind, name, left)

    async def _change(self, change: Callable[[UsersRecord], UsersRecord]) -> None:
        self._refuse_shared()
        async with self._changing:
            changed = change(self._record)
            await self._put(USERS_KEY, changed)
            self._record = changed
            self.acl.put_groups(changed.groups)
        self.changed(lost=True)

    async def _store(self, kind: str, name: str, entries: Sequence[Entry]) -> None:
        if is_of_many(kind, name):
            self._refuse_shared()
        digest = hashlib.sha256(f"{kind}:{name}".encode()).hexdigest()[:32]
        await self._put(f"{ENTRIES_PREFIX}{digest}", EntriesRecord(kind, name, tuple(entries)))
        held = {entry.subject: entry.rights for entry in self.acl.entries(kind, name)}
        now = {entry.subject: entry.rights for entry in entries}
        self.acl.put(kind, name, entries)
        lost = any({*rights} - {*now.get(subject, ())} for subject, rights in held.items())
        self.changed(lost=lost)

    async def _put(self, key: str, record: Struct) -> None:
        if self._registry is None:
            raise IllegalState(
                "this realm has no authentication (access.mode is off), so it keeps no users, "
                "groups and rights; set access.mode to optional or mandatory"
            )
        known = self._versions.get(key, 0)
        value = msgspec.msgpack.encode(record)
        self._versions[key] = await self._registry.cas(key, known, value)


def _with_group(users: UsersRecord, name: str, members: set[str]) -> UsersRecord:
    kept = tuple(sorted(map(checked_user, members)))
    return replace(users, groups={**users.groups, name: kept})


def checked_resource(kind: str, name: str) -> str:
    """``name`` in the form entries are kept under. Raises ``InvalidArgument``, ``InvalidName``."""
    known_rights(kind)
    if kind == "realm":
        if name:
            raise InvalidArgument(f"a grant on the realm takes no name, but {name!r} was given")
        return ""
    if kind == "topic":
        if name and (fault := filter_fault(name)):
            raise InvalidArgument(f"{name!r} is no topic filter: {fault}")
        if name.startswith("$"):
            raise InvalidArgument(f"{name!r} begins with $; such topics are the realm's own")
        return name
    if name == "*":
        return name
    folder, star, rest = name.rpartition("/*")
    if star and not rest:
        return f"{destination_name(folder)}/*"
    return destination_name(name)


def new_password() -> str:
    """Generate a password that cannot be guessed and can be typed: 120 bits."""
    return secrets.token_urlsafe(NONCE_BYTES)[:20]
