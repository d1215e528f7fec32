"""Where realms are: ``penstock://user:password@host:9000,host2:9001``."""

from __future__ import annotations

from urllib.parse import unquote

from msgspec import Struct

from penstock.core.errors import InvalidArgument

DEFAULT_PORT = 9_000
SCHEME = "penstock://"


class Address(Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RealmUrl(Struct, frozen=True):
    """The addresses of a realm, to be tried in turn, and who asks."""

    addresses: tuple[Address, ...]
    user: str = ""
    password: str = ""


def parse_url(url: str) -> RealmUrl:
    """Raises ``InvalidArgument`` saying what a URL looks like."""
    if not isinstance(url, str) or not url.startswith(SCHEME):
        raise InvalidArgument(f"{url!r} is no realm URL; one looks like penstock://localhost:9000")
    rest = url.removeprefix(SCHEME).rstrip("/")
    credentials, _, hosts = rest.rpartition("@")
    user, _, password = credentials.partition(":")
    addresses = tuple(_address(part, url) for part in hosts.split(","))
    return RealmUrl(addresses, unquote(user), unquote(password))


def _address(text: str, url: str) -> Address:
    if text.startswith("["):  # an IPv6 address
        host, bracket, rest = text[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise InvalidArgument(f"{text!r} in {url!r}: an IPv6 address looks like [::1]:9000")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise InvalidArgument(f"{url!r} names no host; a URL looks like penstock://localhost:9000")
    if port and not (port.isdecimal() and 0 < int(port) < 65_536):
        raise InvalidArgument(f"{port!r} in {url!r} is no port; 1 to 65535 may be")
    return Address(host, int(port) if port else DEFAULT_PORT)
