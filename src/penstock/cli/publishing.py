"""``penstock publish``: one event, or a file of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from penstock.cli import given
from penstock.cli.output import count, write
from penstock.cli.realm import DEFAULT_URL, Url, session
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.files import Opened, Piece
    from penstock.client.sync import Channel

RATED_EVENTS = 1_000
"""Fewer than these say nothing about a rate."""


def register(app: typer.Typer) -> None:
    app.command("publish")(publish)


def publish(
    name: Annotated[str, typer.Argument(help="Name of the channel.", metavar="NAME")],
    data: Annotated[
        str | None,
        typer.Argument(help="Data of the event; - reads it from standard input.", metavar="DATA"),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="Publish the events of a file: .ndjson, .csv, .parquet, .arrow; - is ndjson from "
            "standard input.",
            metavar="FILE",
        ),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "-p",
            help="A property: price=9.5, open=true, zip:string=0815. Types: string, int, float, "
            "bool, time, json, null.",
            metavar="K=V",
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="A word to tell events apart by.")] = None,
    ttl: Annotated[
        str | None, typer.Option(help="How long the event stays: 500ms, 10s, 5m, 2h, 1d.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="0 to 9.")] = None,
    persistent: Annotated[
        bool | None,
        typer.Option("--persistent/--volatile", help="On a mixed channel: survive a restart?"),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish; on return the events are safe.

    In a file a column, or a field of a JSON object, is a property, except data, tag, ttl,
    priority and persistent, which mean what they say.

    \b
    Examples:
      penstock publish orders "hello" --property price=9.5 --tag new
      penstock publish orders --file orders.parquet
    """
    parts: dict[str, Any] = {
        "properties": given.properties(properties or []) or None,
        "tag": tag,
        "ttl": None if ttl is None else given.milliseconds(ttl),
        "priority": priority,
        "persistent": persistent,
    }
    parts = {part: value for part, value in parts.items() if value is not None}
    if file is not None:
        if data is not None or parts:
            raise typer.BadParameter("--file brings whole events; leave out DATA and its options")
        _publish_file(name, file, url)
        return
    if data is None and not parts:
        raise typer.BadParameter("give DATA, a --property or a --file")
    body = sys.stdin.buffer.read() if data == "-" else (data or "").encode()
    with session(url) as realm:
        channel = realm.channels.get(name)
        event_id = channel.publish(body, **parts)
    write(f"event {event_id} published on {channel.name}")


def _publish_file(name: str, file: str, url: str) -> None:
    from penstock.cli.files import open_events

    with session(url) as realm:
        channel = realm.channels.get(name)
        opened = open_events(file)
        begun = perf_counter()
        first, last, published = _publish_pieces(channel, opened)
        took_s = perf_counter() - begun
    if not published:
        write(f"no events in {file}")
        return
    rate = f", {published / took_s:,.0f} a second" if published >= RATED_EVENTS else ""
    write(
        f"{count(published, 'event')} published on {channel.name}, ids {first} .. {last}, "
        f"in {took_s:.1f} s{rate}"
    )


def _publish_pieces(channel: Channel, opened: Opened) -> tuple[int, int, int]:
    """Each piece in one step; gives the first and last id, and how many there were."""
    first = last = -1
    published = 0
    with closing(opened.pieces), _progress(opened.total) as progress:
        try:
            for piece in opened.pieces:
                if not len(piece.events):
                    continue
                ids = _publish_piece(channel, piece)
                first, last = ids[0] if first < 0 else first, ids[-1]
                published += len(ids)
                progress.reached(piece.read)
        except PenstockError as error:
            if not published:
                raise
            raise type(error)(
                f"{error}; {count(published, 'event')} before it were published, ids "
                f"{first} .. {last}"
            ) from error
    return first, last, published


def _publish_piece(channel: Channel, piece: Piece) -> range:
    if isinstance(piece.events, list):
        return channel.publish_many(piece.events)
    return channel.publish_table(piece.events)


class _Progress(Protocol):
    def reached(self, read: int) -> None: ...


class _NoProgress:
    def reached(self, read: int) -> None:
        pass


@contextmanager
def _progress(total: int) -> Iterator[_Progress]:
    """A bar on standard error, when that is a terminal and the end is known."""
    if not total or not sys.stderr.isatty():
        yield _NoProgress()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("publishing", total=total)

        class Bar:
            def reached(self, read: int) -> None:
                bar.update(task, completed=read)

        yield Bar()
