"""Publishes the messages of FastStream over a session."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import pyarrow as pa
from fast_depends.library.serializer import SerializerProto
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import CustomCallable
from faststream.exceptions import IncorrectState

from penstock import NameDoesNotExist
from penstock.aio import Channel, Event, Queue, ReceivedEvent, Session
from penstock_faststream.arrivals import Arrival
from penstock_faststream.declared import store_of
from penstock_faststream.message import CONTENT_TYPE, EventParser
from penstock_faststream.publish_command import (
    PenstockPublishCommand,
    PenstockResponse,
    PublishOptions,
)

T = TypeVar("T")

OF_REPLIES: Final = frozenset(inspect.signature(ReceivedEvent.reply).parameters)
"""Attributes that a reply may have: fewer than other events."""


class EventEncoder:
    """Turns messages into events."""

    def __init__(self, codec: CodecProto, serializer: SerializerProto | None) -> None:
        self._codec = codec
        self._serializer = serializer

    async def arguments(
        self, body: Any, command: PenstockPublishCommand
    ) -> tuple[bytes, dict[str, Any]]:
        """Return the data of an event, and its attributes.

        A ``PenstockResponse`` adds its headers and options.
        """
        headers, options = command.headers, command.options
        correlation_id = command.correlation_id
        if isinstance(body, PenstockResponse):
            headers, options = headers | body.headers, PublishOptions(**{**options, **body.options})
            correlation_id = body.correlation_id or correlation_id
            body = body.body
        data, content_type = await self._codec.encode(body, self._serializer)
        typed = {CONTENT_TYPE: content_type} if content_type else {}
        addressing = {"correlation_id": correlation_id, "reply_to": command.reply_to}
        return data, {
            "properties": typed | headers,
            "headers": {name: value for name, value in addressing.items() if value},
            **options,
        }

    async def events(self, command: PenstockPublishCommand) -> list[Event]:
        """Return the events of all messages of a command."""
        arguments = [await self.arguments(body, command) for body in command.batch_bodies]
        return [Event(data, **attributes) for data, attributes in arguments]


class RealmProducer(ProducerProto[PenstockPublishCommand]):
    """Publishes over the session of a realm, once it is connected."""

    __slots__ = ("_decoder", "_encoder", "_parser", "_session", "_stores", "codec")

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        """``parser`` and ``decoder`` of the program read the replies to requests."""
        event_parser = EventParser()
        self._parser = ParserComposition(parser, event_parser.parse_message)
        self._decoder = ParserComposition(decoder, event_parser.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self._encoder = EventEncoder(self.codec, None)
        self._session: Session | None = None
        self._stores: dict[str, Channel | Queue] = {}
        """Handles of channels and queues that were published on, by name."""

    def connect(
        self, session: Session, codec: CodecProto | None, serializer: SerializerProto | None
    ) -> None:
        """Publish over ``session`` from now on."""
        self._session = session
        self.codec = codec or DefaultCodec()
        self._encoder = EventEncoder(self.codec, serializer)

    def disconnect(self) -> None:
        """Refuse further messages."""
        self._session = None
        self._stores.clear()

    async def publish(self, cmd: PenstockPublishCommand) -> int:
        """Publish a message, or reply to a request. Return the id of the event once the realm has
        stored it. Raises ``NameDoesNotExist`` for a reply that no client waits for any more."""
        data, attributes = await self._encoder.arguments(cmd.body, cmd)
        if cmd.request is not None:
            applicable = {name: attributes[name] for name in attributes.keys() & OF_REPLIES}
            return await cmd.request.reply(data, **applicable)

        async def put(store: Channel | Queue) -> int:
            if isinstance(store, Channel):
                return await store.publish(data, **attributes)
            return await store.push(data, **attributes)

        return await self._with_store(cmd.destination, put)

    async def publish_batch(self, cmd: PenstockPublishCommand) -> range:
        """Publish several messages in one step and return the ids of their events. The rows of an
        Arrow table are events, too."""
        bodies = cmd.batch_bodies
        if len(bodies) == 1 and isinstance(bodies[0], pa.Table | pa.RecordBatch):
            table = bodies[0]

            async def put_table(store: Channel | Queue) -> range:
                if isinstance(store, Channel):
                    return await store.publish_table(table)
                return await store.push_table(table)

            return await self._with_store(cmd.destination, put_table)
        events = await self._encoder.events(cmd)

        async def put_events(store: Channel | Queue) -> range:
            if isinstance(store, Channel):
                return await store.publish_many(events)
            return await store.push_many(events)

        return await self._with_store(cmd.destination, put_events) if events else range(0)

    async def request(self, cmd: PenstockPublishCommand) -> Arrival:
        """Publish a request and return its reply. The client sets the correlation id and the reply
        address of a request. Raises ``NoReply`` if no reply arrives within ``cmd.timeout_s``
        seconds."""
        data, attributes = await self._encoder.arguments(cmd.body, cmd)
        attributes["headers"] = {}

        async def ask(store: Channel | Queue) -> Arrival:
            reply = await store.request(data, cmd.timeout_s, **attributes)
            return Arrival(reply, cmd.destination)

        return await self._with_store(cmd.destination, ask)

    async def _with_store(self, name: str, action: Callable[[Channel | Queue], Awaitable[T]]) -> T:
        """Return the result of ``action`` for the channel or queue of this name, also if it was
        deleted and created again since the last message."""
        if self._session is None:
            raise IncorrectState("the realm is not connected; call connect() or start() first")
        store = self._stores.get(name)
        if store is not None:
            try:
                return await action(store)
            except NameDoesNotExist:
                self._stores.pop(name, None)
        store = self._stores[name] = await store_of(self._session, name, creates=False)
        return await action(store)
