"""A router of FastAPI whose handlers receive events, with the dependencies of FastAPI."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from fastapi import params
from fastapi.datastructures import Default
from faststream._internal.endpoint.call_wrapper import HandlerCallWrapper
from faststream._internal.fastapi.router import StreamRouter

from penstock_faststream.arrivals import Arrival
from penstock_faststream.publisher import ChannelPublisher
from penstock_faststream.realm_broker import PenstockBroker

P = ParamSpec("P")
T = TypeVar("T")

NO_MODEL: Any = Default(None)
"""Tells FastAPI to take the model of a response from the annotation of its handler."""


class PenstockApiRouter(StreamRouter[Arrival]):
    """Starts and stops with the application that includes it::

    router = PenstockApiRouter("penstock://localhost:9000")
    app = FastAPI()
    app.include_router(router)
    """

    broker_class = PenstockBroker
    broker: PenstockBroker

    def __init__(self, url: str = "penstock://localhost:9000", **options: Any) -> None:
        """``options`` are those of ``PenstockBroker`` and of FastAPI's ``APIRouter``."""
        super().__init__(url, **({"context": None} | options))

    def subscriber(  # type: ignore[override]
        self,
        channel: str,
        *,
        dependencies: Iterable[params.Depends] = (),
        response_model: Any = NO_MODEL,
        response_model_include: Any = None,
        response_model_exclude: Any = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
        **options: Any,
    ) -> Callable[[Callable[P, T]], HandlerCallWrapper[P, T]]:
        """Call a handler with the events of a channel or queue. The options are those of
        ``PenstockBroker.subscriber`` and of FastAPI's routes."""
        return super().subscriber(
            channel,
            dependencies=dependencies,
            response_model=response_model,
            response_model_include=response_model_include,
            response_model_exclude=response_model_exclude,
            response_model_by_alias=response_model_by_alias,
            response_model_exclude_unset=response_model_exclude_unset,
            response_model_exclude_defaults=response_model_exclude_defaults,
            response_model_exclude_none=response_model_exclude_none,
            **options,
        )

    def publisher(self, channel: str, **options: Any) -> ChannelPublisher:  # type: ignore[override]
        """Publish what a handler returns. The options are those of ``PenstockBroker.publisher``."""
        return self.broker.publisher(channel, **options)
