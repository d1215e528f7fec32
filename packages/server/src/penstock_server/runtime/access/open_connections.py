"""The connections that clients have to a realm, whatever they speak."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Protocol

from msgspec import Struct

from penstock_core.api.topics import SessionsPage
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.runtime.access.rare_lines import RareLines


class ConnectionState(Struct, frozen=True, kw_only=True):
    """A connection as it stands; :class:`penstock_core.api.realm.ConnectionInfo` has it for
    others."""

    number: int
    """Connection number, unique until the realm restarts."""
    protocol: str
    """``native``, ``amqp`` or ``mqtt``."""
    session: str
    user: str
    """``user@host``."""
    client: str
    """Name and version of the client software, as it says."""
    opened_s: float
    """When it was opened, by the loop's clock."""
    heard_s: float
    subscriptions: int
    requests: int
    """Being worked on."""
    unsent_bytes: int
    """Bytes that wait because the peer does not read them."""
    is_stalled: bool


class OpenConnection(Protocol):
    """What the realm knows of a connection."""

    def describe(self) -> ConnectionState: ...

    def end(self, reason: PenstockError) -> None:
        """Close the connection with a reason."""
        ...


class TrafficCounts:
    """What went over the connections of one protocol since the realm started."""

    __slots__ = ("left_out", "received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.left_out = 0
        """Parts of events that the protocol could not say, and that clients were not sent."""


class MessageCounts:
    """Messages of MQTT since the realm started."""

    __slots__ = ("dropped", "left_out", "rare_lines", "received", "refused", "sent", "unsent")

    def __init__(self) -> None:
        self.received = [0, 0, 0]
        """Messages that clients have sent, by QoS."""
        self.sent = [0, 0, 0]
        """Messages that clients were sent, by QoS."""
        self.dropped = 0
        """Messages of QoS 0 that were left out because their receiver did not read."""
        self.refused = 0
        """Messages that clients have sent and that were not stored."""
        self.left_out = 0
        """Parts of events that MQTT cannot express, and that messages are sent without."""
        self.unsent = 0
        """Messages that could not be sent to a receiver, which is done with them all the same."""
        self.rare_lines = RareLines()
        """Decides which of these losses the log has a line for."""


class MqttFigures(Struct, frozen=True, kw_only=True):
    """What there is of MQTT now."""

    connections: dict[str, int]
    """Clients that are connected, by version of the protocol."""
    away: int
    """Sessions without a connection."""
    subscriptions: int
    """Filters of all sessions."""
    in_flight: int
    """Messages of QoS 1 and 2 that clients have not acknowledged to the end."""
    wills: int
    """Wills of clients that are gone, which wait for their delay."""
    retained: int
    """Topics for which a message is retained."""


class MqttService(Protocol):
    """What the realm knows of its MQTT front end."""

    channel: str
    """The channel of all topics."""
    counts: MessageCounts

    def figures(self) -> MqttFigures: ...

    def sessions_after(self, after: str, limit: int) -> SessionsPage:
        """The next sessions, by client id and user."""
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
        """How many there have been since the realm started."""
        self.traffic: dict[str, TrafficCounts] = defaultdict(TrafficCounts)
        """What went over connections, by protocol; those that are installed begin with zeros."""
        for protocol in ("native", "amqp", "mqtt", "http"):
            self.traffic[protocol] = TrafficCounts()
        self.refusals: Counter[str] = Counter()
        """Errors that clients were told since the realm started, by code."""
        self.mqtt: MqttService | None = None
        """Who serves MQTT; None: nobody does."""

    def refused(self, error: PenstockError, count: int = 1) -> None:
        """Count an error that a client is told, over whatever protocol."""
        self.refusals[error.code] += count

    def __len__(self) -> int:
        return len(self._open)

    def add(self, number: int, connection: OpenConnection) -> None:
        self._open[number] = connection
        self.opened += 1

    def remove(self, number: int) -> None:
        """Forget a connection; harmless if there is none."""
        self._open.pop(number, None)

    def states(self) -> list[ConnectionState]:
        return [self._open[number].describe() for number in sorted(self._open)]

    def find(self, number: int) -> OpenConnection | None:
        return self._open.get(number)
