"""``penstock request``, which sends a request and waits for its reply, and ``penstock reply``,
which replies to requests."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from penstock_core.columns.documents import document_of
from penstock_core.vocabulary.errors import IllegalState, NameDoesNotExist
from penstock_server.cli.events.events import print_rows
from penstock_server.cli.events.publishing import (
    OF_EVENTS,
    Data,
    Priority,
    Properties,
    Tag,
    Ttl,
    data_of,
)
from penstock_server.cli.events.reading import WAIT_S, Selector, say_waiting
from penstock_server.cli.shared import completing, parsers
from penstock_server.cli.shared.output import count, note, write_json_line
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores.attributes import parsed
from penstock_server.cli.stores.destinations import find

if TYPE_CHECKING:
    from penstock.client.sync.sync import Channel, Queue
    from penstock.client.sync.sync_delivered import DeliveredEvent
    from penstock.client.sync.sync_received import ReceivedEvent

Name = Annotated[
    str,
    typer.Argument(
        help="Name of the channel or queue.", metavar="NAME", autocompletion=completing.stores
    ),
]


class Settlement(Protocol):
    """Settles a request: acknowledges it if ``done``, rolls it back otherwise."""

    def __call__(self, *, done: bool) -> None: ...


if TYPE_CHECKING:
    Requests = Generator[tuple[ReceivedEvent, Settlement] | None, None, None]
    """Yields each request with its settlement, and None after each wait without a request."""


def register(app: typer.Typer) -> None:
    app.command("request")(request)
    app.command("reply")(reply)


def request(
    name: Name,
    data: Data = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Maximum wait for the reply.", metavar="SECONDS")
    ] = 10.0,
    properties: Properties = None,
    tag: Tag = None,
    ttl: Ttl = None,
    priority: Priority = None,
    format: Annotated[
        Literal["table", "json", "data"],
        typer.Option("--format", help="Print the reply as a table, as JSON, or only its data."),
    ] = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Publish a request on a channel or queue, wait for the reply and print it.

    \b
    Examples:
      penstock request rates EUR --timeout 2
      echo '{"sku": "a"}' | penstock request stock - --format data
    """
    body = data_of(data)
    parts = parsed(
        OF_EVENTS, {"properties": properties, "tag": tag, "ttl": ttl, "priority": priority}
    )
    with session(url) as realm:
        answer = find(realm, name).request(body, timeout, **parts)
        if format == "data":
            sys.stdout.buffer.write(answer.data)
        elif format == "json":
            write_json_line(document_of(answer))
        else:
            print_rows([answer])


def reply(
    name: Name,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            help="Command to run for each request; it gets the request's data on standard input, "
            "and its output is the reply.",
            metavar="COMMAND",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Data to reply to every request.", metavar="DATA")
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option(
            help="Read the requests of a channel from this durable, so that a failed request is "
            "delivered again.",
            metavar="NAME",
            autocompletion=completing.durables,
        ),
    ] = None,
    selector: Selector = "",
    limit: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Stop after this many requests.", metavar="N"),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Stop if no request arrives for this long.", metavar="SECONDS"),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Reply to the requests on a channel or queue, until Ctrl-C.

    The command runs without a shell, with PENSTOCK_EVENT_ID and PENSTOCK_TAG in its environment.
    If it fails, no reply is sent: a request of a queue or durable is rolled back and delivered
    again.

    \b
    Examples:
      penstock reply stock --exec 'jq .count'
      penstock reply work --exec ./price.sh --durable pricing
      penstock reply health --data ok
    """
    if (command is None) == (data is None):
        raise typer.BadParameter("give either --exec or --data, which sets the reply")
    arguments = None if command is None else _arguments(command)
    constant = os.fsencode(data or "")
    replied = failed = 0
    with session(url) as realm:
        store = find(realm, name)
        say_waiting(store.name, timeout)
        for received, settle in _requests(store, durable, selector, limit=limit, timeout=timeout):
            answer = constant if arguments is None else _output_of(arguments, received)
            was_replied = answer is not None and _send_reply(received, answer)
            settle(done=answer is not None)
            replied += was_replied
            failed += answer is None
    note(f"{count(replied, 'request')} answered" + (f", {failed} failed" if failed else ""))


def _arguments(command: str) -> list[str]:
    """Return the words of the option ``--exec``. Raises ``BadParameter``."""
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"--exec {command!r}: {error}") from None
    if not arguments:
        raise typer.BadParameter("--exec is empty; give a command, such as 'jq .count'")
    return arguments


def _output_of(arguments: list[str], received: ReceivedEvent) -> bytes | None:
    """Run the command for a request and return its output; print a note and return None if it
    fails."""
    environment = {
        **os.environ,
        "PENSTOCK_EVENT_ID": str(received.event_id),
        "PENSTOCK_TAG": received.tag or "",
    }
    try:
        process = subprocess.run(
            arguments, input=received.data, stdout=subprocess.PIPE, env=environment, check=False
        )
    except OSError as error:
        raise typer.BadParameter(f"{arguments[0]} cannot be run: {error.strerror}") from None
    if process.returncode:
        note(f"request {received.event_id}: {arguments[0]} ended with status {process.returncode}")
        return None
    return process.stdout


def _send_reply(received: ReceivedEvent, answer: bytes) -> bool:
    """Send a reply and return whether its reader still waits. If not, print a note; the request
    counts as done."""
    try:
        received.reply(answer)
    except (IllegalState, NameDoesNotExist) as error:
        note(f"request {received.event_id}: {error}")
        return False
    return True


def _requests(
    store: Channel | Queue,
    durable: str | None,
    selector: str,
    limit: int | None,
    timeout: float | None,
) -> Iterator[tuple[ReceivedEvent, Settlement]]:
    """Yield each request with the function that settles it."""
    from penstock.client.sync.sync import Queue

    if durable is not None and (isinstance(store, Queue) or selector):
        raise typer.BadParameter(
            "--durable works on channels only, and without --selector: a durable has a selector"
        )
    if isinstance(store, Queue):
        requests = _requests_of_queue(store, selector)
    elif durable is not None:
        requests = _requests_of_durable(store, durable)
    else:
        requests = _requests_of_channel(store, selector)
    with closing(requests):
        yield from _limited(requests, limit, timeout)


def _limited(
    requests: Requests, limit: int | None, timeout: float | None
) -> Iterator[tuple[ReceivedEvent, Settlement]]:
    """Yield up to ``limit`` requests, until none arrives for ``timeout`` seconds."""
    total, idle_s = 0, 0.0
    while total != limit and (timeout is None or idle_s <= timeout):
        if (request := next(requests)) is None:
            idle_s += WAIT_S
            continue
        total, idle_s = total + 1, 0.0
        yield request


def _requests_of_queue(queue: Queue, selector: str) -> Requests:
    """Yield the requests on a queue, each with a function that commits it or rolls it back. Yield
    None after each ``WAIT_S`` seconds without a request."""
    # One request at a time: others can take the next ones while the command runs.
    with queue.reader(transactional=True, window=1, selector=selector) as reader:

        def settle(*, done: bool) -> None:
            (reader.commit if done else reader.rollback)()

        while True:
            events = reader.fetch(1, WAIT_S)
            yield (events[0], settle) if events else None


def _requests_of_durable(channel: Channel, name: str) -> Requests:
    """Yield the requests of a durable, each with a function that acknowledges it or rolls it back.
    Yield None after each ``WAIT_S`` seconds without a request."""
    with closing(channel.durables.get(name)) as durable:
        while True:
            events = durable.fetch(1, WAIT_S)
            if not events:
                yield None
                continue
            (event,) = events

            # The default binds this event, because the variable of the loop changes.
            def settle(*, done: bool, event: DeliveredEvent = event) -> None:
                (event.ack if done else event.rollback)()

            yield event, settle


def _requests_of_channel(channel: Channel, selector: str) -> Requests:
    """Yield the requests published on a channel from now on. Yield None after each ``WAIT_S``
    seconds without a request."""
    with channel.subscribe(start=parsers.start("latest"), selector=selector) as subscription:
        while True:
            batch = subscription.next_batch(WAIT_S)
            if batch is None:
                yield None
                continue
            for event in batch:
                # Events of a plain subscription cannot be settled: a failed request is not
                # delivered again.
                yield event, lambda done: None
