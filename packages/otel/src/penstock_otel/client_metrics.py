"""Metrics of the client by OpenTelemetry's conventions for messaging: how long operations take, and
how many events they send and receive."""

from __future__ import annotations

from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider

from penstock_core.version import __version__
from penstock_otel.conventions import SCHEMA_NEW, SYSTEM, MessagingOperation

NAMES_MAX: Final = 1_000
"""Maximum number of names of channels, queues, patterns and durables in attributes. Operations on
further ones have no such attribute, so that a program with names by user or request does not fill
the memory of the collector."""
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Limits of the classes of durations in seconds, as the conventions ask for."""


class ClientMetrics:
    """The instruments of all sessions in this process. Their names and attributes are the present
    ones, whatever version of the conventions the spans follow."""

    def __init__(self, provider: MeterProvider | None) -> None:
        """``provider`` makes the instruments; None means the global one."""
        meter = metrics.get_meter("penstock_otel", __version__, provider, schema_url=SCHEMA_NEW)
        self._durations = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of publishes, receives and settlements.",
            explicit_bucket_boundaries_advisory=BOUNDS_S,
        )
        self._process_durations = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of the processing of events by the program.",
            explicit_bucket_boundaries_advisory=BOUNDS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Events that were published, or whose publish has failed.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Events that were passed to the program; a redelivery counts again.",
        )
        self._names: set[str] = set()

    def ended(
        self, operation: MessagingOperation, duration_s: float, count: int, *, error_type: str = ""
    ) -> None:
        """Record the end of a publish, receive or settlement of ``count`` events; ``error_type`` is
        empty if it has succeeded."""
        attributes = self._attributes(operation, error_type)
        self._durations.record(duration_s, attributes)
        if operation.type == "send":
            self._sent.add(count, attributes)
        elif operation.type == "receive":
            self._consumed.add(count, attributes)

    def processed(
        self, operation: MessagingOperation, duration_s: float, *, error_type: str = ""
    ) -> None:
        """Record that the program has processed events."""
        attributes = self._attributes(operation, error_type)
        self._process_durations.record(duration_s, attributes)

    def handed_over(self, operation: MessagingOperation) -> None:
        """Count an event that was passed to a handler, which has no receive."""
        self._consumed.add(1, self._attributes(operation, ""))

    def _attributes(self, operation: MessagingOperation, error_type: str) -> dict[str, str | int]:
        """Return the attributes of a measurement. None of them is an id."""
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation.name,
            "messaging.operation.type": operation.type,
        }
        if self._is_named(operation.store):
            attributes["messaging.destination.name"] = operation.store
        if self._is_named(operation.durable):
            attributes["messaging.destination.subscription.name"] = operation.durable
            attributes["messaging.consumer.group.name"] = operation.durable
        if operation.port:
            attributes |= {"server.address": operation.host, "server.port": operation.port}
        if error_type:
            attributes["error.type"] = error_type
        return attributes

    def _is_named(self, name: str) -> bool:
        """Whether attributes may contain a name."""
        if name and len(self._names) < NAMES_MAX:
            self._names.add(name)
        return name in self._names
