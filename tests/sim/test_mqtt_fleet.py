"""Channels with topics, JSON, rights on topics and retained messages, over power cuts, kills, a
network that breaks, and an operator who edits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.start_positions import FromLatest
from penstock_mqtt import durable_feed, sessions
from penstock_mqtt.connection import MqttConnection
from penstock_mqtt.fan_out import FanOut
from penstock_mqtt.messages import Gathered
from penstock_mqtt.publishing import MessagePublisher, PublishStep
from penstock_mqtt.session_store import SessionStore
from penstock_mqtt.sessions import MqttSessions
from penstock_mqtt.topic_channels import SortedMessages, TopicChannel, TopicChannels
from tests.sim.mqtt_fleet import fleet_of
from tests.sim.mqtt_world import devices_of

SEEDS = range(3)
LIVES_MAX = 30
"""Number of seeds within which a mistake is noticed."""


@pytest.mark.slow
@pytest.mark.spec("M2", "M5", "M6", "M7", "M12", "M14", "M15")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fleet_gets_what_it_was_promised(seed: int) -> None:
    fleet_of(seed)


# --- mistakes ----------------------------------------------------------------------------


def topics_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Store a message in the channel of all topics although another channel has its topic."""

    def all_others(_: TopicChannels, messages: Any) -> SortedMessages:
        return SortedMessages([*range(len(messages))], {})

    patch.setattr(TopicChannels, "sorted", all_others)


def left_behind(patch: pytest.MonkeyPatch) -> None:
    """Forget the messages that wait in a channel when its topics are removed."""
    patch.setattr(TopicChannels, "stores_without_topics", lambda *_: [])


def from_its_end(patch: pytest.MonkeyPatch) -> None:
    """Create a session's durable in a channel that gains topics a little too late."""
    make = durable_feed.make_durable

    async def later(realm: Any, channel: Any, name: str, **options: Any) -> None:
        await make(realm, channel, name, **(options | {"start": FromLatest()}))

    patch.setattr(sessions, "make_durable", later)


def without_columns(patch: pytest.MonkeyPatch) -> None:
    """Do not store fields of JSON as properties."""
    original = TopicChannel.__init__

    def init(
        channel: TopicChannel, realm: Any, number: Any, name: str, definition: Definition
    ) -> None:
        original(channel, realm, number, name, definition=replace(definition, payload="bytes"))

    patch.setattr(TopicChannel, "__init__", init)


def rights_for_good(patch: pytest.MonkeyPatch) -> None:
    """Let subscribers receive messages after their right was revoked."""
    patch.setattr(MqttConnection, "check_rights", lambda _: None)
    patch.setattr(FanOut, "forget", lambda _: None)


def rights_of_subscribing(patch: pytest.MonkeyPatch) -> None:
    """Check rights on subscribing and on delivery, but keep the subscription of a revoked right."""
    patch.setattr(MqttConnection, "check_rights", lambda _: None)


def retained_apart(patch: pytest.MonkeyPatch) -> None:
    """Store retained messages in a separate step after the acknowledgement."""
    plan = MessagePublisher.plan

    def without(message_publisher: MessagePublisher, publisher: str, gathered: Any) -> PublishStep:
        step = plan(message_publisher, publisher, gathered)
        retained = message_publisher.retained.channel()
        for number, bodies in step.publishes:
            if number == retained:
                message_publisher.loop.call_later(0.05, _publish, message_publisher, number, bodies)
        return _without_channel(step, retained)

    patch.setattr(MessagePublisher, "plan", without)


def _without_channel(step: PublishStep, channel_id: int) -> PublishStep:
    publishes = [publish for publish in step.publishes if publish[0] != channel_id]
    return PublishStep(publishes, step.refused, step.topics)


def _publish(message_publisher: MessagePublisher, number: Any, bodies: Any) -> None:
    try:
        message_publisher.realm.publish(number, bodies, "", sequence=0, reply=lambda *_: None)
    except PenstockError:
        return


def nothing_is_removed(patch: pytest.MonkeyPatch) -> None:
    """Keep a retained message although an empty one removes it."""
    plan = MessagePublisher.plan

    def without(message_publisher: MessagePublisher, publisher: str, gathered: Any) -> PublishStep:
        step = plan(message_publisher, publisher, gathered)
        if all(message.message.packet.payload for message in gathered):
            return step
        return _without_channel(step, message_publisher.retained.channel())

    patch.setattr(MessagePublisher, "plan", without)


FLEET = {
    topics_are_ignored: 0,
    left_behind: 4,
    from_its_end: 6,
    without_columns: 0,
    rights_for_good: 0,
    rights_of_subscribing: 2,
    retained_apart: 2,
    nothing_is_removed: 0,
}
"""Mistakes, each with the first seed that notices it."""


def acknowledged_before(patch: pytest.MonkeyPatch) -> None:
    """Acknowledge a message of QoS 1 before it is stored."""
    gather = MessagePublisher.gather

    def early(message_publisher: MessagePublisher, publisher: str, message: Any) -> None:
        packet = message.message.packet
        if packet.qos == 1:
            message.publication.stored(packet)
            message = Gathered(Silent(), message.message, message.entries)
        gather(message_publisher, publisher, message)

    patch.setattr(MessagePublisher, "gather", early)


class Silent:
    def stored(self, packet: Any) -> None: ...
    def not_stored(self, packet: Any, error: Any) -> None: ...


def sessions_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Confirm a subscription before it is stored."""

    async def save(mqtt_sessions: MqttSessions, session: Any) -> None:
        mqtt_sessions.store.write((session.entry,), lambda _: None)

    patch.setattr(MqttSessions, "save", save)


def wills_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Forget wills after a kill."""
    put = SessionStore.put

    async def without(store: SessionStore, entries: Any) -> None:
        if without_wills := [entry for entry in entries if b'"will"' not in entry[1]]:
            await put(store, without_wills)

    patch.setattr(SessionStore, "put", without)


def older_connections_live_on(patch: pytest.MonkeyPatch) -> None:
    """Let a half-open connection keep what its client has on a newer connection."""
    patch.setattr(MqttConnection, "close_replaced", lambda _: None)


DEVICES = {
    acknowledged_before: 0,
    sessions_in_memory: 47,
    wills_in_memory: 0,
    older_connections_live_on: 1,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "live", "first"),
    [
        *((mistake, fleet_of, first) for mistake, first in FLEET.items()),
        *((mistake, devices_of, first) for mistake, first in DEVICES.items()),
    ],
)
def test_a_mistake_is_noticed(
    mistake: Callable[[pytest.MonkeyPatch], None],
    live: Callable[[int], str],
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mistake(monkeypatch)

    with pytest.raises(ExceptionGroup) as noticed:
        _live_until_noticed(live, first)

    assert noticed.group_contains(AssertionError)


def _live_until_noticed(live: Callable[[int], str], first: int) -> None:
    for seed in range(first, first + LIVES_MAX):
        live(seed)
