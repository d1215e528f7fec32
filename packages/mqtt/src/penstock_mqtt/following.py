"""The events of the channel of all topics, and of channels with topics (SEM M12), given out to the
clients whose filters take them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from penstock_core.ids.ids import Spans
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId, FromLatest
from penstock_mqtt.fan_out import FanOut
from penstock_mqtt.messages import ALL_TOPICS, messages_in
from penstock_mqtt.topic_channels import TopicChannel
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.subscriptions.subscriptions import Subscriptions

if TYPE_CHECKING:
    from penstock_core.columns.selectors import Selector
    from penstock_mqtt.mqtt_realm import MqttRealm

CREDIT = 10_000
"""Events that the realm may hand out before the last ones are given on."""

_AT_ONCE: Final = CREDIT // 2
"""Events that have been given on, of those that the realm may hand out, before it is told: it would
be woken for each message that comes alone, as for another message."""

_log = logger("penstock.mqtt")


class Replenishment:
    """What the realm may hand out to a subscription again, told once it is worth it."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._given = 0

    def end(self) -> None:
        """The subscription has ended: the next one has all of its credit."""
        self._given = 0

    def given_on(self, subscription: int, count: int) -> None:
        """So many events have been given on. ``subscription`` is 0 while it is being opened."""
        self._given += count
        if subscription and self._given >= _AT_ONCE:
            self._subscriptions.credit(subscription, self._given)
            self._given = 0


class ChannelFollower:
    """The one plain subscription of a channel of MQTT."""

    session = "mqtt"
    writable = True
    selector: Selector | None = None

    def __init__(
        self,
        subscriptions: Subscriptions,
        fan_out: FanOut,
        channel: TopicChannel | None,
        on_closed: Callable[[PenstockError], None] | None = None,
    ) -> None:
        """``channel``: the channel with topics; None: that of all topics. ``on_closed`` is called
        with the reason when the channel is gone."""
        self._subscriptions = subscriptions
        self._fan_out = fan_out
        self.channel = channel
        self._on_closed = on_closed
        self._subscription = 0
        self._credit = Replenishment(subscriptions)

    @property
    def is_open(self) -> bool:
        return self._subscription > 0

    async def open(self, channel: ChannelId, start: FromId | FromLatest) -> None:
        """Raises ``NameDoesNotExist``: the channel is gone."""
        opened = await self._subscriptions.subscribe(channel, start, self, credit=CREDIT)
        self._subscription = opened.number

    def close(self) -> None:
        if self._subscription:
            self._subscriptions.detach(self._subscription)
            self._subscription = 0

    def deliver(self, rows: OutgoingBatch, redeliveries: object) -> None:
        """Give events to everybody who wants their topics. Never raises: its caller serves others,
        too."""
        try:
            self._give_out(rows)
        except Exception:  # noqa: BLE001  whatever it is, the others must live on
            _log.exception("mqtt.failed")
        self._credit.given_on(self._subscription, rows.count)

    def _give_out(self, rows: OutgoingBatch) -> None:
        fan_out, channel = self._fan_out, self.channel
        if fan_out.filters.is_empty:  # only durables have them
            return
        by = ALL_TOPICS if channel is None else channel.reading
        fan_out.give_out(messages_in(rows, by, fan_out.counts), channel)

    def recall(self, spans: Spans) -> None:
        """Nothing is taken back from a plain subscription."""

    def finished(self) -> None:
        """A plain subscription has no end."""

    def closed(self, reason: PenstockError) -> None:
        """The channel is gone, and its topics with it."""
        self._subscription = 0
        self._credit.end()
        if self._on_closed is not None:
            self._on_closed(reason)


class FollowedChannels:
    """Follows the channel of all topics, and the channels that have topics, whichever these
    are."""

    def __init__(
        self,
        mqtt: MqttRealm,
        on_closed: Callable[[PenstockError], None],
        on_topics_changed: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """``on_closed`` is called with the reason when the channel of all topics is gone, and
        ``on_topics_changed`` when a channel has got topics, or lost them."""
        self._mqtt = mqtt
        self._on_topics_changed = on_topics_changed
        self._all_topics = ChannelFollower(
            mqtt.realm.subscriptions, mqtt.fan_out, None, on_closed=on_closed
        )
        self._followers: dict[int, ChannelFollower] = {}
        self._is_begun = False
        self._is_asked = False
        mqtt.topics.on_changed(self._changed)

    async def begin(self) -> None:
        """See to it that what is published from now on is given out, also in channels that come
        later."""
        async with self._mqtt.opening:
            if self._all_topics.is_open:
                return
            await self._all_topics.open(await self._mqtt.open_channel(), FromLatest())
            if not self._is_begun:
                self._is_begun = True
                await self._renew(is_first=True)

    def _changed(self) -> None:
        """A channel has got topics, or lost them: see to it once that is done."""
        if not self._is_asked and not self._mqtt.listener.is_stopping:
            self._is_asked = True
            self._mqtt.listener.spawn(self._follow_again)

    async def _follow_again(self) -> None:
        self._is_asked = False
        try:
            if self._is_begun:
                await self._renew(is_first=False)
            await self._on_topics_changed()
        except PenstockError as error:
            _log.warning("mqtt.topics_not_followed", reason=str(error))

    async def _renew(self, *, is_first: bool) -> None:
        topics = self._mqtt.topics
        every = topics.every
        for number in [each for each in self._followers if each not in every]:
            self._followers.pop(number).close()
        for number, channel in list(every.items()):
            if (known := self._followers.get(number)) is not None:
                known.channel = channel
                continue
            made = self._followers[number] = ChannelFollower(
                self._mqtt.realm.subscriptions, self._mqtt.fan_out, channel
            )
            # Nothing is missed of a channel that was made while somebody has subscribed.
            start = FromLatest() if is_first else FromId(topics.since(number))
            with contextlib.suppress(NameDoesNotExist):
                await made.open(channel.number, start)
