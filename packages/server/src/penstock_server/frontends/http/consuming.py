"""Routes of consumers over HTTP, which fetch events under a lease and settle them (SEM H)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.consuming import (
    ExtendLease,
    ExtendPatternLease,
    Fetched,
    FetchEvents,
    FetchFromPattern,
    Settled,
    SettleLease,
    SettlePatternLease,
)
from penstock_core.api.requests import Request
from penstock_core.columns.documents import document_of as line_of
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.lifted_columns import table_of
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.schema.flat_columns import FLAT, flat_field
from penstock_core.columns.schema.ipc import stream_of
from penstock_core.columns.schema.moments import moment_of
from penstock_core.durable.queue import READERS
from penstock_server.frontends.http.accepting import (
    ARROW,
    JSON,
    NDJSON,
    accepted_form,
    not_accepted,
)
from penstock_server.frontends.http.app import Refusal
from penstock_server.frontends.http.binding import bound
from penstock_server.frontends.http.consuming_shapes import (
    ExtendBody,
    ExtendPatternBody,
    Fetch,
    FetchedAnswer,
    OfLease,
    OfPatternLease,
    RejectBody,
    RejectPatternBody,
    RollBackBody,
    RollBackPatternBody,
    SettledAnswer,
)
from penstock_server.frontends.http.event_documents import WHOLE, document_of, messages_of
from penstock_server.frontends.http.finding import ask_store, store_of
from penstock_server.frontends.http.publishing import IN_THREAD_BYTES
from penstock_server.frontends.http.routing import Call, Examples, Payload, Route, run_while_there
from penstock_server.frontends.http.shapes import NoQuery

LEASE: Final = "penstock-lease"
"""Response header with the id of the lease, for every format of the events."""
ENDS: Final = "penstock-lease-ends"
"""Response header with the end of the lease."""
REDELIVERIES: Final = "redelivery_count"
CHANNEL: Final = "channel"


class Part(NamedTuple):
    """A batch of the answer."""

    batch: EventBatch
    messages: Messages | None
    channel: str | None
    """Name of the channel to add to each event; None if the whole answer is of one channel."""


async def fetch(call: Call[NoQuery, Fetch]) -> Payload[FetchedAnswer]:
    """Fetch events under a lease. Events not settled before the lease ends are delivered again
    (SEM H1).

    The answer is JSON or, with ``Accept``, NDJSON with one line per event, or an Arrow IPC stream.
    In each format the headers ``Penstock-Lease`` and ``Penstock-Lease-Ends`` describe the lease; an
    answer without events has no lease. With ``wait_ms`` the realm answers when the first events
    arrive. If the client disconnects before the answer is sent, the events go back immediately, as
    if they had not been fetched.
    """
    kind = _content_type(call.headers.get("accept", ""))
    body, durable = call.body, call.params.get("durable", READERS)

    def request_of(now: ChannelOpened) -> FetchEvents:
        return FetchEvents(
            now.channel,
            durable,
            body.count,
            lease_ms=body.lease_ms,
            wait_ms=body.wait_ms,
            selector=body.selector,
        )

    store, fetched = await run_while_there(ask_store(call, FetchEvents, request_of))
    messages = messages_of(store)
    return await _answer(
        call, kind, fetched, parts=[Part(batch, messages, None) for batch in fetched.batches]
    )


async def fetch_from_pattern(call: Call[NoQuery, Fetch]) -> Payload[FetchedAnswer]:
    """Fetch events of all readable channels of a pattern, under one lease (SEM H4).

    A batch has a fair share of events from each channel that has some. Each event names its
    ``channel``. With ``wait_ms`` the realm answers when the first event arrives on any channel,
    including channels created meanwhile. The formats of the answer are those of one channel.
    """
    kind = _content_type(call.headers.get("accept", ""))
    body, params = call.body, call.params
    fetched = await call.ask_while_there(
        FetchFromPattern(
            params["pattern"],
            params["durable"],
            body.count,
            lease_ms=body.lease_ms,
            wait_ms=body.wait_ms,
            selector=body.selector,
        )
    )
    parts = [
        Part(batch, messages_of(store_of(opened, "channel")), opened.name)
        for batch, opened in zip(fetched.batches, fetched.channels, strict=True)
    ]
    return await _answer(call, kind, fetched, parts=parts, has_channels=True)


async def _answer(
    call: Call[NoQuery, Fetch],
    kind: str,
    fetched: Fetched,
    parts: Sequence[Part],
    *,
    has_channels: bool = False,
) -> Payload[FetchedAnswer]:
    """Encode the events in the requested format. If encoding or sending fails, the events return to
    their durable."""

    def give_back() -> None:
        call.realm.leases.give_back(fetched.lease)

    try:
        if fetched.lease:
            call.reply_headers += [
                (LEASE, fetched.lease),
                (ENDS, moment_of(fetched.ends_us).isoformat()),
            ]
        size = sum(batch.to_arrow().nbytes for batch in fetched.batches)
        encode = ENCODERS[kind]
        # Encoding many events would block the event loop for all other clients.
        if size > IN_THREAD_BYTES:
            data = await asyncio.to_thread(encode, fetched, parts, has_channels)
        else:
            data = encode(fetched, parts, has_channels)
    # Also after a cancellation, which means that the client has disconnected.
    except BaseException:
        give_back()
        raise
    return Payload(data, kind, on_unsent=give_back)


# --- formats of an answer -----------------------------------------------------------------


def _content_type(accept: str) -> str:
    """Return the content type that the client prefers among the supported ones.

    Raises ``Refusal`` if the client accepts none of them.
    """
    content_type = accepted_form(accept, ENCODERS)
    if not content_type:
        raise Refusal(406, not_accepted(accept, ENCODERS))
    return content_type


def _json(fetched: Fetched, parts: Sequence[Part], _: bool) -> bytes:
    """Return the fetched events and their lease as a JSON document."""
    ends = moment_of(fetched.ends_us) if fetched.lease else None
    items = [
        document_of(event, part.messages, WHOLE, channel=part.channel)
        for part in parts
        for event in part.batch
    ]
    lease = fetched.lease or None
    return msgspec.json.encode(
        FetchedAnswer(lease=lease, ends=ends, lease_ms=fetched.lease_ms, items=items)
    )


def _lines(_: Fetched, parts: Sequence[Part], __: bool) -> bytes:
    """Return the fetched events as lines of JSON."""
    lines = []
    for batch, messages, channel in parts:
        channel_field = {} if channel is None else {CHANNEL: channel}
        lines += [{**channel_field, **line_of(event, messages)} for event in batch]
    return msgspec.json.Encoder().encode_lines(lines)


def _arrow(fetched: Fetched, parts: Sequence[Part], has_channels: bool) -> bytes:
    """Return the events as an Arrow stream, with a column of redelivery counts."""
    table = _table(fetched.batches) if fetched.batches else _EMPTY.append_column(*_counts([]))
    if has_channels:
        names = [name for part in parts for name in [part.channel] * len(part.batch)]
        column = pa.array(names, pa.string()).dictionary_encode()
        table = _without_clash(table, CHANNEL).add_column(0, CHANNEL, column)
    return bytes(stream_of(table))


def _table(batches: Sequence[EventBatch]) -> pa.Table:
    """Return the fetched events as one flat table with a column of redelivery counts."""
    table = _without_clash(
        table_of([batch.to_arrow() for batch in batches], on_typed=_stay_silent), REDELIVERIES
    )
    counts: list[int] = []
    for batch in batches:
        redeliveries = batch.redeliveries
        if redeliveries:
            counts += [redeliveries.get(event_id, 0) for event_id in batch.event_ids.tolist()]
        else:
            counts += [0] * len(batch)
    return table.append_column(*_counts(counts))


def _stay_silent(properties: Sequence[str]) -> None:
    """Do nothing: the names of typed columns show that they are typed."""


def _without_clash(table: pa.Table, column: str) -> pa.Table:
    """Rename a property that has the name of a column which the answer adds."""
    names = [f"properties.{name}" if name == column else name for name in table.column_names]
    return table.rename_columns(names)


def _counts(counts: list[int]) -> tuple[pa.Field, pa.Array]:
    return pa.field(REDELIVERIES, pa.int32(), nullable=False), pa.array(counts, pa.int32())


ENCODERS: Final[Mapping[str, Callable[[Fetched, Sequence[Part], bool], bytes]]] = MappingProxyType(
    {JSON: _json, NDJSON: _lines, ARROW: _arrow}
)
_EMPTY: Final = pa.schema([flat_field(name) for name in FLAT]).empty_table()

_ID: Final = "5d1c2ab0f1a84a0f9d3f6a4f3a8a4b10"
_ENDS: Final = "2026-05-04T12:00:30Z"
_FETCH: Final = Examples(
    {"count": 100, "lease_ms": 30_000, "wait_ms": 20_000},
    {
        "lease": _ID,
        "ends": _ENDS,
        "lease_ms": 30_000,
        "items": [
            {
                "event_id": 7,
                "published": "2026-05-04T12:00:00Z",
                "size": 5,
                "properties": {"price": 2},
                "data": "a pen",
            }
        ],
    },
)
_ALL: Final = {"count": 1, "left": 0, "ends": None}
_SOME: Final = {"count": 1, "left": 1, "ends": _ENDS}
_SOME_OF_PATTERN: Final = {**_SOME, "count": 3}
_IDS: Final[dict[str, Any]] = {"ids": [7]}
_IDS_OF_PATTERN: Final[dict[str, Any]] = {"ids": {"orders/de": [7], "orders/fr": [3, 4]}}
_ACKNOWLEDGE: Final = """Acknowledge events of a lease; the realm answers when this is stored safely
    (SEM H2).

    If the answer is lost, repeat the request: events that are already acknowledged count as done.
    If an event has already gone back, the whole request is refused with ``lease-ended``.
    """
_ACKNOWLEDGE_PATTERN: Final = """Acknowledge events of a lease over a pattern, either on all named
    channels or on none (SEM H4).

    If the answer is lost, repeat the request, as for a single channel.
    """


class _Action(NamedTuple):
    """A request about events of a lease: one that settles them, or extends the lease."""

    verb: str
    """Verb in the name of the operation."""
    end: str
    """Last part of the path."""
    asks: type[Request[Settled]]
    body: type[OfLease | OfPatternLease]
    text: str
    examples: Examples


_ACTIONS: Final = (
    _Action(
        "acknowledge",
        "ack",
        SettleLease,
        body=OfLease,
        text=_ACKNOWLEDGE,
        examples=Examples({"all": True}, _ALL),
    ),
    _Action(
        "rollBack",
        "rollback",
        SettleLease,
        body=RollBackBody,
        text="Roll back events of a lease: they are delivered again, now or after a delay, with "
        "their redelivery count increased (SEM D18).",
        examples=Examples({**_IDS, "delay_ms": 5_000}, _SOME),
    ),
    _Action(
        "reject",
        "reject",
        SettleLease,
        body=RejectBody,
        text="Reject events of a lease: they move to the dead event store, with the reason (SEM "
        "T11).",
        examples=Examples({**_IDS, "reason": "no such customer"}, _SOME),
    ),
    _Action(
        "extend",
        "extend",
        ExtendLease,
        body=ExtendBody,
        text="Extend the lease of events to this duration from now on; it never gets shorter (SEM "
        "D19).",
        examples=Examples({"up_to": 7, "lease_ms": 60_000}, _SOME),
    ),
)
_PATTERN_ACTIONS: Final = (
    _Action(
        "acknowledge",
        "ack",
        SettlePatternLease,
        body=OfPatternLease,
        text=_ACKNOWLEDGE_PATTERN,
        examples=Examples(_IDS_OF_PATTERN, _SOME_OF_PATTERN),
    ),
    _Action(
        "rollBack",
        "rollback",
        SettlePatternLease,
        body=RollBackPatternBody,
        text="Roll back events of a lease over a pattern: they are delivered again, now or after a "
        "delay, with their redelivery count increased (SEM D18).",
        examples=Examples({**_IDS_OF_PATTERN, "delay_ms": 5_000}, _SOME_OF_PATTERN),
    ),
    _Action(
        "reject",
        "reject",
        SettlePatternLease,
        body=RejectPatternBody,
        text="Reject events of a lease over a pattern: they move to their channels' dead event "
        "stores, with the reason (SEM T11).",
        examples=Examples({**_IDS_OF_PATTERN, "reason": "no such customer"}, _SOME_OF_PATTERN),
    ),
    _Action(
        "extend",
        "extend",
        ExtendPatternLease,
        body=ExtendPatternBody,
        text="Extend the lease of events over a pattern to this duration from now on; it never "
        "gets shorter (SEM D19).",
        examples=Examples({"all": True, "lease_ms": 60_000}, _SOME_OF_PATTERN),
    ),
)


def _lease_routes(
    path: str, source: str, *, actions: Sequence[_Action] = _ACTIONS, **constants: str
) -> tuple[Route, ...]:
    """Return the routes that settle or extend a lease. ``source`` is the part of their operation
    ids that names the source of the events, such as ``Queue``."""
    return tuple(
        bound(
            f"{action.verb}{source}Lease",
            "POST",
            f"{path}/leases/{{lease}}/{action.end}",
            asks=action.asks,
            text=action.text,
            body=action.body,
            answer=SettledAnswer,
            names={"time_ms": "lease_ms"},
            constants=constants,
            examples=action.examples,
        )
        for action in actions
    )


def _fetch_route(path: str, source: str) -> Route:
    """Return the route that fetches events. ``source`` is the end of its operation id, such as
    ``Queue``."""
    return Route(
        f"fetchFrom{source}",
        "POST",
        f"{path}/fetch",
        asks=FetchEvents,
        endpoint=fetch,
        examples=_FETCH,
    )


def _fetch_pattern_route() -> Route:
    (event,) = _FETCH.answer["items"]
    answer = {**_FETCH.answer, "items": [{**event, CHANNEL: "orders/de"}]}
    return Route(
        "fetchFromPatternDurable",
        "POST",
        f"{_PATTERN_DURABLE}/fetch",
        asks=FetchFromPattern,
        endpoint=fetch_from_pattern,
        examples=Examples(_FETCH.body, answer),
    )


_DURABLE: Final = "channels/{channel}/durables/{durable}"
_QUEUE: Final = "queues/{queue}"
_PATTERN_DURABLE: Final = "durables/{pattern}/{durable}"

ROUTES = (
    _fetch_route(_DURABLE, "Durable"),
    *_lease_routes(_DURABLE, "Durable"),
    _fetch_route(_QUEUE, "Queue"),
    *_lease_routes(_QUEUE, "Queue", durable=READERS),
    _fetch_pattern_route(),
    *_lease_routes(_PATTERN_DURABLE, "Pattern", actions=_PATTERN_ACTIONS),
)
