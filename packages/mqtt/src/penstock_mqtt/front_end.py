"""MQTT as a front end that the server loads through its entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock_core.loggers import logger
from penstock_server.frontends.front_end import FrontEnd, ListenAddress, StandbyNode
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.runtime.realm import RunningRealm
from penstock_server.settings import Settings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock_mqtt.hub import MqttHub
    from penstock_mqtt.standby import StandbyMqttConnection

_log = logger("penstock.realm")


class MqttFrontEnd(FrontEnd):
    name = "mqtt"
    schemes = ("mqtt://", "mqtts://")
    modules = ("penstock_mqtt.hub",)
    opens_stores = True

    def place(self, settings: Settings) -> ListenAddress | None:
        port = settings.listen.mqtt_port
        return None if port is None else ListenAddress(settings.listen.host, port)

    def at_port(self, settings: Settings, port: int | None) -> Settings:
        return replace(settings, listen=replace(settings.listen, mqtt_port=port))

    def for_local_channels(self, settings: Settings, node: str) -> Settings:
        """Return settings for local channels. The channel of all topics contains the node's name,
        because names of stores are unique in the whole cluster."""
        channel = f"{settings.listen.mqtt_channel}-{node}"
        local = replace(settings, listen=replace(settings.listen, mqtt_channel=channel))
        return self.at_port(local, settings.cluster.local_mqtt_port)

    def service(self, listener: NativeListener, settings: Settings) -> MqttHub:
        from penstock_mqtt.hub import MqttHub  # a realm without MQTT does not load it

        return MqttHub(listener, settings.listen.mqtt_channel)

    def standby(self, node: StandbyNode) -> Callable[[], StandbyMqttConnection]:
        from penstock_mqtt.standby import StandbyMqttConnection  # for clusters only

        return partial(StandbyMqttConnection, node.arrivals)

    def wants_relay(self, data: bytes) -> bool | None:
        from penstock_mqtt.standby import wants_relay

        return wants_relay(data)

    def metrics(self, realm: RunningRealm) -> Iterator[Metric]:
        """Yield the metrics of MQTT if the realm serves it."""
        # loaded only when metrics are read
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if (service := realm.connections.mqtt) is None:
            return
        figures, counts = service.figures(), service.counts
        connections = GaugeMetricFamily(
            "penstock_mqtt_connections", "Clients that are connected.", labels=["version"]
        )
        for version, count in figures.connections.items():
            connections.add_metric([version], count)
        sessions = GaugeMetricFamily("penstock_mqtt_sessions", "Sessions.", labels=["state"])
        sessions.add_metric(["connected"], sum(figures.connections.values()))
        sessions.add_metric(["away"], figures.away)
        yield from (connections, sessions)
        for name, text, by_qos in (
            ("received", "Messages that clients have sent, by QoS.", counts.received),
            ("sent", "Messages that clients were sent, by QoS.", counts.sent),
        ):
            family = CounterMetricFamily(f"penstock_mqtt_{name}_messages", text, labels=["qos"])
            for qos, count in enumerate(by_qos):
                family.add_metric([str(qos)], count)
            yield family
        help_text = "Messages of QoS 0 left out because their receiver did not read."
        yield CounterMetricFamily("penstock_mqtt_dropped_messages", help_text, counts.dropped)
        yield CounterMetricFamily(
            "penstock_mqtt_refused_messages", "Messages that were not stored.", counts.refused
        )
        help_text = "Parts of events left out of messages because MQTT cannot express them."
        yield CounterMetricFamily("penstock_mqtt_left_out_parts", help_text, counts.left_out)
        help_text = "Messages that were too large for a receiver, or that MQTT cannot express."
        yield CounterMetricFamily("penstock_mqtt_unsent_messages", help_text, counts.unsent)
        for name, text, figure in (
            ("subscriptions", "Filters of all sessions.", figures.subscriptions),
            ("in_flight_messages", "Messages not acknowledged to the end.", figures.in_flight),
            ("retained_topics", "Topics with a retained message.", figures.retained),
            ("wills_waiting", "Wills that wait for their delay.", figures.wills),
        ):
            yield GaugeMetricFamily(f"penstock_mqtt_{name}", text, figure)

    def log_listening(self, url: str) -> None:
        _log.info("mqtt.listening", url=url)


FRONT_END: Final = MqttFrontEnd()
