"""The broker of FastStream: a session with a realm, and its subscribers and publishers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Unpack

from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream import AckPolicy, Context, ContextRepo
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.configs import UnderlyingDriverAnnotation
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.response import PublishType
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec
from faststream.specification.schema.extra import Tag, TagDict

import penstock.aio
from penstock import PenstockError
from penstock.aio import Session
from penstock.client.connection.arguments import Duration
from penstock.client.connection.credentials import Token
from penstock.client.connection.urls import parse_url
from penstock_core.api.realm import Ping
from penstock_faststream.arrivals import Arrival
from penstock_faststream.configs import PenstockBrokerConfig
from penstock_faststream.message import PenstockMessage as Message
from penstock_faststream.producer import RealmProducer
from penstock_faststream.publish_command import PenstockPublishCommand, PublishOptions
from penstock_faststream.registrator import PenstockRegistrator

PROTOCOL = "penstock"
PING_TIMEOUT_S = 5.0
_MESSAGE_ID_WIDTH = 10


class PenstockLoggerStorage(DefaultLoggerStorage):
    """Makes a log whose columns are as wide as the names of the subscribers."""

    __slots__ = ("_channel_width", "_durable_width")

    def __init__(self) -> None:
        super().__init__()
        self._channel_width = len("channel")
        self._durable_width = 0

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Take the names of a subscriber into account."""
        self._channel_width = max(self._channel_width, len(params.get("channel", "")))
        self._durable_width = max(self._durable_width, len(params.get("durable", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the log. The first call makes it."""
        logger = self._get_logger_ref()
        if logger is None:
            durable = f"%(durable)-{self._durable_width}s | " if self._durable_width else ""
            logger = get_broker_logger(
                name="penstock",
                default_context={"channel": "", "durable": ""},
                message_id_ln=_MESSAGE_ID_WIDTH,
                fmt=(
                    "%(asctime)s %(levelname)-8s - "
                    f"%(channel)-{self._channel_width}s | {durable}"
                    f"%(message_id)-{_MESSAGE_ID_WIDTH}s - %(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


_make_logger_state = partial(make_logger_state, default_storage_cls=PenstockLoggerStorage)
"""Makes the log of a broker: the log that was given, no log if None was given, and a log with
columns otherwise."""


class PenstockBroker(PenstockRegistrator, BrokerUsecase[Arrival, Session, PenstockBrokerConfig]):
    """Connects FastStream with a realm::

    broker = PenstockBroker("penstock://localhost:9000")
    """

    def __init__(
        self,
        url: str = "penstock://localhost:9000",
        *,
        token: Token | None = None,
        reconnect_timeout: Duration = math.inf,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[PenstockRegistrator] = (),
        specification_url: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        security: BaseSecurity | None = None,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        """The arguments that are not those of every broker of FastStream:

        - ``url``: URL of the realm; several addresses, separated by commas, are for failover
        - ``token``: a bearer token to sign in with, or a function that returns one
        - ``reconnect_timeout``: seconds for which the session tries to reconnect after a lost
          connection; by default it tries until the broker stops
        - ``graceful_timeout``: seconds for which a stop waits for handlers and settlements
        - ``ack_policy``: of subscribers without one; ``NACK_ON_ERROR`` by default
        - ``specification_url``: URL in the AsyncAPI document; by default ``url`` without its user
        - ``security``: of the AsyncAPI document only; the user is in ``url``

        Raises ``InvalidArgument`` for a ``url`` that is not one of a realm.
        """
        shown_url = specification_url or _public(url)
        super().__init__(
            url=url,
            token=token,
            reconnect_timeout=reconnect_timeout,
            routers=routers,
            config=PenstockBrokerConfig(
                producer=RealmProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=_make_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                extra_context={"broker": self},
                default_driver_annotations=_injected_types(),
            ),
            specification=BrokerSpec(
                url=shown_url.split(","),
                protocol=PROTOCOL,
                protocol_version=None,
                description=description,
                tags=tags,
                security=security,
            ),
        )

    # --- the session ---------------------------------------------------------------------

    async def _connect(self) -> Session:
        session = await penstock.aio.connect(**self._connection_kwargs)
        session.on_error(self._report)
        session.on_interruption(self._report_interruption)
        self.config.broker_config.connect(session)
        return session

    def _report(self, error: PenstockError) -> None:
        self.config.logger.log(f"{error!r}", logging.WARNING)

    def _report_interruption(self, error: PenstockError | None) -> None:
        text = "connected again" if error is None else f"connection interrupted: {error!r}"
        self.config.logger.log(text, logging.INFO if error is None else logging.WARNING)

    async def start(self) -> None:
        """Connect, and start the subscribers and publishers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Let the running handlers end, store their settlements, and end the session."""
        await super().stop(exc_type, exc_val, exc_tb)
        session, self._connection = self._connection, None
        self.config.broker_config.disconnect()
        if session is None:
            return
        try:
            async with asyncio.timeout(self.config.graceful_timeout):
                await session.close()
        except (PenstockError, TimeoutError) as error:
            # Unconfirmed settlements: the events are delivered again.
            self.config.logger.log(
                f"the session was not closed in order: {error!r}", logging.WARNING
            )

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether the realm answers within ``timeout`` seconds, 5 by default."""
        session = self._connection
        if session is None:
            return False
        try:
            async with asyncio.timeout(PING_TIMEOUT_S if timeout is None else timeout):
                await session.connection.request(Ping(), resend=False)
        except (PenstockError, TimeoutError):
            return False
        return True

    # --- publishing ----------------------------------------------------------------------

    async def publish(
        self,
        message: Any = None,
        channel: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[PublishOptions],
    ) -> int:
        """Publish a message on a channel or queue. Return the id of its event once the realm has
        stored it::

            await broker.publish(order, "orders", headers={"sku": "a1"}, ttl="1h")

        - ``message``: encoded as JSON unless it is bytes or a text
        - ``headers``: properties of the event, which selectors test and publish keys name
        - ``correlation_id``: by default a new one
        - ``reply_to``: name of the channel or queue for a reply
        - ``tag``, ``ttl``, ``priority``, ``persistent``, ``transient``, ``deliver_at``: attributes
          of the event

        Raises ``NameDoesNotExist`` and the errors of publishing such as ``CapacityReached``.
        """
        command = self._command(
            message,
            publish_type=PublishType.PUBLISH,
            channel=channel,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            options=options,
        )
        event_id: int = await self._basic_publish(command, producer=self._producer)
        return event_id

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        channel: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[PublishOptions],
    ) -> range:
        """Publish several messages in one step: all of them or none. Return the ids of their
        events.

        The arguments are those of :meth:`publish`; a ``PenstockResponse`` among the messages has
        separate attributes. A single ``pyarrow.Table`` is published with its columns as
        properties, an event for each row.
        """
        command = self._command(
            *messages,
            publish_type=PublishType.PUBLISH,
            channel=channel,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            options=options,
        )
        event_ids: range = await self._basic_publish_batch(command, producer=self._producer)
        return event_ids

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        channel: str = "",
        *,
        timeout: float = 0.5,
        headers: dict[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> Message:
        """Publish a request and return the reply: what a handler that receives it returns. Raises
        ``NoReply`` if none arrives within ``timeout`` seconds."""
        command = self._command(
            message,
            publish_type=PublishType.REQUEST,
            channel=channel,
            headers=headers,
            timeout_s=timeout,
            options=options,
        )
        reply: Message = await self._basic_request(command, producer=self._producer)
        return reply

    def _command(self, *messages: Any, **parts: Any) -> PenstockPublishCommand:
        parts["correlation_id"] = parts.get("correlation_id") or self.config.id_generator()
        return PenstockPublishCommand(*(messages or (None,)), **parts)


def _public(url: str) -> str:
    """Return the addresses of a URL without its user and password."""
    realm = parse_url(url)
    scheme = "penstocks" if realm.tls else "penstock"
    return ",".join(f"{scheme}://{address}" for address in realm.addresses)


PenstockMessage = Annotated[Message, Context("message")]
"""Type of a parameter that gets the message of a handler."""
CurrentBroker = Annotated[PenstockBroker, Context("broker")]
"""Type of a parameter that gets the broker of a handler."""
CurrentSession = Annotated[Session, Context("broker._connection")]
"""Type of a parameter that gets the session with the realm."""


def _injected_types() -> Mapping[Any, UnderlyingDriverAnnotation]:
    """Return what a handler has to write instead of a class, for FastStream's error texts."""
    written = {
        Message: ("PenstockMessage", PenstockMessage),
        PenstockBroker: ("CurrentBroker", CurrentBroker),
        Session: ("CurrentSession", CurrentSession),
    }
    return {
        driver: UnderlyingDriverAnnotation(type_hint=hint, module="penstock_faststream", name=name)
        for driver, (name, hint) in written.items()
    }
