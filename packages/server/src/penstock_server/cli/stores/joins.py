"""``penstock join``: joins, which copy what is published on a channel (SEM L)."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_core.api.joins import JoinInfo
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.asking import Yes, confirm
from penstock_server.cli.shared.grouping import CommandGroup
from penstock_server.cli.shared.output import ListFormat, write, write_json, write_table
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

Source = Annotated[
    str,
    typer.Argument(
        help="The channel whose events are copied.",
        metavar="SOURCE",
        autocompletion=completing.channels,
    ),
]
Destination = Annotated[
    str,
    typer.Argument(
        help="The channel or queue that gets the copies.",
        metavar="DESTINATION",
        autocompletion=completing.stores,
    ),
]

commands = typer.Typer(
    cls=CommandGroup,
    help="Copy what is published on a channel to other stores.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="join")


@commands.command()
def create(
    source: Source,
    destination: Destination,
    selector: Annotated[str, typer.Option(help="Only events that match.")] = "",
    archive: Annotated[
        bool, typer.Option("--archive", help="To a queue, duplicates and all.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Copy what is published on a channel from now on.

    A copy gets an id of its own, and says where it came from.

    \b
    Examples:
      penstock join create orders archive/orders --selector "price > 100"
      penstock join create orders audit --archive
    """
    with session(url) as realm:
        made = realm.joins.create(source, destination, selector=selector, archive=archive)
    which = "events that match" if made.selector else "all events"
    write(f"join created: {which} from {made.source} to {made.destination}, from now on")


@commands.command("list")
def list_(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the joins of the realm, and what they have copied since it started.

    \b
    Example:
      penstock join list
    """
    with session(url) as realm:
        infos = realm.joins.list()
    if format == "json":
        write_json(infos)
        return
    leads_out = any(info.leads_out for info in infos)
    rows = [
        (
            info.source,
            info.destination,
            "archive" if info.archive else "join",
            info.copied,
            info.dropped,
            *((_waiting(info),) if leads_out else ()),
            info.selector,
        )
        for info in infos
    ]
    waiting = ("waiting",) if leads_out else ()
    columns = ("source", "destination", "type", "copied", "dropped", *waiting, "selector")
    write_table(columns, rows, "no joins; make one with: penstock join create SOURCE DESTINATION")
    for info in infos:
        if info.waits_for:
            write(f"{info.source} -> {info.destination} waits: {info.waits_for}")


def _waiting(info: JoinInfo) -> str:
    """What has been copied and is not in the cluster yet."""
    if not info.leads_out:
        return ""
    found = f"{info.waiting} for {info.waiting_ms / 1_000:.0f} s" if info.waiting else "0"
    return f"{found}, ending" if info.ending else found


@commands.command()
def delete(
    source: Source, destination: Destination, yes: Yes = False, url: Url = DEFAULT_URL
) -> None:
    """End a join; what it copied stays.

    \b
    Example:
      penstock join delete orders archive/orders --yes
    """
    with session(url) as realm:
        confirm(f"Delete the join from {source} to {destination}?", yes=yes)
        realm.joins.delete(source, destination)
    write(f"join from {source} to {destination} deleted")
