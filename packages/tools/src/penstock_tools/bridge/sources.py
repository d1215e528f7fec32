"""Sources of a bridge: where messages come from, and how they are settled."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pyarrow as pa
from msgspec import Struct

from penstock_core.vocabulary.errors import EventTooLarge, InvalidArgument, Unavailable
from penstock_core.vocabulary.topics import filter_fault
from penstock_core.vocabulary.uris import shown
from penstock_core.wire.addresses import is_loopback

PORTS: Final = {"amqp": 5_672, "amqps": 5_671, "mqtt": 1_883, "mqtts": 8_883}
"""Standard port of each scheme."""
MQTT_VERSIONS: Final = ("5", "3.1.1")
"""Versions that the query of an MQTT source may name; the first one is the default."""
CONNECT_S: Final = 10.0
"""Seconds after which a source that does not answer counts as lost."""
_PARAMETERS: Final = {"amqp": {"ca"}, "mqtt": {"ca", "version"}}
"""Names that the query of a source may have, by its protocol."""


class SourceLost(Unavailable):
    """The connection to the source is lost. Unsettled messages will be delivered again."""


def too_large(url: SourceUrl, message_bytes_max: int) -> EventTooLarge:
    """Return the error for a message that the realm would not take."""
    return EventTooLarge(
        f"a message of {url} is larger than {message_bytes_max:,} bytes, the largest event of the "
        f"realm (limits.max_event_bytes); it stays at the source"
    )


class SourceUrl(Struct, frozen=True):
    """The parsed URL of a source."""

    scheme: str
    host: str
    port: int
    address: str
    """The queue or topic, or the topic filter of MQTT."""
    user: str = ""
    password: str = ""
    ca: str = ""
    """PEM file of the trusted certificate authorities; empty means those of the system."""
    version: str = MQTT_VERSIONS[0]
    """Version of MQTT."""

    def __repr__(self) -> str:
        return f"SourceUrl({self})"

    def __str__(self) -> str:
        """Return the URL without user and password."""
        return f"{self.scheme}://{self.host}:{self.port}/{self.address}"

    @property
    def uses_mqtt(self) -> bool:
        return self.scheme.startswith("mqtt")

    @property
    def uses_tls(self) -> bool:
        return self.scheme.endswith("s")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context; None without TLS. Raises ``InvalidArgument``."""
        if not self.uses_tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"the file {self.ca} of certificate authorities cannot be used: {error}"
            ) from error


class SourceBounds(Struct, frozen=True):
    """Bounds of the messages that a source may send before they are settled."""

    window: int
    """Number of messages."""
    window_bytes: int
    message_bytes_max: int
    """Bytes of the largest message."""


class SourceBatch(Struct, frozen=True):
    """Messages that were received and are not settled."""

    bodies: Sequence[pa.RecordBatch] = ()
    """Events of the messages."""
    identities: Sequence[Sequence[str | None]] = ()
    """Identities of the messages of each body; None for a message without one."""
    count: int = 0
    """Number of messages, including those that cannot become events and those that the source
    itself recognises as stored already."""
    unusable: Sequence[str] = ()
    """The reason for each message that cannot become an event."""
    state: bytes = b""
    """State that the source needs after a restart; stored in the step of these messages."""


class BridgeSource(Protocol):
    """A queue or topic of another broker."""

    def connect(self, state: bytes) -> None:
        """Connect. ``state`` is that of the newest stored :class:`SourceBatch`; empty before the
        first one. Raises :class:`SourceLost` and ``InvalidArgument``."""
        ...

    def receive(self, timeout_s: float) -> SourceBatch | None:
        """Return messages as soon as there are some. If none arrives in this time, return a batch
        without messages if a part of one has arrived, otherwise None. Raises
        :class:`SourceLost`, and ``EventTooLarge`` for a message that the realm does not take."""
        ...

    def settle(self) -> None:
        """Settle the messages of the last :meth:`receive`, which are stored, and reject unusable
        ones. Raises :class:`SourceLost`."""
        ...

    def close(self) -> None: ...


class SourceSocket:
    """A blocking connection to a source, over TLS if its URL says so."""

    def __init__(self, url: SourceUrl, tls: ssl.SSLContext | None) -> None:
        """Connect. Raises :class:`SourceLost`."""
        self._url = url
        try:
            self._socket = socket.create_connection((url.host, url.port), CONNECT_S)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=url.host)
        except OSError as error:
            raise SourceLost(f"{url} cannot be reached: {error}") from error

    def receive(self, bytes_max: int, timeout_s: float) -> bytes:
        """Return received bytes; empty if none arrive within the time. Raises
        :class:`SourceLost`."""
        try:
            self._socket.settimeout(max(timeout_s, 0.001))
            data = self._socket.recv(bytes_max)
        except TimeoutError:
            return b""
        except OSError as error:
            raise SourceLost(f"{self._url} is lost: {error}") from error
        if not data:
            raise SourceLost(f"{self._url} has closed the connection")
        return data

    def send(self, data: bytes) -> None:
        """Send all bytes. Raises :class:`SourceLost`, also if the source does not read them within
        :data:`CONNECT_S`."""
        self._socket.settimeout(CONNECT_S)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise SourceLost(f"{self._url} is lost: {error}") from error

    def close(self) -> None:
        self._socket.close()


def parse_source(text: str, password: str = "") -> SourceUrl:
    """Parse the URL of a source. ``password`` is used if the URL has a user without one.

    Raises ``InvalidArgument``, whose text contains no password.
    """
    try:
        # Topic filters of MQTT contain "#", and addresses of AMQP may.
        parts = urlsplit(text, allow_fragments=False)
        port = parts.port
    except ValueError:
        raise InvalidArgument(f"{shown(text)!r} is not a URL; the port must be a number") from None
    address = unquote(parts.path.removeprefix("/"))
    if parts.scheme not in PORTS or not parts.hostname or not address:
        raise InvalidArgument(
            f"{shown(text)!r} is not the URL of a source; it looks like amqp://host:5672/QUEUE or "
            f"mqtt://host:1883/TOPIC-FILTER, or amqps:// and mqtts:// with TLS"
        )
    parameters = _parameters_of(parts, text)
    user = unquote(parts.username or "")
    url = SourceUrl(
        parts.scheme,
        parts.hostname,
        port or PORTS[parts.scheme],
        address=address,
        user=user,
        password=unquote(parts.password or "") or (password if user else ""),
        ca=parameters.get("ca", ""),
        version=parameters.get("version", MQTT_VERSIONS[0]),
    )
    if url.uses_mqtt:
        _check_mqtt(url)
    if url.password and not url.uses_tls and not is_loopback(url.host):
        raise InvalidArgument(
            f"the password would be sent unencrypted to {url.host}; use {url.scheme}s://"
        )
    return url


def _check_mqtt(url: SourceUrl) -> None:
    """Raise ``InvalidArgument`` for a topic filter or a version that MQTT does not have."""
    if fault := filter_fault(url.address):
        raise InvalidArgument(f"the topic filter of {url} cannot be used: {fault}")
    if url.version not in MQTT_VERSIONS:
        raise InvalidArgument(
            f"the version {url.version!r} of MQTT is not known; allowed are "
            f"{' and '.join(MQTT_VERSIONS)}"
        )


def _parameters_of(parts: SplitResult, text: str) -> dict[str, str]:
    """Return the query of a URL. Raises ``InvalidArgument`` for an unknown name."""
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    allowed = _PARAMETERS[parts.scheme.removesuffix("s")]
    if parameters.keys() - allowed:
        names = " and ".join("ca=FILE" if name == "ca" else "version=" for name in sorted(allowed))
        raise InvalidArgument(
            f"the query of {shown(text)!r} is not known; {names} "
            f"{'is' if len(allowed) == 1 else 'are'} allowed"
        )
    return parameters
