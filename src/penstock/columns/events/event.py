"""An event: what a publisher makes and what a consumer gets (SEM E1)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self

from msgspec import Struct

from penstock.columns.schema.layout import PRIORITY_DEFAULT, PRIORITY_MAX, cause_and_reason
from penstock.columns.schema.rows import Rows
from penstock.core.vocabulary.errors import InvalidEvent

Moment = datetime | float
"""A time to publish at: a datetime with a time zone, or seconds since 1970."""

_TTL_MAX = (1 << 63) - 1


class Origin(Struct, frozen=True):
    """Where a dead or joined event was before it came to where it is (SEM E3)."""

    store: str
    """The channel or queue it was on."""
    event_id: int
    """Its id there."""
    published: datetime
    """When the realm took it there, in UTC."""
    cause: str
    """Why it left: the cause of its removal, or ``join`` for a copy made by a join."""
    at: datetime
    """When it left, in UTC."""
    durables: tuple[str, ...] = ()
    """The durables that had not acknowledged it."""
    redeliveries: int = 0
    """How often it had been delivered again there."""
    ttl: int = 0
    """The TTL of its own it had there, in milliseconds; 0 for none."""
    path: tuple[str, ...] = ()
    """All stores it has been on, the first one first."""
    reason: str = ""
    """Why a client has buried it, in the client's words (cause ``buried``)."""

    def __repr__(self) -> str:
        shown = (
            f"{self.cause} from {self.store!r}, id {self.event_id}, at {self.at:%Y-%m-%d %X} UTC"
        )
        if self.durables:
            shown += f", missed by {', '.join(self.durables)}"
        if self.redeliveries:
            shown += f", {self.redeliveries} redeliveries"
        if len(self.path) > 1:
            shown += f", path {' > '.join(self.path)}"
        return f"Origin({shown})"


class Event:
    """One event. Made by you to publish it, or read lazily from the batch it came in.

    ``ttl`` is in milliseconds, 0 for none of its own; ``priority`` 0 to 9, 4 when not given;
    ``persistent`` matters on Mixed channels only; a ``transient`` event is never stored
    (SEM E8). With ``deliver_at``, a datetime with a time zone or seconds since 1970, it is kept
    aside until then. One that ``is_delta`` has the key of a merge channel and the properties to
    change (SEM K2).
    Raises :class:`InvalidEvent` when an argument cannot be part of an event.
    """

    __slots__ = (
        "_data",
        "_deliver_at",
        "_headers",
        "_is_delta",
        "_persistent",
        "_priority",
        "_properties",
        "_row",
        "_rows",
        "_tag",
        "_transient",
        "_ttl",
        "redelivery_count",
    )

    redelivery_count: int
    """How often it was delivered before to this durable (SEM E9)."""

    def __init__(
        self,
        data: bytes | bytearray | memoryview = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
        transient: bool = False,
        deliver_at: Moment | None = None,
        is_delta: bool = False,
    ) -> None:
        self._rows: Rows | None = None
        self._row = 0
        self.redelivery_count = 0
        self._data: bytes | None = data if type(data) is bytes else event_data(data)
        self._tag = tag
        self._properties: dict[str, Any] | None = (
            properties if type(properties) is dict else _mapping("properties", properties)
        )
        self._headers: dict[str, Any] | None = _mapping("headers", headers) if headers else None
        self._ttl = ttl
        self._persistent = persistent
        self._priority = priority
        self._transient = transient
        self._deliver_at = None if deliver_at is None else moment(deliver_at)
        self._is_delta = is_delta
        if tag is not None and not isinstance(tag, str):
            raise InvalidEvent(f"tag {tag!r} is {type(tag).__name__}; a tag is a string or None")
        if ttl or priority is not None:
            check_ttl(ttl)
            check_priority(priority)

    @classmethod
    def received(cls, rows: Rows, row: int, redelivery_count: int = 0) -> Self:
        """The event in a row; nothing is read before it is asked for."""
        event = cls.__new__(cls)
        event._rows = rows
        event._row = row
        event._data = event._properties = None
        event.redelivery_count = redelivery_count
        return event

    @property
    def event_id(self) -> int | None:
        """Given by the realm (SEM E4); None before that."""
        return None if self._rows is None else self._rows.value("event_id", self._row)

    @property
    def published(self) -> datetime | None:
        """When the realm took it, in UTC; None before that."""
        return None if self._rows is None else self._rows.published(self._row)

    @property
    def tag(self) -> str | None:
        """A word to tell events apart by."""
        return self._tag if self._rows is None else self._rows.value("tag", self._row)

    @property
    def data(self) -> bytes:
        """The bytes of the event; may be empty."""
        found = self._data
        if found is None:
            rows = self._rows
            found = self._data = b"" if rows is None else rows.data(self._row)
        return found

    @property
    def properties(self) -> dict[str, Any]:
        """Names to typed values, exactly as published (SEM E2)."""
        found = self._properties
        if found is None:
            rows = self._rows
            found = self._properties = {} if rows is None else rows.properties(self._row)
        return found

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that are set (SEM E3)."""
        if self._rows is None:
            return self._headers or {}
        return self._rows.headers(self._row)

    @property
    def ttl(self) -> int:
        """Milliseconds; 0 for none of its own."""
        return self._ttl if self._rows is None else self._rows.ttl(self._row)

    @property
    def persistent(self) -> bool:
        """False only where the publisher said so."""
        if self._rows is None:
            return self._persistent is not False
        return self._rows.persistent(self._row)

    @property
    def priority(self) -> int:
        """0 to 9."""
        if self._rows is None:
            return PRIORITY_DEFAULT if self._priority is None else self._priority
        return self._rows.priority(self._row)

    @property
    def transient(self) -> bool:
        """Never stored (SEM E8)."""
        return self._transient if self._rows is None else self._rows.transient(self._row)

    @property
    def redelivered(self) -> bool:
        """Was it delivered before to this durable (SEM E9)?"""
        return self.redelivery_count > 0

    @property
    def is_delta(self) -> bool:
        """Does it carry only what changed of a registered event (SEM K3)?"""
        if self._rows is None:
            return self._is_delta
        return self._rows.value("delta", self._row) is True

    @property
    def deliver_at(self) -> datetime | None:
        """Not delivered before this time; None for at once, and for what was delivered."""
        if self._rows is None:
            return self._deliver_at
        return _in_utc(self._rows.value("deliver_at", self._row))

    @property
    def origin(self) -> Origin | None:
        """Where a dead or joined event came from; None for any other."""
        found = None if self._rows is None else self._rows.value("origin", self._row)
        return None if found is None else _origin(found)

    def __repr__(self) -> str:
        shown = [f"event_id={self.event_id}"] if self._rows is not None else []
        if self.tag is not None:
            shown.append(f"tag={self.tag!r}")
        data = self.data
        shown.append(f"data={data!r}" if len(data) <= 32 else f"data={data[:32]!r}... {len(data)}")
        if self.properties:
            shown.append(f"properties={self.properties!r}")
        if self.redelivery_count:
            shown.append(f"redelivery_count={self.redelivery_count}")
        return f"Event({', '.join(shown)})"


def event_data(data: object) -> bytes:
    """The bytes of ``data``; :class:`InvalidEvent` when it is not bytes-like."""
    if isinstance(data, str):
        raise InvalidEvent("data is a str; events carry bytes: pass data.encode()")
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidEvent(f"data is {type(data).__name__}; pass bytes, a bytearray or a memoryview")


def check_ttl(ttl: object) -> None:
    """Refuse what is not a whole number of milliseconds from 0."""
    if type(ttl) is not int or not 0 <= ttl <= _TTL_MAX:
        raise InvalidEvent(f"ttl {ttl!r} is not a whole number of milliseconds from 0")


def check_priority(priority: object) -> None:
    """Refuse what is not None or 0 to 9."""
    if priority is not None and (type(priority) is not int or not 0 <= priority <= PRIORITY_MAX):
        raise InvalidEvent(f"priority {priority!r} is not a whole number from 0 to {PRIORITY_MAX}")


def moment(given: object) -> datetime:
    """When to publish. Refuse what is no datetime with a time zone, nor seconds since 1970."""
    if isinstance(given, datetime) and given.utcoffset() is not None:
        return given
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return datetime.fromtimestamp(given, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise InvalidEvent(f"deliver_at {given!r} is not a time: {error}") from error
    raise InvalidEvent(
        f"deliver_at {given!r} is not a datetime with a time zone or a number of seconds since 1970"
    )


def _in_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


def _origin(found: Mapping[str, Any]) -> Origin:
    cause, reason = cause_and_reason(found["cause"])
    return Origin(
        store=found["store"],
        event_id=found["event_id"],
        published=found["published"].astimezone(UTC),
        cause=cause,
        at=found["at"].astimezone(UTC),
        durables=tuple(found["durables"] or ()),
        redeliveries=found["redeliveries"] or 0,
        ttl=found["ttl"] or 0,
        path=tuple(found["path"] or ()),
        reason=reason,
    )


def _mapping(name: str, value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return dict(value)
    raise InvalidEvent(f"{name} is {type(value).__name__}; pass a dictionary")
