"""Messages of kombu as events, and events as messages.

The body of a message is the data of its event, unchanged. The property ``kombu`` has all other
parts as JSON; ``task`` and ``task_id`` repeat two headers of Celery for selectors and tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from kombu.utils.json import dumps, loads

from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.layout import DELIVERY_TIME

_TRANSIENT = 1
"""AMQP's delivery mode of messages that need not survive a restart of the broker."""


def event_of(message: Mapping[str, Any], priority: int, *, holds_eta: bool) -> dict[str, Any]:
    """Return the arguments of ``Queue.push`` for a message.

    With ``holds_eta`` the realm delivers a message with Celery's header ``eta`` no earlier than
    that time.
    """
    properties, headers = message["properties"], message["headers"]
    body = message["body"] or b""
    parts = {
        "headers": headers,
        "properties": properties,
        "content-type": message["content-type"],
        "content-encoding": message["content-encoding"],
    }
    attributes: dict[str, Any] = {
        "data": body.encode() if isinstance(body, str) else bytes(body),
        "properties": {"kombu": dumps(parts), **_task_of(headers)},
        "persistent": properties.get("delivery_mode") != _TRANSIENT,
        "priority": priority,
        "ttl": int(properties.get("expiration") or 0),
    }
    eta = _eta_of(headers) if holds_eta else None
    if eta is not None:
        attributes[DELIVERY_TIME] = eta
    return attributes


def message_of(event: Event) -> dict[str, Any]:
    """Return an event as a message, with a new delivery tag. An event that was not published by
    kombu becomes a message whose body is bytes."""
    parts = loads(event.properties.get("kombu") or "{}")
    properties = parts.get("properties", {})
    properties["delivery_tag"] = str(uuid4())
    properties.setdefault("priority", event.priority or 0)
    properties["delivery_info"] = {
        **properties.get("delivery_info", {}),
        "redelivered": event.redelivered,
        "redelivery_count": event.redelivery_count,
    }
    return {
        "body": event.data,
        "headers": parts.get("headers", {}),
        "properties": properties,
        "content-type": parts.get("content-type") or "application/data",
        "content-encoding": parts.get("content-encoding") or "binary",
    }


def _task_of(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return the name and id of the task from Celery's headers, as properties of the event."""
    named = {"task": headers.get("task"), "task_id": headers.get("id")}
    return {name: value for name, value in named.items() if isinstance(value, str)}


def _eta_of(headers: Mapping[str, Any]) -> datetime | None:
    """Return the time before which a task must not run, if it is in the future. A time without a
    zone is left to the worker, which knows the zone of its app."""
    try:
        eta = datetime.fromisoformat(headers.get("eta") or "")
    except (TypeError, ValueError):
        return None
    if eta.tzinfo is None or eta <= datetime.now(UTC):
        return None
    return eta
