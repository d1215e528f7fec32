"""A seat at the durable of one subscription, which sends a client of a lasting session its
messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import NameAlreadyBound, NameDoesNotExist, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.session_durables import DIGITS, PREFIX
from penstock_core.vocabulary.start_positions import FromId, FromLatest
from penstock_core.vocabulary.topic_templates import selector_of
from penstock_core.vocabulary.topics import topic_matches
from penstock_mqtt.filters import Filter
from penstock_mqtt.in_flight import MessageSource
from penstock_mqtt.messages import TopicMessage, messages_in
from penstock_mqtt.wire.reading import SHARED, filter_of
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

if TYPE_CHECKING:
    from penstock_mqtt.mqtt_realm import MqttRealm
    from penstock_mqtt.session import MqttSession
    from penstock_mqtt.topic_channels import TopicChannel, TopicChannels
    from penstock_server.runtime.realm import RunningRealm

WINDOW: Final = 100
"""Maximum number of events of one subscription that its client has not acknowledged, or that wait
in memory."""
SHARED_WINDOW: Final = 50
"""Maximum number of unacknowledged events of a shared subscription at one client, unless its
receive maximum is lower. It is small so that every member of the group gets some."""
_LATEST: Final = FromLatest()
_SHOWN: Final = 80
"""Maximum number of characters of a client id, and of a filter, in the name of a durable."""

_log = logger("penstock.mqtt")


def durable_of(place: str, text: str) -> str:
    """Return the name of the durable of a subscription. ``place`` is the key of the stored session,
    ``text`` the filter. Both are cut so that the name is readable; a hash makes it unique."""
    digest = sha256(f"{place}\0{text}".encode()).hexdigest()[:DIGITS]
    return f"{PREFIX}{_printable(place)}:{_printable(text)}:{digest}"


def shared_durable_of(text: str) -> str:
    """Return the name of the durable that all members of a shared subscription's group use.
    ``text`` is the filter with its prefix and group."""
    group, _, filter_text = text.removeprefix(SHARED).partition("/")
    digest = sha256(text.encode()).hexdigest()[:DIGITS]
    return f"{PREFIX}{SHARED}{_printable(group)}:{_printable(filter_text)}:{digest}"


def is_shared_durable(name: str) -> bool:
    """Return whether a name is that of a shared subscription's durable."""
    return name.startswith(PREFIX + SHARED)


def _printable(text: str) -> str:
    """Return the first characters of a text, with ``?`` for those that are not printable ASCII."""
    return "".join(
        character if character.isascii() and character.isprintable() else "?"
        for character in text[:_SHOWN]
    )


async def make_durable(
    realm: RunningRealm,
    channel: ChannelId,
    name: str,
    text: str,
    topics: TopicChannel | None,
    start: FromId | FromLatest = _LATEST,
) -> None:
    """Create the durable ``name`` of the filter ``text`` unless it exists. ``topics`` is None for
    the channel of all topics."""
    filter_text = filter_of(text)
    with contextlib.suppress(NameAlreadyBound):
        await realm.subscriptions.create_durable(
            channel,
            name,
            "shared" if text.startswith(SHARED) else "serial",
            start=start,
            selector=selector_of(filter_text, () if topics is None else topics.templates),
            persistent=None,
        )


async def retire_durable(realm: RunningRealm, topics: TopicChannels, name: str, text: str) -> None:
    """Delete the durable of a filter on channels without any topic that matches the filter, once no
    event is outstanding there (SEM M12)."""
    subscriptions = realm.subscriptions
    for channel in topics.stores_without_topics(name, text):
        with contextlib.suppress(NameDoesNotExist):
            all_ids = Span(0, 1 << 62)
            if not (await subscriptions.holding.outstanding(channel.number, name, all_ids)).ids:
                await subscriptions.delete_durable(channel.number, name)


class DurableFeed:
    """A seat at the durable of a filter while its client is connected."""

    selector: Selector | None = None
    is_writable = True

    def __init__(
        self,
        mqtt: MqttRealm,
        session: MqttSession,
        topic_filter: Filter,
        topics: TopicChannel | None = None,
    ) -> None:
        """``topics`` is a channel with topics, or None for the channel of all topics."""
        self._mqtt = mqtt
        self._topics = topics
        self.channel = "" if topics is None else topics.name
        self._client = session
        self._filter = topic_filter
        self._connection = topic_filter.connection
        self._realm = mqtt.realm
        self.session = topic_filter.connection.session
        self._subscription = 0
        """Number of the seat in the realm; 0 while it is not attached."""
        self._checked_version, self._was_abandoned = -1, False
        self._held: dict[int, int] = {}
        """Events sent to the client and not settled, each with its share of the bytes of its
        batch."""
        self._settled: dict[int, Callable[[], None] | None] = {}
        """Events that the client has finished, settled with the durable once in a turn of the
        loop."""

    @property
    def _is_abandoned(self) -> bool:
        """Whether the channel was deleted or has no topics any more that match the filter."""
        if self._topics is None:
            return False
        topics = self._mqtt.topics
        if self._checked_version != topics.version:  # cached: every acknowledgement needs it
            self._checked_version = topics.version
            matching = topics.matching_channels(self._filter.text)
            self._was_abandoned = all(channel.number != self._topics.number for channel in matching)
        return self._was_abandoned

    @property
    def _has_ended(self) -> bool:
        """Whether the connection has ended or the client has unsubscribed. Each connection creates
        new `Filter` objects."""
        return not self._client.has(self._filter)

    async def skip_received(self, event_ids: Sequence[int]) -> None:
        """Remove events that the client already has from the durable before the seat is taken."""
        channel, name = self.channel_id, self._filter.durable
        with contextlib.suppress(NameDoesNotExist):
            for event_id in event_ids:
                await self._realm.subscriptions.purge_durable(
                    channel, name, first=event_id, last=event_id, selector=""
                )

    @property
    def channel_id(self) -> ChannelId:
        """The channel of the durable. Raises ``NameDoesNotExist``."""
        return self._mqtt.topics.channel_id() if self._topics is None else self._topics.number

    async def open(self) -> None:
        """Create the durable if it is missing, and attach to it. If the client has disconnected
        meanwhile, detach immediately. Raises the errors of both steps."""
        channel = self.channel_id
        subscriptions, name = self._realm.subscriptions, self._filter.durable
        window = WINDOW
        if self._filter.is_shared:  # events beyond one member's window go to the others
            window = min(SHARED_WINDOW, self._client.outbox.in_flight_max)
        attach = partial(
            subscriptions.attach,
            channel,
            name,
            self,
            window=window,
            pull=False,
            room=self._client.room,
        )
        try:
            opened = await attach()
        except NameDoesNotExist:
            await make_durable(
                self._realm, channel, name, text=self._filter.text, topics=self._topics
            )
            opened = await attach()
        self._subscription = opened.number
        if self._has_ended:
            self.close()
            return
        # Events that the client finished while the seat was being attached wait to be settled.
        self._settle()
        await self.end_lost_deliveries()

    async def end_lost_deliveries(self) -> None:
        """End the delivery of events in flight that the durable does not hold any more, because
        they were deleted or a seek has passed them."""
        text, outbox = self._filter.text, self._client.outbox
        event_ids = outbox.unacknowledged(text, self.channel)
        if not event_ids:
            return
        span = Span(min(event_ids), max(event_ids) + 1)
        with contextlib.suppress(NameDoesNotExist):
            outstanding = await self._realm.subscriptions.holding.outstanding(
                self.channel_id, self._filter.durable, span
            )
            outstanding_ids = outstanding.id_set
            outbox.end_redelivery(
                text,
                [event_id for event_id in event_ids if event_id not in outstanding_ids],
                self.channel,
            )

    def close(self) -> None:
        """Leave the seat. The durable delivers unacknowledged events again."""
        self._settle()
        if self._subscription:
            self._realm.subscriptions.detach(self._subscription)
        self._client.return_room(sum(self._held.values()))
        self._held.clear()

    def report_free_bytes(self, size: int) -> None:
        """Report to the realm how many bytes of the window are free again."""
        if self._subscription:
            self._realm.subscriptions.credit(self._subscription, 0, taken=size)
        else:
            self._client.room.consumed(size)

    # --- the realm's side ----------------------------------------------------------------

    def deliver(self, rows: OutgoingBatch, redeliveries: object) -> None:
        """Send events to the client. Never raises, because its caller serves other receivers,
        too."""
        if self._has_ended:
            # The connection ended while this seat was being attached. The durable delivers the
            # events again, to the seat of the client's next connection.
            return
        try:
            self.give(rows)
        except Exception:  # noqa: BLE001  other receivers must still be served
            _log.exception("mqtt.failed")
            self._connection.abort()

    def give(self, rows: OutgoingBatch) -> None:
        """Queue the events of a delivery in the outbox. Acknowledge events that the client does not
        receive: they are not messages, or its option No Local excludes them."""
        event_ids = [event_id for first, end in rows.spans for event_id in range(first, end)]
        messages = self._read_messages(rows)
        # The bytes of a frame are divided evenly among its events: only their sum has to be exact.
        share, rest = divmod(self._client.room.size_of(rows), len(event_ids))
        self._held.update(dict.fromkeys(event_ids, share))
        self._held[event_ids[0]] += rest
        topic_filter, channel = self._filter, self.channel
        text = topic_filter.text
        accepted, sources, refused = list[TopicMessage](), list[MessageSource](), list[int]()
        for event_id, message in zip(event_ids, messages, strict=True):
            if message is None or not topic_filter.accepts(message):
                refused.append(event_id)
            else:
                accepted.append(message)
                sources.append(MessageSource(text, event_id, channel=channel))
        self.acknowledge(refused)
        if accepted:
            self._client.outbox.send_messages(accepted, (topic_filter,), sources=sources)

    def _read_messages(self, rows: OutgoingBatch) -> list[TopicMessage | None]:
        """Return the delivered events as messages; None for an event without a topic that the
        filter matches."""
        counts = self._mqtt.counts
        if self._topics is None:
            return messages_in(rows, counts=counts)
        topic_filter = filter_of(self._filter.text)
        return [
            message if message is not None and topic_matches(topic_filter, message.topic) else None
            for message in messages_in(rows, self._topics.reading, counts)
        ]

    def recall(self, spans: Spans) -> None:
        """Drop queued events after a seek of the durable, which delivers some of them again."""
        ids = frozenset(IdSet(spans))
        self._client.return_room(sum([self._held.pop(event_id, 0) for event_id in ids]))
        self._client.outbox.recall(self._filter.text, ids, self.channel)
        self._realm.subscriptions.recall_seen(self._subscription)
        self._mqtt.listener.spawn(self.end_lost_deliveries)

    def finished(self) -> None:
        """Do nothing: the events of a durable have no end."""

    def closed(self, reason: PenstockError) -> None:
        """End the connection if the durable was deleted although its channel and its topics still
        exist."""
        self._subscription = 0
        if not self._is_abandoned:
            self._connection.end(reason)
        else:
            self._filter.feeds.pop(self.channel, None)
            self._client.drop_deleted_channels(self._filter)

    # --- settling ------------------------------------------------------------------------

    def acknowledge(self, event_ids: Sequence[int], then: Callable[[], None] | None = None) -> None:
        """Settle events that the client has finished. ``then`` is called for each event once its
        settlement is on disk. Events that the seat does not hold are ignored."""
        held = [event_id for event_id in event_ids if event_id in self._held]
        if not held:
            return
        self._client.return_room(sum([self._held.pop(event_id) for event_id in held]))
        if not self._settled:  # one settlement for all acknowledgements of a turn of the loop
            self._mqtt.loop.call_soon(self._settle)
        self._settled.update(dict.fromkeys(held, then))

    def _retire(self) -> None:
        """Delete the durable if it exists only for its outstanding events and none are left."""
        mqtt, topic_filter = self._mqtt, self._filter
        if topic_filter.is_draining:
            mqtt.listener.spawn(self._client.end_draining, topic_filter)
        elif self._is_abandoned:
            mqtt.listener.spawn(
                retire_durable,
                mqtt.realm,
                mqtt.topics,
                name=topic_filter.durable,
                text=topic_filter.text,
            )

    def _settle(self) -> None:
        """Settle the finished events with the durable, unless the seat is not attached yet."""
        if self._subscription and self._settled:
            settled, self._settled = self._settled, {}
            self._submit(settled)

    def _submit(self, settled: dict[int, Callable[[], None] | None]) -> None:
        """Settle events in one request, or one by one if the durable refuses them together."""

        def reply(_: Any, error: BaseException | None) -> None:
            if error is None:
                for confirm in settled.values():
                    if confirm is not None:
                        confirm()
                if not self._held:
                    self._retire()
            elif len(settled) > 1:  # one of them is not with this seat any more
                for event_id, then in settled.items():
                    self._submit({event_id: then})
            else:
                _log.debug("mqtt.not_settled", reason=str(error))

        self._realm.subscriptions.settle(
            self._subscription,
            IdSet.from_ids(settled).spans,
            reply,
            roll_back=False,
            previous=False,
        )
