"""The URLs of realms: ``penstock://user:password@host:9000,host2:9001``.

``penstocks://`` means TLS; ``?ca=FILE&certificate=FILE&key=FILE`` names its files, all optional.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument

DEFAULT_PORT = 9_000
SCHEME = "penstock://"
TLS_SCHEME = "penstocks://"
_FILES = ("ca", "certificate", "key")
_PORT = re.compile(r"\d{0,5}([,/?].*)?", re.DOTALL)
_BEGINNING = re.compile(r"[A-Za-z0-9+.-]*:?/+|")
"""A scheme, also a misspelt one, or none."""


class Address(Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RealmUrl(Struct, frozen=True):
    """The addresses of a realm, to be tried in turn, and the user who signs in."""

    addresses: tuple[Address, ...]
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str = ""
    """PEM file of the trusted certificate authorities; empty means those of the system."""
    certificate: str = ""
    """PEM file of the client's certificate, whose name is the user (SEM A5)."""
    key: str = ""
    """PEM file of the certificate's key; empty means that the certificate's file has it."""

    def __repr__(self) -> str:
        return f"RealmUrl({self})"

    def __str__(self) -> str:
        """Return the URL without the password."""
        user = f"{quote(self.user)}@" if self.user else ""
        scheme = TLS_SCHEME if self.tls else SCHEME
        return f"{scheme}{user}{','.join(map(str, self.addresses))}"


def parse_url(url: str) -> RealmUrl:
    """Parse the URL of a realm. Raises ``InvalidArgument`` with an example of a URL; the text never
    contains the password."""
    if not isinstance(url, str) or not url.startswith((SCHEME, TLS_SCHEME)):
        raise InvalidArgument(
            f"{safe(url)!r} is not the URL of a realm; a URL looks like penstock://localhost:9000"
        )
    shown = safe(url)
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    credentials, _, hosts = rest.rstrip("/").rpartition("@")
    user, _, password = credentials.partition(":")
    addresses = tuple(_address(part, shown) for part in hosts.split(","))
    files = _files(query, shown, is_tls=scheme == "penstocks")
    return RealmUrl(addresses, unquote(user), unquote(password), tls=scheme == "penstocks", **files)


def moved_to(url: str, place: str) -> str:
    """Return the URL of another realm for the user of ``url``; ``place`` is the URL of that realm
    without a user."""
    _, _, rest = url.partition("://")
    hosts, mark, query = rest.partition("?")
    credentials, at_sign, _ = hosts.rpartition("@")
    scheme, _, where = place.partition("://")
    return f"{scheme}://{credentials}{at_sign}{where}{mark}{query}"


def address_of(text: str) -> Address | None:
    """Return the address in a text such as ``host:9000``; None if it is not an address."""
    try:
        return _address(text, text)
    except InvalidArgument:
        return None


def safe(url: object) -> str:
    """Return a URL for an error text: without its password, even if the URL is malformed.

    The password extends from the first ``:`` after the scheme to the last ``@``, and may contain
    ``?`` and ``/``. Without an ``@``, it may be in the place of a port.
    """
    if not isinstance(url, str):
        return repr(url)
    head, at_sign, hosts = url.rpartition("@")
    beginning = _BEGINNING.match(head if at_sign else url)
    scheme = beginning[0] if beginning else ""
    user, colon, rest = (head if at_sign else url)[len(scheme) :].partition(":")
    if at_sign:
        return f"{scheme}{user}{':***' if colon else ''}@{hosts}"
    is_host = not colon or user.startswith("[") or _PORT.fullmatch(rest)
    return url if is_host else f"{scheme}{user}:***"


def _files(query: str, shown: str, *, is_tls: bool) -> dict[str, str]:
    """Return the files in the query of a URL, by name. Raises ``InvalidArgument``."""
    files = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(files.keys() - {*_FILES})
    if unknown:
        named = repr(unknown[0]) if unknown[0] in shown else "the query"
        raise InvalidArgument(f"{named} in {shown!r}: {', '.join(_FILES)} are allowed")
    if files and not is_tls:
        raise InvalidArgument(f"{shown!r} names files for TLS, so it must begin with {TLS_SCHEME}")
    if files.get("key") and not files.get("certificate"):
        raise InvalidArgument(f"{shown!r} has a key without its certificate")
    return files


def _address(text: str, url: str) -> Address:
    """Parse ``host:port``. Raises ``InvalidArgument``, with ``url`` in its text."""
    if text.startswith("["):  # an IPv6 address
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise InvalidArgument(f"{text!r} in {url!r}: an IPv6 address looks like [::1]:9000")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise InvalidArgument(f"{url!r} has no host; a URL looks like penstock://localhost:9000")
    if port and not (port.isdecimal() and 0 < int(port) < 65_536):
        # The text in the place of the port is the beginning of a password.
        if "@" in url and f":{port}" not in url:
            raise InvalidArgument(
                f"{url!r} cannot be read; write characters such as ? and / in a password as %3F "
                f"and %2F"
            )
        named = repr(port) if port.isdecimal() else "what follows the ':'"
        raise InvalidArgument(f"{named} in {url!r} is not a port; give a number from 1 to 65535")
    return Address(host, int(port) if port else DEFAULT_PORT)
