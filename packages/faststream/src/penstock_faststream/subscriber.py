"""Subscribers: read events of a realm and call the handlers with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import ConcurrentMixin, TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.utils.path import Address
from faststream.exceptions import SetupError
from faststream.message import StreamMessage

from penstock import PenstockError
from penstock.aio import ReceivedEvent
from penstock_faststream.arrivals import Arrival
from penstock_faststream.configs import (
    PenstockBrokerConfig,
    PenstockSubscriberConfig,
    SubscriberSource,
)
from penstock_faststream.message import BatchParser, EventParser, PenstockMessage
from penstock_faststream.publisher import ReplyPublisher
from penstock_faststream.sources import OpenSource, open_source
from penstock_faststream.specification import PenstockSubscriberSpecification

RETRY_S: Final = 5.0
"""Pause in seconds before a subscription that has ended, for example because its durable was
deleted, is opened again."""


class PenstockSubscriber(TasksMixin, SubscriberUsecase[Arrival]):
    """Calls handlers with the events of one source, one after the other."""

    __slots__ = ("_open_source", "source")

    _outer_config: PenstockBrokerConfig

    def __init__(
        self,
        config: PenstockSubscriberConfig,
        specification: PenstockSubscriberSpecification,
        calls: CallsCollection[Arrival],
    ) -> None:
        self.source: SubscriberSource = config.source
        parser = self._parser_at(config.source.address)
        config.parser, config.decoder = _methods_of(parser)
        super().__init__(config, specification, calls)
        self._open_source: OpenSource | None = None

    @property
    def address(self) -> Address:
        """The name or pattern, with the prefix of the router."""
        return self.source.address.add_prefix(self._outer_config.prefix)

    @property
    def channel(self) -> str:
        """Name of the channel or queue, or the pattern, as the realm gets it."""
        return self.address.broker_address

    def _parser_at(self, address: Address) -> EventParser:
        return (BatchParser if self.source.is_batch else EventParser)(address.regex)

    def use_prefix(self) -> None:
        """Find the parameters in names of channels that begin with the prefix of the router. The
        prefix is known once the router is included."""
        self._parser, self._decoder = _methods_of(self._parser_at(self.address))

    # --- starting and stopping -----------------------------------------------------------

    async def start(self) -> None:
        """Open the source and call the handlers with its events from now on."""
        self.use_prefix()
        await super().start()
        self._open_source = await self._open()
        self._post_start()
        if self.calls:
            self.add_task(self._consume_events)

    async def stop(self) -> None:
        """Let the running handlers end, store their settlements, and return other events."""
        self.running = False
        await SubscriberUsecase.stop(self)  # waits for the handlers
        source, self._open_source = self._open_source, None
        if source is not None:
            await self._close(source)
        # Comes last: it cancels all tasks, and the present task may be among them.
        await super().stop()

    async def _open(self) -> OpenSource:
        return await open_source(self._outer_config.session, self.channel, self.source)

    async def _close(self, source: OpenSource) -> None:
        try:
            async with asyncio.timeout(self._outer_config.graceful_timeout):
                await source.close()
        except (PenstockError, TimeoutError) as error:
            # Settlements that are not confirmed: their events are delivered again.
            self._log(logging.WARNING, f"settlements of {self.channel} are not stored: {error!r}")

    # --- consuming -----------------------------------------------------------------------

    async def _consume_events(self) -> None:
        """Take events until the subscriber stops. A source that fails is opened again."""
        while self.running:
            try:
                if self._open_source is None:
                    self._open_source = await self._open()
                async for arrival in self._open_source.arrivals():
                    await self._take(arrival)
            except PenstockError as error:
                if not self.running:
                    return
                self._log(logging.ERROR, f"events of {self.channel} cannot be read: {error!r}")
                failed, self._open_source = self._open_source, None
                if failed is not None:
                    with suppress(PenstockError):
                        await failed.close()
                await asyncio.sleep(RETRY_S)

    async def _take(self, arrival: Arrival) -> None:
        await self.consume(arrival)

    # --- without handlers ----------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5.0) -> PenstockMessage | None:
        """Return the next message, to be acknowledged by the caller; None if none arrives within
        ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                async for message in self:
                    return message
        except TimeoutError:
            pass
        return None

    async def __aiter__(self) -> AsyncIterator[PenstockMessage]:
        """Iterate over messages, to be acknowledged by the caller."""
        if self.calls:
            raise SetupError(
                f"subscriber {self.channel!r} has handlers, which receive its messages; iterate "
                "over a subscriber without a handler"
            )
        if self._open_source is None:
            self._open_source = await self._open()
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        async for arrival in self._open_source.arrivals():
            message: Any = await process_msg(
                msg=arrival,
                middlewares=(m(arrival, context=context) for m in self._broker_middlewares),
                parser=parser,
                decoder=decoder,
            )
            yield message

    # --- replies and log -----------------------------------------------------------------

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        request = message.raw_message
        assert isinstance(request, ReceivedEvent), "batches have no reply address"
        report = partial(self._log, logging.WARNING)
        producer = self._outer_config.producer
        return (ReplyPublisher(producer, message.reply_to, request, report=report),)

    def get_log_context(self, message: StreamMessage[Arrival] | None) -> dict[str, str]:
        """Return what a line of the log says about a message."""
        durable = self.source.durable
        return {
            "channel": message.channel if isinstance(message, PenstockMessage) else self.channel,
            "durable": durable.name if durable is not None else "",
            "message_id": message.message_id if message is not None else "",
        }


class ConcurrentPenstockSubscriber(ConcurrentMixin[Arrival], PenstockSubscriber):
    """Calls handlers with several events of one source at the same time."""

    async def start(self) -> None:
        """Open the source and start to pass events to the workers."""
        await super().start()
        self.start_consume_task()

    async def _take(self, arrival: Arrival) -> None:
        await self._put_msg(arrival)


def _methods_of(parser: EventParser) -> tuple[Any, Any]:
    """Return the functions that parse and decode messages."""
    if isinstance(parser, BatchParser):
        return parser.parse_batch, parser.decode_batch
    return parser.parse_message, parser.decode_message
