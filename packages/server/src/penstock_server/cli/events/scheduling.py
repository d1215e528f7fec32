"""``penstock schedule``: events that wait for their time (SEM X4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_core.columns.documents import document_of
from penstock_core.vocabulary.errors import IllegalState
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.confirmation import Yes, confirm
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import ListFormat, write, write_json, write_table
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores.destinations import find

if TYPE_CHECKING:
    from penstock.client.handles.schedule import Scheduled

Name = Annotated[
    str,
    typer.Argument(
        help="Name of the channel or queue.", metavar="NAME", autocompletion=completing.stores
    ),
]

commands = command_group("Look at events that wait for their time, and cancel them.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="schedule")


@commands.command("list")
def list_(name: Name, format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List what waits to be published on a channel or queue.

    \b
    Example:
      penstock schedule list orders
    """
    with session(url) as realm:
        found = find(realm, name)
        waiting = found.scheduled.list()
        if format == "json":
            write_json([_document(each) for each in waiting])
            return
        rows = [
            (*_own(each).values(), each.event.tag, each.event.data, each.event.properties)
            for each in waiting
        ]
    columns = (*_own_names(), "tag", "data", "properties")
    hint = f"nothing waits on {found.name}; penstock publish --deliver-at TIME lets events wait"
    write_table(columns, rows, hint)


def _document(scheduled: Scheduled) -> dict[str, Any]:
    document = document_of(scheduled.event)
    del document["event_id"], document["published"]  # it gets both when it is published
    return _own(scheduled) | document


def _own(scheduled: Scheduled) -> dict[str, Any]:
    """Its attributes besides the event: number and time."""
    return {name: getattr(scheduled, name) for name in _own_names()}


def _own_names() -> list[str]:
    from penstock.client.handles.schedule import Scheduled

    return [name for name in Scheduled.__struct_fields__ if name != "event"]


@commands.command()
def cancel(
    name: Name,
    number: Annotated[int, typer.Argument(min=0, help="Its number in the list.", metavar="NUMBER")],
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Take an event off the schedule.

    \b
    Example:
      penstock schedule cancel orders 3 --yes
    """
    with session(url) as realm:
        found = find(realm, name)
        confirm(f"Take event {number} off the schedule of {found.name}?", yes=yes)
        if not found.scheduled.cancel(number):
            raise IllegalState(
                f"number {number} is not waiting on {found.name}: it was already published or "
                f"cancelled, or never existed; penstock schedule list {found.name} shows the "
                f"waiting events"
            )
    write(f"event {number} is no longer waiting on {found.name}")
