"""What a realm keeps for clients of MQTT: ``session.mqtt`` (SEM M5, M6)."""

from __future__ import annotations

from typing import Final

from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.subscription import Subscription
from penstock_core.api.channels import ChannelOpened, OpenChannel
from penstock_core.api.topics import (
    EndMqttSession,
    ForgetRetained,
    ListMqttSessions,
    MqttSessionInfo,
    OpenRetained,
    SessionsPage,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId
from penstock_core.vocabulary.topic_templates import selector_of

PAGE: Final = 1_000
"""Sessions that are asked for at once."""
CHANNEL: Final = "mqtt"
"""The channel of all topics, unless ``listen.mqtt_channel`` names another."""


class Mqtt:
    """Retained messages and sessions of MQTT, which no right on a channel opens."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    async def retained(self, filter: str = "#", *, channel: str = CHANNEL) -> Subscription:
        """Read the retained messages of the topics that ``filter`` takes, the oldest first, then
        end. One without data was removed less than a second ago.

        ``channel`` is the channel of all topics. It needs the right to ``subscribe`` on it and on
        all channels with topics. Raises ``NameDoesNotExist`` where nothing was ever retained.
        """
        message = OpenRetained(await self._open(channel))
        store = await self._connection.ask(message, ChannelOpened)
        return Subscription(
            self._connection,
            store.channel,
            FromId(0),
            selector=selector_of(filter, ()),
            browse=True,
            channel_name=store.name,
        )

    async def forget(self, filter: str, *, channel: str = CHANNEL) -> int:
        """Forget what is retained for the topics that ``filter`` takes; gives how many topics.

        Clients that are connected are not told. It needs the right to ``purge`` on the channel of
        all topics and on all channels with topics.
        """
        message = ForgetRetained(await self._open(channel), filter)
        return await self._connection.ask(message, int, resend=False)

    async def sessions(self) -> list[MqttSessionInfo]:
        """All sessions by client id and user, those with a connection and those that outlive it."""
        found: list[MqttSessionInfo] = []
        after: str | None = ""
        while after is not None:
            page = await self._connection.ask(ListMqttSessions(PAGE, after), SessionsPage)
            found += page.sessions
            after = page.next
        return found

    async def end_session(self, client: str, user: str = "") -> None:
        """End a session with its connection and what waits for its client.

        ``client`` is the client id; ``user`` is needed where several users have chosen it. Raises
        ``NameDoesNotExist``, ``InvalidArgument``.
        """
        await self._connection.request(EndMqttSession(client, user), resend=False)

    async def _open(self, channel: str) -> ChannelId:
        opened = await self._connection.ask(OpenChannel(channel), ChannelOpened)
        return opened.channel
