"""Registers the subscribers and publishers of brokers and routers. Also contains the routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack, cast

from fast_depends.dependencies import Dependant
from faststream import AckPolicy
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream._internal.utils.path import Address
from faststream.exceptions import SetupError

from penstock.client.connection.arguments import Duration
from penstock.client.reading.start_positions import StartLike
from penstock_faststream.arrivals import Arrival
from penstock_faststream.configs import (
    ADDRESS_SYNTAX,
    PenstockBrokerConfig,
    PenstockPublisherConfig,
    PenstockPublisherSpecificationConfig,
    PenstockSubscriberConfig,
    PenstockSubscriberSpecificationConfig,
    SubscriberSource,
)
from penstock_faststream.declared import DurableSub
from penstock_faststream.publish_command import PublishOptions
from penstock_faststream.publisher import ChannelPublisher
from penstock_faststream.specification import (
    PenstockPublisherSpecification,
    PenstockSubscriberSpecification,
)
from penstock_faststream.subscriber import ConcurrentPenstockSubscriber, PenstockSubscriber


class PenstockRegistrator(Registrator[Arrival, PenstockBrokerConfig]):
    """Registers the subscribers and publishers of a broker or router."""

    def subscriber(  # type: ignore[override]
        self,
        channel: str,
        *,
        durable: str | DurableSub | None = None,
        batch: bool = False,
        max_workers: int = 1,
        window: int | None = None,
        selector: str = "",
        start: StartLike | None = None,
        ack_timeout: Duration | None = None,
        declare: bool = True,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> PenstockSubscriber:
        """Call a handler with the events of a channel or queue.

        - ``channel``: name of a channel or queue, or a pattern for several channels such as
          ``"orders/*"``. ``"orders/{region}"`` is a pattern whose part ``region`` a handler gets by
          ``Path()``
        - ``durable``: the durable of the channel whose events the handler receives and
          acknowledges. Without one, the handler of a queue shares its events with other readers,
          and the handler of a channel receives the events that are published while it runs
        - ``batch``: call the handler with a list of events: those that have arrived
        - ``max_workers``: number of events or batches that are handled at the same time
        - ``window``: largest number of unsettled events. By default the realm decides for a
          durable; a queue has 10, or 1,000 with ``batch``
        - ``selector``: receive matching events only
        - ``start``: first event without a durable: ``"latest"`` (the default), ``"earliest"``, an
          event id or a time
        - ``ack_timeout``: time in which an event of a queue has to be settled, in seconds or as a
          text such as ``"30s"``; afterwards it is delivered again. For a durable, ``DurableSub``
          has it
        - ``declare``: create a missing durable with its channel, or a missing queue
        - ``ack_policy``: ``NACK_ON_ERROR`` by default: an event whose handler fails is rolled back
        - ``no_reply``: do not send what the handler returns to a client that waits for a reply
        - ``title``, ``description``, ``include_in_schema``: for the AsyncAPI document
        """
        if max_workers < 1:
            raise SetupError(f"max_workers is {max_workers}; give a number of 1 or more")
        source = SubscriberSource(
            address=Address(channel, ADDRESS_SYNTAX),
            durable=DurableSub(durable) if isinstance(durable, str) else durable,
            window=window,
            selector=selector,
            start=start,
            ack_timeout=ack_timeout,
            creates=declare,
            is_batch=batch,
            max_workers=max_workers,
        )
        config = cast("PenstockBrokerConfig", self.config)
        calls = CallsCollection[Arrival]()
        specification = PenstockSubscriberSpecification(
            config,
            PenstockSubscriberSpecificationConfig(
                source=source,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
            calls,
        )
        subscriber = _subscriber(
            PenstockSubscriberConfig(
                source=source, no_reply=no_reply, _outer_config=config, _ack_policy=ack_policy
            ),
            specification,
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        channel: str,
        *,
        batch: bool = False,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        persistent_publisher: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        **options: Unpack[PublishOptions],
    ) -> ChannelPublisher:
        """Publish what a handler returns on a channel or queue.

        - ``batch``: the handler returns a list, whose elements are published in one step
        - ``headers``: properties of each event
        - ``reply_to``: name of the channel or queue for replies
        - ``persistent_publisher``: whether the object that this returns is kept by the broker
        - ``title``, ``description``, ``schema``, ``include_in_schema``: for the AsyncAPI document
        - ``tag``, ``ttl``, ``priority``, ``persistent``, ``transient``, ``deliver_at``: attributes
          of each event
        """
        address = Address(channel, ADDRESS_SYNTAX)
        config = cast("PenstockBrokerConfig", self.config)
        publisher = ChannelPublisher(
            PenstockPublisherConfig(
                address=address,
                headers=headers or {},
                options=options,
                is_batch=batch,
                reply_to=reply_to,
                _outer_config=config,
            ),
            PenstockPublisherSpecification(
                config,
                PenstockPublisherSpecificationConfig(
                    address=address,
                    schema_=schema,
                    title_=title,
                    description_=description,
                    include_in_schema=include_in_schema,
                ),
            ),
        )
        super().publisher(publisher, persistent=persistent_publisher)
        return publisher

    def include_router(
        self,
        router: Registrator[Arrival, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Take over the subscribers and publishers of a router, below ``prefix``. Raises
        ``TypeError`` for a router of another kind of server."""
        if not isinstance(router, PenstockRegistrator):
            raise TypeError(
                f"{type(router).__name__} is not a PenstockRouter; include routers of this package"
            )
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


def _subscriber(
    config: PenstockSubscriberConfig,
    specification: PenstockSubscriberSpecification,
    calls: CallsCollection[Arrival],
) -> PenstockSubscriber:
    """Return a subscriber with one or several workers."""
    max_workers = config.source.max_workers
    if max_workers > 1:
        return ConcurrentPenstockSubscriber(config, specification, calls, max_workers=max_workers)
    return PenstockSubscriber(config, specification, calls)


class PenstockPublisher(ArgsContainer):
    """Publisher of a route, with the arguments of :meth:`PenstockRegistrator.publisher`."""

    def __init__(self, channel: str, **options: Any) -> None:
        super().__init__(channel, **options)


class PenstockRoute(SubscriberRoute):
    """Handler of a router, with the arguments of :meth:`PenstockRegistrator.subscriber`."""

    def __init__(
        self,
        call: Callable[..., Any],
        channel: str,
        *,
        publishers: Iterable[PenstockPublisher] = (),
        **options: Any,
    ) -> None:
        super().__init__(call, channel, publishers=publishers, **options)


class PenstockRouter(PenstockRegistrator, BrokerRouter[Arrival, PenstockBrokerConfig]):
    """Subscribers and publishers that a broker includes."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[PenstockRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[PenstockRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        """``prefix`` begins all names of the router."""
        super().__init__(
            handlers=handlers,
            config=PenstockBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
