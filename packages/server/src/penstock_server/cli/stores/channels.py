"""``penstock channel``: create, show, edit, purge and delete channels."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock_server.cli.shared import completing, given
from penstock_server.cli.shared.asking import Yes
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import (
    ListFormat,
    moment,
    size,
    write,
    write_json,
    write_table,
)
from penstock_server.cli.shared.realm import DEFAULT_URL, Local, Url, local_names, session
from penstock_server.cli.stores import attributes, destinations, facts, transfer
from penstock_server.cli.stores.destinations import First, Last, Selected
from penstock_server.runtime.subscriptions.documents import channel_document

Name = Annotated[
    str,
    typer.Argument(help="Name of the channel.", metavar="NAME", autocompletion=completing.channels),
]

commands = command_group("Make, look at, change, empty and remove channels.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="channel")
    transfer.add_to(commands, "channel")


@commands.command()
@attributes.options("channel", new=True)
def create(name: Name, *, local: Local = None, url: Url = DEFAULT_URL, **wanted: Any) -> None:
    """Make a channel.

    \b
    Examples:
      penstock channel create orders --type persistent --dead-event-store dead
      penstock channel create prices --ttl 5m --capacity 10000 --key sku=1
      penstock channel create rates --engine merge --key ccy
      penstock channel create readings --local n2
    """
    destinations.create("channel", name, wanted, url=url, local=local)


@commands.command("list")
def list_(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the channels of the realm.

    \b
    Example:
      penstock channel list --format json
    """
    with session(url) as realm:
        found = destinations.infos(realm, "channel")
        local = local_names(realm, "channel") if format == "table" else []
    if format == "json":
        destinations.write_documents(found)
        return
    rows: list[tuple[Any, ...]] = [
        (
            info.name,
            attributes.type_shown(info.definition.type),
            info.events,
            info.first_event_id,
            info.last_event_id if info.last_event_id >= 0 else None,
            info.durables,
            info.subscribers,
            size(facts.bytes_of(info)),
        )
        for info in found
    ]
    rows += [(name, *(None,) * 7) for name in local]
    columns = ("channel", "type", "events", "first", "last", "durables", "subscribers", "size")
    write_table(columns, rows, "no channels; make one with: penstock channel create NAME")


@commands.command()
def show(name: Name, format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show a channel: attributes, content, what became of every event.

    \b
    Example:
      penstock channel show orders
    """
    with session(url) as realm:
        channel = realm.channels.get(name)
        info, durables = channel.info(), channel.durables.list()
    if format == "json":
        write_json(channel_document(info))
    else:
        facts.show(info, durables)


@commands.command()
def state(
    name: Name,
    key: Annotated[
        str,
        typer.Argument(
            help="Value of the publish key: EUR, 7, or with its type string:7.", metavar="KEY"
        ),
    ],
    as_of: Annotated[
        int | None, typer.Option(min=0, help="As this event left it.", metavar="ID")
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(help="Where a join from the channel has copied its events.", metavar="NAME"),
    ] = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Show the state of one key of a merge channel, now or as of an earlier event.

    \b
    Examples:
      penstock channel state rates EUR
      penstock channel state rates EUR --as-of 1041 --archive rates-history
    """
    with session(url) as realm:
        channel = realm.channels.get(name)
        found = channel.state(given.value(key), as_of=as_of, archive=archive)
    if format == "json":
        write_json(found)
        return
    write(f"event {found.event_id} of {channel.name}, published {moment(found.published)}")
    if found.found_in != channel.name:
        write(f"found in {found.found_in}")
    write_table(("property", "value"), list(found.properties.items()), "no properties")


@commands.command()
@attributes.options("channel", new=False)
def edit(name: Name, *, url: Url = DEFAULT_URL, **wanted: Any) -> None:
    """Change attributes of a channel; they apply at once.

    Type, engine, keys and the first id are for ever.

    \b
    Example:
      penstock channel edit orders --ttl 1h --capacity 0
    """
    destinations.edit("channel", name, wanted, url=url)


@commands.command()
def missing(
    name: Name,
    first: destinations.FirstAsked = 0,
    last: destinations.LastAsked = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Say which event ids have no event any more, and why.

    \b
    Example:
      penstock channel missing orders --from 100 --to 199
    """
    destinations.missing("channel", name, first, last=last, format=format, url=url)


@commands.command()
def purge(
    name: Name,
    first: First = None,
    last: Last = None,
    selector: Selected = "",
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove events: all, a range, those a selector matches.

    \b
    Examples:
      penstock channel purge orders --from 3 --to 5 --yes
      penstock channel purge orders --selector "price < 1" --yes
    """
    destinations.purge("channel", name, first, last=last, selector=selector, yes=yes, url=url)


@commands.command()
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Remove a channel with its events and its durables.

    \b
    Example:
      penstock channel delete orders --yes
    """
    destinations.delete("channel", name, yes=yes, url=url)


@commands.command()
def maintain(name: Name, url: Url = DEFAULT_URL) -> None:
    """Rewrite a single-file channel without what is dead in it.

    Ids are kept, and traffic goes on. Files of so many events each need none of it.

    \b
    Example:
      penstock channel maintain orders
    """
    destinations.maintain("channel", name, url)
