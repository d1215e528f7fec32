"""What is published, for everybody who wants its topic: encoded once, however many that are."""

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
"""Most topics of which it is remembered who gets their messages."""


class Receivers(NamedTuple):
    """Who gets the messages of a topic."""

    filters: tuple[Filter, ...]
    """What they were found by; another tuple: they have changed."""
    plain: list[Filter]
    """QoS 0 filters of clients that have no other filter for the topic, and want nothing of their
    own said: all of them are sent the same bytes."""
    acknowledging: list[Filter]
    """The others of such clients."""
    various: list[tuple[ClientConnection, tuple[Filter, ...]]]


class FanOut:
    """Gives messages to the clients whose filters take their topics."""

    def __init__(self, access: AccessControl, counts: MessageCounts) -> None:
        self.counts = counts
        self.filters: TopicIndex[Filter] = TopicIndex()
        self._access = access
        self._version = access.version
        self._known: dict[tuple[str, int], Receivers] = {}
        self._matches = 0

    def add(self, wanted: Filter) -> None:
        """Give out by a filter from now on."""
        self.filters.add(wanted.text, wanted)
        self.forget()

    def remove(self, wanted: Filter) -> None:
        """Give out by a filter no more, and let go of its connection."""
        self.filters.remove(wanted.text, wanted)
        self.forget()

    def forget(self) -> None:
        """Rights or filters have changed: look up anew who gets what."""
        self._known.clear()
        self._matches = 0

    def give_out(
        self, messages: Iterable[TopicMessage | None], channel: TopicChannel | None = None
    ) -> None:
        """Give out messages of a channel, that of all topics if it is None, in their order, to
        whoever may have them (SEM M4, M15). None is an event that is not a message."""
        if self._version != self._access.version:
            self._version = self._access.version
            self.forget()
        given = (message for message in messages if message is not None)
        for (topic, qos, is_plain), run in groupby(given, _kind):
            together = list(run)
            try:
                self._give_run(topic, qos, together, channel, is_plain=is_plain)
            except Exception:  # noqa: BLE001  the messages of other topics do not share it
                _log.exception("mqtt.failed")

    def _give_run(
        self,
        topic: str,
        qos: int,
        together: Sequence[TopicMessage],
        channel: TopicChannel | None,
        *,
        is_plain: bool,
    ) -> None:
        """Give out messages of one topic that follow one another."""
        found = self.filters.find(topic)
        if not found:
            return
        receivers = self._receivers(topic, found, channel)
        alike, one_by_one = receivers.plain, receivers.acknowledging
        if not is_plain:
            alike, one_by_one = [], [*alike, *one_by_one]
        elif not qos:
            alike, one_by_one = [*alike, *one_by_one], []
        self._give_alike(together, alike)
        for each in one_by_one:
            _give(together, each.connection, (each,))
        for connection, filters in receivers.various:
            for message in together:
                takers = [each for each in filters if each.takes(message)]
                if takers:
                    _give((message,), connection, takers)

    def _receivers(
        self, topic: str, found: tuple[Filter, ...], channel: TopicChannel | None
    ) -> Receivers:
        key = topic, 0 if channel is None else channel.number
        known = self._known.get(key)
        if known is not None and known.filters is found:
            return known
        by_connection: dict[ClientConnection, list[Filter]] = {}
        is_open = self._access.is_open
        for each in found:
            if not is_open and not each.may_have(channel):
                continue
            by_connection.setdefault(each.connection, []).append(each)
        made = Receivers(filters=found, plain=[], acknowledging=[], various=[])
        for connection, filters in by_connection.items():
            first = filters[0]
            if len(filters) > 1 or first.number is not None or first.no_local:
                made.various.append((connection, tuple(filters)))
            else:
                (made.acknowledging if first.qos else made.plain).append(first)
        if len(topic) <= CHARACTERS_MAX:
            self._remember(key, made)
        return made

    def _remember(self, key: tuple[str, int], made: Receivers) -> None:
        self._matches += len(made.filters)
        if len(self._known) >= TOPICS_MAX or self._matches > MATCHES_MAX:
            self._known.clear()
            self._matches = len(made.filters)
        self._known[key] = made

    def _give_alike(self, messages: Sequence[TopicMessage], filters: Sequence[Filter]) -> None:
        """Send messages with QoS 0, in the same bytes for all who speak the same version."""
        written: dict[int, tuple[bytes, int]] = {}
        for each in filters:
            connection = each.connection
            if not connection.takes_more:  # messages of QoS 0 are left out while it does not read
                self.counts.dropped += len(messages)
                continue
            version = connection.version
            try:
                known = written.get(version)
                if known is None:
                    packets = [b"".join(published_parts(one, version)) for one in messages]
                    known = written[version] = b"".join(packets), max(map(len, packets))
            except ValueError:  # one of them cannot be said in this version, the others can
                known = b"", connection.packet_bytes_max + 1
            together, largest = known
            if largest <= connection.packet_bytes_max:
                connection.write(together)
                self.counts.sent[0] += len(messages)
                continue
            _give(messages, connection, (each,))


def _kind(message: TopicMessage) -> tuple[str, int, bool]:
    """What messages have in common that are given out together: the topic, the QoS, and whether
    every receiver is told the same of them."""
    return message.topic, message.qos, not message.is_retained and not message.ends_us


def _give(
    messages: Sequence[TopicMessage], connection: ClientConnection, filters: Sequence[Filter]
) -> None:
    try:
        filters[0].outbox.give(messages, filters)
    except Exception:  # noqa: BLE001  the other receivers do not share it
        _log.exception("mqtt.failed", connection=connection.number)
        connection.abort()
