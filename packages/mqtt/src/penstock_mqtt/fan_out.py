"""Sends published messages to all matching subscribers, encoding each message once per version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock_core.loggers import logger
from penstock_mqtt.filters import ClientConnection, Filter
from penstock_mqtt.messages import TopicMessage, published_parts
from penstock_mqtt.topic_index import CHARACTERS_MAX, MATCHES_MAX, TopicIndex

if TYPE_CHECKING:
    from penstock_mqtt.topic_channels import TopicChannel
    from penstock_server.runtime.access.access import AccessControl
    from penstock_server.runtime.access.open_connections import MessageCounts

_log = logger("penstock.mqtt")


TOPICS_MAX: Final = 10_000
"""Maximum number of topics whose receivers are cached."""


SentMessages = dict[str, list[TopicMessage]]
"""The messages that were passed to each client, by the name of its session."""


class Receivers(NamedTuple):
    """The receivers of the messages of a topic."""

    filters: tuple[Filter, ...]
    """The filters that match the topic. The cached receivers are stale if `TopicIndex` returns
    another tuple."""
    plain: list[Filter]
    """QoS 0 filters of clients with a single matching filter and no per-client options. All of them
    are sent the same bytes."""
    acknowledging: list[Filter]
    """Filters as in ``plain``, but with QoS 1 or 2, which need a packet id for each client."""
    various: list[tuple[ClientConnection, tuple[Filter, ...]]]
    """Clients with several matching filters or with options, each with its filters."""


class FanOut:
    """Sends messages to the clients whose filters match their topics."""

    def __init__(self, access: AccessControl, counts: MessageCounts) -> None:
        self.counts = counts
        self.filters: TopicIndex[Filter] = TopicIndex()
        self._access = access
        self._version = access.version
        """Version of the rights that the cached receivers were found with."""
        self._cached: dict[tuple[str, int], Receivers] = {}
        """Receivers by topic and channel number; 0 is the channel of all topics."""
        self._matches = 0
        """Number of filters in all cached receivers, limited by `MATCHES_MAX`."""

    def add(self, topic_filter: Filter) -> None:
        """Start sending messages to a filter."""
        self.filters.add(topic_filter.text, topic_filter)
        self.forget()

    def remove(self, topic_filter: Filter) -> None:
        """Stop sending messages to a filter."""
        self.filters.remove(topic_filter.text, topic_filter)
        self.forget()

    def forget(self) -> None:
        """Clear the cached receivers after a change of rights or filters."""
        self._cached.clear()
        self._matches = 0

    def distribute(
        self,
        messages: Iterable[TopicMessage | None],
        channel: TopicChannel | None = None,
        *,
        sent: SentMessages | None = None,
    ) -> None:
        """Send messages of a channel (None: the channel of all topics) in their order to the
        clients that may read them (SEM M4, M15). None stands for an event that is not a message.
        ``sent`` records the messages that were sent."""
        if self._version != self._access.version:
            self._version = self._access.version
            self.forget()
        publishable = (message for message in messages if message is not None)
        for (topic, qos, is_plain), run in groupby(publishable, _group_key):
            run_messages = list(run)
            try:
                self._distribute_run(
                    topic, qos, run_messages, channel, is_plain=is_plain, sent=sent
                )
            except Exception:  # noqa: BLE001  messages of other topics must still be sent
                _log.exception("mqtt.failed")

    def _distribute_run(
        self,
        topic: str,
        qos: int,
        messages: Sequence[TopicMessage],
        channel: TopicChannel | None,
        *,
        is_plain: bool,
        sent: SentMessages | None,
    ) -> None:
        """Send consecutive messages of one topic and QoS. ``is_plain``: whether all receivers of a
        version can get the same bytes."""
        matches = self.filters.find(topic)
        if not matches:
            return
        receivers = self._receivers(topic, matches, channel)
        same_bytes, separate = receivers.plain, receivers.acknowledging
        if not is_plain:  # the retain flag or the remaining lifetime depends on the receiver
            same_bytes, separate = [], [*same_bytes, *separate]
        elif not qos:  # no receiver needs a packet id, whatever the QoS of its filter
            same_bytes, separate = [*same_bytes, *separate], []
        self._send_same_bytes(messages, same_bytes, sent)
        for subscriber in separate:
            _send(messages, subscriber.connection, (subscriber,), sent=sent)
        for connection, filters in receivers.various:
            for message in messages:
                accepting = [candidate for candidate in filters if candidate.accepts(message)]
                if accepting:
                    _send((message,), connection, accepting, sent=sent)

    def _receivers(
        self, topic: str, matches: tuple[Filter, ...], channel: TopicChannel | None
    ) -> Receivers:
        """Return the filters that get a message of a topic, grouped by how they get it. The result
        is cached by topic and channel."""
        key = topic, 0 if channel is None else channel.number
        cached = self._cached.get(key)
        if cached is not None and cached.filters is matches:
            return cached
        by_connection: dict[ClientConnection, list[Filter]] = {}
        is_open = self._access.is_open
        for match in matches:
            if not is_open and not match.may_read(channel):
                continue
            by_connection.setdefault(match.connection, []).append(match)
        receivers = Receivers(filters=matches, plain=[], acknowledging=[], various=[])
        for connection, filters in by_connection.items():
            first = filters[0]
            if len(filters) > 1 or first.number is not None or first.no_local:
                receivers.various.append((connection, tuple(filters)))
            else:
                (receivers.acknowledging if first.qos else receivers.plain).append(first)
        if len(topic) <= CHARACTERS_MAX:
            self._cache(key, receivers)
        return receivers

    def _cache(self, key: tuple[str, int], receivers: Receivers) -> None:
        self._matches += len(receivers.filters)
        if len(self._cached) >= TOPICS_MAX or self._matches > MATCHES_MAX:
            self._cached.clear()
            self._matches = len(receivers.filters)
        self._cached[key] = receivers

    def _send_same_bytes(
        self,
        messages: Sequence[TopicMessage],
        filters: Sequence[Filter],
        sent: SentMessages | None,
    ) -> None:
        """Send messages with QoS 0, with the same bytes for all clients of a version."""
        written: dict[int, tuple[bytes, int]] = {}
        for subscriber in filters:
            connection = subscriber.connection
            if not connection.is_writable:  # QoS 0 is dropped while the client does not read
                self.counts.dropped += len(messages)
                continue
            version = connection.version
            try:
                encoded = written.get(version)
                if encoded is None:
                    packets = [b"".join(published_parts(message, version)) for message in messages]
                    encoded = written[version] = b"".join(packets), max(map(len, packets))
            except Exception:  # noqa: BLE001  the outbox writes one by one, and counts failures
                # A size above the client's limit leads to the outbox below.
                encoded = b"", connection.packet_bytes_max + 1
            all_packets, largest = encoded
            if largest <= connection.packet_bytes_max:
                try:
                    connection.write(all_packets)
                except Exception:  # noqa: BLE001  other receivers must still be served
                    _fail(connection)
                else:
                    self.counts.sent[0] += len(messages)
                    if sent is not None:
                        sent.setdefault(connection.session, []).extend(messages)
                continue
            _send(messages, connection, (subscriber,), sent=sent)


def _group_key(message: TopicMessage) -> tuple[str, int, bool]:
    """Return the key that groups messages: topic, QoS, and whether all receivers get the same
    bytes."""
    return message.topic, message.qos, not message.is_retained and not message.ends_us


def _send(
    messages: Sequence[TopicMessage],
    connection: ClientConnection,
    filters: Sequence[Filter],
    sent: SentMessages | None,
) -> None:
    try:
        filters[0].outbox.send_messages(messages, filters)
    except Exception:  # noqa: BLE001  other receivers must still be served
        _fail(connection)
    else:
        if sent is not None:
            sent.setdefault(connection.session, []).extend(messages)


def _fail(connection: ClientConnection) -> None:
    """Log the exception being handled, and drop the connection that it concerns."""
    _log.exception("mqtt.failed", connection=connection.number)
    connection.abort()
