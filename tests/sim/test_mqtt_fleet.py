"""Channels with topics, JSON, rights on topics and what is retained, over power cuts, kills, a
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
"""Seeds within which a mistake is noticed."""


@pytest.mark.slow
@pytest.mark.spec("M2", "M5", "M6", "M7", "M12", "M14", "M15")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fleet_gets_what_it_was_promised(seed: int) -> None:
    fleet_of(seed)


# --- mistakes ----------------------------------------------------------------------------


def topics_are_nobodys(patch: pytest.MonkeyPatch) -> None:
    """A message is in the channel of all topics, though another has its topic."""

    def all_others(_: TopicChannels, messages: Any) -> SortedMessages:
        return SortedMessages([*range(len(messages))], {})

    patch.setattr(TopicChannels, "sorted", all_others)


def left_behind(patch: pytest.MonkeyPatch) -> None:
    """What waits in a channel is forgotten when its topics are taken."""
    patch.setattr(TopicChannels, "stores_without_topics", lambda *_: [])


def from_its_end(patch: pytest.MonkeyPatch) -> None:
    """A channel that gets topics has a session's durable a little later."""
    make = durable_feed.make_durable

    async def later(realm: Any, channel: Any, name: str, **options: Any) -> None:
        await make(realm, channel, name, **(options | {"start": FromLatest()}))

    patch.setattr(sessions, "make_durable", later)


def without_columns(patch: pytest.MonkeyPatch) -> None:
    """Fields of JSON are no properties."""
    made = TopicChannel.__init__

    def init(
        channel: TopicChannel, realm: Any, number: Any, name: str, definition: Definition
    ) -> None:
        made(channel, realm, number, name, definition=replace(definition, payload="bytes"))

    patch.setattr(TopicChannel, "__init__", init)


def rights_for_good(patch: pytest.MonkeyPatch) -> None:
    """Who has subscribed may hear, whatever right is taken."""
    patch.setattr(MqttConnection, "check_rights", lambda _: None)
    patch.setattr(FanOut, "forget", lambda _: None)


def rights_of_subscribing(patch: pytest.MonkeyPatch) -> None:
    """Rights are asked for when somebody subscribes, and when somebody is given something; the
    subscription stays."""
    patch.setattr(MqttConnection, "check_rights", lambda _: None)


def retained_apart(patch: pytest.MonkeyPatch) -> None:
    """What is retained is stored in a step of its own, after the acknowledgement."""
    plan = MessagePublisher.plan

    def without(own: MessagePublisher, publisher: str, gathered: Any) -> PublishStep:
        step = plan(own, publisher, gathered)
        retained = own.retained.channel()
        for number, bodies in step.publishes:
            if number == retained:
                own.loop.call_later(0.05, _publish, own, number, bodies)
        return _without_channel(step, retained)

    patch.setattr(MessagePublisher, "plan", without)


def _without_channel(step: PublishStep, channel_id: int) -> PublishStep:
    publishes = [publish for publish in step.publishes if publish[0] != channel_id]
    return PublishStep(publishes, step.refused, step.topics)


def _publish(own: MessagePublisher, number: Any, bodies: Any) -> None:
    try:
        own.realm.publish(number, bodies, "", sequence=0, reply=lambda *_: None)
    except PenstockError:
        return


def nothing_is_removed(patch: pytest.MonkeyPatch) -> None:
    """What is retained stays when nothing is to be."""
    plan = MessagePublisher.plan

    def without(own: MessagePublisher, publisher: str, gathered: Any) -> PublishStep:
        step = plan(own, publisher, gathered)
        if all(message.message.packet.payload for message in gathered):
            return step
        return _without_channel(step, own.retained.channel())

    patch.setattr(MessagePublisher, "plan", without)


FLEET = {
    topics_are_nobodys: 0,
    left_behind: 4,
    from_its_end: 6,
    without_columns: 0,
    rights_for_good: 0,
    rights_of_subscribing: 2,
    retained_apart: 2,
    nothing_is_removed: 0,
}
"""Mistakes, with the first seed that notices them."""


def acknowledged_before(patch: pytest.MonkeyPatch) -> None:
    """A message of QoS 1 is acknowledged, and then stored."""
    gather = MessagePublisher.gather

    def early(own: MessagePublisher, publisher: str, message: Any) -> None:
        packet = message.message.packet
        if packet.qos == 1:
            message.publication.stored(packet)
            message = Gathered(Silent(), message.message, message.entries)
        gather(own, publisher, message)

    patch.setattr(MessagePublisher, "gather", early)


class Silent:
    def stored(self, packet: Any) -> None: ...
    def not_stored(self, packet: Any, error: Any) -> None: ...


def sessions_in_memory(patch: pytest.MonkeyPatch) -> None:
    """A subscription is said to last before it is stored."""

    async def save(own: MqttSessions, session: Any) -> None:
        own.store.write((session.entry,), lambda _: None)

    patch.setattr(MqttSessions, "save", save)


def wills_in_memory(patch: pytest.MonkeyPatch) -> None:
    """A kill forgets wills."""
    put = SessionStore.put

    async def without(own: SessionStore, entries: Any) -> None:
        if left := [each for each in entries if b'"will"' not in each[1]]:
            await put(own, left)

    patch.setattr(SessionStore, "put", without)


def older_connections_live_on(patch: pytest.MonkeyPatch) -> None:
    """A connection that is half open keeps what its client has elsewhere now."""
    patch.setattr(MqttConnection, "replaced", lambda _: None)


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
