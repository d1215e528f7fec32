"""Messages of MQTT sources, and bridges that read them in the process of a test."""

from __future__ import annotations

from threading import Event as Flag

import penstock
from penstock.client.sync.sync import Channel
from penstock_mqtt.wire.packets import PublishPacket
from penstock_tools.bridge.ledger import BridgeLedger
from penstock_tools.bridge.mqtt_source import MqttSource
from penstock_tools.bridge.running import Bridge, Forwarded
from penstock_tools.bridge.sources import SourceBounds, parse_source

COUNT = 20
"""Number of messages if a test gives no other number."""


def messages(qos: int = 2, count: int = COUNT) -> list[PublishPacket]:
    return [
        PublishPacket(f"t/{number}", b"%d" % number, qos, packet_id=number + 1 if qos else 0)
        for number in range(count)
    ]


def source_of(url: str, reports: list[str], window: int = 8) -> MqttSource:
    bounds = SourceBounds(window, window_bytes=1 << 20, message_bytes_max=1 << 20)
    return MqttSource(parse_source(url), "old", bounds, on_notice=reports.append)


def bridged(
    session: penstock.Session, url: str, reports: list[str] | None = None
) -> list[Forwarded]:
    """Run a bridge until the source is empty, and return the results of its steps. ``reports`` gets
    its notices and retries."""
    notices = [] if reports is None else reports
    steps: list[Forwarded] = []
    ledger = BridgeLedger(session, "old", session.channels.get("new"), url)
    bridge = Bridge(source_of(url, notices), ledger, on_step=steps.append, on_retry=notices.append)
    bridge.run(Flag(), idle_s=0.2)
    return steps


def numbers_in(channel: Channel) -> list[int]:
    return [int(event.data) for event in channel.subscribe(start="earliest", timeout=0.2)]
