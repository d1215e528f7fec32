"""What clients publish in one turn of the loop, stored together: events for the channels of the
topics, for what is retained, and for sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from penstock_mqtt.session_store import SessionStore
from penstock_mqtt.topic_channels import TopicChannels
from penstock_mqtt.wire.reasons import MqttViolation
from penstock_server.runtime.store.bodies import Body, body_from

if TYPE_CHECKING:
    from penstock_server.frontends.native.listener import NativeListener

_log = logger("penstock.mqtt")


class MessagePublisher:
    """Gathers what clients publish in one turn of the loop, and publishes it."""

    def __init__(
        self,
        listener: NativeListener,
        topics: TopicChannels,
        retained: RetainedMessages,
        sessions: SessionStore,
    ) -> None:
        self._listener = listener
        self._realm = listener.realm
        self._topics = topics
        self._retained = retained
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._gathered: dict[str, list[Gathered | GatheredTogether]] = {}
        self.is_held_up = False
        """Whether clients that publish may have to wait; looked at once in a turn of the loop."""

    def gather(self, publisher: str, message: Gathered | GatheredTogether) -> None:
        """Publish messages with the others of this turn of the loop."""
        if not self._gathered:
            self._loop.call_soon(self._publish)
            self.is_held_up = self._listener.is_congested or self._listener.is_draining
        own = self._gathered.get(publisher)
        if own is None:
            own = self._gathered[publisher] = []
        own.append(message)

    def _publish(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for publisher, messages in gathered.items():
            try:
                self._publish_of(publisher, messages)
            except Exception as error:  # noqa: BLE001  other publishers' messages do not share it
                self._refuse(one_by_one(messages), reported(error))

    def _publish_of(self, publisher: str, messages: Sequence[Gathered | GatheredTogether]) -> None:
        plain = [each for each in messages if isinstance(each, GatheredTogether)]
        if (
            len(plain) < len(messages)
            or self._topics.every
            or not self._submit_plain(publisher, plain)
        ):
            self.submit(publisher, one_by_one(messages))

    def _submit_plain(self, publisher: str, messages: Sequence[GatheredTogether]) -> bool:
        """Publish plain messages for the channel of all topics now; False: they do not fit one
        batch."""
        try:
            body = body_of_plain(messages)
            publishes = [(self._topics.channel_id(), [body_from(body)])] if body is not None else []
        except Exception as error:  # noqa: BLE001  each message is tried by itself
            self._failed(publisher, one_by_one(messages), error)
            return True

        def stored() -> None:
            for each in messages:
                try:
                    each.whose.stored_together(each.messages)
                except Exception:  # noqa: BLE001  the other clients are answered
                    _log.exception("mqtt.failed")

        def failed(error: BaseException) -> None:
            self._failed(publisher, one_by_one(messages), error)

        if publishes:
            self._send(publisher, publishes, stored, failed=failed)
        return bool(publishes)

    def submit(self, publisher: str, messages: Sequence[Gathered]) -> None:
        """Publish messages now, with what is stored of sessions in the same step."""
        try:
            publishes, refused = self._publishes(messages)
        except Exception as error:  # noqa: BLE001  each message is tried by itself
            self._failed(publisher, messages, error)
            return
        self._send(
            publisher,
            publishes,
            lambda: _answer(messages, refused),
            failed=lambda error: self._failed(publisher, messages, error),
        )

    def _send(
        self,
        publisher: str,
        publishes: Sequence[tuple[ChannelId, list[Body]]],
        stored: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
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
                self._realm.transactions.publish_together(publishes, reply, publisher)
            elif publishes:
                self._realm.publish(*publishes[0], "", 0, reply, publisher=publisher)
            else:
                reply(None, None)
        except Exception as error:  # noqa: BLE001  its messages are answered, whatever it is
            reply(None, error)

    def _publishes(
        self, messages: Sequence[Gathered]
    ) -> tuple[list[tuple[ChannelId, list[Body]]], dict[int, MqttViolation]]:
        """Events for the channels of the topics, for that of what is retained, and for that of
        sessions; and by its place what is wrong with each message that can be no event."""
        publishes, refused = self._events_of([each.message for each in messages])
        kept = [each for at, each in enumerate(messages) if at not in refused]
        if retained := [each.message for each in kept if each.message.packet.retain]:
            self._retained.check_room(retained, self._listener.limits.mqtt_retained_messages_max)
            newest = body_from(body_of_retained(retained))
            publishes.append((self._retained.channel(), [newest]))
        if entries := [entry for each in kept for entry in each.entries]:
            publishes.append(self._sessions.part(entries))
        return publishes, refused

    def _events_of(
        self, received: Sequence[Received]
    ) -> tuple[list[tuple[ChannelId, list[Body]]], dict[int, MqttViolation]]:
        if not self._topics.every:
            return [(self._topics.channel_id(), [body_from(body_of_messages(received))])], {}
        publishes: list[tuple[ChannelId, list[Body]]] = []
        refused: dict[int, MqttViolation] = {}
        sorted_ = self._topics.sorted(received)
        if sorted_.others:
            others = body_of_messages([received[at] for at in sorted_.others])
            publishes.append((self._topics.channel_id(), [body_from(others)]))
        for channel, owned in sorted_.owned.values():
            body, wrong = channel.body_of([(received[at], by) for at, by in owned])
            refused |= {owned[at][0]: why for at, why in wrong.items()}
            if body is not None:
                publishes.append((channel.number, [body]))
        return publishes, refused

    def _failed(self, publisher: str, messages: Sequence[Gathered], error: BaseException) -> None:
        """Publish one by one what was refused together, so that only what is wrong is refused."""
        if len(messages) > 1:
            for each in messages:
                self.submit(publisher, [each])
        else:
            self._refuse(messages, reported(error))

    def _refuse(self, messages: Sequence[Gathered], error: PenstockError) -> None:
        _answer(messages, dict.fromkeys(range(len(messages)), error))


def _answer(messages: Sequence[Gathered], refused: Mapping[int, PenstockError]) -> None:
    """Answer messages that are stored, or of which it is known what is wrong, in their order. A
    client that cannot be answered keeps nobody else from being."""
    for at, each in enumerate(messages):
        try:
            if (why := refused.get(at)) is None:
                each.whose.stored(each.message.packet)
            else:
                each.whose.not_stored(each.message.packet, why)
        except Exception:  # noqa: BLE001  the other clients are answered
            _log.exception("mqtt.failed")
