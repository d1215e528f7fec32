"""``export`` and ``import``: copy a whole channel or queue to a folder, and back (SEM C7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock_server.cli.shared import completing
from penstock_server.cli.shared.output import count, write
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session
    from penstock.client.sync.sync_channels import Channels
    from penstock.client.sync.sync_queues import Queues

Kind = Literal["channel", "queue"]

Name = Annotated[
    str,
    typer.Argument(
        help="Name of what is exported.", metavar="NAME", autocompletion=completing.stores
    ),
]
Folder = Annotated[str, typer.Argument(help="The folder; export makes it.", metavar="DIR")]
NewName = Annotated[
    str,
    typer.Argument(help="What it is called from now on; as before, if not given.", metavar="NAME"),
]


def add_to(commands: typer.Typer, kind: Kind) -> None:
    """Add ``export`` and ``import`` to the commands of a kind of store."""

    def export(
        name: Name,
        folder: Folder,
        url: Url = DEFAULT_URL,
    ) -> None:
        with session(url) as realm:
            written = _stores(realm, kind).export(name, folder)
        events = count(written.events, "event")
        write(f"{kind} {written.name} exported to {folder}: {events}")

    def import_(folder: Folder, name: NewName = "", url: Url = DEFAULT_URL) -> None:
        with session(url) as realm:
            made = _stores(realm, kind).import_from(folder, name)
            events = count(made.info().events, "event")
        write(f"{kind} {made.name} imported from {folder}: {events}")

    export.__doc__ = f"""Write a {kind} into a folder, as it stands now.

    Events and their ids, durables with what is outstanding, counters: all of it. Traffic goes
    on meanwhile. The events are Arrow files that other programs can read.

    \b
    Example:
      penstock {kind} export orders ./orders-export
    """
    import_.__doc__ = f"""Make a {kind} out of an exported folder.

    A damaged or incomplete export is refused as a whole.

    \b
    Examples:
      penstock {kind} import ./orders-export
      penstock {kind} import ./orders-export archive/orders
    """
    commands.command("export")(export)
    commands.command("import")(import_)


def _stores(realm: Session, kind: Kind) -> Channels | Queues:
    return realm.channels if kind == "channel" else realm.queues
