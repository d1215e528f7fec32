"""What the commands for channels and for queues have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.asking import confirm
from penstock_server.cli.shared.output import (
    ListFormat,
    count,
    note,
    size,
    write,
    write_json,
    write_table,
)
from penstock_server.cli.shared.realm import session, session_at
from penstock_server.cli.stores import attributes, facts
from penstock_server.runtime.subscriptions.documents import channel_document

if TYPE_CHECKING:
    from penstock.client.sync.sync import Channel, Channels, Queue, Queues, Session
    from penstock_core.api.channels import ChannelInfo, Missing
    from penstock_core.api.requests import Kind

First = Annotated[int | None, typer.Option("--from", help="First event to remove.", metavar="ID")]
Last = Annotated[int | None, typer.Option("--to", help="Last event to remove.", metavar="ID")]
RANGES_SHOWN = 10

FirstAsked = Annotated[int, typer.Option("--from", help="First id.", metavar="ID", min=0)]
LastAsked = Annotated[int | None, typer.Option("--to", help="Last id.", metavar="ID", min=0)]
QueueName = Annotated[
    str, typer.Argument(help="Name of the queue.", metavar="NAME", autocompletion=completing.queues)
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


def write_documents(found: list[ChannelInfo]) -> None:
    """Print descriptions as JSON."""
    write_json([channel_document(info) for info in found])


# --- commands -----------------------------------------------------------------------------


def create(
    kind: Kind, name: str, given: Mapping[str, Any], url: str, local: str | None = None
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


def edit(kind: Kind, name: str, given: Mapping[str, Any], url: str) -> None:
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
    first: int | None,
    last: int | None,
    selector: str,
    *,
    yes: bool,
    url: str,
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


def delete(kind: Kind, name: str, *, yes: bool, url: str) -> None:
    """Delete a store with its events, after confirmation."""
    with session(url) as realm:
        found = stores(realm, kind).get(name)
        confirm(f"Delete {found.name} with {count(found.info().events, 'event')}?", yes=yes)
        stores(realm, kind).delete(name)
    write(f"{kind} {found.name} deleted")


def maintain(kind: Kind, name: str, url: str) -> None:
    """Rewrite a store of a single file, and print what that has saved."""
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
    kind: Kind, name: str, first: int, last: int | None, format: ListFormat, url: str
) -> None:
    """Print which ids have no event, by cause."""
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
