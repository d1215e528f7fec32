"""A broker in memory, for tests of handlers without a realm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.response import PublishType

from penstock.aio import Event, ReceivedBatch
from penstock.client.publishing.publishing import bodies_of_events
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.choice import choice_of
from penstock_faststream.arrivals import Arrival
from penstock_faststream.producer import EventEncoder, RealmProducer
from penstock_faststream.publish_command import PenstockPublishCommand
from penstock_faststream.publisher import ChannelPublisher
from penstock_faststream.realm_broker import PenstockBroker
from penstock_faststream.subscriber import PenstockSubscriber


class TestPenstockBroker(TestBroker[PenstockBroker, EnterType], broker=PenstockBroker):
    """Passes published messages to the handlers directly, without a realm::

        async with TestPenstockBroker(broker) as testing:
            await testing.publish(order, "orders")
            bill.mock.assert_called_once()

    One handler of each durable receives an event, and so do all handlers without a durable.
    Selectors and windows have no effect.
    """

    @contextmanager
    def _patch_producer(self, broker: PenstockBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, MemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: PenstockBroker, *args: Any, **kwargs: Any) -> None:
        # Subscribers that a test starts itself open their sources here.
        broker.config.broker_config._session = MagicMock()

    def create_publisher_fake_subscriber(
        self, broker: PenstockBroker, publisher: ChannelPublisher
    ) -> tuple[PenstockSubscriber, bool]:
        """Return a subscriber that receives what a publisher publishes, and whether it is one of
        the program."""
        for subscriber in subscribers_of(self.brokers):
            if choice_of(subscriber.channel).takes(publisher.channel):
                return subscriber, True
        fake = broker.subscriber(publisher.channel, batch=publisher.is_batch, persistent=False)
        return fake, False

    def _fake_start(self, broker: PenstockBroker, *args: Any, **kwargs: Any) -> None:
        for subscriber in subscribers_of([broker]):
            subscriber.use_prefix()
        super()._fake_start(broker, *args, **kwargs)


class MemoryProducer(RealmProducer):
    """Calls the handlers that a realm would deliver a published event to."""

    def __init__(self, broker: PenstockBroker, brokers: Sequence[PenstockBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._brokers = brokers
        config = broker.config
        self.codec = config.broker_codec or DefaultCodec()
        self._encoder = EventEncoder(self.codec, config.fd_config._serializer)
        self._next_id = count()

    async def publish(self, cmd: PenstockPublishCommand) -> int:
        """Call the handlers with an event, and return its id."""
        data, attributes = await self._encoder.arguments(cmd.body, cmd)
        (event_id,) = await self._deliver(bodies_of_events([Event(data, **attributes)]), cmd)
        return event_id

    async def publish_batch(self, cmd: PenstockPublishCommand) -> range:
        """Call the handlers with events, and return their ids."""
        bodies = cmd.batch_bodies
        if len(bodies) == 1 and isinstance(bodies[0], pa.Table | pa.RecordBatch):
            return await self._deliver(bodies_of_table(bodies[0]), cmd)
        events = await self._encoder.events(cmd)
        return await self._deliver(bodies_of_events(events), cmd) if events else range(0)

    async def request(self, cmd: PenstockPublishCommand) -> Arrival:
        """Call the first handler with a request, and return what it returns. Raises
        ``SubscriberNotFound`` if there is none."""
        data, attributes = await self._encoder.arguments(cmd.body, cmd)
        batch = self._stored(bodies_of_events([Event(data, **attributes)])[0], cmd.destination)
        for subscriber in self._receivers(cmd.destination):
            async with asyncio.timeout(cmd.timeout_s):
                response = await subscriber.process_message(_arrival_at(subscriber, batch))
            answer = PenstockPublishCommand.from_cmd(response.as_publish_command())
            answer.publish_type = PublishType.REPLY
            reply, headers = await self._encoder.arguments(answer.body, answer)
            body = bodies_of_events([Event(reply, **headers)])[0]
            return Arrival(self._stored(body, cmd.destination)[0], cmd.destination)
        raise SubscriberNotFound

    async def _deliver(
        self, bodies: Sequence[pa.RecordBatch], cmd: PenstockPublishCommand
    ) -> range:
        batches = [self._stored(body, cmd.destination) for body in bodies]
        for subscriber in self._receivers(cmd.destination):
            for batch in batches:
                if subscriber.source.is_batch:
                    await subscriber.process_message(_arrival_at(subscriber, batch))
                    continue
                for event in batch:
                    await subscriber.process_message(Arrival(event, cmd.destination))
        return range(int(batches[0].event_ids[0]), int(batches[-1].event_ids[-1]) + 1)

    def _stored(self, body: pa.RecordBatch, channel: str) -> ReceivedBatch:
        """Return events as a realm would deliver them."""
        first = next(self._next_id)
        self._next_id = count(first + body.num_rows)
        rows = stamp(body, Span(first, first + body.num_rows), time.time_ns() // 1_000)
        return ReceivedBatch(rows, None, None, channel=channel)

    def _receivers(self, channel: str) -> Iterator[PenstockSubscriber]:
        """Yield the subscribers that get an event: all those without a durable, and one for each
        durable."""
        served = set[str]()
        for subscriber in subscribers_of(self._brokers):
            durable = subscriber.source.durable
            if not choice_of(subscriber.channel).takes(channel):
                continue
            if durable is None:
                yield subscriber
            elif durable.name not in served:
                served.add(durable.name)
                yield subscriber


def subscribers_of(brokers: Sequence[PenstockBroker]) -> list[PenstockSubscriber]:
    """Return the subscribers of brokers and their routers."""
    return [
        subscriber
        for broker in brokers
        for subscriber in broker.subscribers
        if isinstance(subscriber, PenstockSubscriber)
    ]


def _arrival_at(subscriber: PenstockSubscriber, batch: ReceivedBatch) -> Arrival:
    """Return the events in the form that a subscriber gets."""
    received = batch if subscriber.source.is_batch else batch[0]
    return Arrival(received, batch.channel)
