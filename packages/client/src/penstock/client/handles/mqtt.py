"""Retained messages and sessions of MQTT clients: ``session.mqtt`` (SEM M5, M6)."""

from __future__ import annotations

from typing import Final

from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.named import StoreLike, name_of_store
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
from penstock_core.display import safe_repr
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId
from penstock_core.vocabulary.topic_templates import selector_of

PAGE: Final = 1_000
"""Maximum number of sessions in one answer of the realm."""
CHANNEL: Final = "mqtt"
"""Name of the channel that stores the messages of all topics, unless the setting
``listen.mqtt_channel`` has another name."""


class Mqtt:
    """The retained messages and the MQTT sessions of a realm: ``session.mqtt``."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    @safe_repr
    def __repr__(self) -> str:
        return f"<Mqtt {self._connection.standing}>"

    async def retained(self, filter: str = "#", *, channel: StoreLike = CHANNEL) -> Subscription:
        """Read the retained messages of all topics that match ``filter``, oldest first, then end
        the subscription. A message without data was removed less than a second ago.

        ``channel`` is the channel of all topics. Needs the right ``subscribe`` on it and on all
        channels with topics. Raises ``NameDoesNotExist`` if no message was ever retained.
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

    async def forget(self, filter: str, *, channel: StoreLike = CHANNEL) -> int:
        """Remove the retained messages of all topics that match ``filter``. Return the number of
        topics.

        Connected clients are not notified. Needs the right ``purge`` on ``channel``, which must be
        the channel that stores the messages of all topics, and on every other channel that has
        topics of its own.
        """
        message = ForgetRetained(await self._open(channel), filter)
        return await self._connection.ask(message, int, resend=False)

    async def sessions(self) -> list[MqttSessionInfo]:
        """Return all MQTT sessions, ordered by client id and user. They include stored sessions
        whose clients are not connected."""
        sessions: list[MqttSessionInfo] = []
        after: str | None = ""
        while after is not None:
            page = await self._connection.ask(ListMqttSessions(PAGE, after), SessionsPage)
            sessions += page.sessions
            after = page.next
        return sessions

    async def end_session(self, client: str, user: str = "") -> None:
        """End an MQTT session: close its connection and discard the messages queued for it.

        ``client`` is the client id; ``user`` is needed if sessions of several users have that id.
        Raises ``NameDoesNotExist``, ``InvalidArgument``.
        """
        await self._connection.request(EndMqttSession(client, user), resend=False)

    async def _open(self, channel: StoreLike) -> ChannelId:
        opened = await self._connection.ask(OpenChannel(name_of_store(channel)), ChannelOpened)
        return opened.channel
