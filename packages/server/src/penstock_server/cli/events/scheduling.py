"""``penstock schedule``, which lists and cancels scheduled events (SEM X4)."""

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

commands = command_group("List and cancel scheduled events.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="schedule")


@commands.command("list")
def list_(name: Name, format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the events that are scheduled on a channel or queue.

    \b
    Example:
      penstock schedule list orders
    """
    with session(url) as realm:
        store = find(realm, name)
        schedule = store.scheduled.list()
        if format == "json":
            write_json([_document(scheduled) for scheduled in schedule])
            return
        rows = [
            (
                *_fields(scheduled).values(),
                scheduled.event.tag,
                scheduled.event.data,
                scheduled.event.properties,
            )
            for scheduled in schedule
        ]
    columns = (*_field_names(), "tag", "data", "properties")
    hint = (
        f"no events are scheduled on {store.name}; schedule one with: penstock publish "
        "--deliver-at TIME"
    )
    write_table(columns, rows, hint)


def _document(scheduled: Scheduled) -> dict[str, Any]:
    document = document_of(scheduled.event)
    del document["event_id"], document["published"]  # assigned when the event is published
    return _fields(scheduled) | document


def _fields(scheduled: Scheduled) -> dict[str, Any]:
    """Return the fields of a scheduled event other than the event: number and time."""
    return {name: getattr(scheduled, name) for name in _field_names()}


def _field_names() -> list[str]:
    from penstock.client.handles.schedule import Scheduled

    return [name for name in Scheduled.__struct_fields__ if name != "event"]


@commands.command()
def cancel(
    name: Name,
    number: Annotated[
        int,
        typer.Argument(
            min=0, help="Number of the event in `penstock schedule list`.", metavar="NUMBER"
        ),
    ],
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Cancel a scheduled event.

    \b
    Example:
      penstock schedule cancel orders 3 --yes
    """
    with session(url) as realm:
        store = find(realm, name)
        confirm(f"Cancel scheduled event {number} of {store.name}?", yes=yes)
        if not store.scheduled.cancel(number):
            raise IllegalState(
                f"number {number} is not scheduled on {store.name}: it was already published or "
                f"cancelled, or never existed; penstock schedule list {store.name} shows the "
                f"scheduled events"
            )
    write(f"event {number} is no longer scheduled on {store.name}")
