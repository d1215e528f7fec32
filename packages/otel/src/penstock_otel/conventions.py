"""Names of spans and attributes by OpenTelemetry's conventions for messaging.

``OTEL_SEMCONV_STABILITY_OPT_IN`` chooses the version, as for other instrumentations: without it the
names of version 1.25, which most instrumentations of Python have; with ``messaging`` the present
names; with ``messaging/dup`` both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from opentelemetry.trace import SpanKind

Attributes = Mapping[str, str | int]

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
"""Environment variable with a list of conventions, separated by commas."""
SYSTEM: Final = "penstock"
"""Value of ``messaging.system``."""
SCHEMA_OLD: Final = "https://opentelemetry.io/schemas/1.25.0"
SCHEMA_NEW: Final = "https://opentelemetry.io/schemas/1.37.0"

_TYPES_OLD: Final = {"send": "publish"}
"""MessagingOperation types that have another name in version 1.25."""
_KINDS: Final = {
    "send": SpanKind.PRODUCER,
    "receive": SpanKind.CLIENT,
    "process": SpanKind.CONSUMER,
    "settle": SpanKind.CLIENT,
}
_KINDS_OLD: Final = _KINDS | {"receive": SpanKind.CONSUMER}


class MessagingOperation(NamedTuple):
    """An operation on a channel or queue, independent of the version of the conventions."""

    name: str
    """Name that the client has for it, such as ``publish`` or ``ack``."""
    type: str
    """Type of the present conventions: ``send``, ``receive``, ``process`` or ``settle``."""
    store: str
    """Name of the channel or queue; empty if it is not known."""
    durable: str = ""
    """Name of the durable; empty without one."""
    session_id: str = ""
    """Identity of the session; empty if it is not known."""
    host: str = ""
    port: int = 0
    """Port of the realm; 0 if it has none, as a realm in this process."""


class Conventions(NamedTuple):
    """The versions of the conventions that spans follow; at least one is true."""

    old: bool
    new: bool

    @property
    def schema_url(self) -> str:
        return SCHEMA_NEW if self.new else SCHEMA_OLD

    def span_name(self, operation: MessagingOperation) -> str:
        """Return the name of a span; with both versions the present one."""
        if self.new:
            return f"{operation.name} {operation.store}".strip()
        return f"{operation.store} {_TYPES_OLD.get(operation.type, operation.type)}".strip()

    def kind(self, operation: MessagingOperation) -> SpanKind:
        return (_KINDS if self.new else _KINDS_OLD)[operation.type]

    def attributes(self, operation: MessagingOperation) -> dict[str, str | int]:
        """Return the attributes of a span that do not depend on its events."""
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
        }
        if operation.store:
            attributes["messaging.destination.name"] = operation.store
        if operation.port:
            attributes |= {"server.address": operation.host, "server.port": operation.port}
        if self.old:
            old_type = _TYPES_OLD.get(operation.type, operation.type)
            attributes["messaging.operation"] = old_type
            if operation.session_id:
                attributes["messaging.client_id"] = operation.session_id
        if self.new:
            attributes["messaging.operation.name"] = operation.name
            attributes["messaging.operation.type"] = operation.type
            if operation.session_id:
                attributes["messaging.client.id"] = operation.session_id
            if operation.durable:
                attributes["messaging.destination.subscription.name"] = operation.durable
                attributes["messaging.consumer.group.name"] = operation.durable
        return attributes


def chosen() -> Conventions:
    """Return the conventions that the environment asks for."""
    choices = {choice.strip() for choice in os.environ.get(OPT_IN, "").split(",")}
    if "messaging/dup" in choices:
        return Conventions(old=True, new=True)
    is_new = "messaging" in choices
    return Conventions(old=not is_new, new=is_new)


def events_of(count: int, event_id: object) -> dict[str, str | int]:
    """Return the attributes that tell the events of a span: the id of a single event whose id is
    known, or else their number."""
    if count == 1 and event_id is not None:
        return {"messaging.message.id": str(event_id)}
    return {"messaging.batch.message_count": count}
