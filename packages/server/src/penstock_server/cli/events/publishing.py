"""``penstock publish``, which publishes one event or a file of events. ``penstock queue push``
shares its functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from penstock_core.columns.documents import event_of
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.cli.shared import completing, parsers
from penstock_server.cli.shared.messages import decoder_of
from penstock_server.cli.shared.options import Command, option, with_options
from penstock_server.cli.shared.output import count, moment, write
from penstock_server.cli.shared.progress import progress
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores.attributes import Attribute, parsed

if TYPE_CHECKING:
    from penstock.client.sync.sync import Channel, Queue, Session
    from penstock_core.api.requests import Kind
    from penstock_core.columns.events.event import Event
    from penstock_server.cli.shared.files import FileEvents, OpenedFile

RATED_EVENTS = 1_000
"""Smallest number of published events for which a rate is shown; the rate of fewer events is
meaningless."""

Data = Annotated[
    str | None,
    typer.Argument(help="Data of the event; - reads it from standard input.", metavar="DATA"),
]
File = Annotated[
    str | None,
    typer.Option(
        help="Publish the events of a file: .ndjson, .csv, .parquet, .arrow; - is ndjson from "
        "standard input.",
        metavar="FILE",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-p",
        help="Property of the event: price=9.5, open=true, zip:string=0815. Types: string, int, "
        "float, bool, time, json, null.",
        metavar="K=V",
    ),
]
Tag = Annotated[
    str | None, typer.Option(help="Tag of the event, a short label that selectors can test.")
]
Ttl = Annotated[
    str | None, typer.Option(help="Time after which the event expires: 500ms, 10s, 5m, 2h, 1d.")
]
Priority = Annotated[
    int | None, typer.Option(min=0, max=9, help="Priority of the event, 0 to 9; 9 is the highest.")
]

OF_EVENTS: Final = (
    Attribute("properties", Properties, parsers.properties),
    Attribute("tag", Tag),
    Attribute("ttl", Ttl, parsers.milliseconds),
    Attribute("priority", Priority),
    Attribute(
        "persistent",
        Annotated[
            bool | None,
            typer.Option(
                "--persistent/--volatile",
                help="On a mixed channel or queue: whether the event survives a restart.",
            ),
        ],
    ),
    Attribute(
        "transient",
        Annotated[
            bool | None,
            typer.Option(
                "--transient", help="Send the event to current subscribers only; do not store it."
            ),
        ],
        only="channel",
    ),
    Attribute(
        "deliver_at",
        Annotated[
            str | None,
            typer.Option(
                help="Publish the event later: at a time (UTC), or after a wait such as +30 "
                "(seconds) or +5m.",
                metavar="TIME",
            ),
        ],
        parsers.delivery,
    ),
)
"""Options for the parts of an event other than its data."""

MessageType = Annotated[
    str | None,
    typer.Option(
        "--message",
        help="Type of Protocol Buffers message; DATA, or each line of an .ndjson file, is such a "
        "message as JSON.",
        metavar="TYPE",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("publish")(publish)


def event_options(kind: Kind) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for each part of an event to a command; the command
    receives the values in ``**written``."""
    added = [option(part.name, part.option) for part in OF_EVENTS if part.only in (None, kind)]
    return lambda command: with_options(command, added)


@event_options("channel")
def publish(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the channel.", metavar="NAME", autocompletion=completing.channels
        ),
    ],
    data: Data = None,
    file: File = None,
    *,
    message: MessageType = None,
    delta: Annotated[
        bool,
        typer.Option(
            "--delta",
            help="On a merge channel: the event has only its key and the properties to change.",
        ),
    ] = False,
    url: Url = DEFAULT_URL,
    **written: Any,
) -> None:
    """Publish events and wait until they are stored safely.

    Columns of a file, or fields of its JSON objects, become properties, except data, tag, ttl,
    priority, persistent and deliver_at, which set these parts of the event.

    \b
    Examples:
      penstock publish orders "hello" --property price=9.5 --tag new
      penstock publish orders "good morning" --deliver-at 2030-05-04T08:00
      penstock publish rates --delta -p ccy=EUR -p ask=5.0
      penstock publish orders --file orders.parquet
      penstock publish orders --message shop.Order '{"sku": "a", "count": 2}'
    """
    send(
        "channel",
        name,
        data,
        file=file,
        parts=parsed(OF_EVENTS, written),
        url=url,
        message=message,
        delta=delta,
    )


def send(
    kind: Kind,
    name: str,
    data: str | None,
    file: str | None,
    parts: dict[str, Any],
    url: str,
    *,
    message: str | None = None,
    delta: bool = False,
) -> None:
    """Publish an event or a file on a channel, or push it to a queue."""
    if message is not None and delta:
        raise typer.BadParameter(
            "--delta changes properties and a message is data; give one of them"
        )
    if file is not None:
        if data is not None or parts:
            raise typer.BadParameter("--file contains whole events; leave out DATA and its options")
        _publish_file(kind, name, file, url=url, message=message, delta=delta)
        return
    if data is None and (message is not None or not parts):
        choices = "the message as DATA" if message is not None else "DATA, a --property"
        raise typer.BadParameter(f"give {choices} or a --file")
    body = data_of(data)
    with session(url) as realm:
        target = _target(realm, kind, name, delta=delta)
        if message is None:
            event_id = target.one(body, **parts)
        else:
            event_id = target.many([target.store.messages().event(message, body, **parts)])[0]
    deliver_at: datetime | None = parts.get("deliver_at")
    if deliver_at is None:
        write(f"event {event_id} {target.done} {target.store.name}")
    else:
        write(f"event scheduled on {target.store.name} for {moment(deliver_at)}, number {event_id}")


def data_of(written: str | None) -> bytes:
    """Return the bytes of a DATA argument; ``-`` reads them from standard input."""
    # A shell passes bytes, not characters: fsencode also restores bytes that are not UTF-8.
    return sys.stdin.buffer.read() if written == "-" else os.fsencode(written or "")


class Target(NamedTuple):
    """The store to publish to, with the methods that do so."""

    store: Channel | Queue
    one: Callable[..., int]
    many: Callable[[Sequence[Event]], range]
    table: Callable[[Any], range]
    done: str
    """Words between the number of events and the name of the store, as in ``published on``."""


def _target(realm: Session, kind: Kind, name: str, *, delta: bool = False) -> Target:
    """Return the functions that publish on a channel, or deltas on a merge channel, or on a
    queue."""
    if kind == "queue":
        queue = realm.queues.get(name)
        return Target(queue, queue.push, queue.push_many, table=queue.push_table, done="pushed to")
    channel = realm.channels.get(name)
    if delta:
        return _deltas_to(channel)
    return Target(
        channel,
        channel.publish,
        channel.publish_many,
        table=channel.publish_table,
        done="published on",
    )


def _deltas_to(channel: Channel) -> Target:
    """Return a target that publishes deltas to a channel."""
    from penstock_core.columns.events.event import Event

    def one(data: bytes, **parts: Any) -> int:
        return channel.publish_many([Event(data, is_delta=True, **parts)])[0]

    def many(events: Sequence[Event]) -> range:
        """Publish the events as deltas. Return their ids."""
        return channel.publish_many(
            [
                Event(
                    event.data,
                    tag=event.tag,
                    properties=event.properties,
                    headers=event.headers,
                    ttl=event.ttl,
                    deliver_at=event.deliver_at,
                    is_delta=True,
                )
                for event in events
            ]
        )

    def table(rows: Any) -> range:
        return channel.publish_table(rows, delta=True)

    return Target(channel, one, many, table=table, done="published on")


# --- files --------------------------------------------------------------------------------


def _publish_file(
    kind: Kind, name: str, file: str, url: str, *, message: str | None, delta: bool
) -> None:
    from penstock_server.cli.shared.files import LINES, open_events

    if message is not None and file != "-" and not file.lower().endswith(LINES):
        raise typer.BadParameter(
            f"{file} cannot be read with --message; give a file that ends in {' or '.join(LINES)}, "
            f"or - for standard input"
        )
    with session(url) as realm:
        target = _target(realm, kind, name, delta=delta)
        if message is None:
            parse = partial(event_of, messages=decoder_of(target.store))
        else:
            parse = partial(target.store.messages().event, message)
        opened = open_events(file, parse)
        start = perf_counter()
        first, last, published, is_scheduled = _publish_pieces(target, opened)
        took_s = perf_counter() - start
    if not published:
        write(f"no events in {file}")
        return
    rate = f", {published / took_s:,.0f} a second" if published >= RATED_EVENTS else ""
    done, noun = ("scheduled on", "numbers") if is_scheduled else (target.done, "ids")
    write(
        f"{count(published, 'event')} {done} {target.store.name}, {noun} {first} .. {last}, "
        f"in {took_s:.1f} s{rate}"
    )


def _publish_pieces(target: Target, opened: OpenedFile) -> tuple[int, int, int, bool]:
    """Publish each piece in one request; return the first and last id, the number of events, and
    whether they are scheduled."""
    first = last = -1
    published, is_scheduled = 0, False
    with closing(opened.pieces), progress("publishing", opened.total) as display:
        try:
            for piece in opened.pieces:
                if not len(piece.events):
                    continue
                ids = _publish_piece(target, piece)
                first, last = ids[0] if first < 0 else first, ids[-1]
                published += len(ids)
                is_scheduled = is_scheduled or _is_scheduled(piece)
                display.show(piece.read)
        except PenstockError as error:
            if not published:
                raise
            # An error of the same type keeps its code.
            raise type(error)(
                f"{error}; {count(published, 'event')} before it were published, ids "
                f"{first} .. {last}"
            ) from error
    return first, last, published, is_scheduled


def _publish_piece(target: Target, piece: FileEvents) -> range:
    if isinstance(piece.events, list):
        return target.many(piece.events)
    return target.table(piece.events)


def _is_scheduled(piece: FileEvents) -> bool:
    """Return whether the events of a piece are scheduled. The realm refuses pieces in which only
    some are."""
    if isinstance(piece.events, list):
        return piece.events[0].deliver_at is not None
    columns = piece.events.schema.names
    return "deliver_at" in columns and not piece.events.column("deliver_at").null_count
