"""``penstock request`` and ``penstock reply``: ask and wait for the answer, and answer."""

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
    """Settles a request; ``done`` says whether it was replied to."""

    def __call__(self, *, done: bool) -> None: ...


if TYPE_CHECKING:
    Coming = Generator[tuple[ReceivedEvent, Settlement] | None, None, None]


def register(app: typer.Typer) -> None:
    app.command("request")(request)
    app.command("reply")(reply)


def request(
    name: Name,
    data: Data = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Wait so long for the reply.", metavar="SECONDS")
    ] = 10.0,
    properties: Properties = None,
    tag: Tag = None,
    ttl: Ttl = None,
    priority: Priority = None,
    format: Annotated[
        Literal["table", "json", "data"],
        typer.Option("--format", help="The reply as a table, as JSON, or its data alone."),
    ] = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Publish a request on a channel or queue, wait for its reply, and print that.

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
            help="Run this for each request: its data on standard input, what it prints is the "
            "reply.",
            metavar="COMMAND",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Reply this to every request.", metavar="DATA")
    ] = None,
    durable: Annotated[
        str | None,
        typer.Option(
            help="Take the requests of a channel from a durable: who fails gives them back.",
            metavar="NAME",
            autocompletion=completing.durables,
        ),
    ] = None,
    selector: Selector = "",
    limit: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Stop after so many requests.", metavar="N"),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Stop when nothing comes for so long.", metavar="SECONDS"),
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Reply to the requests that come on a channel or queue, until Ctrl-C.

    A command is run without a shell; it finds PENSTOCK_EVENT_ID and PENSTOCK_TAG in its
    environment. Where it fails there is no reply: a request of a queue or durable is rolled back,
    and comes again.

    \b
    Examples:
      penstock reply stock --exec 'jq .count'
      penstock reply work --exec ./price.sh --durable pricing
      penstock reply health --data ok
    """
    if (command is None) == (data is None):
        raise typer.BadParameter("give --exec or --data: one of them says what to reply")
    arguments = None if command is None else _arguments(command)
    constant = os.fsencode(data or "")
    replied = failed = 0
    with session(url) as realm:
        store = find(realm, name)
        say_waiting(store.name, timeout)
        for asked, settle in _requests(store, durable, selector, limit=limit, timeout=timeout):
            answer = constant if arguments is None else _output_of(arguments, asked)
            was_replied = answer is not None and _replied(asked, answer)
            settle(done=answer is not None)
            replied += was_replied
            failed += answer is None
    note(f"{count(replied, 'request')} replied to" + (f", {failed} failed" if failed else ""))


def _arguments(command: str) -> list[str]:
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"--exec {command!r}: {error}") from None
    if not found:
        raise typer.BadParameter("--exec is empty; give a command, such as 'jq .count'")
    return found


def _output_of(arguments: list[str], asked: ReceivedEvent) -> bytes | None:
    """What the command prints; None if it failed, which is told."""
    environment = {
        **os.environ,
        "PENSTOCK_EVENT_ID": str(asked.event_id),
        "PENSTOCK_TAG": asked.tag or "",
    }
    try:
        done = subprocess.run(
            arguments, input=asked.data, stdout=subprocess.PIPE, env=environment, check=False
        )
    except OSError as error:
        raise typer.BadParameter(f"{arguments[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        note(f"request {asked.event_id}: {arguments[0]} ended with status {done.returncode}")
        return None
    return done.stdout


def _replied(asked: ReceivedEvent, answer: bytes) -> bool:
    """Whether the reply has found somebody. If not, that is told: the request is done all the
    same."""
    try:
        asked.reply(answer)
    except (IllegalState, NameDoesNotExist) as error:
        note(f"request {asked.event_id}: {error}")
        return False
    return True


def _requests(
    store: Channel | Queue,
    durable: str | None,
    selector: str,
    limit: int | None,
    timeout: float | None,
) -> Iterator[tuple[ReceivedEvent, Settlement]]:
    """Each request, and what to call when it is done."""
    from penstock.client.sync.sync import Queue

    if durable is not None and (isinstance(store, Queue) or selector):
        raise typer.BadParameter("--durable is for channels, and has a selector of its own")
    if isinstance(store, Queue):
        coming = _of_queue(store, selector)
    elif durable is not None:
        coming = _of_durable(store, durable)
    else:
        coming = _of_channel(store, selector)
    with closing(coming):
        yield from _so_many(coming, limit, timeout)


def _so_many(
    coming: Coming, limit: int | None, timeout: float | None
) -> Iterator[tuple[ReceivedEvent, Settlement]]:
    """Up to ``limit`` of them, until none comes for ``timeout`` seconds: each None is a wait."""
    taken, idle_s = 0, 0.0
    while taken != limit and (timeout is None or idle_s <= timeout):
        if (found := next(coming)) is None:
            idle_s += WAIT_S
            continue
        taken, idle_s = taken + 1, 0.0
        yield found


def _of_queue(queue: Queue, selector: str) -> Coming:
    with queue.reader(transactional=True, window=1, selector=selector) as reader:

        def settle(*, done: bool) -> None:
            (reader.commit if done else reader.rollback)()

        while True:
            events = reader.fetch(1, WAIT_S)
            yield (events[0], settle) if events else None


def _of_durable(channel: Channel, name: str) -> Coming:
    with closing(channel.durables.get(name)) as durable:
        while True:
            events = durable.fetch(1, WAIT_S)
            if not events:
                yield None
                continue
            (event,) = events

            def settle(*, done: bool, event: DeliveredEvent = event) -> None:
                (event.ack if done else event.rollback)()

            yield event, settle


def _of_channel(channel: Channel, selector: str) -> Coming:
    with channel.subscribe(start=parsers.start("latest"), selector=selector) as reading:
        while True:
            batch = reading.next_batch(WAIT_S)
            if batch is None:
                yield None
                continue
            for event in batch:
                yield event, lambda done: None
