"""Durable subscriptions of a channel."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Unpack

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
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.identities import ChannelId


class Durables:
    """The durables of one channel: ``channel.durables``."""

    def __init__(self, connection: RealmConnection, channel: ChannelId, name: str) -> None:
        self._connection = connection
        self._channel = channel
        self._of = name

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
        """Create a durable (SEM D2, D3).

        With ``strict_order``, for type ``serial``, a rolled-back event comes before every later one
        at any window: later ones that were sent already are recalled (SEM D11).

        With ``order_by``, for type ``serial``, this holds among the events with the same value of
        that property (a lane); different lanes are served to different clients at the same time.

        With ``max_deliveries`` an event that is rolled back so many times is dead for this durable,
        and goes to the channel's dead event store, which must exist (SEM T10).

        With ``backoff`` an event that is rolled back waits before it comes again, each time longer:
        ``{"first": "1s", "factor": 2, "most": "5m", "jitter": 0.2, "seed": 7}`` (SEM D18).

        With ``ack_timeout`` (``"30s"``, or seconds) a client has an event in hand for so long: then
        it goes back, counted, and a later acknowledgement is refused (SEM D19).

        With ``if_missing`` a durable that exists is given out, where it stands, if it has this type
        and selector and the attributes given here.

        Raises ``NameAlreadyBound``, ``InvalidArgument``, ``InvalidSelector``.
        """
        sent = durable_attributes_of(attributes)
        message = CreateDurable(
            self._channel,
            name,
            type,
            start=start_of(start),
            selector=selector,
            persistent=persistent,
            **sent,
        )

        async def create(*, resend: bool) -> DurableInfo:
            return await self._connection.ask(message, DurableInfo, resend=resend)

        def check(found: DurableInfo) -> None:
            given = {"type": type, "selector": selector, **sent}
            given |= {} if persistent is None else {"persistent": persistent}
            what = f"durable {found.name} of {self._of}"
            refuse_differences(what, differing_fields(given, found))

        there = Durable(self._connection, self._channel, name, channel_name=self._of)
        made = await created(there.info, create, check, if_missing=if_missing)
        return Durable(self._connection, self._channel, made.name, channel_name=self._of)

    async def get(self, name: str) -> Durable:
        """Raises ``NameDoesNotExist``."""
        async with near_names(name, self._names):
            info = await Durable(
                self._connection, self._channel, name, channel_name=self._of
            ).info()
        return Durable(self._connection, self._channel, info.name, channel_name=self._of)

    async def list(self) -> list[DurableInfo]:
        """Descriptions of the channel's durables, by name."""
        return await self._connection.ask(ListDurables(self._channel), _INFOS)

    async def delete(self, name: str) -> None:
        """End a durable for good. Raises ``NameDoesNotExist``."""
        message = DeleteDurable(self._channel, name)
        there = Durable(self._connection, self._channel, name, channel_name=self._of)
        async with near_names(name, self._names):
            await deleted(lambda: self._connection.request(message, resend=False), there.info)

    async def _names(self) -> Sequence[str]:
        return [durable.name for durable in await self.list()]


_INFOS: Any = list[DurableInfo]


class Durable:
    """A durable. This is a handle; the state is in the realm."""

    name: str

    def __init__(
        self, connection: RealmConnection, channel: ChannelId, name: str, channel_name: str
    ) -> None:
        self.name = name
        self._channel_name = channel_name
        self._connection = connection
        self._channel = channel
        self._puller: DurableSubscription | None = None
        self._fetching = asyncio.Lock()

    def __repr__(self) -> str:
        of, place = self._channel_name, self._connection.place
        return f"<Durable {self.name!r} of channel {of!r} at {place}>"

    async def info(self) -> DurableInfo:
        """Counts, position, clients (SEM D17)."""
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
        """Receive events to be acknowledged, at most ``window`` unsettled at a time (SEM D9).
        Without one the realm decides: most types begin with 10, or 1,000, and give a client that
        acknowledges quickly up to 5,000.

        With a ``handler`` each event is given to it while the subscription is open: returning
        acknowledges when ``auto_ack``, an exception rolls back and is reported.

        While the application does not read, at most ``buffer_bytes`` wait here or are on their
        way; a single event that is larger comes alone.
        """
        if window is not None:
            check_count(window, "window")
        if window is not None and auto_ack:
            raise InvalidArgument(
                "a window implies manual acknowledgement; give only one of the two"
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
            channel_name=self._channel_name,
        )

    async def fetch(self, count: int, timeout: Duration = 0.0) -> list[DeliveredEvent]:
        """Take up to ``count`` events, as many as come within ``timeout`` seconds (SEM D5).

        The seat that it takes stays until :meth:`close` or the end of the session.
        """
        batches = await self.fetch_batches(count, timeout)
        return [event for batch in batches for event in batch]

    async def fetch_batches(self, count: int, timeout: Duration = 0.0) -> list[DeliveredBatch]:
        """Take events as :meth:`fetch` does, in columns."""
        check_count(count, "count")
        seconds = timeout_s(timeout)
        async with self._fetching:  # there is one seat, so other callers wait for their turn
            if self._puller is None:
                puller = DurableSubscription(
                    self._connection,
                    self._channel,
                    self.name,
                    pull=True,
                    channel_name=self._channel_name,
                )
                await puller.open()
                self._puller = puller
            return await self._puller._fetch(count, seconds)

    async def flush(self) -> None:
        """Wait until settlements of fetched events are on disk. Raises the first refusal, and
        ``ConnectionLost`` when some of it was on its way as the connection was lost."""
        if self._puller is not None:
            await self._puller.flush()

    def browse(self) -> Subscription:
        """Read what is outstanding, in order, then end; this changes nothing (SEM D16)."""
        return DurableBrowse(self._connection, self._channel, self.name)

    async def outstanding(self, start: int = 0, end: int | None = None) -> Outstanding:
        """Which events from ``start`` up to and including ``end`` are outstanding, by id, and how
        often they were delivered again; changes nothing (SEM D16)."""
        check_range(start, end)
        last = (1 << 62) if end is None else end
        message = DescribeOutstanding(self._channel, self.name, start, end_id=last + 1)
        return await self._connection.ask(message, Outstanding)

    def hold(self) -> DurableHold:
        """Have the durable for yourself, and take its events by id instead of receiving them."""
        return DurableHold(self._connection, self._channel, self.name)

    async def purge(
        self, *, start: int | None = None, end: int | None = None, selector: str = ""
    ) -> int:
        """Take events from ``start`` up to and including ``end`` off what is outstanding here;
        other durables keep them. Gives how many. Raises ``IllegalState`` for types that keep a
        position only (SEM D)."""
        check_range(start, end)
        message = PurgeDurable(self._channel, self.name, start, last_id=end, selector=selector)
        return await self._connection.ask(message, int, resend=False)

    async def seek(self, to: StartLike, *, preview: bool = False) -> SeekOutcome:
        """Go on from another place, back or forward: ``"earliest"``, ``"latest"``, an event id or a
        ``datetime`` (SEM D20). With ``preview`` nothing changes: it tells what would.

        What is stored from there on comes, also what was acknowledged; what was outstanding before
        it is skipped. What clients have in hand is taken back, and redeliveries count from 0 again.
        Subscriptions stay and go on from there. If the connection is lost meanwhile it is asked for
        again, and done once.

        Raises ``IllegalState``, with the cause, for the id of an event that is gone;
        ``InvalidArgument`` for one that does not exist yet; ``DurableInUse`` while the durable is
        held as a whole.
        """
        place = start_of(to)
        if preview:
            return await self._connection.ask(
                PreviewSeek(self._channel, self.name, place), SeekOutcome
            )
        message = SeekDurable(self._channel, self.name, place, key=secrets.token_hex(16))
        return await self._connection.ask(message, SeekOutcome)

    async def unbind(self) -> int:
        """End all subscriptions of this durable, in any session (SEM D14); gives their number.

        The events they hold go back as if their clients had left (SEM D13). The clients get
        ``DurableUnbound``, and may subscribe again.
        """
        message = UnbindDurable(self._channel, self.name)
        return await self._connection.ask(message, int, resend=False)

    async def close(self) -> None:
        """Leave the seat :meth:`fetch` has taken. Raises as :meth:`flush` what was refused or lost
        and has not been raised."""
        puller, self._puller = self._puller, None
        if puller is not None:
            await puller.close()
