"""The attributes of an event besides its data, in one place for all ways to publish."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypedDict, TypeVar

from penstock_core.columns.events.event import Event, Moment

F = TypeVar("F", bound=Callable[..., Any])


class QueuedAttributes(TypedDict, total=False):
    """Attributes of an event on a queue."""

    tag: str | None
    properties: Mapping[str, Any] | None
    headers: Mapping[str, Any] | None
    ttl: int | str | timedelta
    """Time to live: milliseconds, a text such as ``"1h"``, or a ``timedelta``; 0: none of its
    own."""
    persistent: bool | None
    """For mixed channels and queues, whether the event is on disk; None: it is."""
    priority: int | None
    """0 to 9; None: 4."""
    deliver_at: Moment | None
    """A datetime with a time zone, or seconds since 1970."""


class EventAttributes(QueuedAttributes, total=False):
    """Attributes of an event."""

    transient: bool
    """Whether it is never stored (SEM E8)."""


class RequestAttributes(TypedDict, total=False):
    """Attributes of a request (SEM R1)."""

    tag: str | None
    properties: Mapping[str, Any] | None
    headers: Mapping[str, Any] | None
    ttl: int | str | timedelta
    """Time to live, as of any event: a request that nobody has taken by then is not answered any
    more. 0: none of its own."""
    persistent: bool | None
    """For mixed channels and queues, whether the request is on disk; None: it is."""
    priority: int | None
    """0 to 9; None: 4."""
    transient: bool
    """Channels only: whether the request is never stored (SEM E8)."""


QUEUED = frozenset(QueuedAttributes.__annotations__)
PUBLISHED = frozenset(EventAttributes.__annotations__)
REQUESTED = frozenset(RequestAttributes.__annotations__)

_OF_EVENTS = inspect.signature(Event).parameters


def spelled_out(method: F) -> F:
    """Show each attribute with its default where the signature of ``method`` is asked for, as
    ``help`` and editors do, instead of ``**attributes``."""
    signature = inspect.signature(method)
    *own, gathered = signature.parameters.values()
    said = str(gathered.annotation)
    known = QUEUED if "Queued" in said else REQUESTED if "Request" in said else PUBLISHED
    each = [parameter for name, parameter in _OF_EVENTS.items() if name in known]
    shown = signature.replace(parameters=[*own, *each])
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method


def unknown_attribute(given: Mapping[str, object], known: frozenset[str], method: str) -> TypeError:
    """An error about the attributes in ``given`` that are not ``known``."""
    wrong = ", ".join(sorted(given.keys() - known))
    there_are = ", ".join(name for name in _OF_EVENTS if name in known)
    return TypeError(f"{method}() has no argument {wrong}; besides data there are {there_are}")
