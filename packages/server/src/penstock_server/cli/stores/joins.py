"""``penstock join``, whose commands manage joins, which copy events of a channel (SEM L)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from penstock_core.api.joins import JoinInfo
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.confirmation import Yes, confirm
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import ListFormat, write, write_list
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
        help="The channel or queue that receives the copies.",
        metavar="DESTINATION",
        autocompletion=completing.stores,
    ),
]

commands = command_group("Copy events that are published on a channel to other channels or queues.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="join")


@commands.command()
def create(
    source: Source,
    destination: Destination,
    selector: Annotated[str, typer.Option(help="Selector; only events that match it.")] = "",
    archive: Annotated[
        bool,
        typer.Option("--archive", help="Also store duplicates; the destination must be a queue."),
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Copy events that are published on a channel from now on.

    A copy has a new event id, and carries its origin: the channel and the id there.

    \b
    Examples:
      penstock join create orders archive/orders --selector "price > 100"
      penstock join create orders audit --archive
    """
    with session(url) as realm:
        join = realm.joins.create(source, destination, selector=selector, archive=archive)
    which = "events that match" if join.selector else "all events"
    write(f"join created: {which} from {join.source} to {join.destination}, from now on")


@commands.command("list")
def list_(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the joins of the realm, and how many events they have copied since it started.

    \b
    Example:
      penstock join list
    """
    with session(url) as realm:
        infos = realm.joins.list()
    leads_out = any(info.leads_out for info in infos)
    columns: dict[str, Callable[[JoinInfo], Any]] = {
        "source": lambda join: join.source,
        "destination": lambda join: join.destination,
        "type": lambda join: "archive" if join.archive else "join",
        "copied": lambda join: join.copied,
        "dropped": lambda join: join.dropped,
        **({"waiting": _waiting} if leads_out else {}),
        "selector": lambda join: join.selector,
    }
    nothing = "no joins; create one with: penstock join create SOURCE DESTINATION"
    write_list(format, infos, columns, nothing=nothing)
    for info in infos:
        if format == "table" and info.waits_for:
            write(f"{info.source} -> {info.destination} waits: {info.waits_for}")


def _waiting(info: JoinInfo) -> str:
    """Return how many copies the cluster has not stored yet, and for how long they have waited."""
    if not info.leads_out:
        return ""
    backlog = f"{info.waiting} for {info.waiting_ms / 1_000:.0f} s" if info.waiting else "0"
    return f"{backlog}, ending" if info.ending else backlog


@commands.command()
def delete(
    source: Source, destination: Destination, yes: Yes = False, url: Url = DEFAULT_URL
) -> None:
    """Delete a join; the copies it made stay.

    \b
    Example:
      penstock join delete orders archive/orders --yes
    """
    with session(url) as realm:
        confirm(f"Delete the join from {source} to {destination}?", yes=yes)
        realm.joins.delete(source, destination)
    write(f"join from {source} to {destination} deleted")
