"""The attributes of an event, apart from its data, for all methods that publish."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

from penstock_core.columns.events.durations import Milliseconds
from penstock_core.columns.events.event import Event, Moment

F = TypeVar("F", bound=Callable[..., Any])


class ScalarAttributes(TypedDict, total=False):
    """Attributes of an event, apart from its properties and headers."""

    tag: str | None
    ttl: Milliseconds
    """Time to live: milliseconds, a text such as ``"1h"``, or a ``timedelta``; 0 means the time to
    live of the channel or queue."""
    persistent: bool | None
    """Whether a mixed channel or queue stores the event on disk; None means True."""
    priority: int | None
    """0 to 9; None means 4."""
    deliver_at: Moment | None
    """Time of publication: a datetime with a time zone, a text such as ``"2026-05-04T12:00:00Z"``,
    seconds since 1970, or a duration from now such as ``"10m"`` or a ``timedelta``."""


class QueuedAttributes(ScalarAttributes, total=False):
    """Attributes of an event on a queue."""

    properties: Mapping[str, Any] | None
    headers: Mapping[str, Any] | None


class EventAttributes(QueuedAttributes, total=False):
    """Attributes of an event."""

    transient: bool
    """Whether the event is delivered to connected subscribers only and never stored (SEM E8)."""


class RequestAttributes(TypedDict, total=False):
    """Attributes of a request (SEM R1)."""

    tag: str | None
    properties: Mapping[str, Any] | None
    headers: Mapping[str, Any] | None
    ttl: Milliseconds
    """Time to live, as for any event; a request that expires before it is received gets no reply. 0
    means the time to live of the channel or queue."""
    persistent: bool | None
    """Whether a mixed channel or queue stores the request on disk; None means True."""
    priority: int | None
    """0 to 9; None means 4."""
    transient: bool
    """Channels only: whether the request is delivered to connected subscribers only and never
    stored (SEM E8)."""


QUEUED = frozenset(QueuedAttributes.__annotations__)
PUBLISHED = frozenset(EventAttributes.__annotations__)
REQUESTED = frozenset(RequestAttributes.__annotations__)

_EVENT_PARAMETERS = inspect.signature(Event).parameters


def spelled_out(method: F) -> F:
    """Replace ``**attributes`` in the signature of ``method`` by the event attributes and their
    defaults, for ``help`` and editors."""
    signature = inspect.signature(method)
    *parameters, keywords = signature.parameters.values()
    kind = str(keywords.annotation)
    names = QUEUED if "Queued" in kind else REQUESTED if "Request" in kind else PUBLISHED
    attributes = [parameter for name, parameter in _EVENT_PARAMETERS.items() if name in names]
    shown = signature.replace(parameters=[*parameters, *attributes])
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method


def unknown_attribute(
    attributes: Mapping[str, object], allowed: frozenset[str], method: str
) -> TypeError:
    """Return an error about the attributes that are not ``allowed``. A TypeError, as Python raises
    for unknown arguments."""
    unknown = ", ".join(sorted(attributes.keys() - allowed))
    names = ", ".join(name for name in _EVENT_PARAMETERS if name in allowed)
    return TypeError(f"{method}() has no argument {unknown}; allowed are data, {names}")
