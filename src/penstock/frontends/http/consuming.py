"""Routes of consumers over HTTP: fetch events for a time, and settle them (SEM H)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.api.channels import ChannelOpened
from penstock.api.consuming import (
    ExtendLease,
    Fetched,
    FetchEvents,
    LeasedEvents,
    Settled,
    SettleLease,
)
from penstock.columns.documents import document_of as line_of
from penstock.columns.events.batch import FLAT, EventBatch, flat_field
from penstock.columns.events.lifted_columns import table_of
from penstock.columns.protobuf import Messages
from penstock.core.durable.queue import READERS
from penstock.core.ids.ids import IdSet
from penstock.core.vocabulary.errors import InvalidArgument
from penstock.frontends.http.app import Refusal
from penstock.frontends.http.consuming_shapes import (
    ExtendBody,
    Fetch,
    FetchedAnswer,
    OfLease,
    RejectBody,
    RollBackBody,
    SettledAnswer,
)
from penstock.frontends.http.event_documents import document_of, messages_of
from penstock.frontends.http.finding import asked_of
from penstock.frontends.http.publishing import ARROW, IN_THREAD_BYTES, JSON, NDJSON
from penstock.frontends.http.routing import Call, Examples, Payload, Route, run_while_there
from penstock.frontends.http.shapes import NoQuery, moment

LEASE: Final = "penstock-lease"
"""The header that names the lease of a batch, in whatever form the events come."""
ENDS: Final = "penstock-lease-ends"
REDELIVERIES: Final = "redelivery_count"
_WHOLE: Final = 1 << 62


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
            now.channel, durable, body.count, body.lease_ms, body.wait_ms, body.selector
        )

    store, told = await run_while_there(asked_of(call, FetchEvents, asked))

    def give_back() -> None:
        call.realm.leases.give_back(told.lease)

    try:
        if told.lease:
            call.reply_headers += [
                (LEASE, told.lease),
                (ENDS, moment(told.ends_us).isoformat()),
            ]
        size = sum(each.to_arrow().nbytes for each in told.batches)
        form, messages = _FORMS[kind], messages_of(store)
        if size > IN_THREAD_BYTES:
            data = await asyncio.to_thread(form, told, messages)
        else:
            data = form(told, messages)
    except BaseException:
        give_back()
        raise
    return Payload(data, kind, on_unsent=give_back)


async def acknowledge(call: Call[NoQuery, OfLease]) -> SettledAnswer:
    """Acknowledge events of a lease; the answer comes when that is safe (SEM H2).

    Repeat it when its answer was lost: what was acknowledged is answered as done. What has gone
    back meanwhile is refused with ``lease-ended``, and nothing of the request is done.
    """
    return await _settle(call, lambda lease: SettleLease(*lease, "ack", _chosen(call.body)))


async def roll_back(call: Call[NoQuery, RollBackBody]) -> SettledAnswer:
    """Give events of a lease back: they come again, counted, now or after a delay (SEM D18)."""
    delay_ms = call.body.delay_ms
    return await _settle(
        call,
        lambda lease: SettleLease(*lease, "roll_back", _chosen(call.body), delay_ms=delay_ms),
    )


async def reject(call: Call[NoQuery, RejectBody]) -> SettledAnswer:
    """Reject events of a lease: they move to the dead event store, with the reason (SEM T11)."""
    reason = call.body.reason
    return await _settle(
        call, lambda lease: SettleLease(*lease, "reject", _chosen(call.body), reason=reason)
    )


async def extend(call: Call[NoQuery, ExtendBody]) -> SettledAnswer:
    """Have events of a lease for so much time from now on; none gets less than it had (SEM D19)."""
    time_ms, chosen = call.body.lease_ms, _chosen(call.body)
    name, durable = call.params["lease"], call.params.get("durable", READERS)
    return _settled(
        await call.ask_here(
            ExtendLease, lambda now: ExtendLease(now.channel, durable, name, chosen, time_ms)
        )
    )


async def _settle(
    call: Call[NoQuery, Any], request_of: Callable[[tuple[Any, str, str]], SettleLease]
) -> SettledAnswer:
    name, durable = call.params["lease"], call.params.get("durable", READERS)
    told = await call.ask_here(SettleLease, lambda now: request_of((now.channel, durable, name)))
    return _settled(told)


def _settled(told: Settled) -> SettledAnswer:
    ends = None if told.ends_us is None else moment(told.ends_us)
    return SettledAnswer(count=told.count, left=told.left, ends=ends)


def _chosen(body: OfLease) -> LeasedEvents:
    """Raises ``InvalidArgument`` where it is not clear which events are meant."""
    if (body.ids is not None) + (body.up_to is not None) + body.all != 1:
        raise InvalidArgument(
            'say which events are meant, in one way: {"ids": [1, 2]}, {"up_to": 2} or {"all": true}'
        )
    spans = None if body.ids is None else IdSet.of(sorted(set(body.ids))).spans
    return LeasedEvents(spans, body.up_to)


# --- forms of an answer -------------------------------------------------------------------


def _form(accept: str) -> str:
    """The content type of the answer: of those that the client takes the one that it likes best.
    Raises ``Refusal`` where it takes none of them."""
    best, found = 0.0, ""
    for part in accept.split(",") if accept.strip() else ("*/*",):
        name, *parameters = (each.strip() for each in part.lower().split(";"))
        kind = JSON if name in ("*/*", "application/*") else name
        weight = _weight(parameters)
        if kind in _FORMS and weight > best:
            best, found = weight, kind
    if not found:
        error = InvalidArgument(
            f"events do not come as {accept[:80]!r}; accept one of {', '.join(_FORMS)}"
        )
        raise Refusal(406, error)
    return found


def _weight(parameters: Sequence[str]) -> float:
    for each in parameters:
        if each.startswith("q="):
            try:
                return float(each[2:])
            except ValueError:
                raise InvalidArgument(f"{each[:20]!r} in Accept is not a weight") from None
    return 1.0


def _json(told: Fetched, messages: Messages | None) -> bytes:
    ends = moment(told.ends_us) if told.lease else None
    items = [document_of(each, messages, _WHOLE) for batch in told.batches for each in batch]
    lease = told.lease or None
    return msgspec.json.encode(
        FetchedAnswer(lease=lease, ends=ends, lease_ms=told.lease_ms, items=items)
    )


def _lines(told: Fetched, messages: Messages | None) -> bytes:
    lines = [line_of(each, messages) for batch in told.batches for each in batch]
    return msgspec.json.Encoder().encode_lines(lines)


def _arrow(told: Fetched, _: Messages | None) -> bytes:
    """The events as columns, as in any table, with how often each came before."""
    table = _table(told.batches) if told.batches else _EMPTY.append_column(*_counts([]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _table(batches: Sequence[EventBatch]) -> pa.Table:
    table = table_of([each.to_arrow() for each in batches])
    names = [f"properties.{name}" if name == REDELIVERIES else name for name in table.column_names]
    counts: list[int] = []
    for each in batches:
        known = each.redeliveries
        if known:
            counts += [known.get(event_id, 0) for event_id in each.event_ids.tolist()]
        else:
            counts += [0] * len(each)
    return table.rename_columns(names).append_column(*_counts(counts))


def _counts(counts: list[int]) -> tuple[pa.Field, pa.Array]:
    return pa.field(REDELIVERIES, pa.int32(), nullable=False), pa.array(counts, pa.int32())


_FORMS: Final[Mapping[str, Callable[[Fetched, Messages | None], bytes]]] = MappingProxyType(
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


def _routes(path: str, of: str) -> tuple[Route, ...]:
    """The routes of a durable, or of a queue."""
    lease = f"{path}/leases/{{lease}}"
    ids: dict[str, Any] = {"ids": [7]}
    return (
        Route(f"fetchFrom{of}", "POST", f"{path}/fetch", FetchEvents, fetch, examples=_FETCH),
        Route(
            *(f"acknowledge{of}Lease", "POST", f"{lease}/ack", SettleLease, acknowledge),
            examples=Examples({"all": True}, _ALL),
        ),
        Route(
            *(f"rollBack{of}Lease", "POST", f"{lease}/rollback", SettleLease, roll_back),
            examples=Examples({**ids, "delay_ms": 5_000}, _SOME),
        ),
        Route(
            *(f"reject{of}Lease", "POST", f"{lease}/reject", SettleLease, reject),
            examples=Examples({**ids, "reason": "no such customer"}, _SOME),
        ),
        Route(
            *(f"extend{of}Lease", "POST", f"{lease}/extend", ExtendLease, extend),
            examples=Examples({"up_to": 7, "lease_ms": 60_000}, _SOME),
        ),
    )


ROUTES = (
    *_routes("channels/{channel}/durables/{durable}", "Durable"),
    *_routes("queues/{queue}", "Queue"),
)
