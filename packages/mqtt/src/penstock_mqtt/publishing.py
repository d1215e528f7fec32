"""Stores the messages that clients publish in one turn of the loop together: their events, the
retained messages and the entries of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_mqtt.messages import (
    Gathered,
    GatheredTogether,
    Received,
    body_of_messages,
    body_of_plain,
    body_of_retained,
    one_by_one,
)
from penstock_mqtt.reasons import reported
from penstock_mqtt.retained import RetainedMessages
from penstock_mqtt.retained_topics import TopicChanges
from penstock_mqtt.session_store import SessionStore
from penstock_mqtt.topic_channels import TopicChannels
from penstock_mqtt.wire.reasons import MqttViolation
from penstock_server.runtime.store.bodies import Body, body_from

if TYPE_CHECKING:
    from penstock_server.frontends.native.listener import NativeListener

_log = logger("penstock.mqtt")


class PublishStep(NamedTuple):
    """The contents of one publish that stores several messages."""

    publishes: list[tuple[ChannelId, list[Body]]]
    """The events for each channel."""
    refused: dict[int, MqttViolation]
    """The errors of messages that cannot be an event, by index."""
    topics: TopicChanges | None
    """The topics that gain or lose their retained message; None if the publish retains nothing."""


class MessagePublisher:
    """Collects the messages that clients publish in one turn of the loop, and publishes them."""

    def __init__(
        self,
        listener: NativeListener,
        topics: TopicChannels,
        retained: RetainedMessages,
        sessions: SessionStore,
    ) -> None:
        self._listener = listener
        self.realm = listener.realm
        self._topics = topics
        self.retained = retained
        self._sessions = sessions
        self.loop = asyncio.get_running_loop()
        self._gathered: dict[str, list[Gathered | GatheredTogether]] = {}
        """Messages of this turn of the loop, by publisher."""
        self.is_held_up = False
        """Whether publishing clients may have to wait; updated once in a turn of the loop."""

    def gather(self, publisher: str, message: Gathered | GatheredTogether) -> None:
        """Publish messages together with the others of this turn of the loop."""
        if not self._gathered:
            self.loop.call_soon(self._publish)
            self.is_held_up = self._listener.is_congested or self._listener.is_draining
        same_publisher = self._gathered.get(publisher)
        if same_publisher is None:
            same_publisher = self._gathered[publisher] = []
        same_publisher.append(message)

    def _publish(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for publisher, messages in gathered.items():
            try:
                self._publish_for(publisher, messages)
            except Exception as error:  # noqa: BLE001  other publishers must still be served
                self._refuse(one_by_one(messages), reported(error))

    def _publish_for(self, publisher: str, messages: Sequence[Gathered | GatheredTogether]) -> None:
        """Publish the messages of one publisher, in the fast way if all of them are plain and no
        channel has topics."""
        plain = [message for message in messages if isinstance(message, GatheredTogether)]
        if (
            len(plain) < len(messages)
            or self._topics.all_channels
            or not self._submit_plain(publisher, plain)
        ):
            self.submit(publisher, one_by_one(messages))

    def _submit_plain(self, publisher: str, messages: Sequence[GatheredTogether]) -> bool:
        """Publish plain messages to the channel of all topics now. Return False if they do not fit
        one batch."""
        try:
            body = body_of_plain(messages)
            publishes = [(self._topics.channel_id(), [body])] if body is not None else []
        except Exception as error:  # noqa: BLE001  each message is tried by itself
            self._retry_one_by_one(publisher, one_by_one(messages), error)
            return True

        def stored() -> None:
            for together in messages:
                try:
                    together.publication.stored_together(together.messages)
                except Exception:  # noqa: BLE001  other clients must still be answered
                    _log.exception("mqtt.failed")

        def failed(error: BaseException) -> None:
            self._retry_one_by_one(publisher, one_by_one(messages), error)

        if publishes:
            self._send(publisher, publishes, stored, failed=failed)
        return bool(publishes)

    def submit(self, publisher: str, messages: Sequence[Gathered]) -> None:
        """Publish messages now, and store the entries of their sessions in the same step."""
        try:
            publishes, refused, topics = self.plan(publisher, messages)
        except Exception as error:  # noqa: BLE001  each message is tried by itself
            self._retry_one_by_one(publisher, messages, error)
            return

        def stored() -> None:
            if topics is not None:
                self.retained.topics.stored(publisher, topics)
            _answer(messages, refused)

        self._send(
            publisher,
            publishes,
            stored,
            failed=lambda error: self._retry_one_by_one(publisher, messages, error),
        )

    def _send(
        self,
        publisher: str,
        publishes: Sequence[tuple[ChannelId, list[Body]]],
        stored: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Publish events, in one transaction if they belong to several channels. Call ``stored`` or
        ``failed``."""
        size = sum(body.weight for _, bodies in publishes for body in bodies)

        def reply(_: Any, error: BaseException | None) -> None:
            self._listener.pending_bytes -= size
            if error is None:
                stored()
            else:
                failed(error)

        self._listener.pending_bytes += size
        try:
            if len(publishes) > 1:
                self.realm.transactions.publish_together(publishes, reply, publisher)
            elif publishes:
                self.realm.publish(*publishes[0], "", 0, reply, publisher=publisher)
            else:
                reply(None, None)
        except Exception as error:  # noqa: BLE001  the messages must be answered in every case
            reply(None, error)

    def plan(self, publisher: str, messages: Sequence[Gathered]) -> PublishStep:
        """Return the events that messages add to the channels of their topics, to the retained
        messages and to the sessions. Raises :class:`MqttViolation` if the limits of retained
        messages are reached."""
        publishes, refused = self._events_of([message.message for message in messages])
        topics: TopicChanges | None = None
        accepted = [message for index, message in enumerate(messages) if index not in refused]
        if retained := [message.message for message in accepted if message.message.packet.retain]:
            topics = self.retained.admit(publisher, retained)
            newest = body_from(body_of_retained(retained))
            publishes.append((self.retained.channel(), [newest]))
        if entries := [entry for message in accepted for entry in message.entries]:
            publishes.append(self._sessions.part(entries))
        return PublishStep(publishes, refused, topics)

    def _events_of(
        self, received: Sequence[Received]
    ) -> tuple[list[tuple[ChannelId, list[Body]]], dict[int, MqttViolation]]:
        """Return the events of messages by channel, and the errors of messages that cannot be
        events, by index."""
        if not self._topics.all_channels:
            return [(self._topics.channel_id(), [body_from(body_of_messages(received))])], {}
        publishes: list[tuple[ChannelId, list[Body]]] = []
        refused: dict[int, MqttViolation] = {}
        by_channel = self._topics.sorted(received)
        if by_channel.others:
            others = body_of_messages([received[index] for index in by_channel.others])
            publishes.append((self._topics.channel_id(), [body_from(others)]))
        for channel, messages_of_channel in by_channel.owned.values():
            body, errors = channel.body_of(
                [(received[index], template) for index, template in messages_of_channel]
            )
            refused |= {messages_of_channel[index][0]: error for index, error in errors.items()}
            if body is not None:
                publishes.append((channel.number, [body]))
        return publishes, refused

    def _retry_one_by_one(
        self, publisher: str, messages: Sequence[Gathered], error: BaseException
    ) -> None:
        """Publish messages one by one after they were refused together, so that only faulty ones
        are refused."""
        if len(messages) > 1:
            for message in messages:
                self.submit(publisher, [message])
        else:
            self._refuse(messages, reported(error))

    def _refuse(self, messages: Sequence[Gathered], error: PenstockError) -> None:
        _answer(messages, dict.fromkeys(range(len(messages)), error))


def _answer(messages: Sequence[Gathered], refused: Mapping[int, PenstockError]) -> None:
    """Answer messages that are stored or refused, in their order. An error in one answer does not
    affect the other clients."""
    for index, gathered in enumerate(messages):
        try:
            if (error := refused.get(index)) is None:
                gathered.publication.stored(gathered.message.packet)
            else:
                gathered.publication.not_stored(gathered.message.packet, error)
        except Exception:  # noqa: BLE001  other clients must still be answered
            _log.exception("mqtt.failed")
