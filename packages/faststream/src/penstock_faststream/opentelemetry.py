"""Spans and counters of OpenTelemetry for published and received messages. The trace context
travels in the properties ``traceparent`` and ``tracestate`` of the events."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.semconv.trace import SpanAttributes
from opentelemetry.trace import TracerProvider

from penstock.aio import ReceivedBatch
from penstock_faststream.message import PenstockMessage
from penstock_faststream.publish_command import PenstockPublishCommand
from penstock_faststream.realm_broker import PROTOCOL


class PenstockTelemetrySettings(TelemetrySettingsProvider[Any, PenstockPublishCommand]):
    """Attributes of spans."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = PROTOCOL

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """Return the attributes of a span for a received message."""
        received = msg.raw_message
        is_batch = isinstance(received, ReceivedBatch)
        size = sum(map(len, msg.body)) if is_batch else len(msg.body)
        attributes = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: size,
            MESSAGING_DESTINATION_PUBLISH_NAME: self.get_consume_destination_name(msg),
        }
        if is_batch:
            attributes[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(received)
        return attributes

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """Return the name of the channel or queue of a received message."""
        return msg.channel if isinstance(msg, PenstockMessage) else ""

    def get_publish_attrs_from_cmd(self, cmd: PenstockPublishCommand) -> dict[str, Any]:
        """Return the attributes of a span for published messages."""
        attributes: dict[str, Any] = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }
        if len(cmd.batch_bodies) > 1:
            attributes[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(cmd.batch_bodies)
        return attributes

    def get_publish_destination_name(self, cmd: PenstockPublishCommand) -> str:
        """Return the name of the channel or queue that messages are published on."""
        return cmd.destination


class PenstockTelemetryMiddleware(TelemetryMiddleware[PenstockPublishCommand]):
    """Creates spans, and counts messages."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: PenstockTelemetrySettings(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
