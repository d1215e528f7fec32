"""Metrics of MQTT."""

from __future__ import annotations

import pytest

import penstock
from packages.mqtt.tests.clients import Hung, connected
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.samples import scraped, value_of
from penstock_mqtt.wire.packets import MQTT_3, DisconnectPacket, PublishPacket, Will
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason


@pytest.mark.spec("M2", "M6", "M8")
def test_what_there_is_of_mqtt_is_told() -> None:
    hour, late = PacketProperties(session_expiry_s=3_600), PacketProperties(will_delay_s=600)
    with penstock.Realm() as realm:
        web = Web(realm.listen_http())
        assert not any(name.startswith("penstock_mqtt") for name, _ in scraped(web))

        url = realm.listen_mqtt()
        with connected(url, "lost", properties=hour, will=Will("gone", properties=late)) as lost:
            lost.subscribe("plant/#", "office/#")
            lost.send(DisconnectPacket(Reason.DISCONNECT_WITH_WILL))
            with pytest.raises(Hung):
                lost.receive()
        with connected(url, "old", MQTT_3) as old, connected(url, "new") as new:
            old.subscribe("plant/1/temp", qos=2)
            new.send(PublishPacket("plant/1/temp", b"20", 0))
            new.publish("plant/1/temp", b"21", retain=True)
            new.publish("plant/1/temp", b"\xff", properties=PacketProperties(payload_format=1))
            assert [old.receive().payload for _ in range(2)] == [b"20", b"21"]
            sample = scraped(web)
        with connected(url, "lost", properties=hour, clean_start=False):
            later = scraped(web)

    def metric_value(metric: str, /, **labels: str) -> float:
        return value_of(sample, f"penstock_mqtt_{metric}", **labels)

    assert [metric_value("connections", version=version) for version in ("3.1.1", "5")] == [1, 1]
    assert [metric_value("sessions", state=state) for state in ("connected", "away")] == [2, 1]
    assert [metric_value("received_messages_total", qos=level) for level in "012"] == [1, 2, 0]
    assert [metric_value("sent_messages_total", qos=level) for level in "012"] == [1, 1, 0]
    assert (metric_value("refused_messages_total"), metric_value("dropped_messages_total")) == (
        1,
        0,
    )
    assert (metric_value("subscriptions"), metric_value("in_flight_messages")) == (3, 1)
    assert (metric_value("retained_topics"), metric_value("wills_waiting")) == (1, 1)
    sample = later
    assert [metric_value("sessions", state=state) for state in ("connected", "away")] == [1, 0]
    assert [metric_value(metric) for metric in ("subscriptions", "wills_waiting")] == [2, 0]
