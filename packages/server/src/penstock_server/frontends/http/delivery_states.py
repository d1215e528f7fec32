"""Routes that show who has the events of a channel's durables or of a queue (SEM D23)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa
from msgspec import Meta

from penstock_core.api.durables import DeliveryPage, DescribeDelivery
from penstock_core.bounds import EVENT_ID_MAX, GIVEN_NAME_CHARACTERS_MAX
from penstock_core.columns.events.delivery_table import table_of_runs
from penstock_core.columns.schema.ipc import stream_of
from penstock_core.vocabulary.delivery_runs import (
    EVENT_STATES,
    OUTSTANDING,
    DeliveryPlace,
    DeliveryRun,
    EventState,
)
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.frontends.http.accepting import (
    ARROW,
    JSON,
    NDJSON,
    accepted_form,
    not_accepted,
)
from penstock_server.frontends.http.app import Refusal
from penstock_server.frontends.http.routing import Call, Payload, Route
from penstock_server.frontends.http.shapes import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    Answer,
    Moment,
    Page,
    QueryParameters,
)

ROWS_MAX: Final = 500_000
"""Maximum number of rows of an Arrow answer, which takes up to 25 MB."""
PAGES_MAX: Final = 32
"""Maximum number of the realm's pages that one answer reads. Each page takes a turn of the
writer."""
IN_THREAD_ROWS: Final = 2_000
"""Longer answers are encoded in a thread, so that other clients do not wait."""
_AMONG_DEAD: Final = "dead-"
"""Prefix of cursors that continue among the dead events."""
NEXT: Final = "penstock-next"
"""Response header with the cursor of the next page, for every format."""


class DeliveryQuery(QueryParameters, frozen=True):
    durable: (
        Annotated[
            str, Meta(max_length=GIVEN_NAME_CHARACTERS_MAX, description="Name of the only durable.")
        ]
        | None
    ) = None
    state: Annotated[
        str,
        Meta(
            max_length=256,
            description="Comma-separated states: ready, in_flight, delayed, acknowledged, dead.",
        ),
    ] = ",".join(OUTSTANDING)
    limit: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=ROWS_MAX,
                description="Maximum number of rows: by default 100 and at most 1000; as an Arrow "
                "stream, by default and at most 500000.",
            ),
        ]
        | None
    ) = None
    after: Annotated[str, Meta(max_length=1_024)] = ""


class DeliveryRow(Answer, frozen=True):
    event_id: int
    durable: str
    """Name of the durable; empty for a queue, and for a dead event that no durable has missed."""
    state: Literal["ready", "in_flight", "delayed", "acknowledged", "dead"]
    client: str | None
    """The session that holds the event; null if it is not in flight."""
    since: Moment | None
    """When the event in flight was delivered, the dead event died, or another outstanding event was
    published."""
    deliveries: int | None
    """Number of counted deliveries; null if the type of the durable does not count them."""
    lease_end: Moment | None
    """When the event in flight goes back unless it is settled."""
    delayed_until: Moment | None
    """When the delayed event becomes ready."""
    cause: str | None
    """Why the dead event died: ``expired``, ``evicted``, ``redelivery_limit``, ``rejected``, …"""
    dead_event_id: int | None
    """Id of the dead event in the dead event store."""


async def show(call: Call[DeliveryQuery, None]) -> Payload[Page[DeliveryRow]]:
    """Show the delivery state of each event and durable: who has it, and since when (SEM D23).

    The answer is JSON or, with ``Accept``, NDJSON with one line per row, or an Arrow IPC stream.
    Rows are sorted by durable and event id, and dead events come last; these need the right to read
    the dead event store. In each format the header ``Penstock-Next`` has the cursor of the next
    page, to be passed as ``after``; it is missing on the last page. A page may be short or empty
    although pages follow.
    """
    accept, query = call.headers.get("accept", ""), call.query
    kind = accepted_form(accept, ENCODERS)
    if not kind:
        raise Refusal(406, not_accepted(accept, ENCODERS))
    states, limit = _states(query.state), _limit(query.limit, kind)
    runs: list[DeliveryRun] = []
    rows, place = 0, _place(query.after)
    for _ in range(PAGES_MAX):
        page = await _page(call, states, limit - rows, place=place)
        runs += page.runs
        rows += sum([run.span.size for run in page.runs])
        if page.next is None:
            return await _answer(kind, runs, rows, cursor=None)
        place = page.next
        if rows >= limit:
            break
    call.reply_headers.append((NEXT, _cursor(place)))
    return await _answer(kind, runs, rows, cursor=_cursor(place))


async def _page(
    call: Call[DeliveryQuery, None],
    states: tuple[EventState, ...],
    limit: int,
    place: DeliveryPlace,
) -> DeliveryPage:
    """Return the page of delivery states that begins at ``place``."""
    return await call.ask_here(
        DescribeDelivery,
        lambda now: DescribeDelivery(
            now.channel,
            limit,
            durable=call.query.durable,
            states=states,
            next_durable=place.durable,
            first_id=place.first_id,
            among_dead=place.is_dead,
        ),
    )


async def _answer(
    kind: str, runs: list[DeliveryRun], rows: int, cursor: str | None
) -> Payload[Page[DeliveryRow]]:
    """Encode the answer, in a thread if it has many rows."""

    def encode() -> bytes:
        return ENCODERS[kind](table_of_runs(runs), cursor)

    data = await asyncio.to_thread(encode) if rows > IN_THREAD_ROWS else encode()
    return Payload(data, kind)


def _states(text: str) -> tuple[EventState, ...]:
    """Return the states in a query. Raises ``InvalidArgument``."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in EVENT_STATES]:
        raise InvalidArgument(
            f"state {unknown[0][:80]!r} is unknown; allowed are {', '.join(EVENT_STATES)}"
        )
    return tuple(state for state in EVENT_STATES if state in names)


def _limit(limit: int | None, kind: str) -> int:
    """Return the largest number of rows. Raises ``InvalidArgument``."""
    if kind == ARROW:
        return limit or ROWS_MAX
    if limit is not None and limit > LIMIT_MAX:
        raise InvalidArgument(
            f"limit is {limit}; allowed are 1 to {LIMIT_MAX:,} rows as {kind}, and up to "
            f"{ROWS_MAX:,} rows as {ARROW}"
        )
    return limit or LIMIT_DEFAULT


def _cursor(place: DeliveryPlace) -> str:
    return f"{_AMONG_DEAD if place.is_dead else ''}{place.first_id}:{place.durable}"


def _place(cursor: str) -> DeliveryPlace:
    """Return the place at which a page begins. Raises ``InvalidArgument``."""
    if not cursor:
        return DeliveryPlace("", 0)
    place, _, durable = cursor.partition(":")
    number, is_dead = place.removeprefix(_AMONG_DEAD), place.startswith(_AMONG_DEAD)
    if number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= EVENT_ID_MAX:
        return DeliveryPlace(durable, int(number), is_dead)
    raise InvalidArgument(
        f"after={cursor[:80]!r} is not valid; pass the value of 'next' of the previous page"
    )


# --- formats of an answer -----------------------------------------------------------------


def _json(table: pa.Table, cursor: str | None) -> bytes:
    return msgspec.json.encode({"items": table.to_pylist(), "next": cursor})


def _lines(table: pa.Table, _: str | None) -> bytes:
    return msgspec.json.Encoder().encode_lines(table.to_pylist())


def _arrow(table: pa.Table, _: str | None) -> bytes:
    return bytes(stream_of(table))


ENCODERS: Final[Mapping[str, Callable[[pa.Table, str | None], bytes]]] = MappingProxyType(
    {JSON: _json, NDJSON: _lines, ARROW: _arrow}
)

ROUTES = (
    Route(
        "getDeliveryStates",
        "GET",
        "channels/{channel}/delivery",
        asks=DescribeDelivery,
        endpoint=show,
    ),
    Route(
        "getQueueDeliveryStates",
        "GET",
        "queues/{queue}/delivery",
        asks=DescribeDelivery,
        endpoint=show,
    ),
)
