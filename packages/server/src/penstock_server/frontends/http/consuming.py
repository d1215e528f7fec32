"""Routes of consumers over HTTP: fetch events for a time, and settle them (SEM H)."""

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
from penstock_core.columns.schema.moments import moment_of
from penstock_core.durable.queue import READERS
from penstock_server.frontends.http.accepting import JSON, accepted_form, not_accepted
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
from penstock_server.frontends.http.event_documents import document_of, messages_of
from penstock_server.frontends.http.finding import asked_of, store_of
from penstock_server.frontends.http.publishing import ARROW, IN_THREAD_BYTES, NDJSON
from penstock_server.frontends.http.routing import Call, Examples, Payload, Route, run_while_there
from penstock_server.frontends.http.shapes import NoQuery

LEASE: Final = "penstock-lease"
"""The header that names the lease of a batch, in whatever form the events come."""
ENDS: Final = "penstock-lease-ends"
REDELIVERIES: Final = "redelivery_count"
CHANNEL: Final = "channel"
_WHOLE: Final = 1 << 62


class Part(NamedTuple):
    """A batch of the answer."""

    batch: EventBatch
    messages: Messages | None
    channel: str | None
    """Stands in each of its events; None: all are of one."""


async def fetch(call: Call[NoQuery, Fetch]) -> Payload:
    """Fetch events under a lease: settle them before it ends, or they come again (SEM H1).

    The answer is JSON, or what ``Accept`` names: NDJSON, a line for each event, or an Arrow IPC
    stream. The headers ``Penstock-Lease`` and ``Penstock-Lease-Ends`` name the lease in each form;
    without events there is none. With ``wait_ms`` the answer comes with the first events. If the
    client hangs up before it is answered, they go back at once, as if they had not been fetched.
    """
    kind = _form(call.headers.get("accept", ""))
    body, durable = call.body, call.params.get("durable", READERS)

    def asked(now: ChannelOpened) -> FetchEvents:
        return FetchEvents(
            now.channel,
            durable,
            body.count,
            lease_ms=body.lease_ms,
            wait_ms=body.wait_ms,
            selector=body.selector,
        )

    store, told = await run_while_there(asked_of(call, FetchEvents, asked))
    messages = messages_of(store)
    return await _answered(
        call, kind, told, parts=[Part(each, messages, None) for each in told.batches]
    )


async def fetch_from_pattern(call: Call[NoQuery, Fetch]) -> Payload:
    """Fetch events of all channels of a pattern that one may read, under one lease (SEM H4).

    The channels have their turns, and a batch has of each that has events its share. Each event
    names its ``channel``. With ``wait_ms`` the answer comes with the first event of any channel,
    also of one that is made meanwhile. The forms of the answer are those of one channel.
    """
    kind = _form(call.headers.get("accept", ""))
    body, params = call.body, call.params
    told = await call.ask_while_there(
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
        for batch, opened in zip(told.batches, told.channels, strict=True)
    ]
    return await _answered(call, kind, told, parts=parts, tells_channels=True)


async def _answered(
    call: Call[NoQuery, Fetch],
    kind: str,
    told: Fetched,
    parts: Sequence[Part],
    *,
    tells_channels: bool = False,
) -> Payload:
    """The events in the form that was asked for. They go back if that cannot be made, or sent."""

    def give_back() -> None:
        call.realm.leases.give_back(told.lease)

    try:
        if told.lease:
            call.reply_headers += [
                (LEASE, told.lease),
                (ENDS, moment_of(told.ends_us).isoformat()),
            ]
        size = sum(each.to_arrow().nbytes for each in told.batches)
        form = _FORMS[kind]
        if size > IN_THREAD_BYTES:
            data = await asyncio.to_thread(form, told, parts, tells_channels)
        else:
            data = form(told, parts, tells_channels)
    except BaseException:
        give_back()
        raise
    return Payload(data, kind, on_unsent=give_back)


# --- forms of an answer -------------------------------------------------------------------


def _form(accept: str) -> str:
    """The content type of the answer: of those that the client takes the one that it likes best.
    Raises ``Refusal`` where it takes none of them."""
    form = accepted_form(accept, _FORMS)
    if not form:
        raise Refusal(406, not_accepted(accept, _FORMS))
    return form


def _json(told: Fetched, parts: Sequence[Part], _: bool) -> bytes:
    ends = moment_of(told.ends_us) if told.lease else None
    items = [
        document_of(each, part.messages, _WHOLE, channel=part.channel)
        for part in parts
        for each in part.batch
    ]
    lease = told.lease or None
    return msgspec.json.encode(
        FetchedAnswer(lease=lease, ends=ends, lease_ms=told.lease_ms, items=items)
    )


def _lines(_: Fetched, parts: Sequence[Part], __: bool) -> bytes:
    lines = []
    for batch, messages, channel in parts:
        named = {} if channel is None else {CHANNEL: channel}
        lines += [{**named, **line_of(each, messages)} for each in batch]
    return msgspec.json.Encoder().encode_lines(lines)


def _arrow(told: Fetched, parts: Sequence[Part], tells_channels: bool) -> bytes:
    """The events as columns, as in any table, with how often each came before."""
    table = _table(told.batches) if told.batches else _EMPTY.append_column(*_counts([]))
    if tells_channels:
        names = [name for part in parts for name in [part.channel] * len(part.batch)]
        column = pa.array(names, pa.string()).dictionary_encode()
        table = _aside(table, CHANNEL).add_column(0, CHANNEL, column)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _table(batches: Sequence[EventBatch]) -> pa.Table:
    table = _aside(
        table_of([each.to_arrow() for each in batches], on_typed=_stay_silent), REDELIVERIES
    )
    counts: list[int] = []
    for each in batches:
        known = each.redeliveries
        if known:
            counts += [known.get(event_id, 0) for event_id in each.event_ids.tolist()]
        else:
            counts += [0] * len(each)
    return table.append_column(*_counts(counts))


def _stay_silent(properties: Sequence[str]) -> None:
    """The names of the columns say that they are typed."""


def _aside(table: pa.Table, own: str) -> pa.Table:
    """The table with a property of this name moved aside, for a column of the answer's own."""
    names = [f"properties.{name}" if name == own else name for name in table.column_names]
    return table.rename_columns(names)


def _counts(counts: list[int]) -> tuple[pa.Field, pa.Array]:
    return pa.field(REDELIVERIES, pa.int32(), nullable=False), pa.array(counts, pa.int32())


_FORMS: Final[Mapping[str, Callable[[Fetched, Sequence[Part], bool], bytes]]] = MappingProxyType(
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
_ACKNOWLEDGE: Final = """Acknowledge events of a lease; the answer comes when that is safe (SEM H2).

    Repeat it when its answer was lost: what was acknowledged is answered as done. What has gone
    back meanwhile is refused with ``lease-ended``, and nothing of the request is done.
    """
_ACKNOWLEDGE_PATTERN: Final = """Acknowledge events of a lease over a pattern, of all channels
    together or of none (SEM H4).

    Repeat it when its answer was lost, as that of one channel.
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
        text="Give events of a lease back: they come again, counted, now or after a delay (SEM "
        "D18).",
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
        text="Have events of a lease for so much time from now on; none gets less than it had (SEM "
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
        text="Give events of a lease over a pattern back: they come again, counted, now or after a "
        "delay (SEM D18).",
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
        text="Have events of a lease over a pattern for so much time from now on; none gets less "
        "than it had (SEM D19).",
        examples=Examples({"all": True, "lease_ms": 60_000}, _SOME_OF_PATTERN),
    ),
)


def _lease_routes(
    path: str, of: str, *, actions: Sequence[_Action] = _ACTIONS, **constants: str
) -> tuple[Route, ...]:
    return tuple(
        bound(
            f"{action.verb}{of}Lease",
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


def _fetch_route(path: str, of: str) -> Route:
    return Route(
        f"fetchFrom{of}",
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
