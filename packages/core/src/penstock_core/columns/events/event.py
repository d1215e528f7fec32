"""The event, as publishers make it and consumers receive it (SEM E1)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple, Self, SupportsIndex, TypeGuard

from msgspec import Struct

from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.events.durations import (
    EXAMPLES,
    Milliseconds,
    duration_ms,
    whole_ms,
)
from penstock_core.columns.schema.layout import PRIORITY_DEFAULT, PRIORITY_MAX, cause_and_reason
from penstock_core.columns.schema.moments import parse_moment, zone_error
from penstock_core.columns.schema.rows import Publishers, Rows
from penstock_core.display import ROWS_SHOWN, html_fields, safe_html, safe_repr, short
from penstock_core.vocabulary.errors import InvalidEvent

Moment = datetime | float | str | timedelta
"""Delivery time of an event: a datetime with a time zone, its text in ISO 8601, seconds since 1970,
or a duration from now as a text such as ``"10m"`` or a ``timedelta``."""

_DATE: Final = re.compile(r"\d{4}-")
"""The beginning of a time in ISO 8601, as opposed to a duration."""


class Origin(Struct, frozen=True):
    """The previous store of a dead event or of a copy made by a join (SEM E3)."""

    store: str
    """Name of the channel or queue where the event was stored."""
    event_id: int
    """The event's id in that store."""
    published: datetime
    """Time when the realm stored the event there, in UTC."""
    cause: str
    """Cause of the event's removal, or ``join`` for a copy made by a join."""
    at: datetime
    """Time when the event left that store, in UTC."""
    durables: tuple[str, ...] = ()
    """Names of the durables that had not acknowledged the event."""
    redeliveries: int = 0
    """Number of redeliveries in that store."""
    ttl: int = 0
    """The event's own TTL in that store, in milliseconds; 0 if it had none."""
    path: tuple[str, ...] = ()
    """Names of all stores that had the event, oldest first."""
    reason: str = ""
    """The client's reason for rejecting the event (cause ``rejected``)."""

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


class EventOptions(NamedTuple):
    """Options that most new events do not set. A received event reads them from its batch."""

    headers: dict[str, Any] | None = None
    ttl: int = 0
    persistent: bool | None = None
    priority: int | None = None
    transient: bool = False
    deliver_at: datetime | None = None
    is_delta: bool = False


NO_OPTIONS: Final = EventOptions()

NO_TTL: Final = 0
"""The default of ``ttl``, compared by identity: an empty text is not a time to live."""


class Event:
    """An event: created by you to publish it, or received, and then read lazily from its batch.

    ``ttl`` is in milliseconds, a text such as ``"1h"``, or a ``timedelta``; 0 means that the event
    does not set a TTL. ``priority`` is 0 to 9 and defaults to 4. ``persistent`` matters on Mixed
    channels only. A ``transient`` event is never stored (SEM E8). An event with ``deliver_at`` is
    not delivered before that time: a datetime with a time zone, a text such as
    ``"2026-05-04T12:00:00Z"``, seconds since 1970, or a duration from now such as ``"10m"`` or a
    ``timedelta``, by the clock of this program. An event with
    ``is_delta`` contains the key of a merge channel and only the properties to change (SEM K2).
    Raises :class:`InvalidEvent` when an argument cannot be part of an event.
    """

    __slots__ = (
        "_data",
        "_options",
        "_properties",
        "_row",
        "_rows",
        "_tag",
        "redelivery_count",
    )

    _row: int
    """Row of the event in the batch it was received in."""
    redelivery_count: int
    """Number of earlier deliveries to this durable (SEM E9)."""

    def __init__(
        self,
        data: bytes | bytearray | memoryview = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        ttl: Milliseconds = 0,
        persistent: bool | None = None,
        priority: int | None = None,
        transient: bool = False,
        deliver_at: Moment | None = None,
        is_delta: bool = False,
    ) -> None:
        self._rows: Rows | None = None
        self.redelivery_count = 0
        # type() is faster than isinstance(), and most data is exactly bytes.
        self._data: bytes | None = data if type(data) is bytes else event_data(data)
        self._tag = tag
        self._properties: dict[str, Any] | None = (
            properties if type(properties) is dict else _mapping("properties", properties)
        )
        if tag is not None and not isinstance(tag, str):
            raise InvalidEvent(f"tag {tag!r} is {type(tag).__name__}; a tag is a string or None")
        # Most events set no option. They share one object, so that body_of() recognises them.
        self._options = NO_OPTIONS
        if (
            headers
            or ttl is not NO_TTL
            or transient
            or is_delta
            or persistent is not None
            or priority is not None
            or deliver_at is not None
        ):
            check_priority(priority)
            self._options = EventOptions(
                _mapping("headers", headers) if headers else None,
                ttl_ms(ttl),
                persistent,
                priority,
                transient,
                None if deliver_at is None else moment(deliver_at),
                is_delta,
            )

    @classmethod
    def received(cls, rows: Rows, row: int, redelivery_count: int = 0) -> Self:
        """Return the event in a row of a batch. Its values are read on first access."""
        event = cls.__new__(cls)
        event._rows = rows
        event._row = row
        event._data = event._properties = None
        event.redelivery_count = redelivery_count
        return event

    @property
    def event_id(self) -> int | None:
        """The id, assigned by the realm (SEM E4); None for an event not yet published."""
        return None if self._rows is None else self._rows.value("event_id", self._row)

    @property
    def published(self) -> datetime | None:
        """Time when the realm stored the event, in UTC; None for an event not yet published."""
        return None if self._rows is None else self._rows.published(self._row)

    @property
    def tag(self) -> str | None:
        """A short label of the event; None if it has none."""
        return self._tag if self._rows is None else self._rows.value("tag", self._row)

    @property
    def data(self) -> bytes:
        """The payload; may be empty."""
        data = self._data
        if data is None:
            rows = self._rows
            data = self._data = b"" if rows is None else rows.data(self._row)
        return data

    @property
    def properties(self) -> dict[str, Any]:
        """The properties: typed values by name, exactly as published (SEM E2)."""
        properties = self._properties
        if properties is None:
            rows = self._rows
            properties = self._properties = {} if rows is None else rows.properties(self._row)
        return properties

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that are set (SEM E3)."""
        if self._rows is None:
            return self._options.headers or {}
        return self._rows.headers(self._row)

    @property
    def ttl(self) -> int:
        """The event's own time to live in milliseconds; 0 if it has none."""
        return self._options.ttl if self._rows is None else self._rows.ttl(self._row)

    @property
    def persistent(self) -> bool:
        """False only if the publisher set it to False."""
        if self._rows is None:
            return self._options.persistent is not False
        return self._rows.persistent(self._row)

    @property
    def priority(self) -> int:
        """The priority, 0 to 9."""
        if self._rows is None:
            priority = self._options.priority
            return PRIORITY_DEFAULT if priority is None else priority
        return self._rows.priority(self._row)

    @property
    def transient(self) -> bool:
        """True if the event is never stored (SEM E8)."""
        return self._options.transient if self._rows is None else self._rows.transient(self._row)

    @property
    def redelivered(self) -> bool:
        """True if the event was delivered to this durable before (SEM E9)."""
        return self.redelivery_count > 0

    @property
    def is_delta(self) -> bool:
        """True if the event contains only the changed properties, to be merged into the state of
        its key (SEM K3)."""
        if self._rows is None:
            return self._options.is_delta
        return self._rows.value("delta", self._row) is True

    @property
    def deliver_at(self) -> datetime | None:
        """The earliest time of delivery; None for immediate delivery, and on events that were
        delivered."""
        if self._rows is None:
            return self._options.deliver_at
        return _in_utc(self._rows.value("deliver_at", self._row))

    @property
    def origin(self) -> Origin | None:
        """Previous store of a dead or joined event; None for other events."""
        fields = None if self._rows is None else self._rows.value("origin", self._row)
        return None if fields is None else _origin(fields)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickle a received event as a plain :class:`Event`, because another process has no session
        to settle or answer it."""
        if self._rows is None:
            return super().__reduce_ex__(protocol)
        return _restored, (*self._rows.detach(self._row), self.redelivery_count)

    @safe_repr
    def __repr__(self) -> str:
        return f"Event({', '.join(f'{name}={value}' for name, value in self._shown())})"

    @safe_html
    def _repr_html_(self) -> str:
        """Return a table of the event for notebooks."""
        values = dict(self._shown())
        if self._rows is not None:
            values["published"] = f"{self.published}"
        values.pop("properties", None)
        for name, value in islice(self.properties.items(), ROWS_SHOWN):
            values[f"properties[{short(name)}]"] = short(value)
        return html_fields("Event", values.items())

    def _shown(self) -> Iterator[tuple[str, str]]:
        """Yield the names and short texts of the attributes that are shown."""
        if channel := getattr(self, "channel", ""):
            yield "channel", short(channel)
        if self._rows is not None:
            yield "event_id", f"{self.event_id}"
        if self.tag is not None:
            yield "tag", short(self.tag)
        data = self.data
        yield "data", repr(data) if len(data) <= 32 else f"{data[:32]!r}... {len(data)}"
        if self.properties:
            yield "properties", short(self.properties)
        if self.redelivery_count:
            yield "redelivery_count", f"{self.redelivery_count}"


def _restored(schema: bytes, values: bytes, publishers: Publishers, count: int) -> Event:
    """Return the event of a pickle, whose batch consists of one row."""
    return Event.received(Rows.restored(schema, values, publishers), 0, count)


def event_data(data: object) -> bytes:
    """Return ``data`` as bytes. Raises :class:`InvalidEvent` if it is not bytes-like."""
    if isinstance(data, str):
        raise InvalidEvent("data is a str; events carry bytes: pass data.encode()")
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidEvent(f"data is {type(data).__name__}; pass bytes, a bytearray or a memoryview")


def ttl_ms(ttl: object) -> int:
    """Return a TTL in milliseconds. It may be a number of milliseconds, a text such as ``"1h"``, or
    a ``timedelta``; None counts as 0. Raises :class:`InvalidEvent`, also for a TTL out of
    bounds."""
    if _is_ttl(ttl):  # nearly always
        return ttl
    ms = 0 if ttl is None else whole_ms(ttl)
    if not _is_ttl(ms):
        raise _ttl_error(ttl)
    return ms


def check_ttl(ttl: object) -> None:
    """Raise :class:`InvalidEvent` unless ``ttl`` is a whole number of milliseconds in bounds."""
    if not _is_ttl(ttl):
        raise _ttl_error(ttl)


def _is_ttl(ttl: object) -> TypeGuard[int]:
    return type(ttl) is int and 0 <= ttl <= TTL_MS_MAX


def _ttl_error(ttl: object) -> InvalidEvent:
    return InvalidEvent(
        f"ttl {ttl!r} is not a whole number of milliseconds from 0 to {TTL_MS_MAX}, {EXAMPLES}; "
        f"give {TTL_MS_MAX} for an event that never expires"
    )


def check_priority(priority: object) -> None:
    """Raise :class:`InvalidEvent` unless ``priority`` is None or a whole number from 0 to 9."""
    if priority is not None and (type(priority) is not int or not 0 <= priority <= PRIORITY_MAX):
        raise InvalidEvent(f"priority {priority!r} is not a whole number from 0 to {PRIORITY_MAX}")


def moment(value: object) -> datetime:
    """Return a delivery time as a datetime.

    Raises :class:`InvalidEvent` unless ``value`` is a datetime with a time zone, its text in
    ISO 8601, seconds since 1970, or a duration of 0 or more, which begins now.
    """
    if isinstance(value, str) and _DATE.match(value):
        with contextlib.suppress(ValueError):
            value = parse_moment(value, zone=None)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidEvent(zone_error("deliver_at", value))
        return value
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        if (ms := duration_ms(value)) >= 0:
            return datetime.now(UTC) + timedelta(milliseconds=ms)
    except (OverflowError, ValueError, OSError) as error:
        raise InvalidEvent(f"deliver_at {value!r} is not a time: {error}") from error
    raise InvalidEvent(
        f"deliver_at {value!r} is not a time: give a datetime with a time zone, seconds since "
        f"1970, a text such as '2026-05-04T12:00:00Z', or a duration from now, {EXAMPLES}"
    )


def _in_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


def _origin(fields: Mapping[str, Any]) -> Origin:
    """Return the origin in the fields of the column ``origin``."""
    cause, reason = cause_and_reason(fields["cause"])
    return Origin(
        store=fields["store"],
        event_id=fields["event_id"],
        published=fields["published"].astimezone(UTC),
        cause=cause,
        at=fields["at"].astimezone(UTC),
        durables=tuple(fields["durables"] or ()),
        redeliveries=fields["redeliveries"] or 0,
        ttl=fields["ttl"] or 0,
        path=tuple(fields["path"] or ()),
        reason=reason,
    )


def _mapping(name: str, value: object) -> dict[str, Any] | None:
    """Return the argument ``name`` as a dictionary; None if it is None. Raises
    :class:`InvalidEvent` for other types."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return dict(value)
    raise InvalidEvent(f"{name} is {type(value).__name__}; pass a dictionary")
