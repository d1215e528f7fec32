"""The events of channels with topics, given out to clients as those of the channel of all topics
are (SEM M12)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from penstock.core.ids.ids import Spans
from penstock.core.vocabulary.errors import NameDoesNotExist, PenstockError
from penstock.core.vocabulary.start_positions import FromId, FromLatest
from penstock.frontends.mqtt.messages import messages_in
from penstock.frontends.mqtt.topic_channels import TopicChannel
from penstock.loggers import logger
from penstock.runtime.store.outgoing_batch import OutgoingBatch
from penstock.runtime.subscriptions.subscriptions import Subscriptions

if TYPE_CHECKING:
    from penstock.columns.selectors import Selector
    from penstock.frontends.mqtt.hub import MqttHub

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
        """So many events have been given on."""
        self._given += count
        if self._given >= _AT_ONCE:
            self._subscriptions.credit(subscription, self._given)
            self._given = 0


class ChannelFollower:
    """The one plain subscription of a channel with topics."""

    session = "mqtt"
    writable = True
    selector: Selector | None = None

    def __init__(self, hub: MqttHub, channel: TopicChannel) -> None:
        self._hub = hub
        self.channel = channel
        self._subscription = 0
        self._credit = Replenishment(hub.realm.subscriptions)

    async def open(self, start: FromId | FromLatest) -> None:
        """Raises ``NameDoesNotExist``: the channel is gone."""
        subscriptions = self._hub.realm.subscriptions
        opened = await subscriptions.subscribe(self.channel.number, start, self, credit=CREDIT)
        self._subscription = opened.number

    def close(self) -> None:
        if self._subscription:
            self._hub.realm.subscriptions.detach(self._subscription)
            self._subscription = 0

    def deliver(self, rows: OutgoingBatch, redeliveries: object) -> None:
        """Give events to everybody who wants their topics. Never raises: its caller serves others,
        too."""
        try:
            if not self._hub.filters.is_empty:
                messages = messages_in(rows, self.channel.reading, self._hub.counts)
                self._hub.give(messages, self.channel)
        except Exception:  # noqa: BLE001  whatever it is, the others must live on
            _log.exception("mqtt.failed")
        if self._subscription:
            self._credit.given_on(self._subscription, rows.count)

    def recall(self, spans: Spans) -> None:
        """Nothing is taken back from a plain subscription."""

    def finished(self) -> None:
        """A plain subscription has no end."""

    def closed(self, reason: PenstockError) -> None:
        """The channel is gone, and its topics with it."""
        self._subscription = 0


class FollowedChannels:
    """Follows the channels that have topics, whichever these are."""

    def __init__(self, hub: MqttHub) -> None:
        self._hub = hub
        self._followers: dict[int, ChannelFollower] = {}
        self._is_begun = False
        self._is_asked = False
        hub.topics.on_changed(self._changed)

    async def begin(self) -> None:
        """Give out what is published from now on, also in channels that come later."""
        if not self._is_begun:
            self._is_begun = True
            await self._renew(is_first=True)

    def _changed(self) -> None:
        """A channel has got topics, or lost them: see to it once that is done."""
        if not self._is_asked and not self._hub.listener.is_stopping:
            self._is_asked = True
            self._hub.listener.spawn(self._follow_again)

    async def _follow_again(self) -> None:
        self._is_asked = False
        try:
            if self._is_begun:
                await self._renew(is_first=False)
            await self._hub.sessions.topics_changed()
        except PenstockError as error:
            _log.warning("mqtt.topics_not_followed", reason=str(error))

    async def _renew(self, *, is_first: bool) -> None:
        every = self._hub.topics.every
        for number in [each for each in self._followers if each not in every]:
            self._followers.pop(number).close()
        for number, channel in list(every.items()):
            if (known := self._followers.get(number)) is not None:
                known.channel = channel
                continue
            made = self._followers[number] = ChannelFollower(self._hub, channel)
            # Nothing is missed of a channel that was made while somebody has subscribed.
            start = FromLatest() if is_first else FromId(self._hub.topics.since(number))
            with contextlib.suppress(NameDoesNotExist):
                await made.open(start)
