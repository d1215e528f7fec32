"""``penstock queue pop``, ``peek`` and ``read``: take events off a queue, or look at them."""

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
"""Most events a transactional reader holds, unless the command says otherwise (SEM Q2)."""

Timeout = Annotated[
    float | None,
    typer.Option(min=0, help="Stop when nothing comes for so long.", metavar="SECONDS"),
]


def register(commands: typer.Typer) -> None:
    """Add them to the group ``queue``."""
    for command in (pop, peek, read):
        commands.command()(command)


def pop(
    name: QueueName,
    timeout: Timeout = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Take the next event off a queue and print it.

    It is off the queue once it is printed.

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
        note(f"no event came on {queue.name}")


def peek(
    name: QueueName,
    limit: Annotated[
        int, typer.Option("--count", min=1, help="Look at so many.", metavar="N")
    ] = 10,
    selector: Selector = "",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print the first events of a queue, and whether there are more; nothing changes.

    \b
    Examples:
      penstock queue peek work --count 20
      penstock queue peek work --selector "event_id > 19"
    """
    with session(url) as realm:
        queue = realm.queues.get(name)
        peeked, messages = queue.peek(limit, selector=selector), decoder_of(queue)
        if format == "json":
            documents = [document_of(event, messages) for event in peeked]
            write_json({"events": documents, "has_more": peeked.has_more})
            return
        if not peeked:
            write(f"no such events on {queue.name}")
            return
        print_rows(peeked, messages)
        write("there are more" if peeked.has_more else "there are no more")


def read(
    name: QueueName,
    selector: Selector = "",
    limit: Annotated[
        int | None, typer.Option("--count", min=1, help="Stop after so many events.", metavar="N")
    ] = None,
    timeout: Timeout = None,
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional",
            help="Commit a few events at a time, or roll back or reject them.",
        ),
    ] = False,
    commit: Annotated[
        bool | None,
        typer.Option(
            "--commit/--rollback",
            help="Transactional: commit what is printed (default), or give it all back at the end.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Transactional: most events not committed.", metavar="N"),
    ] = None,
    reject: Annotated[
        str,
        typer.Option(
            help="Transactional: send what is printed to the dead event store, with this reason.",
            metavar="REASON",
        ),
    ] = "",
    delay: Annotated[
        str,
        typer.Option(
            help="With --rollback: how long the events wait before they come again: 5s.",
            metavar="TIME",
        ),
    ] = "",
    ack_timeout: Annotated[
        str,
        typer.Option(
            "--ack-timeout",
            help="Transactional: how long an event may be here before it goes back: 30s.",
            metavar="TIME",
        ),
    ] = "",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Take events off a queue as they come and print them, until Ctrl-C.

    Events leave the queue once they are printed; if the output cannot be written, those that were
    on their way stay. --transactional reads a few at a time: with --rollback one window of them is
    read and given back, and with --ack-timeout a reader whose output nobody takes does not keep
    its events for ever.

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
    wait_s = parsers.milliseconds(delay) / 1_000 if delay else None
    longest_s = parsers.milliseconds(ack_timeout) / 1_000 if ack_timeout else None
    room = window or (rolls_back and limit) or WINDOW
    if rolls_back:
        limit = room if limit is None else limit
        if limit > room:
            raise typer.BadParameter(
                f"--rollback holds all it reads, so --count may not exceed the window of {room}"
            )
    with session(url) as realm:
        queue = realm.queues.get(name)
        # Also without --transactional the reader commits what is printed: a plain reader's events
        # leave the queue when they arrive here, and are lost if the output is closed then.
        most = room if transactional else min(FETCH_EVENTS, limit or FETCH_EVENTS)
        with queue.reader(
            transactional=True, window=most, selector=selector, ack_timeout=longest_s
        ) as reader:
            say_waiting(queue.name, timeout)
            parts: Iterator[Sequence[EventBatch]] = fetched(reader, most, limit, timeout=timeout)
            if not rolls_back:
                parts = _settled(reader, parts, reject)
            printed = print_events(chain.from_iterable(parts), format, messages=decoder_of(queue))
            if rolls_back:
                reader.rollback(delay=wait_s)
                note(f"{count(printed, 'event')} given back")
    if not printed and format == "table":
        note("no events came")


def _check_combination(commit: bool | None, reject: str, delay: str) -> None:
    if reject and commit is not None:
        raise typer.BadParameter("--reject takes the place of --commit and --rollback; give one")
    if delay and commit is not False:
        raise typer.BadParameter("--delay needs --rollback")


def _settled(
    reader: Reader, parts: Iterator[Sequence[EventBatch]], reason: str
) -> Iterator[Sequence[EventBatch]]:
    """Yield ``parts``, and commit what came before when the caller asks for more, since the caller
    has printed it by then; with a ``reason`` it is rejected instead."""
    for batches in parts:
        yield batches
        try:
            if reason:
                reader.reject(reason=reason)
            else:
                reader.commit()
        # a new connection exists already; what went back comes again
        except ConnectionLost as error:
            note(str(error))
