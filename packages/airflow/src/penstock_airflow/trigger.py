"""The trigger that the triggerer of Airflow runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseHook, Connection
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from penstock_core.vocabulary.errors import IllegalState, InvalidArgument

if TYPE_CHECKING:
    from penstock_airflow.held_events import HeldEvent, HeldEvents

DEFAULT_CONNECTION = "penstock_default"
WINDOW_DEFAULT = 100
WINDOW_MAX = 1_000
"""Fewer than the raw events that Airflow keeps for a trigger by default."""


class PenstockTrigger(BaseEventTrigger):
    """Fires with each event of a queue or durable, for the assets that watch it.

    An event is acknowledged when Airflow has stored the asset event that it became. Until then it
    is reserved for the trigger; it comes again if the triggerer or its connection is lost.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        conn_id: str = DEFAULT_CONNECTION,
        queue_name: str | None = None,
        channel: str | None = None,
        durable: str | None = None,
        selector: str = "",
        window: int = WINDOW_DEFAULT,
    ) -> None:
        """Raises ``InvalidArgument`` if the arguments do not name a queue or a durable.

        - ``url``: the URL of the realm; without it, the connection ``conn_id`` of Airflow has it
        - ``queue_name``: the queue to read
        - ``channel``, ``durable``: the durable to read, of a channel or of all channels of a
          pattern
        - ``selector``: reads only the events that it selects
        - ``window``: the largest number of events that the trigger holds
        """
        super().__init__()
        is_durable = channel is not None and durable is not None
        if is_durable == (queue_name is not None) or (channel is None) != (durable is None):
            raise InvalidArgument(
                f"queue_name is {queue_name!r}, channel {channel!r} and durable {durable!r}; give "
                "queue_name for a queue, or channel and durable for a durable"
            )
        if not 1 <= window <= WINDOW_MAX:
            raise InvalidArgument(f"window is {window}; allowed are 1 to {WINDOW_MAX:,}")
        self._arguments: dict[str, Any] = {
            "url": url,
            "conn_id": conn_id,
            "queue_name": queue_name,
            "channel": channel,
            "durable": durable,
            "selector": selector,
            "window": window,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and the arguments."""
        return f"{__name__}.{type(self).__name__}", dict(self._arguments)

    def shared_stream_key(self) -> Hashable:
        """Return a key that no other trigger has. Only streams with a key learn what Airflow has
        stored; a stream with two triggers would give each event to both."""
        return __name__, self.trigger_id

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the producer for the arguments of a trigger."""
        # Not at the top: the processor of DAG files imports this module, and not the client.
        from penstock_airflow.held_events import HeldEvents

        source = dict(kwargs)
        url, conn_id = source.pop("url"), source.pop("conn_id")

        async def find_url() -> str:
            return url or url_of(await BaseHook.aget_connection(conn_id))

        return TriggerProducer(HeldEvents(find_url, **source))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        """Fire with each event. Raises ``IllegalState`` for a task."""
        if self.task_instance is not None:
            raise IllegalState(
                "a task cannot wait for events of a realm; give the trigger to an AssetWatcher"
            )
        async for document in shared_stream:
            yield TriggerEvent(document)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Raise ``IllegalState``: outside a shared stream, it is unknown what Airflow has
        stored."""
        raise IllegalState("this trigger runs only in the triggerer of Airflow 3.3 or newer")
        yield  # makes the method an asynchronous generator


class TriggerProducer(SharedStreamProducer):
    """Connects the stream of a trigger with the events that it holds."""

    def __init__(self, events: HeldEvents) -> None:
        self._events = events

    def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], HeldEvent]]:
        """Iterate over events, each as a JSON object and with its acknowledgement."""
        return self._events.stream()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge the events that Airflow has stored."""
        await self._events.settle([(item.broker_payload, item.outcome.is_clean) for item in batch])

    async def aclose(self) -> None:
        """Return the events that are not acknowledged, and disconnect."""
        await self._events.close()


def url_of(connection: Connection) -> str:
    """Return the URL of the realm that a connection of Airflow describes. Raises
    ``InvalidArgument``."""
    if connection.conn_type not in ("penstock", "penstocks") or not connection.host:
        raise InvalidArgument(
            f"connection {connection.conn_id!r} has the type {connection.conn_type!r} and the host "
            f"{connection.host!r}; the type has to be penstock, or penstocks for TLS, and the host "
            "is that of the realm"
        )
    credentials = ""
    if connection.login:
        password = f":{quote(connection.password, safe='')}" if connection.password else ""
        credentials = f"{quote(connection.login, safe='')}{password}@"
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.conn_type}://{credentials}{connection.host}{port}"
