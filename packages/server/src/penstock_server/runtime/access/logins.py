"""Sign-ins of browsers: a session in a cookie, and a token against forged requests.

Sessions survive restarts and failovers: the registry stores them. It stores a digest of the
cookie's value, from which neither the cookie nor its token can be computed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import Struct

from penstock_core.access.rights import Principal
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import AccessDenied, Conflict, Damaged, PenstockError
from penstock_core.vocabulary.ports import Clock, Registry

LOGINS_MAX = 10_000
"""Largest number of browser sessions of a realm."""
OF_USER_MAX = 100
"""Largest number of browser sessions of one user."""
CSRF_HEADER = "X-CSRF-Token"
KEPT_PREFIX: Final = "logins/"
"""Beginning of the registry keys of sessions."""
RECORDS: Final = 64
"""Number of registry records for all sessions. The record of a session is chosen by a hash of its
user's name. A start reads all records, so the number of reads does not grow with the users."""
UNWRITTEN_SHARE: Final = 10
"""The time of last use is stored again once it is later than the stored time by the idle time
divided by this number. So page views cause few writes."""

_log = logger("penstock.access")


class BrowserLogin(Struct):
    """A browser session. Its values are secret, so its ``repr`` leaves them out."""

    id: str
    """The cookie's value; empty after a restart, until the browser sends the cookie again."""
    csrf: str
    """The token that requests that change something must have in :data:`CSRF_HEADER`."""
    principal: Principal
    opened_us: int
    used_us: int
    password: bytes = b""
    """Digest of the user's password at the sign-in; see :attr:`Logins.password_of`."""
    written_us: int = 0
    """The time of last use that the registry has, in microseconds."""

    def __repr__(self) -> str:
        return f"BrowserLogin({self.principal.name})"


class _StoredLogin(Struct, frozen=True, array_like=True):
    """A session as the registry stores it."""

    digest: bytes
    user: str
    host: str
    opened_us: int
    used_us: int
    password: bytes


class _LoginRecord(Struct):
    """A record of sessions, as this process has last read or written it."""

    version: int = 0
    digests: frozenset[bytes] = frozenset()
    is_damaged: bool = False
    """Whether the record cannot be read. It is not overwritten, and its sessions stay in memory
    only."""


class Logins:
    """All browser sessions of a realm.

    A session opened with a password has a digest of this password. The session ends when the
    password changes, because the digest no longer matches; so changing a password need not write
    the records of sessions in the same step. Sessions of other proofs stay in memory only.
    """

    password_of: Callable[[str], bytes | None]
    """Returns a digest that identifies a user's password; None without the user or a password."""

    def __init__(
        self,
        clock: Clock,
        *,
        idle_s: float = 3_600,
        total_s: float = 43_200,
        of_user_max: int = OF_USER_MAX,
        logins_max: int = LOGINS_MAX,
        registry: Registry | None = None,
    ) -> None:
        """Create an empty list of sessions; :meth:`load` reads the stored ones.

        Sessions end ``idle_s`` seconds after their last use, and ``total_s`` seconds after they
        were opened. A user has at most ``of_user_max`` sessions: a further one ends the session
        that was idle for the longest time. If the realm has ``logins_max`` sessions, a further one
        ends the longest idle session of the user with the most sessions. Without a ``registry``
        sessions end with this process.
        """
        self._clock = clock
        self._idle_us = int(idle_s * 1_000_000)
        self._total_us = int(total_s * 1_000_000)
        self._of_user_max = of_user_max
        self._logins_max = logins_max
        self._registry = registry
        self.of_user: dict[str, dict[bytes, BrowserLogin]] = {}
        """Sessions by user, and by the digest of their cookie."""
        self._by_digest: dict[bytes, BrowserLogin] = {}
        """All open sessions, by the digest of their cookie."""
        self._of_record: dict[str, dict[bytes, BrowserLogin]] = {}
        """Sessions by the key of their record."""
        self._records: dict[str, _LoginRecord] = {}
        self._unwritten: set[str] = set()
        """Keys of records with unwritten changes."""
        self._writing = asyncio.Lock()
        self.password_of = lambda user: b""

    async def load(self) -> None:
        """Read the stored sessions. Raises ``StorageFailed``."""
        if self._registry is None:
            return
        keys = await self._registry.list(KEPT_PREFIX)
        for key in keys:
            self._add(await self._read(key))

    async def open(self, principal: Principal, password: bytes | None = None) -> BrowserLogin:
        """Open a session for a principal that has just signed in. The session is stored on return.

        ``password`` is the digest of the checked password, read before the check; None stands for
        the digest of the present password. Raises ``StorageFailed``.
        """
        now_us = self._clock.now_us()
        of_user = self.of_user.get(principal.user, {})
        if len(of_user) >= self._of_user_max:
            self._forget(min(of_user, key=lambda key: of_user[key].used_us))
        if len(self._by_digest) >= self._logins_max:
            self._forget_old(now_us)
        if password is None:
            password = self.password_of(principal.user) or b""
        id = secrets.token_urlsafe(32)
        login = BrowserLogin(
            id, _csrf(id), principal, opened_us=now_us, used_us=now_us, password=password
        )
        key = _digest(login.id)
        self._put(key, login)
        self._mark_unwritten(login)
        try:
            await self.write()
        except BaseException:
            # A session that is not stored would end with the next restart without a reason.
            self._forget(key)
            raise
        return login

    def __len__(self) -> int:
        """The number of sessions, including some that may have expired."""
        return len(self._by_digest)

    def find(self, id: str, *, use: bool = True) -> BrowserLogin | None:
        """Return the session of a cookie; None if it does not exist or has ended. With ``use``, the
        time of its last use becomes the present."""
        key = _digest(id)
        login = self._by_digest.get(key)
        if login is None:
            return None
        now_us = self._clock.now_us()
        if self._has_ended(login, now_us):
            self._forget(key)
            return None
        if not login.id:  # restored after a restart: the registry has only the digest of the id
            login.id, login.csrf = id, _csrf(id)
        if use:
            login.used_us = now_us
            if now_us - login.written_us > self._idle_us // UNWRITTEN_SHARE:
                self._mark_unwritten(login)
        return login

    async def find_and_store_use(self, id: str) -> BrowserLogin | None:
        """Find the session as :meth:`find` does, and store its last use if that is due. If the
        write fails, the next request tries again."""
        login = self.find(id)
        # A write in progress also stores these changes, so this request need not wait.
        if self._unwritten and not self._writing.locked():
            try:
                await self.write()
            except PenstockError as error:
                _log.warning("access.logins_not_written", reason=str(error))
        return login

    def check_csrf(self, login: BrowserLogin, token: str) -> None:
        """Raise ``AccessDenied`` unless the request comes from the console's pages."""
        if not hmac.compare_digest(login.csrf.encode(), token.encode()):
            raise AccessDenied(
                f"the header {CSRF_HEADER} does not match this session: another web site may have "
                f"sent the request; sign in again"
            )

    async def close(self, id: str) -> None:
        """End a session immediately, and remove it from the store. Raises ``StorageFailed``."""
        self._forget(_digest(id))
        await self.write()

    def close_of(self, user: str) -> None:
        """End all sessions of a user whose password or account has changed. Stored copies have
        ended already, because their digest of the password no longer matches."""
        for key in list(self.of_user.get(user, {})):
            self._forget(key)

    def _has_ended(self, login: BrowserLogin, now_us: int) -> bool:
        """Whether the password of a session has changed, or its time is over."""
        principal = login.principal
        if principal.proof == "password" and self.password_of(principal.user) != login.password:
            return True
        is_idle = now_us - login.used_us > self._idle_us
        until_us = principal.until_us
        return is_idle or now_us - login.opened_us > self._total_us or (0 < until_us < now_us)

    def _put(self, key: bytes, login: BrowserLogin) -> None:
        """Add a login to the maps."""
        self._by_digest[key] = login
        self.of_user.setdefault(login.principal.user, {})[key] = login
        if self._is_kept(login):
            self._of_record.setdefault(_key_of(login.principal.user), {})[key] = login

    def _forget(self, key: bytes) -> None:
        login = self._by_digest.pop(key, None)
        if login is None:
            return
        self._mark_unwritten(login)
        if self._is_kept(login):
            del self._of_record[_key_of(login.principal.user)][key]
        of_user = self.of_user[login.principal.user]
        del of_user[key]
        if not of_user:
            del self.of_user[login.principal.user]

    def _forget_old(self, now_us: int) -> None:
        """End the sessions that have expired, and others until the realm has room for one more."""
        for key in [
            key for key, login in self._by_digest.items() if self._has_ended(login, now_us)
        ]:
            self._forget(key)
        while len(self._by_digest) >= self._logins_max:
            most = max(self.of_user.values(), key=len)
            self._forget(min(most, key=lambda key: most[key].used_us))

    # --- storage -------------------------------------------------------------------------

    def _is_kept(self, login: BrowserLogin) -> bool:
        """Return whether a login is stored on disk, so that it survives a restart."""
        return self._registry is not None and login.principal.proof == "password"

    def _mark_unwritten(self, login: BrowserLogin) -> None:
        if self._is_kept(login):
            self._unwritten.add(_key_of(login.principal.user))

    async def write(self) -> None:
        """Store the changed records. Raises ``StorageFailed``."""
        async with self._writing:
            while self._unwritten:
                await self._write(min(self._unwritten))

    async def _write(self, key: str) -> None:
        """Store one record; a conflicting record of another owner is merged and written later."""
        record = self._records.setdefault(key, _LoginRecord())
        # Unmarked before the write, so that a change during the write marks the record again.
        self._unwritten.discard(key)
        if record.is_damaged:
            return  # only a repair may replace it
        assert self._registry is not None, "records are marked as unwritten only with a registry"
        logins = self._stored_logins(key)
        try:
            version = await self._registry.cas(
                key, record.version, msgspec.msgpack.encode(list(logins.values()))
            )
        except Conflict:
            # `write` loops until no record is unwritten, so the merged record is written next.
            self._unwritten.add(key)
            await self._merge(key, record.digests)
        except BaseException:
            self._unwritten.add(key)
            raise
        else:
            record.version, record.digests = version, frozenset(logins)
            for digest, stored in logins.items():
                if (login := self._by_digest.get(digest)) is not None:
                    login.written_us = stored.used_us

    def _stored_logins(self, key: str) -> dict[bytes, _StoredLogin]:
        """Return the sessions that a record has to contain now, by digest."""
        return {
            digest: _StoredLogin(
                digest,
                login.principal.user,
                login.principal.host,
                opened_us=login.opened_us,
                used_us=login.used_us,
                password=login.password,
            )
            for digest, login in self._of_record.get(key, {}).items()
        }

    async def _merge(self, key: str, before: frozenset[bytes]) -> None:
        """Merge a record that the previous owner of the realm has written after this process has
        read it: add the sessions that the owner has opened, and end those that it has ended.
        ``before`` has the digests that this process has read."""
        ended_here = before - self._by_digest.keys()
        stored_logins = await self._read(key)
        for digest in before - {stored.digest for stored in stored_logins}:
            self._forget(digest)
        self._add(stored for stored in stored_logins if stored.digest not in ended_here)
        self._unwritten.add(key)

    async def _read(self, key: str) -> list[_StoredLogin]:
        """Return the sessions in a record; none if the record is missing or damaged."""
        assert self._registry is not None, "sessions are read only with a registry"
        record = self._records[key] = _LoginRecord()
        try:
            entry = await self._registry.get(key)
        except Damaged as error:  # the users of its sessions have to sign in again
            _log.error("access.logins_damaged", reason=str(error))
            record.is_damaged = True
            return []
        if entry is None:
            return []
        record.version = entry.version
        try:
            stored_logins = msgspec.msgpack.decode(entry.value, type=list[_StoredLogin])
        except (msgspec.DecodeError, RecursionError) as error:
            _log.error("access.logins_damaged", reason=str(error))
            return []
        record.digests = frozenset(stored.digest for stored in stored_logins)
        return stored_logins

    def _add(self, stored_logins: Iterable[_StoredLogin]) -> None:
        """Add stored sessions, except ended ones and those already in memory."""
        now_us = self._clock.now_us()
        for stored in stored_logins:
            principal = Principal(stored.user, stored.host, proof="password")
            login = BrowserLogin(
                "",
                "",
                principal,
                opened_us=stored.opened_us,
                used_us=stored.used_us,
                password=stored.password,
                written_us=stored.used_us,
            )
            if self._has_ended(login, now_us):
                # The next write of the record leaves the ended session out.
                self._unwritten.add(_key_of(stored.user))
            elif stored.digest not in self._by_digest:
                self._put(stored.digest, login)


def _digest(id: str) -> bytes:
    """Return the key of a session in the mappings. It is a digest of the id, so that the duration
    of a lookup reveals nothing about valid ids."""
    return hashlib.sha256(id.encode()).digest()


def _csrf(id: str) -> str:
    """Return the token of a session; it can be computed only from the cookie's value."""
    token = hmac.digest(id.encode(), CSRF_HEADER.encode(), "sha256")
    return urlsafe_b64encode(token).decode().rstrip("=")


def _key_of(user: str) -> str:
    """Return the key of the record with a user's sessions."""
    return f"{KEPT_PREFIX}{hashlib.sha256(user.encode()).digest()[0] % RECORDS:02d}"
