"""Parses the URLs of realms: ``penstock://user:password@host:9000,host2:9001``.

``penstocks://`` means TLS; ``?ca=FILE&certificate=FILE&key=FILE`` names its files, all optional.
``?sign_in=plain`` sends the password itself, for realms whose users are in a directory.
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
_SIGN_IN = "sign_in"
_PARAMETERS = (*_FILES, _SIGN_IN)
_PARAMETER = re.compile(rf"([?&](?!(?:{'|'.join(_PARAMETERS)})=)[^?&=]*=)[^&]*")
"""An unknown parameter of a query, whose value may be a token."""
_BEGINNING = re.compile(r"[A-Za-z0-9+.-]*:?/+|")
"""The scheme at the beginning of a URL, even if it is misspelt, or an empty text."""


class Address(Struct, frozen=True):
    """The host and port at which a realm listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RealmUrl(Struct, frozen=True):
    """The parsed URL of a realm: its addresses, which are tried in order, and the credentials."""

    addresses: tuple[Address, ...]
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str = ""
    """PEM file of the trusted certificate authorities; empty means those of the system."""
    certificate: str = ""
    """PEM file of the client's certificate, whose name is the user (SEM A5)."""
    key: str = ""
    """PEM file of the certificate's key; empty means that the file of the certificate contains
    it."""
    sends_password: bool = False
    """Whether the client sends the password itself, instead of a proof that it knows it. A realm
    needs the password if a directory checks it."""

    def __repr__(self) -> str:
        return f"RealmUrl({self})"

    def __str__(self) -> str:
        """Return the URL without the password."""
        user = f"{quote(self.user)}@" if self.user else ""
        scheme = TLS_SCHEME if self.tls else SCHEME
        return f"{scheme}{user}{','.join(map(str, self.addresses))}"


def parse_url(url: str) -> RealmUrl:
    """Parse the URL of a realm.

    Raises ``InvalidArgument``, whose text has an example of a URL and never contains the password.
    """
    if not isinstance(url, str) or not url.startswith((SCHEME, TLS_SCHEME)):
        raise InvalidArgument(
            f"{safe(url)!r} is not the URL of a realm; a URL looks like penstock://localhost:9000"
        )
    shown = safe(url)
    scheme, _, after_scheme = url.partition("://")
    authority, _, query = after_scheme.partition("?")
    # The last @, because a password may contain one.
    credentials, _, hosts = authority.rstrip("/").rpartition("@")
    user, _, password = credentials.partition(":")
    addresses = tuple(_address(part, shown) for part in hosts.split(","))
    is_tls = scheme == "penstocks"
    parameters = _parameters(query, shown)
    sign_in = parameters.pop(_SIGN_IN, None)
    if sign_in not in (None, "plain"):
        raise InvalidArgument(f"sign_in in {shown!r} is {sign_in!r}; allowed is plain")
    if parameters and not is_tls:
        raise InvalidArgument(f"{shown!r} names files for TLS, so it must begin with {TLS_SCHEME}")
    if parameters.get("key") and not parameters.get("certificate"):
        raise InvalidArgument(f"{shown!r} has a key without its certificate")
    return RealmUrl(
        addresses,
        unquote(user),
        unquote(password),
        tls=is_tls,
        sends_password=sign_in is not None,
        **parameters,
    )


def moved_to(url: str, place: str) -> str:
    """Return the URL of another realm with the credentials of ``url``. ``place`` is the URL of that
    realm without a user."""
    _, _, after_scheme = url.partition("://")
    authority, question_mark, query = after_scheme.partition("?")
    credentials, at_sign, _ = authority.rpartition("@")
    scheme, _, hosts = place.partition("://")
    return f"{scheme}://{credentials}{at_sign}{hosts}{question_mark}{query}"


def address_of(text: str) -> Address | None:
    """Return the address in a text such as ``host:9000``; None if it is not an address."""
    try:
        return _address(text, text)
    except InvalidArgument:
        return None


def safe(url: object) -> str:
    """Return a URL for error texts, without its password and the values of unknown parameters,
    even if the URL is malformed.

    The password extends from the first ``:`` after the scheme to the last ``@``, and may contain
    ``?`` and ``/``. If the URL has no ``@``, a password may be in the place of a port.
    """
    if not isinstance(url, str):
        return repr(url)
    return _PARAMETER.sub(r"\1***", _without_password(url))


def _without_password(url: str) -> str:
    """Return the URL with ``***`` in place of the password, even if the URL is not valid."""
    head, at_sign, hosts = url.rpartition("@")
    beginning = _BEGINNING.match(head if at_sign else url)
    scheme = beginning[0] if beginning else ""
    user, colon, after_colon = (head if at_sign else url)[len(scheme) :].partition(":")
    if at_sign:
        return f"{scheme}{user}{':***' if colon else ''}@{hosts}"
    is_host = not colon or user.startswith("[") or _PORT.fullmatch(after_colon)
    return url if is_host else f"{scheme}{user}:***"


def _parameters(query: str, shown: str) -> dict[str, str]:
    """Return the parameters of the query of a URL.

    Raises ``InvalidArgument``, with the URL ``shown`` in its text, for unknown parameters.
    """
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(parameters.keys() - {*_PARAMETERS})
    if unknown:
        # A name that is not in the shown URL may be a part of the password.
        subject = repr(unknown[0]) if unknown[0] in shown else "the query"
        raise InvalidArgument(f"{subject} in {shown!r}: {', '.join(_PARAMETERS)} are allowed")
    return parameters


def _address(text: str, url: str) -> Address:
    """Parse ``host:port``. Raises ``InvalidArgument``, with ``url`` in its text."""
    if text.startswith("["):  # an IPv6 address
        host, bracket, after_bracket = text[1:].partition("]")
        if not bracket or after_bracket[:1] not in ("", ":"):
            raise InvalidArgument(f"{text!r} in {url!r}: an IPv6 address looks like [::1]:9000")
        port = after_bracket.removeprefix(":")
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
        # Only digits are repeated: anything else may be a password.
        subject = repr(port) if port.isdecimal() else "what follows the ':'"
        raise InvalidArgument(f"{subject} in {url!r} is not a port; give a number from 1 to 65535")
    return Address(host, int(port) if port else DEFAULT_PORT)
