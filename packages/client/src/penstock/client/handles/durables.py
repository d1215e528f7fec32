"""Handles of a client for the durables of a channel (SEM D)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Unpack

from penstock.client.connection import tracing
from penstock.client.connection.arguments import Duration, check_count, timeout_s
from penstock.client.connection.connection import RealmConnection
from penstock.client.handles.attributes import (
    DurableType,
    NewDurableAttributes,
    durable_attributes_of,
    with_durable_attributes,
)
from penstock.client.handles.if_missing import (
    created,
    deleted,
    differing_fields,
    refuse_differences,
)
from penstock.client.handles.named import DurableLike, name_of_durable
from penstock.client.handles.near_names import near_names
from penstock.client.reading.browsing import DurableBrowse
from penstock.client.reading.delivered import DeliveredBatch, DeliveredEvent
from penstock.client.reading.durable_subscription import DurableSubscription
from penstock.client.reading.handling import Handler
from penstock.client.reading.holding import DurableHold
from penstock.client.reading.start_positions import StartLike, check_range, start_of
from penstock.client.reading.subscription import BUFFER_BYTES_MAX, Subscription
from penstock_core.api.durables import (
    CreateDurable,
    DeleteDurable,
    DescribeDurable,
    DescribeOutstanding,
    DurableInfo,
    ListDurables,
    Outstanding,
    PreviewSeek,
    PurgeDurable,
    SeekDurable,
    SeekOutcome,
    UnbindDurable,
)
from penstock_core.display import safe_repr, short
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.identities import ChannelId


class Durables:
    """The durables of one channel: ``channel.durables``."""

    def __init__(self, connection: RealmConnection, channel: ChannelId, name: str) -> None:
        self._connection = connection
        self._channel = channel
        self._channel_name = name

    @safe_repr
    def __repr__(self) -> str:
        return f"<Durables of channel {short(self._channel_name)} {self._connection.standing}>"

    @with_durable_attributes
    async def create(
        self,
        name: str,
        *,
        type: DurableType = "shared",
        start: StartLike = "earliest",
        selector: str = "",
        persistent: bool | None = None,
        if_missing: bool = False,
        **attributes: Unpack[NewDurableAttributes],
    ) -> Durable:
        """Create a durable and return it (SEM D2, D3)::

            billing = await orders.durables.create("billing", start="earliest", max_deliveries=5)

        - ``type``: how events are distributed among the clients: ``"shared"``, ``"serial"``,
          ``"exclusive"``, ``"priority"`` or ``"shared_queued"``
        - ``start``: position of the first event: ``"earliest"``, ``"latest"``, an event id, or a
          time with its time zone: a ``datetime``, or a text such as ``"2026-05-04T12:00:00Z"``
        - ``selector``: the durable receives only matching events
        - ``persistent``: whether the durable survives a restart of the realm; None means that the
          type of the channel decides
        - ``max_deliveries``: an event that is rolled back this many times is dead for this durable
          and goes to the channel's dead event store, which must exist (SEM T10); 0 means no limit
        - ``strict_order``, for type ``serial``: a rolled-back event is delivered before every later
          one, at any window; later events already sent are recalled (SEM D11)
        - ``order_by``, for type ``serial``: the name of a property. Order is kept among events
          with the same value of it (a lane); different lanes are served to different clients at
          the same time
        - ``backoff``: delay before a rolled-back event is delivered again, longer each time:
          ``{"first": "1s", "factor": 2, "most": "5m", "jitter": 0.2, "seed": 7}`` (SEM D18)
        - ``ack_timeout``: the time in which a client has to settle an event, in seconds or as a
          text such as ``"30s"``; after this time the event is delivered again with one more
          redelivery, and a later acknowledgement is refused (SEM D19)

        With ``if_missing`` an existing durable is returned, at its present position, if it has this
        type, this selector and the attributes given here.

        Raises ``NameAlreadyBound``, ``InvalidArgument``, ``InvalidSelector``.
        """
        request_values = durable_attributes_of(attributes)
        message = CreateDurable(
            self._channel,
            name,
            type,
            start=start_of(start),
            selector=selector,
            persistent=persistent,
            **request_values,
        )

        async def create(*, resend: bool) -> DurableInfo:
            return await self._connection.ask(message, DurableInfo, resend=resend)

        def check(existing: DurableInfo) -> None:
            required = {"type": type, "selector": selector, **request_values}
            required |= {} if persistent is None else {"persistent": persistent}
            description = f"durable {existing.name} of {self._channel_name}"
            refuse_differences(description, differing_fields(required, existing))

        find = self._durable(name).info
        info = await created(find, create, check, if_missing=if_missing)
        return self._durable(info.name, info.type)

    async def get(self, name: DurableLike) -> Durable:
        """Return the durable of this name. Raises ``NameDoesNotExist``."""
        name = name_of_durable(name, self._channel_name)
        async with near_names(name, self._names):
            info = await self._durable(name).info()
        return self._durable(info.name, info.type)

    async def list(self) -> list[DurableInfo]:
        """Return descriptions of the channel's durables, by name."""
        return await self._connection.ask(ListDurables(self._channel), _INFOS)

    async def delete(self, name: DurableLike) -> None:
        """Delete a durable; its clients are disconnected from it. Raises ``NameDoesNotExist``."""
        name = name_of_durable(name, self._channel_name)
        message = DeleteDurable(self._channel, name)
        find = self._durable(name).info
        async with near_names(name, self._names):
            await deleted(lambda: self._connection.request(message, resend=False), find)

    def _durable(self, name: str, type: str = "") -> Durable:
        """Return the handle of a durable, whether it exists or not."""
        return Durable(
            self._connection, self._channel, name, channel_name=self._channel_name, type=type
        )

    async def _names(self) -> Sequence[str]:
        return [durable.name for durable in await self.list()]


_INFOS: Any = list[DurableInfo]


class Durable:
    """A handle of a durable. The realm stores the durable itself, with its position and its
    outstanding events."""

    name: str
    channel_name: str
    """Name of the channel that the durable belongs to."""

    def __init__(
        self,
        connection: RealmConnection,
        channel: ChannelId,
        name: str,
        *,
        channel_name: str,
        type: str = "",
    ) -> None:
        self.name = name
        self._type = type
        """The durable's type when the handle was made; empty if it was not known."""
        self.channel_name = channel_name
        self._connection = connection
        self._channel = channel
        self._puller: DurableSubscription | None = None
        """The subscription that :meth:`fetch` uses; None before the first call."""
        self._fetching = asyncio.Lock()

    @safe_repr
    def __repr__(self) -> str:
        shown_type = f" ({self._type})" if self._type else ""
        source = f"of channel {short(self.channel_name)}"
        return f"<Durable {short(self.name)}{shown_type} {source} {self._connection.standing}>"

    async def info(self) -> DurableInfo:
        """Return the present counts, position and clients of the durable (SEM D17)."""
        return await self._connection.ask(DescribeDurable(self._channel, self.name), DurableInfo)

    def subscribe(
        self,
        handler: Handler | None = None,
        *,
        window: int | None = None,
        auto_ack: bool = False,
        selector: str = "",
        timeout: Duration | None = None,
        buffer_bytes: int = BUFFER_BYTES_MAX,
    ) -> DurableSubscription:
        """Receive events of the durable, to be acknowledged (SEM D9)::

            async with billing.subscribe() as events:
                async for event in events:
                    bill(event)
                    await event.ack()

        - ``handler``: a function that is called with each event while the subscription is open.
          With ``auto_ack`` its return acknowledges the event; an exception rolls the event back
          and is reported to the session's error listeners
        - ``window``: the largest number of unsettled events. Without it the realm decides: it
          begins with 10 or 1,000, depending on the type, and for most types grows to as much as
          5,000 for a client that acknowledges quickly
        - ``auto_ack``: acknowledge an event when the next one is requested, or the handler returns
        - ``selector``: only matching events are delivered to this client
        - ``timeout``: ends an iteration if no event arrives for this time: seconds, a text such as
          ``"500ms"``, or a ``timedelta``
        - ``buffer_bytes``: largest number of bytes of events that are in transit or received and
          not read yet; a larger single event is delivered alone
        """
        if window is not None:
            check_count(window, "window")
        if window is not None and auto_ack:
            raise InvalidArgument(
                "a window implies manual acknowledgement; give window or auto_ack, not both"
            )
        return DurableSubscription(
            self._connection,
            self._channel,
            self.name,
            window=window,
            auto_ack=auto_ack,
            selector=selector,
            timeout=timeout,
            buffer_bytes=buffer_bytes,
            handler=handler,
            channel_name=self.channel_name,
        )

    async def fetch(self, count: int, timeout: Duration = 0.0) -> list[DeliveredEvent]:
        """Return up to ``count`` events that arrive within ``timeout`` seconds (SEM D5)::

            for event in await billing.fetch(100, timeout=1):
                bill(event)
                await event.ack()

        The first call attaches the session to the durable. It stays attached until :meth:`close` or
        the end of the session.
        """
        batches = await self.fetch_batches(count, timeout)
        return [event for batch in batches for event in batch]

    async def fetch_batches(self, count: int, timeout: Duration = 0.0) -> list[DeliveredBatch]:
        """Return events as :meth:`fetch` does, in batches with Arrow columns."""
        check_count(count, "count")
        seconds = timeout_s(timeout)
        # All callers share one seat, so they take turns.
        async with self._fetching:
            if self._puller is None:
                puller = DurableSubscription(
                    self._connection,
                    self._channel,
                    self.name,
                    pull=True,
                    channel_name=self.channel_name,
                )
                await puller.open()
                self._puller = puller
            fetch = self._puller._fetch(count, seconds)
            return await tracing.received_all(self._puller._seat.source, fetch)

    async def flush(self) -> None:
        """Wait until the realm has stored the settlements of fetched events. Raises the error of
        the first refused settlement, and ``ConnectionLost`` if the connection was lost before all
        of them were confirmed."""
        if self._puller is not None:
            await self._puller.flush()

    def browse(self) -> Subscription:
        """Read the outstanding events, in order, without changing anything, then end the
        subscription (SEM D16)."""
        return DurableBrowse(self._connection, self._channel, self.name)

    async def outstanding(self, start: int = 0, end: int | None = None) -> Outstanding:
        """Return the ids of outstanding events from ``start`` up to and including ``end``, and
        their redelivery counts, without changing anything (SEM D16)."""
        check_range(start, end)
        last_id = (1 << 62) if end is None else end
        message = DescribeOutstanding(self._channel, self.name, start, end_id=last_id + 1)
        return await self._connection.ask(message, Outstanding)

    def hold(self) -> DurableHold:
        """Return an exclusive hold of the durable. The client then reads and settles events by id
        instead of receiving them."""
        return DurableHold(
            self._connection, self._channel, self.name, channel_name=self.channel_name
        )

    async def purge(
        self, *, start: int | None = None, end: int | None = None, selector: str = ""
    ) -> int:
        """Remove the events with ids from ``start`` up to and including ``end`` that match
        ``selector`` from the outstanding events of this durable; other durables keep them. Return
        the number of removed events. Raises ``IllegalState`` for durable types that only keep a
        position (SEM D)."""
        check_range(start, end)
        message = PurgeDurable(self._channel, self.name, start, last_id=end, selector=selector)
        return await self._connection.ask(message, int, resend=False)

    async def seek(self, to: StartLike, *, preview: bool = False) -> SeekOutcome:
        """Move the durable back or forward: to ``"earliest"``, ``"latest"``, an event id or a time
        (a ``datetime`` or text with its time zone) (SEM D20). Return the outcome; with ``preview``,
        return what the outcome would be and change nothing.

        The durable then delivers all stored events from that position on, including acknowledged
        ones, and skips outstanding events before it. Events that clients have not settled are
        recalled, and redelivery counts restart at 0. Subscriptions stay open and continue from the
        new position. If the connection is lost during the call, the client repeats the request; the
        realm carries it out once.

        Raises ``IllegalState``, with the cause, for the id of an event that was removed,
        ``InvalidArgument`` for the id of an event that does not exist yet, and ``DurableInUse``
        while a client holds the durable (:meth:`hold`).
        """
        position = start_of(to, "to")
        if preview:
            return await self._connection.ask(
                PreviewSeek(self._channel, self.name, position), SeekOutcome
            )
        # The realm recognizes a repeated request by the key.
        message = SeekDurable(self._channel, self.name, position, key=secrets.token_hex(16))
        return await self._connection.ask(message, SeekOutcome)

    async def unbind(self) -> int:
        """End all subscriptions of this durable, in all sessions (SEM D14). Return their number.

        Their unsettled events return to the durable, as if the clients had left (SEM D13). The
        clients receive ``DurableUnbound`` and may subscribe again.
        """
        message = UnbindDurable(self._channel, self.name)
        return await self._connection.ask(message, int, resend=False)

    async def close(self) -> None:
        """Detach from the durable to which :meth:`fetch` has attached. Raises, as :meth:`flush`
        does, the error of the first refused or lost settlement that was not raised yet."""
        puller, self._puller = self._puller, None
        if puller is not None:
            await puller.close()
