"""Follows the channel of all topics and the channels with topics (SEM M12), and sends their events
to the clients whose filters match."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock_core.ids.ids import Spans
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId, FromLatest
from penstock_mqtt.fan_out import FanOut, SentMessages
from penstock_mqtt.messages import ALL_TOPICS, TopicMessage, messages_in
from penstock_mqtt.topic_channels import TopicChannel
from penstock_server.runtime.delivery.shared_outlet import SharedOutlet
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.subscriptions.subscriptions import Subscriptions

if TYPE_CHECKING:
    from penstock_core.columns.selectors import Selector
    from penstock_mqtt.mqtt_realm import MqttRealm

CREDIT = 10_000
"""Maximum number of events that the realm delivers to a follower and that were not yet forwarded to
the MQTT clients."""

_AT_ONCE: Final = CREDIT // 2
"""Number of forwarded events after which the realm is granted credit again. Granting credit for
each event would cost a wake-up for each message."""

_log = logger("penstock.mqtt")


class CreditGrant:
    """Grants credit to a subscription in batches."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._sent_count = 0

    def end(self) -> None:
        """Reset the count after the subscription has ended: the next one begins with full
        credit."""
        self._sent_count = 0

    def sent(self, subscription: int, count: int) -> None:
        """Count forwarded events, and grant credit for them once they are enough. ``subscription``
        is 0 while it is being opened."""
        self._sent_count += count
        if subscription and self._sent_count >= _AT_ONCE:
            self._subscriptions.credit(subscription, self._sent_count)
            self._sent_count = 0


class ChannelFollower(SharedOutlet):
    """The plain subscription to one channel that all MQTT clients of a realm share."""

    session = "mqtt"
    is_writable = True
    selector: Selector | None = None

    def __init__(
        self,
        subscriptions: Subscriptions,
        fan_out: FanOut,
        channel: TopicChannel | None,
        on_closed: Callable[[PenstockError], None] | None = None,
    ) -> None:
        """``channel`` is the channel with topics, or None for the channel of all topics.
        ``on_closed`` is called with the reason when the channel is deleted."""
        self._subscriptions = subscriptions
        self._fan_out = fan_out
        self.channel = channel
        self._on_closed = on_closed
        self._subscription = 0
        self._credit = CreditGrant(subscriptions)

    @property
    def is_open(self) -> bool:
        return self._subscription > 0

    async def open(self, channel: ChannelId, start: FromId | FromLatest) -> None:
        """Subscribe to the channel. Raises ``NameDoesNotExist`` if it was deleted."""
        opened = await self._subscriptions.subscribe(channel, start, self, credit=CREDIT)
        self._subscription = opened.number

    def close(self) -> None:
        if self._subscription:
            self._subscriptions.detach(self._subscription)
            self._subscription = 0

    def deliver(self, rows: OutgoingBatch, redeliveries: object) -> None:
        """Send events to all matching clients. Never raises, because its caller serves other
        receivers, too."""
        try:
            self._distribute(rows)
        except Exception:  # noqa: BLE001  other receivers must still be served
            self.rows_by_session = {}
            _log.exception("mqtt.failed")
        self._credit.sent(self._subscription, rows.count)

    def _distribute(self, rows: OutgoingBatch) -> None:
        fan_out, channel = self._fan_out, self.channel
        self.rows_by_session = {}
        if fan_out.filters.is_empty:  # all subscribers read from durables
            return
        reading = ALL_TOPICS if channel is None else channel.reading
        messages = messages_in(rows, reading, fan_out.counts)
        if self._subscriptions.dispatch.observe is not None:
            sent: SentMessages = {}
            fan_out.distribute(messages, channel, sent=sent)
            self.rows_by_session = _rows_by_session(messages, sent)
        else:
            fan_out.distribute(messages, channel)

    def recall(self, spans: Spans) -> None:
        """Do nothing: events of a plain subscription are never recalled."""

    def finished(self) -> None:
        """Do nothing: a plain subscription has no end."""

    def closed(self, reason: PenstockError) -> None:
        """Call ``on_closed``, because the channel was deleted."""
        self._subscription = 0
        self._credit.end()
        if self._on_closed is not None:
            self._on_closed(reason)


def _rows_by_session(
    messages: Sequence[TopicMessage | None], sent: SentMessages
) -> Mapping[str, Sequence[int]]:
    """Return the rows of sent messages, by session. The messages of a delivery are in the order of
    its rows."""
    # By identity: equal messages are different events.
    rows = {id(message): row for row, message in enumerate(messages)}
    return {
        session: [rows[id(message)] for message in messages_of_session]
        for session, messages_of_session in sent.items()
    }


class FollowedChannels:
    """Follows the channel of all topics, and all channels that have topics at the moment."""

    def __init__(
        self,
        mqtt: MqttRealm,
        on_closed: Callable[[PenstockError], None],
        on_topics_changed: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """``on_closed`` is called with the reason when the channel of all topics is deleted,
        ``on_topics_changed`` when a channel has gained or lost topics."""
        self._mqtt = mqtt
        self._on_topics_changed = on_topics_changed
        self._all_topics = ChannelFollower(
            mqtt.realm.subscriptions, mqtt.fan_out, None, on_closed=on_closed
        )
        self._followers: dict[int, ChannelFollower] = {}
        self._is_begun = False
        self._is_renewal_scheduled = False
        mqtt.topics.on_changed(self._schedule_update)

    async def begin(self) -> None:
        """Start to send new events to matching clients, also from channels that gain topics
        later."""
        async with self._mqtt.opening:
            if self._all_topics.is_open:
                return
            await self._all_topics.open(await self._mqtt.open_channel(), FromLatest())
            if not self._is_begun:
                self._is_begun = True
                await self._renew(is_first=True)

    def _schedule_update(self) -> None:
        """Schedule one update of the followers for all changes of this turn of the loop."""
        if not self._is_renewal_scheduled and not self._mqtt.listener.is_stopping:
            self._is_renewal_scheduled = True
            self._mqtt.listener.spawn(self._follow_again)

    async def _follow_again(self) -> None:
        """Follow the channels that have topics now. Errors are logged; the next change of topics
        tries again."""
        # Reset first: a change during this update needs another one.
        self._is_renewal_scheduled = False
        try:
            if self._is_begun:
                await self._renew(is_first=False)
            await self._on_topics_changed()
        except PenstockError as error:
            _log.warning("mqtt.topics_not_followed", reason=str(error))

    async def _renew(self, *, is_first: bool) -> None:
        """Close the followers of channels without topics, and open those of channels that have
        gained topics. ``is_first``: whether no channel was followed before."""
        topics = self._mqtt.topics
        channels = topics.all_channels
        for number in [followed for followed in self._followers if followed not in channels]:
            self._followers.pop(number).close()
        for number, channel in list(channels.items()):
            if (follower := self._followers.get(number)) is not None:
                follower.channel = channel
                continue
            new_follower = self._followers[number] = ChannelFollower(
                self._mqtt.realm.subscriptions, self._mqtt.fan_out, channel
            )
            # A channel that was created while clients were subscribed is read from its first event.
            start = FromLatest() if is_first else FromId(topics.since(number))
            with contextlib.suppress(NameDoesNotExist):
                await new_follower.open(channel.number, start)
