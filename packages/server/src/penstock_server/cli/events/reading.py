"""``penstock subscribe`` and ``penstock browse``, which print the events of a channel."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from penstock_core.vocabulary.errors import ConnectionLost, IllegalState
from penstock_server.cli.events.events import EventFormat, Format, Printer, print_events, printer
from penstock_server.cli.events.patterns import FetchedInTurn, MessagesOfChannels, means_several
from penstock_server.cli.shared import completing, parsers
from penstock_server.cli.shared.messages import decoder_of
from penstock_server.cli.shared.output import note, write
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock.client.reading.start_positions import StartLike
    from penstock.client.sync.sync import Session
    from penstock.client.sync.sync_delivered import DeliveredBatch
    from penstock_core.columns.events.batch import EventBatch

FETCH_EVENTS = 1_000
"""Maximum number of unacknowledged events of a durable; after a crash they are redelivered."""
ROLLED_BACK = 10
"""Default number of events that ``--rollback`` reads."""
WAIT_S = 0.1
"""Seconds of a single wait. Short, because Ctrl-C may take effect only when a wait ends."""

Name = Annotated[
    str,
    typer.Argument(help="Name of the channel.", metavar="NAME", autocompletion=completing.channels),
]
NameOrPattern = Annotated[
    str,
    typer.Argument(
        help="Name of the channel, a pattern, or several names and patterns separated by commas.",
        metavar="NAME",
        autocompletion=completing.channels,
    ),
]
Selector = Annotated[
    str,
    typer.Option(help="Selector; only events that match it, e.g. \"price > 5 AND sku LIKE 'a%'\"."),
]
Count = Annotated[
    int | None, typer.Option("--count", min=1, help="Stop after this many events.", metavar="N")
]


Archive = Annotated[
    str | None,
    typer.Option(
        help="Table with events that have left the channel, instead of the channel's archive; "
        "'' for none.",
        metavar="URI",
    ),
]


BatchT = TypeVar("BatchT", bound="EventBatch", covariant=True)


class _BatchSource(Protocol[BatchT]):
    """A source of batches of events."""

    def next_batch(self, timeout: float | None = None) -> BatchT | None:
        """Return the next batch; None if none arrives in time."""
        ...


def register(app: typer.Typer) -> None:
    app.command("subscribe")(subscribe)
    app.command("browse")(browse)


def subscribe(
    name: NameOrPattern,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start position: earliest, latest, an event id, or a time (UTC). [default: "
            "latest]",
            metavar="START",
        ),
    ] = None,
    selector: Selector = "",
    limit: Count = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Stop if no event arrives for this long.", metavar="SECONDS"),
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option(
            help="Consume from this durable; printed events are acknowledged, unless --rollback or "
            "--reject is used.",
            metavar="NAME",
            autocompletion=completing.durables,
        ),
    ] = None,
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback",
            help="With --durable: roll back all printed events at the end; reads 10 events unless "
            "--count is set.",
        ),
    ] = False,
    delay: Annotated[
        str,
        typer.Option(
            help="With --rollback: wait before the events are redelivered: 5s.",
            metavar="TIME",
        ),
    ] = "",
    reject: Annotated[
        str,
        typer.Option(
            help="With --durable: reject printed events with this reason; they go to the dead "
            "event store.",
            metavar="REASON",
        ),
    ] = "",
    merged: Annotated[
        bool,
        typer.Option("--merged", help="On a merge channel: print whole events instead of deltas."),
    ] = False,
    archive: Archive = None,
    format: EventFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print events as they arrive, until Ctrl-C. If the channel has an archive, events that have
    left the channel are read from it.

    A pattern reads all matching channels; channels created during the command are read from their
    first event. In a pattern, * matches any part of a name up to the next /, ** any part including
    /, and ? one character.

    \b
    Examples:
      penstock subscribe orders --from earliest --selector "price > 5"
      penstock subscribe orders --from 2026-05-04T12:00 --count 10 --format json
      penstock subscribe orders --durable billing --timeout 1
      penstock subscribe rates --from earliest --merged
      penstock subscribe "orders/*" --format json
      penstock subscribe "orders/*" --durable billing
      penstock subscribe orders --durable billing --count 1 --reject "unknown"
      penstock subscribe orders --durable billing --count 1 --rollback --delay 5m
    """
    if durable is not None:
        _check_for_durable(start, selector, archive, format=format, merged=merged)
    settling = _settling(durable, reject, delay, rolls_back=rollback)
    if rollback:
        limit = _rollback_limit(limit)
    begin = parsers.start(start or "latest")
    with session(url) as realm:
        if means_several(realm, name):
            if archive is not None:
                raise typer.BadParameter("a pattern does not read archives; leave out --archive")
            printed = _subscribe_all(
                realm,
                name,
                begin,
                selector=selector,
                limit=limit,
                timeout=timeout,
                durable=durable,
                merged=merged,
                format=format,
                settling=settling,
            )
            if not printed and format == "table":
                note("no events arrived")
            return
        channel = realm.channels.get(name)
        if durable is not None:
            out = printer(format, decoder_of(channel))
            printed = _consume(
                channel.durables.get(durable), out, limit, timeout=timeout, settling=settling
            )
        else:
            subscription = channel.subscribe(
                start=begin, selector=selector, merged=merged, archive=archive
            )
            with subscription as reading:
                say_waiting(channel.name, timeout)
                batches, messages = _live(reading, timeout), decoder_of(channel)
                printed = print_events(batches, format, limit, messages=messages)
    if not printed and format == "table":
        note("no events arrived")


def _check_for_durable(
    start: str | None, selector: str, archive: str | None, format: EventFormat, *, merged: bool
) -> None:
    """Raise ``BadParameter`` if an option is set that a durable excludes."""
    if start is not None or selector:
        raise typer.BadParameter(
            "a durable has its own start and selector: set --from and --selector with penstock "
            "durable create"
        )
    if archive is not None:
        raise typer.BadParameter("a durable reads from the channel only; leave out --archive")
    if merged:
        raise typer.BadParameter("a durable always delivers whole events; leave out --merged")
    if format == "arrow":
        raise typer.BadParameter(
            "an Arrow stream is written only at the end, but events of a durable are acknowledged "
            "one by one; use --format json"
        )


def _rollback_limit(limit: int | None) -> int:
    """Return how many events ``--rollback`` reads. Raises ``BadParameter`` for too many."""
    if limit is None:
        return ROLLED_BACK
    if limit > FETCH_EVENTS:
        raise typer.BadParameter(
            f"--rollback holds all events it prints, so --count may not exceed {FETCH_EVENTS}"
        )
    return limit


def _subscribe_all(
    realm: Session,
    pattern: str,
    begin: StartLike,
    selector: str,
    limit: int | None,
    timeout: float | None,
    durable: str | None,
    merged: bool,
    format: Format,
    settling: _Settling,
) -> int:
    """Print the events of all channels of a pattern, each with its channel, and return their
    number."""
    decoders = MessagesOfChannels(realm)
    if durable is not None:
        seats = FetchedInTurn(realm, pattern, durable)
        say_waiting(pattern, timeout)
        return _consume(
            seats, printer(format, of_channel=decoders), limit, timeout=timeout, settling=settling
        )
    reading = realm.subscribe(pattern, start=begin, selector=selector, merged=merged)
    with reading:
        say_waiting(pattern, timeout)
        return print_events(_live(reading, timeout), format, limit, of_channel=decoders)


def say_waiting(name: str, timeout: float | None) -> None:
    """Print at a terminal that the command waits without a limit."""
    if timeout is None and sys.stderr.isatty():
        note(f"waiting for events on {name}; Ctrl-C ends")


def _live(reading: _BatchSource[BatchT], timeout: float | None) -> Iterator[BatchT]:
    """Yield batches until none arrives for ``timeout`` seconds."""
    idle_s = 0.0
    while timeout is None or idle_s <= timeout:
        batch = reading.next_batch(WAIT_S)
        if batch is None:
            idle_s += WAIT_S
        else:
            idle_s = 0.0
            yield batch


class _Fetching(Protocol[BatchT]):
    """A source that returns up to a number of events; empty if none arrive in time."""

    def fetch_batches(self, count: int, timeout: float, /) -> Sequence[BatchT]: ...


class _FetchingDurable(_Fetching[BatchT], Protocol[BatchT]):
    """A durable, or durables of one name on several channels."""

    def close(self) -> None: ...


def fetched(
    source: _Fetching[BatchT], most: int, limit: int | None, timeout: float | None
) -> Iterator[Sequence[BatchT]]:
    """Yield up to ``limit`` events, at most ``most`` at a time, until none arrive for ``timeout``
    seconds. A wait without events yields an empty sequence."""
    total, idle_s = 0, 0.0
    while total != limit and (timeout is None or idle_s <= timeout):
        # Never more than the limit, because fetched events are withheld from the durable's other
        # clients.
        batches = source.fetch_batches(most if limit is None else min(most, limit - total), WAIT_S)
        idle_s = 0.0 if batches else idle_s + WAIT_S
        total += sum(map(len, batches))
        yield batches


def _consume(
    durable: _FetchingDurable[DeliveredBatch],
    out: Printer,
    limit: int | None,
    timeout: float | None,
    settling: _Settling,
) -> int:
    """Print events and then settle them, so that a crash in between causes redelivery, not loss."""
    printed = 0
    with closing(durable), closing(out):
        for batches in fetched(durable, FETCH_EVENTS, limit, timeout=timeout):
            for batch in batches:
                out.add(batch, len(batch))
                settling.settle(batch)
                printed += len(batch)
        settling.roll_back()
    return printed


class _Unsettled(Protocol):
    """An event of a durable, or a batch of events, that can be settled."""

    def ack(self) -> None: ...
    def rollback(self, *, delay: float | None = None) -> None: ...
    def reject(self, reason: str) -> None: ...


class _Settling:
    """Settles the events of a durable after they are printed: acknowledges, rejects or rolls them
    back."""

    def __init__(self, reason: str, delay_s: float | None, *, rolls_back: bool) -> None:
        self._reason = reason
        self._delay_s = delay_s
        self._rolls_back = rolls_back
        self._held: list[_Unsettled] = []
        """Events to roll back at the end. If they were rolled back earlier, they would be delivered
        again while this command reads."""

    def settle(self, printed: _Unsettled) -> None:
        if self._rolls_back:
            self._held.append(printed)
        elif self._reason:
            printed.reject(self._reason)
        else:
            try:
                printed.ack()
            except (IllegalState, ConnectionLost) as error:
                # The durable delivers these events again.
                note(f"not acknowledged: {error}")

    def roll_back(self) -> None:
        for printed in self._held:
            printed.rollback(delay=self._delay_s)


def _settling(durable: str | None, reason: str, delay: str, *, rolls_back: bool) -> _Settling:
    """Return the object that settles printed events as the options say. Raises ``BadParameter`` for
    options that exclude or need others."""
    if durable is None and (rolls_back or reason):
        raise typer.BadParameter("--rollback and --reject need --durable")
    if rolls_back and reason:
        raise typer.BadParameter("--reject excludes --rollback; use one of them")
    if delay and not rolls_back:
        raise typer.BadParameter("--delay needs --rollback")
    delay_s = parsers.milliseconds(delay) / 1_000 if delay else None
    return _Settling(reason, delay_s, rolls_back=rolls_back)


def browse(
    name: Name,
    first: Annotated[
        int, typer.Option("--from", min=0, help="Id of the first event.", metavar="ID")
    ] = 0,
    last: Annotated[
        int | None, typer.Option("--to", help="Id of the last event.", metavar="ID")
    ] = None,
    selector: Selector = "",
    limit: Count = None,
    archived: Annotated[
        bool,
        typer.Option(
            "--archived", help="Include events that have left the channel, from its archive."
        ),
    ] = False,
    archive: Archive = None,
    format: EventFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print the events that are stored now.

    \b
    Examples:
      penstock browse orders --from 100 --to 199
      penstock browse orders --archived --selector "price > 5"
      penstock browse orders --selector "price > 5" --format arrow > orders.arrow
    """
    with session(url) as realm:
        channel = realm.channels.get(name)
        source = archive if archived or archive is not None else ""
        with channel.browse(start=first, end=last, selector=selector, archive=source) as reading:
            messages = decoder_of(channel)
            printed = print_events(reading.batches(), format, limit, messages=messages)
    if not printed and format == "table":
        write(f"no such events on {channel.name}")
