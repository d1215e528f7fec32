"""``penstock queue pop``, ``peek`` and ``read``, which take events off a queue or show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_core.columns.documents import document_of
from penstock_core.vocabulary.errors import ConnectionLost
from penstock_server.cli.events.events import print_events, print_rows
from penstock_server.cli.events.reading import FETCH_EVENTS, Selector, fetched, say_waiting
from penstock_server.cli.shared import parsers
from penstock_server.cli.shared.messages import decoder_of
from penstock_server.cli.shared.output import ListFormat, count, note, write, write_json
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores.destinations import QueueName

if TYPE_CHECKING:
    from penstock.client.sync.sync import Reader
    from penstock_core.columns.events.batch import EventBatch

WINDOW = 10
"""Default window of a transactional reader, in events (SEM Q2)."""

Timeout = Annotated[
    float | None,
    typer.Option(min=0, help="Stop if no event arrives for this long.", metavar="SECONDS"),
]


def register(commands: typer.Typer) -> None:
    """Add the commands of this module to the group ``queue``."""
    for command in (pop, peek, read):
        commands.command()(command)


def pop(
    name: QueueName,
    timeout: Timeout = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Take the next event off a queue and print it.

    The event leaves the queue after it is printed.

    \b
    Example:
      penstock queue pop work --timeout 5
    """
    with session(url) as realm:
        queue = realm.queues.get(name)
        with queue.reader(transactional=True, window=1) as reader:
            say_waiting(queue.name, timeout)
            parts = _settled(reader, fetched(reader, 1, 1, timeout=timeout), "")
            printed = print_events(chain.from_iterable(parts), format, messages=decoder_of(queue))
    if not printed and format == "table":
        note(f"no event arrived on {queue.name}")


def peek(
    name: QueueName,
    limit: Annotated[
        int, typer.Option("--count", min=1, help="Maximum number of events.", metavar="N")
    ] = 10,
    selector: Selector = "",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print the first events of a queue and whether it has more; the queue does not change.

    \b
    Examples:
      penstock queue peek work --count 20
      penstock queue peek work --selector "event_id > 19"
    """
    with session(url) as realm:
        queue = realm.queues.get(name)
        events, messages = queue.peek(limit, selector=selector), decoder_of(queue)
        if format == "json":
            documents = [document_of(event, messages) for event in events]
            write_json({"events": documents, "has_more": events.has_more})
            return
        if not events:
            write(f"no such events on {queue.name}")
            return
        print_rows(events, messages)
        write("the queue has more events" if events.has_more else "no more events")


def read(
    name: QueueName,
    selector: Selector = "",
    limit: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Stop after this many events.", metavar="N"),
    ] = None,
    timeout: Timeout = None,
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional",
            help="Read one window of events at a time, and commit, roll back or reject it.",
        ),
    ] = False,
    commit: Annotated[
        bool | None,
        typer.Option(
            "--commit/--rollback",
            help="With --transactional: commit events after printing them (default), or roll all "
            "of them back at the end.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --transactional: maximum number of uncommitted events.",
            metavar="N",
        ),
    ] = None,
    reject: Annotated[
        str,
        typer.Option(
            help="With --transactional: reject printed events with this reason; they go to the "
            "dead event store.",
            metavar="REASON",
        ),
    ] = "",
    delay: Annotated[
        str,
        typer.Option(
            help="With --rollback: wait before the events are redelivered: 5s.",
            metavar="TIME",
        ),
    ] = "",
    ack_timeout: Annotated[
        str,
        typer.Option(
            "--ack-timeout",
            help="With --transactional: time after which an unsettled event goes back to the "
            "queue: 30s.",
            metavar="TIME",
        ),
    ] = "",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Take events off a queue and print them as they arrive, until Ctrl-C.

    Events leave the queue after they are printed; if the output fails, events that are not
    printed stay. --transactional reads one window at a time. With --rollback, one window is read
    and rolled back. With --ack-timeout, a reader whose output is blocked returns its events to
    the queue after that time.

    \b
    Examples:
      penstock queue read work --count 10 --format json
      penstock queue read work --transactional --rollback --window 3 --timeout 1
      penstock queue read work --transactional --count 1 --reject "no such street"
      penstock queue read work --transactional --count 1 --ack-timeout 30s
    """
    if not transactional and (commit is not None or window is not None or reject or ack_timeout):
        raise typer.BadParameter(
            "--commit, --rollback, --reject, --window and --ack-timeout need --transactional"
        )
    rolls_back = commit is False
    _check_combination(commit, reject, delay)
    delay_s = parsers.milliseconds(delay) / 1_000 if delay else None
    ack_timeout_s = parsers.milliseconds(ack_timeout) / 1_000 if ack_timeout else None
    window_size = window or (rolls_back and limit) or WINDOW
    if rolls_back:
        limit = window_size if limit is None else limit
        if limit > window_size:
            raise typer.BadParameter(
                f"--rollback holds all events it reads, so --count may not exceed the window of "
                f"{window_size}"
            )
    with session(url) as realm:
        queue = realm.queues.get(name)
        # The reader is transactional in any case: the events of a plain reader leave the queue when
        # they arrive here, so they would be lost if printing them failed.
        most = window_size if transactional else min(FETCH_EVENTS, limit or FETCH_EVENTS)
        with queue.reader(
            transactional=True, window=most, selector=selector, ack_timeout=ack_timeout_s
        ) as reader:
            say_waiting(queue.name, timeout)
            parts: Iterator[Sequence[EventBatch]] = fetched(reader, most, limit, timeout=timeout)
            if not rolls_back:
                parts = _settled(reader, parts, reject)
            printed = print_events(chain.from_iterable(parts), format, messages=decoder_of(queue))
            if rolls_back:
                reader.rollback(delay=delay_s)
                note(f"{count(printed, 'event')} rolled back")
    if not printed and format == "table":
        note("no events arrived")


def _check_combination(commit: bool | None, reject: str, delay: str) -> None:
    if reject and commit is not None:
        raise typer.BadParameter("--reject excludes --commit and --rollback; use one of them")
    if delay and commit is not False:
        raise typer.BadParameter("--delay needs --rollback")


def _settled(
    reader: Reader, parts: Iterator[Sequence[EventBatch]], reason: str
) -> Iterator[Sequence[EventBatch]]:
    """Yield ``parts``, and commit each when the caller requests the next, because the caller has
    printed it by then. With a ``reason``, reject it instead."""
    for batches in parts:
        yield batches
        try:
            if reason:
                reader.reject(reason=reason)
            else:
                reader.commit()
        # The client has reconnected already, and the realm delivers these events again.
        except ConnectionLost as error:
            note(str(error))
