"""The connections that clients have to a realm, over all protocols."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Protocol

from msgspec import Struct

from penstock_core.api.topics import SessionsPage
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.runtime.access.rare_lines import RareLines


class ConnectionState(Struct, frozen=True, kw_only=True):
    """The state of a connection; :class:`penstock_core.api.realm.ConnectionInfo` is its form in
    answers to clients."""

    number: int
    """Connection number, unique until the realm restarts."""
    protocol: str
    """``native``, ``amqp`` or ``mqtt``."""
    session: str
    user: str
    """``user@host``."""
    client: str
    """Name and version of the client software, as the client sent them."""
    opened_s: float
    """Time at which the connection was opened, in seconds of the loop's clock."""
    heard_s: float
    """Time of the last data from the client, in seconds of the loop's clock."""
    subscriptions: int
    requests: int
    """Number of requests without an answer."""
    unsent_bytes: int
    """Bytes that wait because the client does not read them."""
    is_stalled: bool


class OpenConnection(Protocol):
    """A connection, as the realm uses it."""

    def describe(self) -> ConnectionState: ...

    def end(self, reason: PenstockError) -> None:
        """Close the connection with a reason."""
        ...


class TrafficCounts:
    """Traffic over the connections of one protocol since the realm started."""

    __slots__ = ("left_out", "received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.left_out = 0
        """Number of parts of events that clients did not get, because the protocol cannot express
        them."""


class MessageCounts:
    """Counts of MQTT messages since the realm started."""

    __slots__ = ("dropped", "left_out", "rare_lines", "received", "refused", "sent", "unsent")

    def __init__(self) -> None:
        self.received = [0, 0, 0]
        """Messages from clients, by QoS."""
        self.sent = [0, 0, 0]
        """Messages to clients, by QoS."""
        self.dropped = 0
        """Messages of QoS 0 dropped because their receiver did not read."""
        self.refused = 0
        """Messages from clients that were refused, and so not stored."""
        self.left_out = 0
        """Number of parts of events that messages were sent without, because MQTT cannot express
        them."""
        self.unsent = 0
        """Messages that could not be sent, and were acknowledged in place of their receiver."""
        self.rare_lines = RareLines()
        """Decides which of these losses are logged."""


class MqttFigures(Struct, frozen=True, kw_only=True):
    """The present numbers of MQTT clients, sessions and messages."""

    connections: dict[str, int]
    """Connected clients, by version of the protocol."""
    away: int
    """Sessions without a connection."""
    subscriptions: int
    """Topic filters of all sessions."""
    in_flight: int
    """Messages of QoS 1 and 2 without a final acknowledgement."""
    wills: int
    """Wills of disconnected clients that wait for their delay."""
    retained: int
    """Topics with a retained message."""


class MqttService(Protocol):
    """The MQTT front end, as the realm uses it."""

    channel: str
    """The channel of all topics."""
    counts: MessageCounts

    def figures(self) -> MqttFigures: ...

    def sessions_after(self, after: str, limit: int) -> SessionsPage:
        """Return the next sessions, sorted by client id and user."""
        ...

    async def end_session(self, client: str, user: str) -> None:
        """End a session with its connection. Raises ``NameDoesNotExist``, ``InvalidArgument``."""
        ...

    async def end_sessions_of(self, user: str) -> None:
        """End all sessions of a user."""
        ...


class OpenConnections:
    """The connections of one realm, by number, the oldest first."""

    def __init__(self) -> None:
        self._open: dict[int, OpenConnection] = {}
        self.opened = 0
        """Number of connections opened since the realm started."""
        self.traffic: dict[str, TrafficCounts] = defaultdict(TrafficCounts)
        """Traffic by protocol. The known protocols start with zeros, so that metrics show them
        before the first connection."""
        for protocol in ("native", "amqp", "mqtt", "http"):
            self.traffic[protocol] = TrafficCounts()
        self.refusals: Counter[str] = Counter()
        """Errors sent to clients since the realm started, by code."""
        self.mqtt: MqttService | None = None
        """The MQTT front end; None if MQTT is not served."""

    def count_error(self, error: PenstockError, count: int = 1) -> None:
        """Count an error that was sent to a client ``count`` times, over any protocol."""
        self.refusals[error.code] += count

    def __len__(self) -> int:
        return len(self._open)

    def add(self, number: int, connection: OpenConnection) -> None:
        self._open[number] = connection
        self.opened += 1

    def remove(self, number: int) -> None:
        """Remove a connection; does nothing if it has already been removed."""
        self._open.pop(number, None)

    def states(self) -> list[ConnectionState]:
        return [self._open[number].describe() for number in sorted(self._open)]

    def find(self, number: int) -> OpenConnection | None:
        return self._open.get(number)
