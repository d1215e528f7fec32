"""JNDI properties of a realm for Apache Qpid JMS: programs written against JMS look up connection
factories, queues and topics in them.

A JNDI context is a tree: a name is either an object or the beginning of other names, but not both.
A realm may have channels `a` and `a/b`, and Qpid JMS would bind only one of them, so the lookup
name of the other one differs from its name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal
from urllib.parse import unquote

from msgspec import Struct

from penstock.client.connection.urls import RealmUrl
from penstock_core.printable import on_one_line
from penstock_core.vocabulary.errors import InvalidArgument

FACTORY_CLASS: Final = "org.apache.qpid.jms.jndi.JmsInitialContextFactory"
FACTORIES: Final = ("ConnectionFactory", "QueueConnectionFactory", "TopicConnectionFactory")
"""Lookup names of connection factories if the user gives none: those of most JMS programs."""
AMQP_PORT: Final = 5_672

_RESERVED: Final = ("dynamicQueues", "dynamicTopics")
"""Lookup names below which Qpid JMS makes queues and topics of any name."""
_SCHEMES: Final = frozenset(
    ("corbaname", "dns", "iiop", "iiopname", "java", "ldap", "ldaps", "rmi")
)
"""Schemes that Java resolves itself, without asking the context."""
_URL: Final = re.compile(r"(?:failover:\()?amqp(?:s|ws|wss)?://[!-~]+")
_PASSWORD: Final = re.compile(r"password=(?!\$\{[^{}:]*\}(?:[&,)]|$))|//[^/?#@]*:[^/?#]*@", re.I)
"""A password in a URL. ``password=${NAME}`` has none: Qpid JMS replaces it by the variable."""
_ESCAPES: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_KEY_ESCAPES: Final = {sign: f"\\{sign}" for sign in " :=#!"}

Kind = Literal["queue", "topic"]


class Lookup(Struct, frozen=True):
    """A queue or topic, and its name for programs that look it up."""

    kind: Kind
    destination: str
    """Name of the queue or channel."""
    name: str
    reason: str = ""
    """The reason why the lookup name is not the name of the destination; empty if the two names are
    equal."""

    @property
    def remark(self) -> str:
        """The difference between the two names, as a sentence for users; empty if they are the
        same."""
        if not self.reason:
            return ""
        text = f"{self.kind} {self.destination} is looked up as {self.name}: {self.reason}"
        return on_one_line(text)


class _Names:
    """The names of a JNDI context."""

    def __init__(self) -> None:
        self._objects = dict.fromkeys(_RESERVED, "Qpid JMS itself")
        """The object of each name."""
        self._folders: dict[str, str] = {}
        """An object below each name that is the beginning of others."""
        self._numbers: Counter[str] = Counter()
        """The last number tried for each substitute, so that many alike take linear time."""

    def add(self, name: str, what: str) -> None:
        """Bind a name to an object, which ``what`` describes."""
        self._objects[name] = what
        for folder in _folders_of(name):
            self._folders.setdefault(folder, what)

    def obstacle(self, name: str) -> str:
        """Return the reason why a name cannot be bound, as the end of a sentence; empty if it
        can."""
        head, colon, _ = name.partition(":")
        if colon and head.lower() in _SCHEMES:
            return f"Java resolves names that begin with {head}: by itself"
        for prefix in (*_folders_of(name), name):
            if prefix in self._objects:
                return f"the name {prefix} belongs to {self._objects[prefix]}"
        if name in self._folders:
            return f"the name of {self._folders[name]} begins with {name}/"
        return ""

    def substitute(self, name: str) -> str:
        """Return a name that can be bound and resembles ``name``, which cannot."""
        plain = candidate = name.replace("/", "_").replace(":", "_")
        while self.obstacle(candidate):
            self._numbers[plain] += 1
            candidate = f"{plain}_{self._numbers[plain] + 1}"
        return candidate


def _folders_of(name: str) -> Iterator[str]:
    """Yield the parts of a name that end before a ``/``, the shortest first."""
    place = name.find("/")
    while place >= 0:
        yield name[:place]
        place = name.find("/", place + 1)


def lookups(
    channels: Iterable[str], queues: Iterable[str], factories: Sequence[str]
) -> list[Lookup]:
    """Return the lookup names of a realm's channels and queues, sorted by kind and name.

    A destination is looked up by its own name if possible, otherwise by one that resembles it.
    Raises ``InvalidArgument`` if the names of the connection factories exclude each other.
    """
    names = _Names()
    for factory in factories:
        _bind_factory(names, factory)
    kinds: dict[str, Kind] = dict.fromkeys(queues, "queue")
    kinds |= dict.fromkeys(channels, "topic")
    obstacles = {}
    for name in sorted(kinds):
        obstacle = names.obstacle(name)
        if obstacle:
            obstacles[name] = obstacle
        else:
            names.add(name, f"{kinds[name]} {name}")
    # Substitutes are chosen after all destinations that keep their names, so that no substitute
    # equals one of these names.
    substitutes = {}
    for name in obstacles:
        substitutes[name] = names.substitute(name)
        names.add(substitutes[name], f"{kinds[name]} {name}")
    return [
        Lookup(kind, name, substitutes.get(name, name), reason=obstacles.get(name, ""))
        for kind, name in sorted((kind, name) for name, kind in kinds.items())
    ]


def _bind_factory(names: _Names, factory: str) -> None:
    """Bind the name of a connection factory. Raises ``InvalidArgument``."""
    if not all(factory.split("/")):
        raise InvalidArgument(
            f"{factory!r} cannot be the lookup name of a connection factory; give at least one "
            f"character before and after each '/'"
        )
    obstacle = names.obstacle(factory)
    if obstacle:
        raise InvalidArgument(
            f"{factory!r} cannot be the lookup name of a connection factory, because {obstacle}; "
            f"use another name"
        )
    names.add(factory, f"connection factory {factory}")


def jndi_properties(
    destinations: Iterable[Lookup], *, url: str, factories: Iterable[str], heading: str
) -> str:
    """Return the text of a properties file: connection factories with this URL, and destinations.

    The text is ASCII, and sorted within its parts. ``heading`` is written as comments.
    """
    lines = [f"# {line}" for line in heading.splitlines()]
    lines += [_line("java.naming.factory.initial", FACTORY_CLASS), ""]
    lines += [_line(f"connectionfactory.{factory}", url) for factory in factories]
    kind = ""
    for lookup in destinations:
        lines += [""] if lookup.kind != kind else []
        kind = lookup.kind
        lines += [f"# {lookup.remark}"] if lookup.remark else []
        # Qpid JMS replaces variables such as ${NAME} in values, and `$$` by `$`.
        lines.append(_line(f"{kind}.{lookup.name}", lookup.destination.replace("$", "$$")))
    return "".join(f"{_ascii(line) if line[:1] == '#' else line}\n" for line in lines)


def _line(key: str, value: str) -> str:
    """Return a line that ``java.util.Properties`` reads as this key and this value."""
    escaped_key = "".join(_KEY_ESCAPES.get(sign, _ESCAPES.get(sign, sign)) for sign in key)
    escaped_value = "".join(_ESCAPES.get(sign, sign) for sign in value)
    if value.startswith(" "):
        escaped_value = f"\\{escaped_value}"
    return _ascii(f"{escaped_key} = {escaped_value}")


def _ascii(text: str) -> str:
    r"""Return the text with ``\uXXXX`` for everything that is not printable ASCII: Java reads
    properties as ISO 8859-1."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        sign if " " <= sign <= "~" else "".join(f"\\u{unit:04x}" for unit in _utf16(sign))
        for sign in text
    )


def _utf16(sign: str) -> Iterator[int]:
    """Yield the UTF-16 units of a character."""
    data = sign.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(data), 2):
        yield int.from_bytes(data[place : place + 2])


def checked_amqp_url(url: str) -> str:
    """Return a URL for connection factories. Raises ``InvalidArgument`` if it is not one for Qpid
    JMS, or contains a password; the text of the error has no part of the URL."""
    if not _URL.fullmatch(url):
        raise InvalidArgument(
            "the URL for connection factories must look like amqp://host:5672, amqps://host:5672 "
            "or failover:(amqp://a:5672,amqp://b:5672), with options after a '?'; it has only "
            "characters of ASCII and no spaces"
        )
    if "@" in url:
        raise InvalidArgument(
            "the URL for connection factories contains an '@'; a user is named by the option "
            "jms.username, and an '@' in an option is written as %40"
        )
    if _PASSWORD.search(unquote(url)):
        raise InvalidArgument(
            "the URL for connection factories contains a password, which would be readable in the "
            "file; leave it out, or name a variable of the program's environment, such as "
            "jms.password=${SHOP_PASSWORD}"
        )
    return url


def amqp_url_of(realm: RealmUrl) -> str:
    """Return the URL for Qpid JMS of a realm with this URL for native clients, if the realm listens
    for AMQP on the usual port. Several hosts become a failover URL."""
    scheme = "amqps" if realm.tls else "amqp"
    hosts = dict.fromkeys(address.host for address in realm.addresses)
    urls = [f"{scheme}://{f'[{host}]' if ':' in host else host}:{AMQP_PORT}" for host in hosts]
    return urls[0] if len(urls) == 1 else f"failover:({','.join(urls)})"
