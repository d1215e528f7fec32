"""One sign-in at an LDAP directory, in blocking calls for a thread (RFC 4511, 4513)."""

from __future__ import annotations

import math
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from penstock_core.access.rights import checked_name
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.vocabulary.uris import shown

GROUPS_MAX: Final = 1_000
"""Largest number of groups of a user of the directory. A user with more has none in the realm."""
_SECRET_BYTES: Final = 4_096
"""Number of bytes that are read of the file with the password of the service account."""
_WRONG: Final = frozenset((19, 32, 34, 48, 49, 50, 53))
"""Result codes of a bind that refuse this user: constraintViolation (a locked account),
noSuchObject, invalidDNSyntax, inappropriateAuthentication (an account without a password),
invalidCredentials, insufficientAccessRights and unwillingToPerform (an expired account). Every
other code is a fault of the directory or its configuration, and refuses without blaming the
user."""
_SUCCESS: Final = 0
_SIZE_LIMIT_EXCEEDED: Final = 4
_PLACE: Final = re.compile(r"\{(user|dn)\}")


class LdapRules(Struct, frozen=True):
    """The settings of the directory; ``penstock_server.settings`` describes each."""

    url: str = ""
    """URL of the directory; empty if the realm asks none."""
    start_tls: bool = False
    ca: str = ""
    user_dn: str = ""
    base: str = ""
    filter: str = "(uid={user})"
    bind_dn: str = ""
    bind_password_file: str = ""
    group_attribute: str = "memberOf"
    group_base: str = ""
    group_filter: str = ""
    timeout_s: float = 5.0
    remember_s: float = 60.0
    session_s: float = 43_200.0

    @property
    def uses_tls(self) -> bool:
        return self.start_tls or urlsplit(self.url).scheme == "ldaps"

    @property
    def shown_url(self) -> str:
        """The URL for logs and errors, without a password."""
        return shown(self.url)


class LdapConversation:
    """Asks the directory once whether a password is right. Another thread may end it with
    :meth:`abort`."""

    def __init__(self, rules: LdapRules, context: ssl.SSLContext | None) -> None:
        self._rules = rules
        self._context = context
        self._connections: list[Any] = []
        self._is_aborted = False
        self._opening = threading.Lock()
        """Held to open a connection and to abort, so that no connection is opened afterwards."""

    def groups_of(self, user: str, password: str) -> frozenset[str] | None:
        """Return the groups of a user whose password is right; None if the user does not exist or
        the password is wrong.

        Raises ``Unavailable`` if the directory gives no usable answer.
        """
        from ldap3.core.exceptions import LDAPExceptionError
        from pyasn1.error import PyAsn1Error

        try:
            return (
                self._with_search(user, password)
                if self._rules.base
                else self._with_dn(user, password)
            )
        # The library raises Python's own errors for answers that are not LDAP.
        except (
            LDAPExceptionError,
            PyAsn1Error,
            OSError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the connections. A thread that waits for the directory continues with an error."""
        with self._opening:
            self._is_aborted = True
            connections, self._connections = self._connections, []
        for connection in connections:
            # Read once, because the thread that waits removes the socket when it continues.
            opened = connection.socket
            if opened is not None:
                # The method of plain sockets: that of TLS would take the TLS state from the thread
                # that reads. It fails if the directory has closed the connection.
                with suppress(OSError):
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)
                opened.close()

    # --- the two ways to find the user ---------------------------------------------------

    def _with_dn(self, user: str, password: str) -> frozenset[str] | None:
        """Bind with the name that the template gives, then read the user's own entry."""
        name = filled(self._rules.user_dn, user=user)
        connection = self._bound(name, password)
        if connection is None:
            return None
        entries: list[Mapping[str, Any]] = []
        if self._rules.group_attribute and not self._rules.group_filter:
            entries = self._entries(
                connection, name, "(objectClass=*)", whole=False, attribute=self._group_source
            )
        return self._groups(connection, user, name, entries=entries)

    def _with_search(self, user: str, password: str) -> frozenset[str] | None:
        """Search the user's entry with the service account, then bind as the user."""
        rules = self._rules
        searcher = self._bound(rules.bind_dn, self._service_password())
        if searcher is None:
            raise Unavailable("the directory refuses access.ldap.bind_dn or its password")
        condition = filled(rules.filter, user=user)
        entries = self._entries(searcher, rules.base, condition, attribute=self._group_source)
        if not entries:
            return None
        if len(entries) > 1:
            raise Unavailable(
                "access.ldap.filter finds several entries for one user; make it exact"
            )
        name = str(entries[0]["dn"])
        # An empty name would be an anonymous bind, which succeeds with any password.
        if not name or self._bound(name, password) is None:
            return None
        return self._groups(searcher, user, name, entries=entries)

    def _service_password(self) -> str:
        path = self._rules.bind_password_file
        if not path:
            return ""
        with Path(path).open("rb") as file:
            password = file.read(_SECRET_BYTES).decode().rstrip("\r\n")
        if not password:
            raise Unavailable("the file access.ldap.bind_password_file is empty")
        return password

    # --- groups --------------------------------------------------------------------------

    @property
    def _group_source(self) -> str:
        return "cn" if self._rules.group_filter else self._rules.group_attribute

    def _groups(
        self, connection: Any, user: str, name: str, *, entries: Sequence[Mapping[str, Any]]
    ) -> frozenset[str]:
        """Return the names of the user's groups. Names that the realm cannot have are left out."""
        rules = self._rules
        if rules.group_filter:
            condition = filled(rules.group_filter, user=user, dn=name)
            groups = self._entries(
                connection, rules.group_base, condition, attribute="cn", limit=GROUPS_MAX + 1
            )
            names = [value for group in groups for value in _values(group, "cn")]
        else:
            texts = (value for entry in entries for value in _values(entry, rules.group_attribute))
            names = [group for text in texts for group in group_names(text, rules.group_base)]
        usable = frozenset(group for group in names if _is_group_name(group))
        return usable if len(usable) <= GROUPS_MAX else frozenset()

    def _entries(
        self,
        connection: Any,
        base: str,
        condition: str,
        *,
        attribute: str,
        whole: bool = True,
        limit: int = 2,
    ) -> list[Mapping[str, Any]]:
        """Search below ``base``, or with ``whole=False`` read it alone. Raises ``Unavailable``."""
        import ldap3

        connection.search(
            base,
            condition,
            search_scope=ldap3.SUBTREE if whole else ldap3.BASE,
            dereference_aliases=ldap3.DEREF_NEVER,
            attributes=[attribute] if attribute else [ldap3.NO_ATTRIBUTES],
            size_limit=limit,
        )
        result = connection.result
        if result["result"] not in (_SUCCESS, _SIZE_LIMIT_EXCEEDED):
            raise Unavailable(f"the directory refuses the search: {result['description']}")
        # References to other directories are not followed.
        return [entry for entry in connection.response or () if entry["type"] == "searchResEntry"]

    # --- connections ---------------------------------------------------------------------

    def _bound(self, name: str, password: str) -> Any:
        """Return a new connection that is bound as ``name``; None if the directory refuses the
        name or the password. An empty name binds anonymously. Raises ``Unavailable``."""
        connection = self._opened(name, password)
        if not connection.bind():
            code, text = connection.result["result"], connection.result["description"]
            if code in _WRONG:
                return None
            raise Unavailable(f"the directory refuses the bind: {text}")
        return connection

    def _opened(self, name: str, password: str) -> Any:
        """Return a new connection to the directory, with TLS if configured, and not bound yet."""
        import ldap3

        rules = self._rules
        parts = urlsplit(rules.url)
        is_ldaps = parts.scheme == "ldaps"
        server = ldap3.Server(
            str(parts.hostname),
            port=parts.port or (636 if is_ldaps else 389),
            use_ssl=is_ldaps,
            tls=None if self._context is None else _checking_tls(self._context),
            get_info=ldap3.NONE,
            connect_timeout=rules.timeout_s,
            allowed_referral_hosts=[],
        )
        connection = ldap3.Connection(
            server,
            user=name or None,
            password=password if name else None,
            authentication=ldap3.SIMPLE if name else ldap3.ANONYMOUS,
            auto_referrals=False,
            check_names=False,
            read_only=True,
            # Whole seconds, for the socket option; the caller ends the conversation earlier.
            receive_timeout=math.ceil(rules.timeout_s),
        )
        with self._opening:
            if self._is_aborted:
                raise Unavailable("the sign-in was given up")
            self._connections.append(connection)
        connection.open(read_server_info=False)
        if rules.start_tls and not connection.start_tls(read_server_info=False):
            raise Unavailable("the directory does not begin TLS")
        return connection


def _checking_tls(context: ssl.SSLContext) -> Any:
    """Return the TLS settings of a connection, which check the directory's certificate and name as
    the rest of the realm does for other servers. The library's own check also accepts names that
    TLS no longer allows."""
    import ldap3

    def wrap_socket(connection: Any, do_handshake: bool) -> None:
        connection.socket = context.wrap_socket(
            connection.socket,
            do_handshake_on_connect=do_handshake,
            server_hostname=connection.server.host,
        )

    tls = ldap3.Tls(validate=ssl.CERT_REQUIRED)
    tls.wrap_socket = wrap_socket
    return tls


def filled(template: str, *, user: str, dn: str = "") -> str:
    """Return the template of a filter or distinguished name with ``{user}`` and ``{dn}`` replaced
    by escaped values. This is done in one pass, so ``{dn}`` inside a value stays as it is."""
    values = {"user": user, "dn": dn}
    return _PLACE.sub(lambda place: escaped(values[place[1]]), template)


def escaped(text: str) -> str:
    """Return a value for a filter (RFC 4515) or a distinguished name (RFC 4514), which have the
    same form of escapes. Every byte is escaped, except ASCII letters and digits."""
    return "".join(
        character
        if character.isascii() and character.isalnum()
        else "".join(f"\\{byte:02x}" for byte in character.encode())
        for character in text
    )


def group_names(text: str, base: str) -> Iterable[str]:
    """Return the name of the group in ``text``, or nothing. In a distinguished name below ``base``,
    the first part is the name of the group; below an empty ``base`` are all distinguished names. A
    text that is not a distinguished name is itself the name, but only if ``base`` is empty. A first
    part with several values names no group."""
    from ldap3.core.exceptions import LDAPInvalidDnError
    from ldap3.utils.dn import parse_dn

    if "=" not in text:
        return [] if base else [text]
    try:
        parts, base_parts = parse_dn(text), parse_dn(base) if base else []
    except LDAPInvalidDnError:
        return []
    tail = parts[len(parts) - len(base_parts) :]
    is_below = len(parts) > len(base_parts) and _folded(tail) == _folded(base_parts)
    return [parts[0][1]] if is_below and parts[0][2] != "+" else []


def _folded(parts: Sequence[tuple[str, str, str]]) -> list[tuple[str, str]]:
    return [(kind.casefold(), value.casefold()) for kind, value, _ in parts]


def _values(entry: Mapping[str, Any], attribute: str) -> list[str]:
    """Return the values of an attribute of an entry as texts. The case of the attribute's name does
    not matter."""
    return [
        value.decode(errors="replace")
        for name, values in entry["raw_attributes"].items()
        if name.casefold() == attribute.casefold()
        for value in values or ()
    ]


def _is_group_name(text: str) -> bool:
    try:
        checked_name(text, "group")
    except InvalidArgument:
        return False
    return True
