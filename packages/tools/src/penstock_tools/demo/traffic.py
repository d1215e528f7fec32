"""The clients of a demonstration: one publishes event after event, one consumes them.

Both are ordinary programs. The library finds the owner, and sends again what was not answered.
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
_PATIENCE_S: Final = 3_600.0
"""The demonstration's own end comes first."""
_AGAIN_S: Final = 0.25
_BATCH_S: Final = 0.5


class Traffic:
    """Runs until it is cancelled; :meth:`stop_publishing` lets the consumer come to the end."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.ledger = Ledger()
        self.acknowledgements = Acknowledgements()
        self.trouble = ""
        """What a client was told last that kept it from going on."""
        self._url = url
        self._clock = clock
        self._stopped = asyncio.Event()
        self.is_publishing = False
        """Whether an event is on its way."""

    async def run(self) -> None:
        """Make the channel and its durable, then publish and consume."""
        await self._prepare()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_on())
            tasks.create_task(self._consume_on())

    def stop_publishing(self) -> None:
        self._stopped.set()

    async def _prepare(self) -> None:
        """As soon as there is an owner."""
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
                continue  # an attempt before was answered to nobody
            except PenstockError as error:
                self._tell(error)
                await asyncio.sleep(_AGAIN_S)
            else:
                self.trouble = ""
                return

    async def _publish_on(self) -> None:
        while not self._stopped.is_set():
            try:
                async with aio.connect(self._url, reconnect_timeout=_PATIENCE_S) as session:
                    session.on_interruption(lambda error: None)  # the screen shows it
                    await self._publish(await session.channels.get(CHANNEL))
            except PenstockError as error:
                self._tell(error)
                await asyncio.sleep(_AGAIN_S)

    async def _publish(self, channel: aio.Channel) -> None:
        """One after the other. What became of an event whose publish has failed is unknown, so its
        number is not used again."""
        while not self._stopped.is_set():
            number = self.ledger.begun()
            self.is_publishing = True
            try:
                id = await channel.publish(b"%d" % number)
            finally:
                self.is_publishing = False
            self.ledger.acknowledged(number, id)
            self.acknowledgements.note(self._clock.steady_us())
            self.trouble = ""

    async def _consume_on(self) -> None:
        while True:
            try:
                async with aio.connect(self._url, reconnect_timeout=_PATIENCE_S) as session:
                    session.on_interruption(lambda error: None)  # the screen shows it
                    channel = await session.channels.get(CHANNEL)
                    await self._consume(await channel.durables.get(DURABLE))
            except PenstockError as error:
                self._tell(error)
                await asyncio.sleep(_AGAIN_S)

    async def _consume(self, durable: aio.Durable) -> None:
        async with durable.subscribe() as subscription:
            while True:
                batch = await subscription.next_batch(_BATCH_S)
                if batch is None or batch.is_stale:
                    continue  # what is stale is delivered again
                numbers = [int(data) for data in batch.to_arrow()["data"].to_pylist()]
                for number, id in zip(numbers, batch.event_ids.tolist(), strict=True):
                    self.ledger.came(number, id)
                try:
                    await batch.ack()
                except ConnectionLost:
                    continue  # what was not kept of it comes again, on the next connection
                if not batch.is_stale:
                    self.ledger.confirmed(numbers)

    def _tell(self, error: PenstockError) -> None:
        self.trouble = f"{error} [{error.code}]"
