"""The commands that channels and queues have in common, and what other commands need to find them.

Each takes the kind first. `add_to` makes it a command of the group of that kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_core.api.requests import Kind
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.asking import Yes, confirm
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

First = Annotated[int | None, typer.Option("--from", help="First event to remove.", metavar="ID")]
Last = Annotated[int | None, typer.Option("--to", help="Last event to remove.", metavar="ID")]
RANGES_SHOWN = 10

ChannelName = Annotated[
    str,
    typer.Argument(help="Name of the channel.", metavar="NAME", autocompletion=completing.channels),
]
QueueName = Annotated[
    str, typer.Argument(help="Name of the queue.", metavar="NAME", autocompletion=completing.queues)
]
NAMES: Final[dict[Kind, Any]] = {"channel": ChannelName, "queue": QueueName}
EXAMPLES: Final[dict[Kind, str]] = {"channel": "orders", "queue": "work"}
"""Names that stand in the help of commands."""
Exported = Annotated[
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
Selected = Annotated[str, typer.Option(help="Only events that match.")]


def stores(realm: Session, kind: Kind) -> Channels | Queues:
    """The session's channels or queues."""
    return realm.channels if kind == "channel" else realm.queues


def find(realm: Session, name: str) -> Channel | Queue:
    """The channel or the queue with this name. Raises ``NameDoesNotExist``."""
    try:
        return realm.channels.get(name)
    except NameDoesNotExist:
        pass
    try:
        return realm.queues.get(name)
    except NameDoesNotExist:
        raise NameDoesNotExist(
            f"there is no channel or queue {name}; penstock channel list and penstock queue list "
            "name those there are"
        ) from None


def infos(realm: Session, kind: Kind) -> list[ChannelInfo]:
    """The description of each store of a kind, by name."""
    of_kind = stores(realm, kind)
    return [info for name in of_kind.list() if (info := _info(of_kind, name)) is not None]


def _info(of_kind: Channels | Queues, name: str) -> ChannelInfo | None:
    try:
        return of_kind.get(name).info()
    except NameDoesNotExist:  # deleted after it was listed
        return None


# --- commands -----------------------------------------------------------------------------


def add_to(commands: typer.Typer, kind: Kind, helps: Mapping[str, str | None]) -> None:
    """Add the named commands for stores of a kind to a group, in this order, each with its help;
    None: the help is the docstring of the command, which is the same for both kinds."""
    for name, help in helps.items():
        command = COMMANDS[name]
        text = (help or inspect.getdoc(command) or "").format(kind=kind, example=EXAMPLES[kind])
        commands.command(name, help=text)(_of_kind(command, kind))


def _of_kind(command: Callable[..., None], kind: Kind) -> Callable[..., None]:
    """A command that takes the name of a store of this kind, and options for its attributes."""

    def run(**arguments: Any) -> None:
        command(kind, **arguments)

    signature = inspect.signature(command, eval_str=True)
    parameters = [
        each.replace(annotation=NAMES[kind]) if each.annotation is str else each
        for each in signature.parameters.values()
        if each.name != "kind"
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # as in with_options
    if command in (create, edit):
        return attributes.options(kind, new=command is create)(run)
    return run


def create(
    kind: Kind, name: str, *, local: Local = None, url: Url = DEFAULT_URL, **given: Any
) -> None:
    """Create a store with the given attributes; with ``local`` on this node of a cluster alone."""
    chosen = attributes.chosen(given)
    with session_at(url, local) as realm:
        made = stores(realm, kind).create(name, **chosen)
        definition = made.info().definition
    shown = attributes.type_shown(definition.type)
    where = f" @{local}" if local else ""
    if made.name != name:
        note(
            f"{name!r} is read as {made.name!r}: '//', '::' and '\\' stand for '/', and a '/' at "
            "either end is dropped"
        )
    write(f"{kind} {made.name}{where} created: {shown}, {facts.lifetime(definition)}")


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
    """List the stores of a kind, also those that nodes of a cluster have for themselves."""
    with session(url) as realm:
        listed = infos(realm, kind)
        local = local_names(realm, kind) if format == "table" else []
    if format == "json":
        write_json([channel_document(info) for info in listed])
        return
    columns = _COLUMNS[kind]
    rows = [[value_of(info) for value_of in columns.values()] for info in listed]
    rows += [[name, *[None] * (len(columns) - 1)] for name in local]
    write_table(tuple(columns), rows, f"no {kind}s; make one with: penstock {kind} create NAME")


def show(kind: Kind, name: str, format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show attributes, content, consumers, and what became of every event."""
    with session(url) as realm:
        info = stores(realm, kind).get(name).info()
        durables = realm.channels.get(name).durables.list() if kind == "channel" else []
    if format == "json":
        write_json(channel_document(info))
    else:
        facts.show(info, durables)


def edit(kind: Kind, name: str, *, url: Url = DEFAULT_URL, **given: Any) -> None:
    """Edit the given attributes, and no others."""
    chosen = attributes.chosen(given)
    if not chosen:
        raise typer.BadParameter("name at least one attribute to change, e.g. --ttl 1h")
    with session(url) as realm:
        found = stores(realm, kind).get(name)
        found.edit(**chosen)
    write(f"{kind} {found.name} changed")


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
        found = stores(realm, kind).get(name)
        which = chosen_events(first, last, selector)
        held = count(found.info().events, "event")
        confirm(f"Remove {which or 'all'} of the {held} of {found.name}?", yes=yes)
        removed = found.purge(start=first, end=last, selector=selector)
    write(f"{kind} {found.name}: {count(removed, 'event')} purged")


def chosen_events(first: int | None, last: int | None, selector: str) -> str:
    """The selection of events to purge; empty: all of them."""
    begin, end = "the first" if first is None else first, "the newest" if last is None else last
    span = "" if first is None and last is None else f"ids {begin} to {end}"
    match = f"those that match {selector!r}" if selector else ""
    return ", ".join(filter(None, (span, match)))


def delete(kind: Kind, name: str, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Delete a store with its events, after confirmation."""
    with session(url) as realm:
        found = stores(realm, kind).get(name)
        confirm(f"Delete {found.name} with {count(found.info().events, 'event')}?", yes=yes)
        stores(realm, kind).delete(name)
    write(f"{kind} {found.name} deleted")


def maintain(kind: Kind, name: str, url: Url = DEFAULT_URL) -> None:
    """Rewrite a single-file {kind} without what is dead in it.

    Ids are kept, and traffic goes on. Files of so many events each need none of it.

    \b
    Example:
      penstock {kind} maintain {example}
    """
    with session(url) as realm:
        found = stores(realm, kind).get(name)
        done = found.maintain()
    if done.reason:
        write(f"{kind} {found.name}: nothing to do; {done.reason}")
        return
    write(
        f"{kind} {found.name} rewritten: {size(done.bytes_before)} are {size(done.bytes_after)} "
        f"now, {count(done.events, 'event')}"
    )


def missing(
    kind: Kind,
    name: str,
    first: Annotated[int, typer.Option("--from", help="First id.", metavar="ID", min=0)] = 0,
    last: Annotated[int | None, typer.Option("--to", help="Last id.", metavar="ID", min=0)] = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Say which event ids have no event any more, and why.

    \b
    Example:
      penstock {kind} missing {example} --from 100 --to 199
    """
    with session(url) as realm:
        found = stores(realm, kind).get(name)
        end = found.info().last_event_id + 1 if last is None else last + 1
        gone = found.missing(first, end) if end > first else ()
    if format == "json":
        write_json(
            [
                {
                    "cause": each.cause,
                    "ids": each.events,
                    "which": [[*span] for span in each.spans],
                }
                for each in gone
            ]
        )
        return
    rows = [(each.cause, each.events, _ranges(each)) for each in gone]
    write_table(("cause", "ids", "which"), rows, f"{kind} {name}: every id has its event")


def _ranges(gone: Missing) -> str:
    shown = [
        f"{span.first}-{span.end - 1}" if span.size > 1 else str(span.first)
        for span in gone.spans[:RANGES_SHOWN]
    ]
    return ", ".join(shown) + (", …" if len(gone.spans) > RANGES_SHOWN else "")


def export(kind: Kind, name: Exported, folder: Folder, url: Url = DEFAULT_URL) -> None:
    """Write a {kind} into a folder, as it stands now.

    Events and their ids, durables with what is outstanding, counters: all of it. Traffic goes
    on meanwhile. The events are Arrow files that other programs can read.

    \b
    Example:
      penstock {kind} export orders ./orders-export
    """
    with session(url) as realm:
        written = stores(realm, kind).export(name, folder)
    write(f"{kind} {written.name} exported to {folder}: {count(written.events, 'event')}")


def import_(kind: Kind, folder: Folder, name: NewName = "", url: Url = DEFAULT_URL) -> None:
    """Make a {kind} out of an exported folder.

    A damaged or incomplete export is refused as a whole.

    \b
    Examples:
      penstock {kind} import ./orders-export
      penstock {kind} import ./orders-export archive/orders
    """
    with session(url) as realm:
        made = stores(realm, kind).import_from(folder, name)
        events = count(made.info().events, "event")
    write(f"{kind} {made.name} imported from {folder}: {events}")


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
