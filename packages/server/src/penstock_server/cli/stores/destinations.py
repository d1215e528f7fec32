"""The commands that channels and queues share, and functions that find channels and queues.

Each command function takes the kind as its first parameter; `add_to` adds it to the group of that
kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_core.api.requests import Kind
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.confirmation import Yes, confirm
from penstock_server.cli.shared.output import (
    ListFormat,
    count,
    note,
    size,
    write,
    write_json,
    write_table,
)
from penstock_server.cli.shared.realm import (
    DEFAULT_URL,
    Local,
    Url,
    local_names,
    session,
    session_at,
)
from penstock_server.cli.stores import attributes, facts
from penstock_server.runtime.subscriptions.documents import channel_document

if TYPE_CHECKING:
    from penstock.client.sync.sync import Channel, Channels, Queue, Queues, Session
    from penstock_core.api.channels import ChannelInfo, Missing

First = Annotated[
    int | None, typer.Option("--from", help="Id of the first event to remove.", metavar="ID")
]
Last = Annotated[
    int | None, typer.Option("--to", help="Id of the last event to remove.", metavar="ID")
]
RANGES_SHOWN = 10
"""Maximum number of id ranges in a row of ``missing``."""

ChannelName = Annotated[
    str,
    typer.Argument(help="Name of the channel.", metavar="NAME", autocompletion=completing.channels),
]
QueueName = Annotated[
    str, typer.Argument(help="Name of the queue.", metavar="NAME", autocompletion=completing.queues)
]
NAMES: Final[dict[Kind, Any]] = {"channel": ChannelName, "queue": QueueName}
EXAMPLES: Final[dict[Kind, str]] = {"channel": "orders", "queue": "work"}
"""Example names in the help of commands."""
Exported = Annotated[
    str,
    typer.Argument(
        help="Name of the channel or queue.", metavar="NAME", autocompletion=completing.stores
    ),
]
Folder = Annotated[
    str, typer.Argument(help="Folder of the export; export creates it.", metavar="DIR")
]
NewName = Annotated[
    str,
    typer.Argument(help="New name; without one the exported name is kept.", metavar="NAME"),
]
Selected = Annotated[str, typer.Option(help="Selector; only events that match it.")]


def stores(realm: Session, kind: Kind) -> Channels | Queues:
    """Return the session's channels or queues."""
    return realm.channels if kind == "channel" else realm.queues


def find(realm: Session, name: str) -> Channel | Queue:
    """Return the channel or queue with this name. Raises ``NameDoesNotExist``."""
    try:
        return realm.channels.get(name)
    except NameDoesNotExist:
        pass
    try:
        return realm.queues.get(name)
    except NameDoesNotExist:
        raise NameDoesNotExist(
            f"no channel or queue {name} exists; penstock channel list and penstock queue list "
            "show the existing names"
        ) from None


def infos(realm: Session, kind: Kind) -> list[ChannelInfo]:
    """Return the descriptions of all stores of a kind, sorted by name."""
    collection = stores(realm, kind)
    return [info for name in collection.list() if (info := _info(collection, name)) is not None]


def _info(collection: Channels | Queues, name: str) -> ChannelInfo | None:
    """Return the description of a channel or queue; None if it was deleted meanwhile."""
    try:
        return collection.get(name).info()
    except NameDoesNotExist:  # deleted after it was listed
        return None


# --- commands -----------------------------------------------------------------------------


def add_to(commands: typer.Typer, kind: Kind, helps: Mapping[str, str | None]) -> None:
    """Add the named commands for stores of a kind to a group, in this order, with their help.

    If the help is None, it is the docstring of the command, which then fits both kinds.
    """
    for name, help in helps.items():
        command = COMMANDS[name]
        text = (help or inspect.getdoc(command) or "").format(kind=kind, example=EXAMPLES[kind])
        commands.command(name, help=text)(_of_kind(command, kind))


def _of_kind(command: Callable[..., None], kind: Kind) -> Callable[..., None]:
    """Return the command for one kind of store, with options for the attributes of that kind."""

    def run(**arguments: Any) -> None:
        command(kind, **arguments)

    signature = inspect.signature(command, eval_str=True)
    parameters = [
        parameter.replace(annotation=NAMES[kind]) if parameter.annotation is str else parameter
        for parameter in signature.parameters.values()
        if parameter.name != "kind"
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # as in with_options
    if command in (create, edit):
        return attributes.options(kind, new=command is create)(run)
    return run


def create(
    kind: Kind, name: str, *, local: Local = None, url: Url = DEFAULT_URL, **written: Any
) -> None:
    """Create a store with the attributes that are set; with ``local`` on that cluster node only."""
    values = attributes.chosen(written)
    with session_at(url, local) as realm:
        store = stores(realm, kind).create(name, **values)
        definition = store.info().definition
    shown = attributes.type_shown(definition.type)
    where = f" @{local}" if local else ""
    if store.name != name:
        note(
            f"{name!r} is read as {store.name!r}: '//', '::' and '\\' stand for '/', and a '/' at "
            "either end is dropped"
        )
    write(f"{kind} {store.name}{where} created: {shown}, {facts.lifetime(definition)}")


_COLUMNS: Final[dict[Kind, dict[str, Callable[[ChannelInfo], Any]]]] = {
    "channel": {
        "channel": lambda info: info.name,
        "type": lambda info: attributes.type_shown(info.definition.type),
        "events": lambda info: info.events,
        "first": lambda info: info.first_event_id,
        "last": lambda info: info.last_event_id if info.last_event_id >= 0 else None,
        "durables": lambda info: info.durables,
        "subscribers": lambda info: info.subscribers,
        "size": lambda info: size(facts.bytes_of(info)),
    },
    "queue": {
        "queue": lambda info: info.name,
        "type": lambda info: attributes.type_shown(info.definition.type),
        "events": lambda info: info.events,
        "in flight": lambda info: info.in_flight,
        "redelivered": lambda info: info.redelivered,
        "readers": lambda info: len(info.readers),
        "size": lambda info: size(facts.bytes_of(info)),
    },
}


def list_(kind: Kind, format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the stores of a kind, including the local stores of cluster nodes."""
    with session(url) as realm:
        descriptions = infos(realm, kind)
        local = local_names(realm, kind) if format == "table" else []
    if format == "json":
        write_json([channel_document(info) for info in descriptions])
        return
    columns = _COLUMNS[kind]
    rows = [[value_of(info) for value_of in columns.values()] for info in descriptions]
    rows += [[name, *[None] * (len(columns) - 1)] for name in local]
    write_table(tuple(columns), rows, f"no {kind}s; create one with: penstock {kind} create NAME")


def show(kind: Kind, name: str, format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show attributes, content, consumers, and the counts of all events by outcome."""
    with session(url) as realm:
        info = stores(realm, kind).get(name).info()
        durables = realm.channels.get(name).durables.list() if kind == "channel" else []
    if format == "json":
        write_json(channel_document(info))
    else:
        facts.show(info, durables)


def edit(kind: Kind, name: str, *, url: Url = DEFAULT_URL, **written: Any) -> None:
    """Edit the attributes that are set on the command line; the others do not change."""
    values = attributes.chosen(written)
    if not values:
        raise typer.BadParameter("name at least one attribute to change, e.g. --ttl 1h")
    with session(url) as realm:
        store = stores(realm, kind).get(name)
        store.edit(**values)
    write(f"{kind} {store.name} changed")


def purge(
    kind: Kind,
    name: str,
    first: First = None,
    last: Last = None,
    selector: Selected = "",
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove events, after confirmation."""
    with session(url) as realm:
        store = stores(realm, kind).get(name)
        which = chosen_events(first, last, selector)
        stored = count(store.info().events, "event")
        confirm(f"Remove {which or 'all'} of the {stored} of {store.name}?", yes=yes)
        removed = store.purge(start=first, end=last, selector=selector)
    write(f"{kind} {store.name}: {count(removed, 'event')} purged")


def chosen_events(first: int | None, last: int | None, selector: str) -> str:
    """Return the selection of events to purge as text; empty if it is all events."""
    begin, end = "the first" if first is None else first, "the newest" if last is None else last
    span = "" if first is None and last is None else f"ids {begin} to {end}"
    match = f"those that match {selector!r}" if selector else ""
    return ", ".join(filter(None, (span, match)))


def delete(kind: Kind, name: str, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Delete a store with its events, after confirmation."""
    with session(url) as realm:
        store = stores(realm, kind).get(name)
        confirm(f"Delete {store.name} with {count(store.info().events, 'event')}?", yes=yes)
        stores(realm, kind).delete(name)
    write(f"{kind} {store.name} deleted")


def maintain(kind: Kind, name: str, url: Url = DEFAULT_URL) -> None:
    """Rewrite the file of a single-file {kind} to free the space of removed events.

    Event ids do not change, and clients may continue to use the {kind}. A {kind} with a fixed
    number of events per file does not need this.

    \b
    Example:
      penstock {kind} maintain {example}
    """
    with session(url) as realm:
        store = stores(realm, kind).get(name)
        result = store.maintain()
    if result.reason:
        write(f"{kind} {store.name}: nothing to do; {result.reason}")
        return
    write(
        f"{kind} {store.name} rewritten: {size(result.bytes_before)} are "
        f"{size(result.bytes_after)} now, {count(result.events, 'event')}"
    )


def missing(
    kind: Kind,
    name: str,
    first: Annotated[
        int, typer.Option("--from", help="First id to list.", metavar="ID", min=0)
    ] = 0,
    last: Annotated[
        int | None, typer.Option("--to", help="Last id to list.", metavar="ID", min=0)
    ] = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """List the event ids whose events are no longer stored, with the reason.

    \b
    Example:
      penstock {kind} missing {example} --from 100 --to 199
    """
    with session(url) as realm:
        store = stores(realm, kind).get(name)
        end = store.info().last_event_id + 1 if last is None else last + 1
        groups = store.missing(first, end) if end > first else ()
    if format == "json":
        write_json(
            [
                {
                    "cause": group.cause,
                    "ids": group.events,
                    "which": [[*span] for span in group.spans],
                }
                for group in groups
            ]
        )
        return
    rows = [(group.cause, group.events, _ranges(group)) for group in groups]
    write_table(("cause", "ids", "which"), rows, f"{kind} {name}: every id has its event")


def _ranges(group: Missing) -> str:
    """Return the first ranges of ids as text."""
    shown = [
        f"{span.first}-{span.end - 1}" if span.size > 1 else str(span.first)
        for span in group.spans[:RANGES_SHOWN]
    ]
    return ", ".join(shown) + (", …" if len(group.spans) > RANGES_SHOWN else "")


def export(kind: Kind, name: Exported, folder: Folder, url: Url = DEFAULT_URL) -> None:
    """Write the current content of a {kind} to a folder.

    The export has all events with their ids, all durables with their outstanding events, and the
    counters. Clients may use the {kind} during the export. The events are Arrow files that other
    programs can read.

    \b
    Example:
      penstock {kind} export orders ./orders-export
    """
    with session(url) as realm:
        exported = stores(realm, kind).export(name, folder)
    write(f"{kind} {exported.name} exported to {folder}: {count(exported.events, 'event')}")


def import_(kind: Kind, folder: Folder, name: NewName = "", url: Url = DEFAULT_URL) -> None:
    """Create a {kind} from an exported folder.

    A damaged or incomplete export is refused as a whole.

    \b
    Examples:
      penstock {kind} import ./orders-export
      penstock {kind} import ./orders-export archive/orders
    """
    with session(url) as realm:
        store = stores(realm, kind).import_from(folder, name)
        events = count(store.info().events, "event")
    write(f"{kind} {store.name} imported from {folder}: {events}")


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "create": create,
    "list": list_,
    "show": show,
    "edit": edit,
    "missing": missing,
    "purge": purge,
    "delete": delete,
    "maintain": maintain,
    "export": export,
    "import": import_,
}
