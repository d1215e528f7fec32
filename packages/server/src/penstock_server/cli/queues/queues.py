"""``penstock queue``: create, show, edit, purge and delete queues, and push events."""

from __future__ import annotations

from typing import Any

import typer

from penstock_server.cli.events import publishing
from penstock_server.cli.queues import queue_reading
from penstock_server.cli.shared.asking import Yes
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import ListFormat, size, write_json, write_table
from penstock_server.cli.shared.realm import DEFAULT_URL, Local, Url, local_names, session
from penstock_server.cli.stores import attributes, destinations, facts, transfer
from penstock_server.cli.stores.destinations import First, Last, QueueName, Selected
from penstock_server.runtime.subscriptions.documents import channel_document

commands = command_group("Make, look at, change and remove queues; push and pop events.")


def register(app: typer.Typer) -> None:
    queue_reading.register(commands)
    app.add_typer(commands, name="queue")
    transfer.add_to(commands, "queue")


@commands.command()
@attributes.options("queue", new=True)
def create(name: QueueName, *, local: Local = None, url: Url = DEFAULT_URL, **given: Any) -> None:
    """Make a queue; each of its events goes to one reader.

    \b
    Examples:
      penstock queue create work
      penstock queue create mail --dead-event-store dead/mail --max-deliveries 5
      penstock queue create sensors --local n2
    """
    destinations.create("queue", name, given, url=url, local=local)


@commands.command("list")
def list_(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the queues of the realm.

    \b
    Example:
      penstock queue list
    """
    with session(url) as realm:
        found = destinations.infos(realm, "queue")
        local = local_names(realm, "queue") if format == "table" else []
    if format == "json":
        destinations.write_documents(found)
        return
    rows: list[tuple[Any, ...]] = [
        (
            info.name,
            attributes.type_shown(info.definition.type),
            info.events,
            info.in_flight,
            info.redelivered,
            len(info.readers),
            size(facts.bytes_of(info)),
        )
        for info in found
    ]
    rows += [(name, *(None,) * 6) for name in local]
    columns = ("queue", "type", "events", "in flight", "redelivered", "readers", "size")
    write_table(columns, rows, "no queues; make one with: penstock queue create NAME")


@commands.command()
def show(name: QueueName, format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show a queue: attributes, content, readers, what became of every event.

    \b
    Example:
      penstock queue show work
    """
    with session(url) as realm:
        info = realm.queues.get(name).info()
    if format == "json":
        write_json(channel_document(info))
    else:
        facts.show(info, [])


@commands.command()
@attributes.options("queue", new=False)
def edit(name: QueueName, *, url: Url = DEFAULT_URL, **given: Any) -> None:
    """Change attributes of a queue; they apply at once.

    Type, keys and the first id are for ever.

    \b
    Example:
      penstock queue edit work --capacity 1000 --honour-capacity
    """
    destinations.edit("queue", name, given, url=url)


@commands.command()
def delete(name: QueueName, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Remove a queue with its events.

    \b
    Example:
      penstock queue delete work --yes
    """
    destinations.delete("queue", name, yes=yes, url=url)


@commands.command()
def missing(
    name: QueueName,
    first: destinations.FirstAsked = 0,
    last: destinations.LastAsked = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Say which event ids have no event any more, and why.

    \b
    Example:
      penstock queue missing work --from 100 --to 199
    """
    destinations.missing("queue", name, first, last=last, format=format, url=url)


@commands.command()
def purge(
    name: QueueName,
    first: First = None,
    last: Last = None,
    selector: Selected = "",
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove events: all, a range, those a selector matches.

    \b
    Example:
      penstock queue purge work --from 3 --to 5 --yes
    """
    destinations.purge("queue", name, first, last=last, selector=selector, yes=yes, url=url)


@commands.command()
def maintain(name: QueueName, url: Url = DEFAULT_URL) -> None:
    """Rewrite a single-file queue without what is dead in it.

    Ids are kept, and traffic goes on. Files of so many events each need none of it.

    \b
    Example:
      penstock queue maintain work
    """
    destinations.maintain("queue", name, url)


@commands.command()
@publishing.event_options("queue")
def push(
    name: QueueName,
    data: publishing.Data = None,
    file: publishing.File = None,
    *,
    message: publishing.MessageType = None,
    url: Url = DEFAULT_URL,
    **written: Any,
) -> None:
    """Put events on a queue; on return they are safe.

    Files are read as by `penstock publish`.

    \b
    Examples:
      penstock queue push work "mow the lawn" --property minutes=30
      penstock queue push work --file work.ndjson
    """
    parts = publishing.parts_of(written)
    publishing.send("queue", name, data, file=file, parts=parts, url=url, message=message)
