"""The AMQP front end, which the server finds through its entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock_amqp.wire import FIRST_BYTES
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.frontends.front_end import FrontEnd, ListenAddress, StandbyNode
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.runtime.realm import RunningRealm
from penstock_server.settings import Settings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock_amqp.connection import AmqpHub
    from penstock_amqp.standby import StandbyAmqpConnection

_PROTON: Final = ("proton", "cproton", "cproton_ffi")
"""Modules of Proton. An import error that names another module is a defect and is not explained."""

_log = logger("penstock.realm")


class AmqpFrontEnd(FrontEnd):
    name = "amqp"
    schemes = ("amqp://", "amqps://")
    first_bytes = FIRST_BYTES
    modules = ("penstock_amqp.connection",)

    def place(self, settings: Settings) -> ListenAddress | None:
        port = settings.listen.amqp_port
        return None if port is None else ListenAddress(settings.listen.host, port)

    def at_port(self, settings: Settings, port: int | None) -> Settings:
        return replace(settings, listen=replace(settings.listen, amqp_port=port))

    def for_local_channels(self, settings: Settings, node: str) -> Settings:
        return self.at_port(settings, settings.cluster.local_amqp_port)

    def service(self, listener: NativeListener, settings: Settings) -> AmqpHub:
        """Create the service. Raises ``InvalidArgument`` if Proton is not installed."""
        try:
            # Imported late: a server without AMQP does not have Proton installed.
            from penstock_amqp.connection import AmqpHub
        except ModuleNotFoundError as error:
            if error.name not in _PROTON:
                raise
            raise InvalidArgument(
                "AMQP needs Apache Qpid Proton, but it is not installed: run pip install "
                "'penstock-realm[amqp]', which builds it from source with a C compiler"
            ) from error
        return AmqpHub(listener)

    def standby(self, node: StandbyNode) -> Callable[[], StandbyAmqpConnection]:
        from penstock_amqp.standby import StandbyAmqpConnection  # for clusters only

        return partial(StandbyAmqpConnection, node.arrivals, node.name)

    def wants_relay(self, data: bytes) -> bool | None:
        from penstock_amqp.standby import wants_relay

        return wants_relay(data)

    def metrics(self, realm: RunningRealm) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily  # loaded only for metrics

        documentation = "Parts of events left out of messages because AMQP cannot express them."
        left_out = realm.connections.traffic[self.name].left_out
        yield CounterMetricFamily(
            "penstock_amqp_left_out_parts", documentation, value=float(left_out)
        )

    def log_listening(self, url: str) -> None:
        _log.info("amqp.listening", url=url)


FRONT_END: Final = AmqpFrontEnd()
