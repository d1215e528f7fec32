"""Sign-ins of browsers: a session in a cookie, and a token against forged requests.

Sessions outlive the process that opened them: they are kept in the registry, so a realm that starts
again has them, and so has the next owner of a cluster's realm. What is kept is a digest of the
cookie's value, from which neither the cookie nor its token can be made.
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
"""Most browser sessions; beyond it, the user with the most loses the one that is idle longest."""
OF_USER_MAX = 100
"""Likewise of one user."""
CSRF_HEADER = "X-CSRF-Token"
KEPT_PREFIX: Final = "logins/"
RECORDS: Final = 64
"""Records in which sessions are kept, by the user's name. All are read at once when the realm is
opened, so that this takes as long for many users as for few."""
UNWRITTEN_SHARE: Final = 10
"""The last use of a session is written down when it is later than what was written by this part of
the idle time, so that reading pages writes next to nothing."""

_log = logger("penstock.access")


class BrowserLogin(Struct):
    """A browser session. Its values are secret, so its text has none of them."""

    id: str
    """The cookie's value; empty until the browser shows it again to a realm that was restarted."""
    csrf: str
    """The token that requests which change something carry in :data:`CSRF_HEADER`."""
    principal: Principal
    opened_us: int
    used_us: int
    password: bytes = b""
    """Which password of the user it was opened with; see :attr:`Logins.password_of`."""
    written_us: int = 0
    """The last use as it was written down."""

    def __repr__(self) -> str:
        return f"BrowserLogin({self.principal.name})"


class _StoredLogin(Struct, frozen=True, array_like=True):
    """A session as it is written down."""

    digest: bytes
    user: str
    host: str
    opened_us: int
    used_us: int
    password: bytes


class _LoginRecord(Struct):
    """One of the records of sessions, as this process has last seen it."""

    version: int = 0
    digests: frozenset[bytes] = frozenset()
    is_damaged: bool = False
    """It cannot be read, so it is not written either: its sessions are in memory only."""


class Logins:
    """All browser sessions of a realm.

    A session of a password ends with that password, whoever has changed it and whenever: it names
    the password it was opened with, so that no list of sessions has to be changed in the same
    instant. Sessions of other proofs stay in memory.
    """

    password_of: Callable[[str], bytes | None]
    """What tells the password of a user from every other password; None: there is no such user, or
    it has none."""

    def __init__(
        self,
        clock: Clock,
        *,
        idle_s: float = 3_600,
        total_s: float = 43_200,
        of_user_max: int = OF_USER_MAX,
        registry: Registry | None = None,
    ) -> None:
        """They end ``idle_s`` after their last use, and ``total_s`` after they were opened; a user
        has ``of_user_max``, and loses the one that was idle longest to the next. Without a
        ``registry`` they end with this process."""
        self._clock = clock
        self._idle_us = int(idle_s * 1_000_000)
        self._total_us = int(total_s * 1_000_000)
        self._of_user_max = of_user_max
        self._registry = registry
        self._of_user: dict[str, dict[bytes, BrowserLogin]] = {}
        self._held: dict[bytes, BrowserLogin] = {}
        self._of_record: dict[str, dict[bytes, BrowserLogin]] = {}
        """By the key of the record in which they are kept."""
        self._records: dict[str, _LoginRecord] = {}
        self._unwritten: set[str] = set()
        """Keys of records that do not say what is so."""
        self._writing = asyncio.Lock()
        self.password_of = lambda user: b""

    async def load(self) -> None:
        """Read the sessions that are kept. Raises ``StorageFailed``."""
        if self._registry is None:
            return
        keys = await self._registry.list(KEPT_PREFIX)
        for key in keys:
            self._take(await self._read(key))

    async def open(self, principal: Principal, password: bytes | None = None) -> BrowserLogin:
        """Open a new session for somebody who has just signed in, with the ``password`` that was
        checked, as :attr:`password_of` told it before; None: with the one there is now. It is kept
        on return. Raises ``StorageFailed``."""
        now_us = self._clock.now_us()
        own = self._of_user.get(principal.user, {})
        if len(own) >= self._of_user_max:
            self._forget(min(own, key=lambda key: own[key].used_us))
        if len(self._held) >= LOGINS_MAX:
            self._forget_old(now_us)
        if password is None:
            password = self.password_of(principal.user) or b""
        id = secrets.token_urlsafe(32)
        login = BrowserLogin(
            id, _csrf(id), principal, opened_us=now_us, used_us=now_us, password=password
        )
        key = _digest(login.id)
        self._put(key, login)
        self._changed(login)
        try:
            await self.write()
        except BaseException:
            self._forget(key)
            raise
        return login

    def __len__(self) -> int:
        """The number of sessions, including some that may have expired."""
        return len(self._held)

    def find(self, id: str, *, use: bool = True) -> BrowserLogin | None:
        """The session of a cookie; None: there is none, or it has ended. Using it prolongs it."""
        key = _digest(id)
        login = self._held.get(key)
        if login is None:
            return None
        now_us = self._clock.now_us()
        if self._has_ended(login, now_us):
            self._forget(key)
            return None
        if not login.id:
            login.id, login.csrf = id, _csrf(id)
        if use:
            login.used_us = now_us
            if now_us - login.written_us > self._idle_us // UNWRITTEN_SHARE:
                self._changed(login)
        return login

    async def found(self, id: str) -> BrowserLogin | None:
        """As :meth:`find`, and the use is written down where it is time to. What cannot be written
        is written with the next request."""
        login = self.find(id)
        if self._unwritten and not self._writing.locked():
            try:
                await self.write()
            except PenstockError as error:
                _log.warning("access.logins_not_written", reason=str(error))
        return login

    def check_csrf(self, login: BrowserLogin, given: str) -> None:
        """Raises ``AccessDenied`` unless the request comes from the console's own pages."""
        if not hmac.compare_digest(login.csrf.encode(), given.encode()):
            raise AccessDenied(
                f"the header {CSRF_HEADER} does not match this session: another web site may have "
                f"sent the request; sign in again"
            )

    async def close(self, id: str) -> None:
        """Sign out. It has ended at once, and is no longer kept on return. Raises
        ``StorageFailed``."""
        self._forget(_digest(id))
        await self.write()

    def close_of(self, user: str) -> None:
        """Sign a user out everywhere, after a change of the password or of the user itself, by
        which those sessions that are kept have ended, too."""
        for key in list(self._of_user.get(user, {})):
            self._forget(key)

    def _has_ended(self, login: BrowserLogin, now_us: int) -> bool:
        principal = login.principal
        if principal.proof == "password" and self.password_of(principal.user) != login.password:
            return True
        is_idle = now_us - login.used_us > self._idle_us
        until_us = principal.until_us
        return is_idle or now_us - login.opened_us > self._total_us or (0 < until_us < now_us)

    def _put(self, key: bytes, login: BrowserLogin) -> None:
        self._held[key] = login
        self._of_user.setdefault(login.principal.user, {})[key] = login
        if self._is_kept(login):
            self._of_record.setdefault(_key_of(login.principal.user), {})[key] = login

    def _forget(self, key: bytes) -> None:
        login = self._held.pop(key, None)
        if login is None:
            return
        self._changed(login)
        if self._is_kept(login):
            del self._of_record[_key_of(login.principal.user)][key]
        own = self._of_user[login.principal.user]
        del own[key]
        if not own:
            del self._of_user[login.principal.user]

    def _forget_old(self, now_us: int) -> None:
        for key in [k for k, each in self._held.items() if self._has_ended(each, now_us)]:
            self._forget(key)
        while len(self._held) >= LOGINS_MAX:
            most = max(self._of_user.values(), key=len)
            self._forget(min(most, key=lambda key: most[key].used_us))

    # --- keeping them --------------------------------------------------------------------

    def _is_kept(self, login: BrowserLogin) -> bool:
        return self._registry is not None and login.principal.proof == "password"

    def _changed(self, login: BrowserLogin) -> None:
        if self._is_kept(login):
            self._unwritten.add(_key_of(login.principal.user))

    async def write(self) -> None:
        """Write down what has changed. Raises ``StorageFailed``."""
        async with self._writing:
            while self._unwritten:
                await self._write(min(self._unwritten))

    async def _write(self, key: str) -> None:
        record = self._records.setdefault(key, _LoginRecord())
        self._unwritten.discard(key)
        if record.is_damaged:
            return
        assert self._registry is not None, "without one, nothing is marked as unwritten"
        kept = self._kept(key)
        try:
            version = await self._registry.cas(
                key, record.version, msgspec.msgpack.encode(list(kept.values()))
            )
        except Conflict:
            self._unwritten.add(key)
            await self._merge(key, record.digests)
        except BaseException:
            self._unwritten.add(key)
            raise
        else:
            record.version, record.digests = version, frozenset(kept)
            for digest, each in kept.items():
                if (login := self._held.get(digest)) is not None:
                    login.written_us = each.used_us

    def _kept(self, key: str) -> dict[bytes, _StoredLogin]:
        """What a record has to say now."""
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
        """An owner before this one has still written: take over what it has opened and ended."""
        ended_here = before - self._held.keys()
        there = await self._read(key)
        for digest in before - {each.digest for each in there}:
            self._forget(digest)
        self._take(each for each in there if each.digest not in ended_here)
        self._unwritten.add(key)

    async def _read(self, key: str) -> list[_StoredLogin]:
        assert self._registry is not None, "without one, nothing is read"
        record = self._records[key] = _LoginRecord()
        try:
            held = await self._registry.get(key)
        except Damaged as error:  # whoever was signed in signs in again
            _log.error("access.logins_damaged", reason=str(error))
            record.is_damaged = True
            return []
        if held is None:
            return []
        record.version = held.version
        try:
            kept = msgspec.msgpack.decode(held.value, type=list[_StoredLogin])
        except (msgspec.DecodeError, RecursionError) as error:
            _log.error("access.logins_damaged", reason=str(error))
            return []
        record.digests = frozenset(each.digest for each in kept)
        return kept

    def _take(self, kept: Iterable[_StoredLogin]) -> None:
        """Hold what was read, as far as it has not ended and is not held yet."""
        now_us = self._clock.now_us()
        for each in kept:
            principal = Principal(each.user, each.host, proof="password")
            login = BrowserLogin(
                "",
                "",
                principal,
                opened_us=each.opened_us,
                used_us=each.used_us,
                password=each.password,
                written_us=each.used_us,
            )
            if self._has_ended(login, now_us):
                self._unwritten.add(_key_of(each.user))
            elif each.digest not in self._held:
                self._put(each.digest, login)


def _digest(id: str) -> bytes:
    """Looked up by digest: how long that takes says nothing about the values there are."""
    return hashlib.sha256(id.encode()).digest()


def _csrf(id: str) -> str:
    """The token of a session: whoever has the cookie's value has it, and nobody else."""
    made = hmac.digest(id.encode(), CSRF_HEADER.encode(), "sha256")
    return urlsafe_b64encode(made).decode().rstrip("=")


def _key_of(user: str) -> str:
    """The record in which the sessions of a user are kept."""
    return f"{KEPT_PREFIX}{hashlib.sha256(user.encode()).digest()[0] % RECORDS:02d}"
