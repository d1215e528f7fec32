"""Prints events as a table, JSON lines or an Arrow stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import typer

from penstock_core.columns.documents import document_of
from penstock_server.cli.shared.messages import shown
from penstock_server.cli.shared.output import (
    TextTable,
    check_redirected,
    note,
    write,
    write_arrow,
    write_json_line,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock_core.columns.events.batch import EventBatch
    from penstock_core.columns.events.event import Event, Origin
    from penstock_core.columns.protobuf import Messages

    OfChannel = Callable[[str], Messages | None]
    """Returns the decoder of a channel's Protocol Buffers messages, or None."""

Format = Literal["table", "json", "arrow"]

EventFormat = Annotated[
    Format,
    typer.Option(
        "--format",
        help="table is for people, json prints JSON lines, arrow an Arrow IPC stream at the end.",
    ),
]


class Printer(Protocol):
    """Prints batches of events."""

    def add(self, batch: EventBatch, printed: int) -> None:
        """Print the first ``printed`` events of a batch; they are written on return."""
        ...

    def close(self) -> None:
        """Print events that are still pending."""
        ...


def printer(
    style: Format, messages: Messages | None = None, *, of_channel: OfChannel | None = None
) -> Printer:
    """Return a printer for a format.

    ``messages`` decodes Protocol Buffers data. Pass ``of_channel`` instead for events of several
    channels: it returns the decoder of a channel, and each event is printed with its channel.
    Raises ``InvalidArgument`` for Arrow on a terminal.
    """
    if style == "json":
        return _Lines(messages, of_channel)
    if style == "table":
        return _Rows(messages, of_channel)
    check_redirected("events.arrow")
    return _Stream(has_channels=of_channel is not None)


def print_events(
    batches: Iterable[EventBatch],
    style: Format,
    limit: int | None = None,
    *,
    messages: Messages | None = None,
    of_channel: OfChannel | None = None,
) -> int:
    """Print arriving events, at most ``limit``, and return their number.

    The next batch is requested only after the previous one is printed.
    """
    total = 0
    with closing(printer(style, messages, of_channel=of_channel)) as out:
        for batch in batches:
            printed = len(batch) if limit is None else min(len(batch), limit - total)
            out.add(batch, printed)
            total += printed
            if total == limit:
                break
    return total


class _Rows:
    """Prints one line per event, and a new header if an event has further properties."""

    def __init__(self, messages: Messages | None, of_channel: OfChannel | None = None) -> None:
        self._messages = messages
        self._of_channel = of_channel
        self._table: TextTable | None = None
        self._names: tuple[str, ...] = ()

    def add(self, batch: EventBatch, printed: int) -> None:
        self.write(islice(batch, printed))

    def write(self, events: Iterable[Event]) -> None:
        lines = [self._line(event) for event in events]
        names = tuple(dict.fromkeys(name for fields in lines for name in fields))
        if self._table is None or not set(names) <= set(self._names):
            if self._table is not None:
                write("")
            self._names = (*self._names, *(name for name in names if name not in self._names))
            self._table = TextTable(self._names)
        self._table.write([fields.get(name) for name in self._names] for fields in lines)
        sys.stdout.flush()

    def _line(self, event: Event) -> dict[str, Any]:
        """Return the columns of an event; for several channels, the channel's name is the first
        one."""
        if self._of_channel is None:
            return _fields(event, self._messages)
        channel = _channel(event)
        fields = _fields(event, self._of_channel(channel))
        if "channel" in fields:  # a property of that name
            fields["properties.channel"] = fields.pop("channel")
        return {"channel": channel, **fields}

    def close(self) -> None:
        pass


def print_rows(events: Iterable[Event], messages: Messages | None = None) -> None:
    """Print a table of events."""
    _Rows(messages).write(events)


def _fields(event: Event, messages: Messages | None) -> dict[str, Any]:
    """Return the columns of an event in a printed table: id, time, the parts that are set,
    properties."""
    fields: dict[str, Any] = {"event_id": event.event_id, "published": event.published}
    if event.redelivery_count:
        fields["redelivered"] = event.redelivery_count
    if event.is_delta:
        fields["is_delta"] = True
    if event.tag is not None:
        fields["tag"] = event.tag
    if event.origin is not None:
        fields["came_from"] = _origin_text(event.origin)
    fields["data"] = shown(event, messages)
    for name, value in event.properties.items():
        fields[f"properties.{name}" if name in fields else name] = value
    return fields


def _channel(event: Event) -> str:
    from penstock.client.reading.received import channel_of

    return channel_of(event)


def _origin_text(origin: Origin) -> str:
    """Return store, event id, cause and reason of an origin, on one line."""
    reason = " ".join(origin.reason.split())
    suffix = f": {reason}" if reason else ""
    return f"{origin.store} {origin.event_id}, {origin.cause}{suffix}"


class _Lines:
    """Prints one JSON object per event, in the form that ``penstock publish --file`` accepts."""

    def __init__(self, messages: Messages | None, of_channel: OfChannel | None) -> None:
        self._messages = messages
        self._of_channel = of_channel

    def add(self, batch: EventBatch, printed: int) -> None:
        for event in islice(batch, printed):
            if self._of_channel is None:
                document = document_of(event, self._messages)
            else:
                channel = _channel(event)
                document = {"channel": channel, **document_of(event, self._of_channel(channel))}
            write_json_line(document)
        sys.stdout.flush()

    def close(self) -> None:
        pass


class _Stream:
    """Writes one Arrow stream of all events at the end, because a stream has a single schema."""

    def __init__(self, *, has_channels: bool = False) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._has_channels = has_channels
        self._channels: list[str] = []
        """The channel of each event."""

    def add(self, batch: EventBatch, printed: int) -> None:
        self._batches.append(batch.to_arrow().slice(0, printed))
        if self._has_channels and printed:
            self._channels += [_channel(batch[0])] * printed

    def close(self) -> None:
        table = one_table(self._batches)
        if self._has_channels:
            table = _with_channels(table, self._channels)
        write_arrow(table)


def _with_channels(table: pa.Table, channels: list[str]) -> pa.Table:
    """Return the table with the names of the channels as its first column."""
    import pyarrow as pa

    named = ["properties.channel" if name == "channel" else name for name in table.column_names]
    column = pa.array(channels, pa.string()).dictionary_encode()
    return table.rename_columns(named).add_column(0, "channel", column)


def one_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return stored batches as one table, with a schema that fits all of them."""
    from penstock_core.columns.events.lifted_columns import table_of, typed_note

    return table_of(batches, on_typed=lambda names: note(typed_note(names)))
