"""``penstock durable``, whose commands create, show, purge, seek and delete durables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from penstock_server.cli.events.events import EventFormat, print_events
from penstock_server.cli.events.patterns import means_several
from penstock_server.cli.shared import completing, parsers
from penstock_server.cli.shared.confirmation import Yes, confirm
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.messages import decoder_of
from penstock_server.cli.shared.output import (
    ListFormat,
    count,
    duration,
    waits,
    write,
    write_description,
    write_facts,
    write_json,
    write_list,
)
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores import attributes
from penstock_server.cli.stores.destinations import First, Last, Selected, chosen_events

if TYPE_CHECKING:
    from penstock.client.handles.attributes import DurableType
    from penstock_core.api.durables import DurableInfo, SeekOutcome
    from penstock_core.api.patterns import PatternDurableInfo

Channel = Annotated[
    str,
    typer.Argument(
        help="Name of the channel.", metavar="CHANNEL", autocompletion=completing.channels
    ),
]
ChannelOrPattern = Annotated[
    str,
    typer.Argument(
        help="Name of the channel, or a pattern for a durable on every matching channel.",
        metavar="CHANNEL",
        autocompletion=completing.channels,
    ),
]
Name = Annotated[
    str,
    typer.Argument(help="Name of the durable.", metavar="NAME", autocompletion=completing.durables),
]

commands = command_group("Create, inspect, browse, purge, seek, unbind and delete durables.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="durable")


@commands.command()
@attributes.durable_options
def create(
    channel: ChannelOrPattern,
    name: Name,
    type: Annotated[
        str,
        typer.Option(
            help="Type: shared, serial or exclusive; deprecated: priority, shared_queued.",
            autocompletion=completing.durable_types,
        ),
    ] = "shared",
    start: Annotated[
        str,
        typer.Option(
            "--from", help="Start position: earliest, latest, an event id, or a time (UTC)."
        ),
    ] = "earliest",
    selector: Annotated[str, typer.Option(help="Selector; only events that match it.")] = "",
    persistent: Annotated[
        bool | None,
        typer.Option("--persistent/--volatile", help="Whether the durable survives a restart."),
    ] = None,
    *,
    url: Url = DEFAULT_URL,
    **written: Any,
) -> None:
    """Create a durable.

    The realm keeps the events that the durable's clients have not acknowledged. With a pattern,
    every matching channel gets a durable of this name, including channels created later. In a
    pattern, * matches any part of a name up to the next /, ** any part including /, and ? one
    character.

    \b
    Examples:
      penstock durable create orders billing --selector "price > 5"
      penstock durable create orders mail --max-deliveries 5 --backoff 1s
      penstock durable create orders ledger --type serial --strict-order
      penstock durable create orders accounts --type serial --order-by account
      penstock durable create "orders/*" billing --type serial
    """
    begin, values = parsers.start(start), attributes.parsed(attributes.OF_DURABLES, written)
    with session(url) as realm:
        if means_several(realm, channel):
            info = realm.durables.create(
                channel,
                name,
                type=cast("DurableType", type),
                start=begin,
                selector=selector,
                persistent=persistent,
                **values,
            )
            channels = count(info.channels, "channel")
            write(f"durable {name} created over {info.pattern}: {type}, on {channels} now")
            return
        durable = realm.channels.get(channel).durables.create(
            name,
            type=cast("DurableType", type),  # the realm checks the type
            start=begin,
            selector=selector,
            persistent=persistent,
            **values,
        )
        outstanding = durable.info().outstanding
    shown = attributes.durable_type_shown(type)
    write(f"durable {name} created: {shown}, {count(outstanding, 'event')} outstanding")


@commands.command("list")
def list_(
    channel: Annotated[
        str | None,
        typer.Argument(
            help="Name of the channel; without one, the durables over patterns are listed.",
            metavar="CHANNEL",
            autocompletion=completing.channels,
        ),
    ] = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """List the durables of a channel, or those over patterns.

    \b
    Examples:
      penstock durable list orders
      penstock durable list
    """
    if channel is None:
        _list_over_patterns(format, url)
        return
    with session(url) as realm:
        infos = realm.channels.get(channel).durables.list()
    write_list(
        format,
        infos,
        {
            "durable": lambda info: info.name,
            "type": lambda info: attributes.durable_type_shown(info.type),
            "clients": lambda info: len(info.clients),
            "position": lambda info: info.position,
            "outstanding": lambda info: info.outstanding,
            "in flight": lambda info: info.in_flight,
            "redelivered": lambda info: info.redelivered,
            "oldest": lambda info: _age(info.oldest_outstanding_ms),
            "selector": lambda info: info.selector,
        },
        nothing=f"no durables; create one with: penstock durable create {channel} NAME",
    )


def _list_over_patterns(format: ListFormat, url: str) -> None:
    with session(url) as realm:
        infos = realm.durables.list()
    write_list(
        format,
        infos,
        {
            "pattern": lambda info: info.pattern,
            "durable": lambda info: info.name,
            "type": lambda info: attributes.durable_type_shown(info.type),
            "channels": lambda info: info.channels,
            "selector": lambda info: info.selector,
        },
        nothing=(
            'no durables over patterns; create one with: penstock durable create "PATTERN" NAME'
        ),
    )


@commands.command()
def show(
    channel: ChannelOrPattern,
    name: Name,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Show a durable: its position, its outstanding events and its clients.

    \b
    Example:
      penstock durable show orders billing
    """
    with session(url) as realm:
        if means_several(realm, channel):
            write_description(format, realm.durables.get(channel, name), _facts_of_pattern)
        else:
            info = realm.channels.get(channel).durables.get(name).info()
            write_description(format, info, _facts)


def _facts_of_pattern(info: PatternDurableInfo) -> list[tuple[str, str]]:
    """Return the labels and texts that describe a durable over a pattern, in the order of
    output."""
    lifetimes = {
        None: "survives a restart if its channel does",
        True: "survives a restart",
        False: "ends with the realm",
    }
    lifetime = lifetimes[info.persistent]
    return [
        ("durable", info.name),
        ("pattern", info.pattern),
        ("type", f"{attributes.durable_type_shown(info.type)}, {lifetime}"),
        ("selector", info.selector or "none"),
        *attributes.of_durable(info),
        ("channels", f"{info.channels:,} have it now"),
    ]


def _facts(info: DurableInfo) -> list[tuple[str, str]]:
    """Return the labels and texts that describe a durable, in the order of output."""
    lifetime = "survives a restart" if info.persistent else "ends with the realm"
    return [
        ("durable", info.name),
        ("channel", info.channel),
        ("type", f"{attributes.durable_type_shown(info.type)}, {lifetime}"),
        ("selector", info.selector or "none"),
        *attributes.of_durable(info),
        ("position", f"{info.position}; events below it were offered or settled"),
        ("outstanding", f"{count(info.outstanding, 'event')}, {info.in_flight:,} in flight"),
        ("waiting", waits(info.waiting, info.waiting_until_us)),
        ("redelivered", f"{info.redelivered:,} of them"),
        ("oldest", _age(info.oldest_outstanding_ms) or "nothing is outstanding"),
        ("last read", _ago(info.last_read_ms)),
        ("clients", ", ".join(info.clients) or "none"),
    ]


def _age(ms: int | None) -> str:
    return "" if ms is None else duration(ms)


def _ago(ms: int | None) -> str:
    return "not since the realm started" if ms is None else f"{duration(ms)} ago"


@commands.command()
def browse(
    channel: Channel,
    name: Name,
    limit: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Stop after this many events.", metavar="N"),
    ] = None,
    format: EventFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print the outstanding events in order; the durable does not change.

    \b
    Example:
      penstock durable browse orders billing --format json
    """
    with session(url) as realm:
        store = realm.channels.get(channel)
        with store.durables.get(name).browse() as reading:
            messages = decoder_of(store)
            printed = print_events(reading.batches(), format, limit, messages=messages)
        _write_if_none(printed, name, format)


def _write_if_none(printed: int, name: str, style: Any) -> None:
    if not printed and style == "table":
        write(f"nothing is outstanding for {name}")


@commands.command()
def purge(
    channel: Channel,
    name: Name,
    first: First = None,
    last: Last = None,
    selector: Selected = "",
    yes: Yes = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove outstanding events from a durable; other durables keep them.

    Only shared and serial durables can be purged: the other types store only a position.

    \b
    Examples:
      penstock durable purge orders billing --from 3 --to 5 --yes
      penstock durable purge orders billing --selector "price < 1" --yes
    """
    with session(url) as realm:
        durable = realm.channels.get(channel).durables.get(name)
        outstanding = count(durable.info().outstanding, "outstanding event")
        which = chosen_events(first, last, selector) or "all"
        confirm(f"Remove {which} of the {outstanding} of {name}?", yes=yes)
        purged = durable.purge(start=first, end=last, selector=selector)
    write(f"durable {name}: {count(purged, 'event')} purged")


@commands.command()
def seek(
    channel: Channel,
    name: Name,
    to: Annotated[
        str, typer.Option(help="New position: earliest, latest, an event id, or a time (UTC).")
    ],
    preview: Annotated[
        bool, typer.Option("--preview", help="Only show the changes, without making them.")
    ] = False,
    yes: Yes = False,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Move a durable to another position, back or forward.

    It delivers all stored events from that position on, including acknowledged ones, and skips
    outstanding events before it. Subscriptions stay open.

    \b
    Examples:
      penstock durable seek orders billing --to earliest --preview
      penstock durable seek orders billing --to 2026-05-04T12:00:00 --yes
      penstock durable seek orders billing --to latest --yes
    """
    position = parsers.start(to)
    with session(url) as realm:
        durable = realm.channels.get(channel).durables.get(name)
        if preview:
            _write_outcome(
                name, durable.seek(position, preview=True), format, verb="would continue"
            )
            return
        if not yes:
            outcome = durable.seek(position, preview=True)
            confirm(
                f"Move {name} to {outcome.position}, with {count(outcome.again, 'event')} "
                f"delivered again, {outcome.skipped:,} skipped and {outcome.taken_back:,} taken "
                "back from clients?",
                yes=yes,
            )
        _write_outcome(name, durable.seek(position), format, verb="continues")


def _write_outcome(name: str, outcome: SeekOutcome, format: str, verb: str) -> None:
    if format == "json":
        write_json(outcome)
        return
    write(f"durable {name} {verb} from {outcome.position}")
    removed = ", ".join(f"{number:,} {cause}" for cause, number in outcome.gone.items())
    write_facts(
        [
            ("again", f"{count(outcome.again, 'event')} that were not outstanding"),
            ("skipped", f"{count(outcome.skipped, 'event')} that were outstanding"),
            ("taken back", f"{count(outcome.taken_back, 'event')} in flight to clients"),
            ("outstanding", f"{count(outcome.outstanding, 'event')} then"),
            ("gone", f"{removed}; these are no longer stored" if removed else "none"),
        ]
    )


@commands.command()
def unbind(channel: Channel, name: Name, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """End all subscriptions of a durable; their unacknowledged events go back to it.

    Use this for an exclusive durable whose client hangs, so that another client can subscribe.

    \b
    Example:
      penstock durable unbind orders audit --yes
    """
    with session(url) as realm:
        durable = realm.channels.get(channel).durables.get(name)
        clients = count(len(durable.info().clients), "client")
        confirm(f"End the subscriptions of {clients} of {name}?", yes=yes)
        ended = durable.unbind()
    write(f"durable {name}: {count(ended, 'subscription')} ended")


@commands.command()
def delete(channel: ChannelOrPattern, name: Name, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Delete a durable. Events that only this durable kept leave the channel. With a pattern, the
    durable is deleted on all its channels.

    \b
    Examples:
      penstock durable delete orders billing --yes
      penstock durable delete "orders/*" billing --yes
    """
    with session(url) as realm:
        if means_several(realm, channel):
            info = realm.durables.get(channel, name)
            channels = count(info.channels, "channel")
            confirm(
                f"Delete {name} over {info.pattern}, on {channels}, with the events it keeps?",
                yes=yes,
            )
            realm.durables.delete(channel, name)
            write(f"durable {name} over {info.pattern} deleted")
            return
        durables = realm.channels.get(channel).durables
        outstanding = count(durables.get(name).info().outstanding, "outstanding event")
        confirm(f"Delete {name} with {outstanding}?", yes=yes)
        durables.delete(name)
    write(f"durable {name} deleted")
