"""Events that a trigger has received and that Airflow has not stored yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

import penstock
from penstock import PenstockError
from penstock.aio import (
    DurableSubscription,
    PatternDurableSubscription,
    Reader,
    ReceivedEvent,
    Session,
)
from penstock_core.columns.documents import document_of
from penstock_core.vocabulary.choice import is_pattern

RETRY_S: Final = 5.0
"""Pause in seconds before a failed queue or durable is opened again."""
SETTLING_DELAY_S: Final = 1.0
"""Seconds between the moment when Airflow reports an event as stored and its acknowledgement.

If the assets of a trigger are removed while an event is on its way, Airflow stores nothing, reports
the event as stored, and then cancels the trigger. The cancellation follows the report within this
time.
"""
WITHOUT_WINDOW: Final = ("exclusive", "priority")
"""Types of durables whose subscriptions take no window."""
_log = logging.getLogger(__name__)

HeldEvent = Callable[[], Awaitable[None]]
"""Function that acknowledges an event."""


class HeldEvents:
    """The events of a queue or durable, each reserved for this reader until it is acknowledged."""

    def __init__(
        self,
        find_url: Callable[[], Awaitable[str]],
        *,
        queue_name: str | None,
        channel: str | None,
        durable: str | None,
        selector: str,
        window: int,
    ) -> None:
        """``find_url`` returns the URL of the realm."""
        self._find_url = find_url
        self._queue_name = queue_name
        self._channel = channel
        self._durable = durable
        self._selector = selector
        self._window = window
        self._room = asyncio.Semaphore(window)
        """Room for events. The realm limits them only for some types of durables."""
        self._session: Session | None = None
        self._has_ended = False
        """Whether no further event may be acknowledged."""

    async def stream(self) -> AsyncGenerator[tuple[dict[str, Any], HeldEvent], None]:
        """Iterate over events, each as a JSON object and with its acknowledgement. Errors of the
        realm are logged, and the events are read again."""
        try:
            while True:
                try:
                    async for document, held in self._read(await self._connect()):
                        await self._room.acquire()
                        yield document, held
                except PenstockError as error:
                    _log.error("events of %s cannot be read: %s", self._description, error)
                await self.close()
                await asyncio.sleep(RETRY_S)
        finally:
            self._has_ended = True

    async def settle(self, events: Sequence[tuple[HeldEvent, bool]]) -> None:
        """Acknowledge events, in order, up to the first one that Airflow has not stored; ``events``
        has acknowledgements, each with whether Airflow has stored its event.

        Later ones are not acknowledged, because an acknowledgement may cover all earlier events of
        a durable. Those that are not acknowledged return to the realm when the trigger ends.
        """
        await asyncio.sleep(SETTLING_DELAY_S)
        for acknowledge, is_stored in events:
            if not is_stored and not self._has_ended:
                _log.warning("Airflow has not stored an event of %s", self._description)
                self._has_ended = True
            if self._has_ended:
                return
            try:
                await acknowledge()
            except PenstockError as error:
                _log.warning("an event of %s comes again: %s", self._description, error)
            self._room.release()

    async def close(self) -> None:
        """Return the events that are not acknowledged, and disconnect."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(PenstockError):  # acknowledgements that are not stored
                await session.close()

    @property
    def _description(self) -> str:
        if self._queue_name is not None:
            return f"queue {self._queue_name!r}"
        return f"durable {self._durable!r} of {self._channel!r}"

    async def _connect(self) -> Session:
        self._session = await penstock.aio.connect(await self._find_url())
        return self._session

    async def _read(self, session: Session) -> AsyncIterator[tuple[dict[str, Any], HeldEvent]]:
        """Iterate over the events until the realm or the connection fails. Events that are not
        acknowledged stay reserved after the iteration."""
        if self._queue_name is not None:
            queue = await session.queues.get(self._queue_name)
            reader = queue.reader(transactional=True, window=self._window, selector=self._selector)
            await reader.open()  # so that the end of the iteration does not close it
            async for event in reader:
                yield self._document(event, queue.name), _commit_of(reader, event)
            return
        subscription = await self._subscription(session)
        await subscription.open()
        async for delivered in subscription:
            yield self._document(delivered, delivered.channel), delivered.ack

    async def _subscription(
        self, session: Session
    ) -> DurableSubscription | PatternDurableSubscription:
        """Return the subscription to the durable, or to those of a pattern."""
        assert self._channel is not None, "checked by the trigger"
        assert self._durable is not None, "checked by the trigger"
        if is_pattern(self._channel) or "," in self._channel:
            return session.subscribe(self._channel, durable=self._durable, selector=self._selector)
        channel = await session.channels.get(self._channel)
        durable = await channel.durables.get(self._durable)
        takes_window = (await durable.info()).type not in WITHOUT_WINDOW
        window = self._window if takes_window else None
        return durable.subscribe(window=window, selector=self._selector)

    def _document(self, event: ReceivedEvent, name: str) -> dict[str, Any]:
        """Return an event as a JSON object, with the name of its channel or queue."""
        key = "channel" if self._queue_name is None else "queue"
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document_of(event)))
        return {key: name, **document}


def _commit_of(reader: Reader, event: ReceivedEvent) -> HeldEvent:
    """Return the function that acknowledges an event of a queue."""

    async def commit() -> None:
        await reader.commit(event, individual=True)

    return commit
