"""MQTT as a front end that the server finds by its entry point."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.frontends.front_end import FrontEnd, ListenAddress, StandbyNode
from penstock.frontends.native.listener import NativeListener
from penstock.loggers import logger
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.frontends.mqtt.hub import MqttHub
    from penstock.frontends.mqtt.standby import StandbyMqttConnection

_log = logger("penstock.realm")


class MqttFrontEnd(FrontEnd):
    name = "mqtt"
    schemes = ("mqtt://", "mqtts://")
    opens_stores = True

    def place(self, settings: Settings) -> ListenAddress | None:
        port = settings.listen.mqtt_port
        return None if port is None else ListenAddress(settings.listen.host, port)

    def at_port(self, settings: Settings, port: int | None) -> Settings:
        return replace(settings, listen=replace(settings.listen, mqtt_port=port))

    def for_local_channels(self, settings: Settings, node: str) -> Settings:
        """Its channel of all topics has the node in its name, because the name of a store is
        unique in the whole cluster."""
        channel = f"{settings.listen.mqtt_channel}-{node}"
        own = replace(settings, listen=replace(settings.listen, mqtt_channel=channel))
        return self.at_port(own, settings.cluster.local_mqtt_port)

    def service(self, listener: NativeListener, settings: Settings) -> MqttHub:
        from penstock.frontends.mqtt.hub import MqttHub  # a realm without MQTT does not load it

        return MqttHub(listener, settings.listen.mqtt_channel)

    def standby(self, node: StandbyNode) -> Callable[[], StandbyMqttConnection]:
        from penstock.frontends.mqtt.standby import StandbyMqttConnection  # for clusters only

        return partial(StandbyMqttConnection, node.arrivals)

    def wants_relay(self, data: bytes) -> bool | None:
        from penstock.frontends.mqtt.standby import wants_relay

        return wants_relay(data)

    def log_listening(self, url: str) -> None:
        _log.info("mqtt.listening", url=url)


FRONT_END: Final = MqttFrontEnd()
