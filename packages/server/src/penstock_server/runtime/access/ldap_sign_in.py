"""Passwords of an LDAP directory, which decides with a bind whether a password is right."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from penstock_core.access.lockout import network_of
from penstock_core.access.rights import checked_name
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.vocabulary.ports import Clock
from penstock_core.wire.addresses import is_loopback
from penstock_core.wire.saslprep import prepared
from penstock_server.runtime.access.ldap_conversation import LdapConversation, LdapRules
from penstock_server.runtime.access.passwords import RightPasswords, SignInTurns
from penstock_server.runtime.access.rare_lines import RareLines

CONCURRENT_MAX: Final = 8
"""Largest number of sign-ins that ask the directory at the same time, with a thread each."""
REMEMBERED_MAX: Final = 1_000
"""Largest number of right passwords that are remembered. They are in memory only, as keyed
digests."""
PASSWORD_BYTES_MAX: Final = 1_024
"""Largest password in bytes that is sent to the directory."""

_log = logger("penstock.access")


class _Remembered(Struct, frozen=True):
    """The answer to a right password."""

    groups: frozenset[str]
    until_us: int


class Ldap:
    """Asks an LDAP directory about passwords of users that the realm does not know.

    The threads are its own: a directory that does not answer must not take the threads in which
    the realm reads and writes files.
    """

    def __init__(self, rules: LdapRules, clock: Clock) -> None:
        """Raise ``InvalidArgument`` if the rules are incomplete or unsafe, or if the library is not
        installed."""
        if rules.url:
            check_rules(rules)
        self._rules = rules
        self._clock = clock
        self._remembered: RightPasswords[_Remembered] = RightPasswords(REMEMBERED_MAX)
        self._context = _context(rules)
        self.turns = SignInTurns(CONCURRENT_MAX)
        self._threads: ThreadPoolExecutor | None = None
        self._rare_lines = RareLines()

    @property
    def is_used(self) -> bool:
        """Whether the realm asks a directory."""
        return bool(self._rules.url)

    @property
    def session_us(self) -> int:
        """Duration of a sign-in, in microseconds."""
        return int(self._rules.session_s * 1_000_000)

    def reload(self) -> None:
        """Forget remembered passwords, and read the certificate authorities again. If their file
        cannot be used, the previous ones stay, and this is logged."""
        self._remembered.clear()
        try:
            self._context = _context(self._rules)
        except InvalidArgument as error:
            _log.error("realm.not_reloaded", reason=str(error))

    def close(self) -> None:
        """Begin no further sign-ins; those in progress end within their time limit."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def groups_of(
        self, user: str, password: str, host: str, recheck: Callable[[], None]
    ) -> frozenset[str] | None:
        """Return the groups of a user whose password is right; None if it is wrong, or the user
        does not exist.

        ``recheck`` is called when a waiting sign-in gets its turn, and raises an error if the user
        was locked out during the wait. Raises ``Unavailable`` if the directory does not answer
        within its time, which includes the wait for a turn, and the errors of
        :meth:`SignInTurns.turn`.
        """
        # An empty password is an unauthenticated bind, which succeeds for every user. A directory
        # may end a password at a NUL, so one at the beginning makes an empty password.
        if not password or "\0" in password or len(password.encode()) > PASSWORD_BYTES_MAX:
            return None
        digest = self._remembered.digest_of(f"{user}\0{password}".encode())
        remembered = self._remembered.get(digest)
        if remembered is not None and self._clock.now_us() < remembered.until_us:
            return remembered.groups
        try:
            async with (
                asyncio.timeout(self._rules.timeout_s),
                self.turns.turn(network_of(host), user),
            ):
                recheck()
                groups = await self._ask(user, password)
        except TimeoutError:
            raise self._unavailable(f"no answer within {self._rules.timeout_s} s") from None
        except Unavailable as error:
            raise self._unavailable(str(error)) from error
        if groups is not None:
            until_us = self._clock.now_us() + int(self._rules.remember_s * 1_000_000)
            self._remembered.add(digest, _Remembered(groups, until_us))
        return groups

    async def _ask(self, user: str, password: str) -> frozenset[str] | None:
        """Ask the directory for the user's groups, in a thread; see :meth:`groups_of`."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(CONCURRENT_MAX, thread_name_prefix="ldap")
        conversation = LdapConversation(self._rules, self._context)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, conversation.groups_of, user, password)
        except asyncio.CancelledError:
            conversation.abort()  # so that the thread is free again
            raise

    def _unavailable(self, reason: str) -> Unavailable:
        """Log why the directory cannot be asked, and return the error for the client, which does
        not learn the reason."""
        url = self._rules.shown_url
        if self._rare_lines.is_due("access.ldap_failed"):
            left_out = self._rare_lines.left_out("access.ldap_failed")
            _log.warning("access.ldap_failed", url=url, reason=reason, left_out=left_out)
        return Unavailable(
            f"the directory {url} cannot be asked now, so users that it knows cannot sign in; try "
            f"again in a moment"
        )


def directory_name(user: str) -> str:
    """Return the name under which a user of the directory is known in the realm: in lower case and
    normalized, because a directory finds an entry by any of its spellings. Raises
    ``InvalidArgument`` for a name that no user may have."""
    return checked_name(prepared(prepared(user).lower()), "user")


def check_rules(rules: LdapRules) -> None:
    """Raise ``InvalidArgument`` if the settings make every sign-in impossible, or make sign-ins
    unsafe."""
    _check_url(rules)
    if bool(rules.user_dn) == bool(rules.base):
        raise InvalidArgument(
            "access.ldap needs either access.ldap.user_dn, the name of a user's entry, or "
            "access.ldap.base, below which the entry is searched"
        )
    template, option = (rules.filter, "filter") if rules.base else (rules.user_dn, "user_dn")
    if "{user}" not in template or "=" not in template:
        raise InvalidArgument(
            f"access.ldap.{option} is {template!r}; it must contain {{user}}, such as uid={{user}}"
        )
    if bool(rules.bind_dn) != bool(rules.bind_password_file):
        raise InvalidArgument(
            "access.ldap.bind_dn and access.ldap.bind_password_file belong together: set both, or "
            "none to search without a service account"
        )
    if rules.group_filter and not rules.group_base:
        raise InvalidArgument(
            "access.ldap.group_filter needs access.ldap.group_base, below which it searches"
        )
    if find_spec("ldap3") is None:
        raise InvalidArgument(
            "access.ldap.url needs ldap3, which is not installed here: pip install "
            "'penstock-realm[ldap]'"
        )


def _check_url(rules: LdapRules) -> None:
    parts = urlsplit(rules.url)
    try:
        is_whole = parts.scheme in ("ldap", "ldaps") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        is_whole = False
    if not is_whole or "@" in parts.netloc or parts.path.strip("/") or parts.query:
        raise InvalidArgument(
            f"access.ldap.url is {rules.shown_url!r}; a directory is named by ldaps://HOST or "
            f"ldap://HOST, with a port if it has another one than 636 or 389"
        )
    if rules.start_tls and parts.scheme == "ldaps":
        raise InvalidArgument(
            "access.ldap.start_tls is for ldap://; connections of ldaps:// use TLS from the start"
        )
    if not rules.uses_tls and not is_loopback(str(parts.hostname)):
        raise InvalidArgument(
            f"access.ldap.url is {rules.shown_url!r}: passwords would be sent unencrypted; use "
            f"ldaps://, or set access.ldap.start_tls"
        )


def _context(rules: LdapRules) -> ssl.SSLContext | None:
    """Return the TLS context for the directory; None without TLS. Raises ``InvalidArgument``."""
    if not rules.url or not rules.uses_tls:
        return None
    try:
        return ssl.create_default_context(cafile=rules.ca or None)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"the file access.ldap.ca ({rules.ca}) of certificate authorities cannot be used: "
            f"{error}"
        ) from error
