"""Metrics of Prometheus for published and received messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from faststream._internal.constants import EMPTY
from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware
from prometheus_client import CollectorRegistry

from penstock.aio import ReceivedBatch
from penstock_faststream.message import PenstockMessage
from penstock_faststream.publish_command import PenstockPublishCommand
from penstock_faststream.realm_broker import PROTOCOL


class PenstockMetricsSettings(MetricsSettingsProvider[Any, PenstockPublishCommand]):
    """Labels and sizes of messages."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = PROTOCOL

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """Return the channel, the size in bytes and the number of events of a message."""
        received = msg.raw_message
        is_batch = isinstance(received, ReceivedBatch)
        return {
            "destination_name": msg.channel if isinstance(msg, PenstockMessage) else "",
            "message_size": sum(map(len, msg.body)) if is_batch else len(msg.body),
            "messages_count": len(received) if is_batch else 1,
        }

    def get_publish_destination_name_from_cmd(self, cmd: PenstockPublishCommand) -> str:
        """Return the name of the channel or queue that messages are published on."""
        return cmd.destination


class PenstockPrometheusMiddleware(PrometheusMiddleware[Any, PenstockPublishCommand]):
    """Counts and times messages."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: PenstockMetricsSettings(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
