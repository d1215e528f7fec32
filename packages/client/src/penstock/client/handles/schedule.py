"""Lists and cancels scheduled events, which the realm publishes later (SEM X4)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.subscription import Subscription
from penstock_core.api.channels import ChannelOpened, OpenSchedule, PurgeChannel
from penstock_core.columns.events.event import Event
from penstock_core.display import safe_repr
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromId

_OPENED: Any = ChannelOpened | None


class Scheduled(Struct, frozen=True):
    """An event that the realm will publish at a later time."""

    number: int
    """The event's number in the schedule; the event gets its id when it is published."""
    deliver_at: datetime
    """Time of publication, in UTC."""
    event: Event
    """The event to be published."""


class Schedule:
    """The events of a channel or queue that wait for their time of publication:
    ``channel.scheduled``, ``queue.scheduled``."""

    def __init__(self, connection: RealmConnection, destination: ChannelId) -> None:
        self._connection = connection
        self._destination = destination

    @safe_repr
    def __repr__(self) -> str:
        return f"<Schedule of store {self._destination} {self._connection.standing}>"

    async def list(self) -> list[Scheduled]:
        """Return the scheduled events, in the order of the calls that scheduled them."""
        store = await self._store()
        if store is None:
            return []
        waiting = Subscription(self._connection, store, FromId(0), browse=True)
        return [_scheduled(event) async for event in waiting]

    async def cancel(self, number: int) -> bool:
        """Cancel a scheduled event. Return False if the event was published or cancelled already.

        ``number`` is the number that ``publish`` or ``push`` returned. Raises ``InvalidArgument``
        if it is not a whole number of 0 or more.
        """
        if type(number) is not int or number < 0:
            raise InvalidArgument(
                f"{number!r} is not the number of a scheduled event; publish returns that number"
            )
        store = await self._store()
        if store is None:
            return False
        # The number of a scheduled event is its id in the hidden store.
        message = PurgeChannel(store, number, number)
        return await self._connection.ask(message, int, resend=False) > 0

    async def _store(self) -> ChannelId | None:
        """Return the hidden store of scheduled events; None if no event was ever scheduled."""
        answer = await self._connection.request(OpenSchedule(self._destination))
        opened: ChannelOpened | None = msgspec.convert(answer, _OPENED)
        return None if opened is None else opened.channel


def _scheduled(event: Event) -> Scheduled:
    """Return an event of the realm's schedule in the form for programs."""
    assert event.event_id is not None, "it was received"
    assert event.deliver_at is not None, "it waits for its time"
    return Scheduled(event.event_id, event.deliver_at, event)
