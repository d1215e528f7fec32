"""The clients of a demonstration: one publishes events in a loop, one consumes them.

Both are ordinary programs: the client library finds the owner and repeats unanswered requests.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock import aio
from penstock_core.vocabulary.errors import ConnectionLost, NameAlreadyBound, PenstockError
from penstock_core.vocabulary.ports import Clock
from penstock_tools.demo.ledger import Acknowledgements, Ledger

CHANNEL: Final = "orders"
DURABLE: Final = "billing"
_RECONNECT_S: Final = 3_600.0
"""Longer than any demonstration, so that clients never stop reconnecting."""
_RETRY_S: Final = 0.25
"""Seconds between two attempts of a client."""
_BATCH_S: Final = 0.5
"""Longest wait for one batch."""


class Traffic:
    """A publisher and a consumer that run until they are cancelled. :meth:`stop_publishing` stops
    only the publisher."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.ledger = Ledger()
        self.acknowledgements = Acknowledgements()
        self.trouble = ""
        """The last error of a client that currently cannot proceed; empty after a success."""
        self._url = url
        self._clock = clock
        self._stopped = asyncio.Event()
        self.is_publishing = False
        """Whether a publish waits for its answer."""

    async def run(self) -> None:
        """Create the channel and its durable, then publish and consume."""
        await self._prepare()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_publishing())
            tasks.create_task(self._keep_consuming())

    def stop_publishing(self) -> None:
        """Publish no more events; a publish in progress is not cancelled."""
        self._stopped.set()

    async def _prepare(self) -> None:
        """Create the channel and its durable; retry until the cluster has an owner."""
        while True:
            try:
                async with aio.connect(self._url) as session:
                    session.on_interruption(lambda error: None)  # the screen shows it
                    if CHANNEL not in await session.channels.list():
                        await session.channels.create(CHANNEL, type="persistent")
                    orders = await session.channels.get(CHANNEL)
                    if DURABLE not in [durable.name for durable in await orders.durables.list()]:
                        await orders.durables.create(DURABLE, type="exclusive")
            except NameAlreadyBound:
                continue  # an earlier attempt succeeded, but its answer was lost
            except PenstockError as error:
                self._report(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self.trouble = ""
                return

    async def _keep_publishing(self) -> None:
        """Publish until :meth:`stop_publishing`, with a new session after each failure."""
        while not self._stopped.is_set():
            try:
                async with aio.connect(self._url, reconnect_timeout=_RECONNECT_S) as session:
                    session.on_interruption(lambda error: None)  # the screen shows it
                    await self._publish(await session.channels.get(CHANNEL))
            except PenstockError as error:
                self._report(error)
                await asyncio.sleep(_RETRY_S)

    async def _publish(self, channel: aio.Channel) -> None:
        """Publish one event after the other. After a failure it is unknown whether the event is
        stored, so its number is not used again."""
        while not self._stopped.is_set():
            # Each attempt gets a new number, because a retry under the old one could store the
            # event a second time.
            number = self.ledger.next_number()
            self.is_publishing = True
            try:
                id = await channel.publish(b"%d" % number)
            finally:
                self.is_publishing = False
            self.ledger.record_acknowledgement(number, id)
            self.acknowledgements.record(self._clock.steady_us())
            self.trouble = ""

    async def _keep_consuming(self) -> None:
        """Consume until this task is cancelled, with a new session after each failure."""
        while True:
            try:
                async with aio.connect(self._url, reconnect_timeout=_RECONNECT_S) as session:
                    session.on_interruption(lambda error: None)  # the screen shows it
                    channel = await session.channels.get(CHANNEL)
                    await self._consume(await channel.durables.get(DURABLE))
            except PenstockError as error:
                self._report(error)
                await asyncio.sleep(_RETRY_S)

    async def _consume(self, durable: aio.Durable) -> None:
        """Record and acknowledge the events of the durable."""
        async with durable.subscribe() as subscription:
            while True:
                batch = await subscription.next_batch(_BATCH_S)
                if batch is None or batch.is_stale:
                    continue  # the realm delivers a stale batch again
                numbers = [int(data) for data in batch.to_arrow()["data"].to_pylist()]
                for number, id in zip(numbers, batch.event_ids.tolist(), strict=True):
                    self.ledger.record_delivery(number, id)
                try:
                    await batch.ack()
                except ConnectionLost:
                    # Events whose acknowledgement was lost are delivered on the next connection.
                    continue
                # A batch that became stale in the meantime was acknowledged on a lost connection.
                if not batch.is_stale:
                    self.ledger.record_confirmation(numbers)

    def _report(self, error: PenstockError) -> None:
        """Store an error for the screen."""
        self.trouble = f"{error} [{error.code}]"
