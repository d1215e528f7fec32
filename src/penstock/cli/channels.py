"""``penstock channel``: make, look at, change, empty and remove channels."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli import given
from penstock.cli.output import (
    ListFormat,
    count,
    duration,
    size,
    write,
    write_facts,
    write_json,
    write_table,
)
from penstock.cli.realm import DEFAULT_URL, Url, session
from penstock.core.errors import NameDoesNotExist

if TYPE_CHECKING:
    from penstock.client.sync import Session
    from penstock.core.messages import Definition
    from penstock.wire.native.answers import ChannelInfo, DurableInfo

Name = Annotated[str, typer.Argument(help="Name of the channel.", metavar="NAME")]
Ttl = Annotated[
    str | None,
    typer.Option(help="How long events stay: 500ms, 10s, 5m, 2h, 1d; 0 is for ever."),
]
Capacity = Annotated[
    int | None, typer.Option(help="Most events on the channel; 0 is no limit.", metavar="N")
]
RetainConsumed = Annotated[
    bool | None,
    typer.Option(
        "--retain-consumed/--no-retain-consumed",
        help="Keep events that every durable has acknowledged.",
    ),
]
EventTtl = Annotated[
    bool | None,
    typer.Option("--event-ttl/--no-event-ttl", help="Honour an event's own TTL on any type."),
]
HonourCapacity = Annotated[
    bool | None,
    typer.Option(
        "--honour-capacity/--no-honour-capacity",
        help="When full, refuse new events instead of dropping the oldest.",
    ),
]
Sync = Annotated[
    Literal["group", "each", "none"] | None,
    typer.Option(help="When an acknowledged event is on disk."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

commands = typer.Typer(
    help="Make, look at, change, empty and remove channels.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="channel")


@commands.command()
def create(
    name: Name,
    type: Annotated[
        str | None, typer.Option(help="mixed (default), persistent or reliable.")
    ] = None,
    ttl: Ttl = None,
    capacity: Capacity = None,
    engine: Annotated[str | None, typer.Option(help="How events are kept.")] = None,
    retain_consumed: RetainConsumed = None,
    event_ttl: EventTtl = None,
    start_event_id: Annotated[
        int | None, typer.Option(help="Id of the first event.", metavar="ID")
    ] = None,
    honour_capacity: HonourCapacity = None,
    sync: Sync = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Make a channel.

    \b
    Examples:
      penstock channel create orders --type persistent
      penstock channel create prices --ttl 5m --capacity 10000
    """
    attributes = _attributes(
        type=type,
        ttl=None if ttl is None else given.milliseconds(ttl),
        capacity=capacity,
        engine=engine,
        retain_consumed=retain_consumed,
        event_ttl=event_ttl,
        start_event_id=start_event_id,
        storage=_attributes(honour_capacity=honour_capacity, sync=sync) or None,
    )
    with session(url) as realm:
        made = realm.channels.create(name, **attributes)
        definition = made.info().definition
    write(f"channel {made.name} created: {definition.type}, {_lifetime(definition)}")


@commands.command("list")
def list_(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the channels of the realm.

    \b
    Example:
      penstock channel list --format json
    """
    with session(url) as realm:
        infos = [info for name in realm.channels.list() if (info := _info(realm, name))]
    if format == "json":
        write_json(infos)
        return
    rows = [
        (
            info.name,
            info.definition.type,
            info.events,
            info.first_event_id,
            info.last_event_id if info.last_event_id >= 0 else None,
            info.durables,
            info.subscribers,
            size(info.storage.tail_bytes + info.storage.sealed_bytes),
        )
        for info in infos
    ]
    columns = ("channel", "type", "events", "first", "last", "durables", "subscribers", "size")
    write_table(columns, rows, "no channels; make one with: penstock channel create NAME")


def _info(realm: Session, name: str) -> ChannelInfo | None:
    try:
        return realm.channels.get(name).info()
    except NameDoesNotExist:  # deleted since it was listed
        return None


@commands.command()
def show(name: Name, format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show a channel: attributes, counts, what became of events.

    \b
    Example:
      penstock channel show orders
    """
    with session(url) as realm:
        channel = realm.channels.get(name)
        info, durables = channel.info(), channel.durables.list()
    if format == "json":
        write_json(info)
        return
    write_facts([*_attribute_facts(info), *_content_facts(info, durables)])


def _attribute_facts(info: ChannelInfo) -> list[tuple[str, str]]:
    definition = info.definition
    full = "refuses new events" if definition.storage.honour_capacity else "drops the oldest"
    capacity = f"{count(definition.capacity, 'event')}; when full it {full}"
    return [
        ("channel", info.name),
        ("type", f"{definition.type}, engine {definition.engine}"),
        ("lifetime", _lifetime(definition)),
        ("capacity", capacity if definition.capacity else "no limit"),
        ("sync", definition.storage.sync),
        ("consumed", "kept" if definition.retain_consumed else "removed when all durables have it"),
    ]


def _content_facts(info: ChannelInfo, durables: list[DurableInfo]) -> list[tuple[str, str]]:
    first, last, storage = info.first_event_id, info.last_event_id, info.storage
    ids = f"{first} .. {last}" if first is not None else f"none stored, the last was {last}"
    facts = [
        ("events", f"{info.events:,}"),
        ("ids", ids if last >= 0 else "none yet"),
        ("conservation", conservation(info)),
        ("subscribers", str(info.subscribers)),
        ("durables", "; ".join(_durable(durable) for durable in durables) or "none"),
        (
            "storage",
            f"{size(storage.sealed_bytes)} in {count(storage.sealed_files, 'segment file')}, "
            f"{size(storage.tail_bytes)} not sealed yet",
        ),
    ]
    return facts + [("quarantined", what) for what in storage.quarantined]


def _durable(durable: DurableInfo) -> str:
    return f"{durable.name} ({durable.type}, {durable.outstanding:,} outstanding)"


def conservation(info: ChannelInfo) -> str:
    """Where every published event is or went (SEM T8)."""
    counters = info.counters
    terms = [
        (info.events, "live"),
        (counters.consumed, "consumed"),
        (counters.expired, "expired"),
        (counters.evicted, "evicted"),
        (counters.purged, "purged"),
        (counters.quarantined, "quarantined"),
    ]
    total = sum(number for number, _ in terms)
    relation = "=" if total == counters.published else "!="
    shown = [f"{number:,} {word}" for number, word in terms if number or word == "live"]
    return f"{counters.published:,} published {relation} {' + '.join(shown)}"


def _lifetime(definition: Definition) -> str:
    return f"events stay {duration(definition.ttl)}" if definition.ttl else "events stay for ever"


@commands.command()
def edit(
    name: Name,
    ttl: Ttl = None,
    capacity: Capacity = None,
    retain_consumed: RetainConsumed = None,
    event_ttl: EventTtl = None,
    honour_capacity: HonourCapacity = None,
    sync: Sync = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Change attributes of a channel; they apply at once.

    Type and engine are for ever.

    \b
    Example:
      penstock channel edit orders --ttl 1h --capacity 0
    """
    attributes = _attributes(
        ttl=None if ttl is None else given.milliseconds(ttl),
        capacity=capacity,
        retain_consumed=retain_consumed,
        event_ttl=event_ttl,
        storage=_attributes(honour_capacity=honour_capacity, sync=sync) or None,
    )
    if not attributes:
        raise typer.BadParameter("say what to change, e.g. --ttl 1h")
    with session(url) as realm:
        channel = realm.channels.get(name)
        channel.edit(**attributes)
    write(f"channel {channel.name} changed")


@commands.command()
def purge(
    name: Name,
    first: Annotated[
        int | None, typer.Option("--from", help="First event to remove.", metavar="ID")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", help="Last event to remove.", metavar="ID")
    ] = None,
    selector: Annotated[str, typer.Option(help="Only events that match.")] = "",
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove events: all, a range, those a selector matches.

    \b
    Examples:
      penstock channel purge orders --from 3 --to 5
      penstock channel purge orders --selector "price < 1"
    """
    with session(url) as realm:
        channel = realm.channels.get(name)
        if first is None and last is None and not selector and not yes:
            _ask(f"Remove all {count(channel.info().events, 'event')} of {channel.name}?")
        removed = channel.purge(start=first, end=last, selector=selector)
    write(f"channel {channel.name}: {count(removed, 'event')} purged")


@commands.command()
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Remove a channel with its events and its durables.

    \b
    Example:
      penstock channel delete orders
    """
    with session(url) as realm:
        channel = realm.channels.get(name)
        if not yes:
            _ask(f"Delete {channel.name} with {count(channel.info().events, 'event')}?")
        realm.channels.delete(name)
    write(f"channel {channel.name} deleted")


def _ask(question: str) -> None:
    """Only a person is asked: a script has said what it wants."""
    if sys.stdin.isatty() and not typer.confirm(question):
        raise typer.Exit(1)


def _attributes(**attributes: Any) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
