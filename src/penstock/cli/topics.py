"""``penstock topic``: the topics of MQTT, what is retained, and sessions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import completing, destinations
from penstock.cli.events import EventFormat
from penstock.cli.grouping import CommandGroup
from penstock.cli.output import ListFormat, note, write_json, write_table
from penstock.cli.reading import browse, subscribe
from penstock.cli.realm import DEFAULT_URL, Url, session
from penstock.core.vocabulary.errors import AccessDenied, NameDoesNotExist
from penstock.core.vocabulary.topic_templates import (
    may_meet,
    selector_of,
    template_of,
)
from penstock.core.vocabulary.topics import filter_fault, topic_matches

if TYPE_CHECKING:
    from penstock.client.sync.sync import Session

Filter = Annotated[
    str, typer.Argument(help="A topic filter: + is any level, # all that follow.", metavar="FILTER")
]
Channel = Annotated[
    str,
    typer.Option(
        help="The channel of all topics: listen.mqtt_channel of the realm.",
        metavar="NAME",
        autocompletion=completing.channels,
    ),
]
Followed = Annotated[
    str,
    typer.Option(
        help="The channel of all topics, or one that has topics of its own.",
        metavar="NAME",
        autocompletion=completing.channels,
    ),
]
Count = Annotated[int | None, typer.Option(min=1, help="Stop after so many.", metavar="N")]
DEPTH: Final = 2
_SESSION: Final = "session/"

commands = typer.Typer(
    cls=CommandGroup,
    help="Look at the topics of MQTT: what comes, what is retained, who has a session.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="topic")


@commands.command("list")
def list_(
    filter: Filter = "#",
    depth: Annotated[int, typer.Option(min=1, help="Levels that are shown.")] = DEPTH,
    channel: Channel = "mqtt",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Count the topics for which something is retained, level by level.

    What is retained is in one channel, also for the topics of channels of their own.

    \b
    Examples:
      penstock topic list
      penstock topic list "plant/+/#" --depth 4
    """
    _check(filter)
    with session(url) as realm:
        topics = {
            name
            for event in realm.channels.get(f"{channel}-retained").browse()
            if event.data and isinstance(name := event.properties.get("topic"), str)
        }
    counted = counted_by_level((each for each in topics if topic_matches(filter, each)), depth)
    if format == "json":
        write_json([{"topic": name, "retained": count} for name, count in counted])
        return
    write_table(("topic", "retained"), counted, f"nothing is retained that {filter} takes")


def counted_by_level(topics: Iterable[str], depth: int) -> list[tuple[str, int]]:
    """How many topics begin with each level, down to a depth; what goes deeper ends with ``/#``."""
    found: Counter[tuple[str, ...]] = Counter()
    for each in topics:
        levels = each.split("/")
        for end in range(1, min(len(levels), depth) + 1):
            found[(*levels[:end], "#") if end < len(levels) else tuple(levels)] += 1
    return [("/".join(levels), count) for levels, count in sorted(found.items())]


@commands.command()
def tail(
    filter: Filter = "#",
    count: Count = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Stop when nothing comes for so long.", metavar="SECONDS"),
    ] = None,
    channel: Followed = "mqtt",
    format: EventFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print what is published to one channel from now on, on the topics that a filter takes.

    Other channels that have such topics are named on stderr.

    \b
    Examples:
      penstock topic tail "plant/+/temp"
      penstock topic tail "plant/#" --channel temperatures
    """
    _check(filter)
    with session(url) as realm:
        found = _channels_with_topics(realm)
    selector = selector_of(filter, [template_of(each) for each in found.pop(channel, ())])
    for name, topics in found.items():
        if any(may_meet(filter, template_of(each).filter) for each in topics):
            note(f"{name} has topics of {filter}, too: --channel {name}")
    subscribe(channel, selector=selector, limit=count, timeout=timeout, format=format, url=url)


@commands.command()
def retained(
    filter: Filter = "#",
    count: Count = None,
    channel: Channel = "mqtt",
    format: EventFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print what is retained for the topics that a filter takes, the oldest first.

    It is in one channel, also for the topics of channels of their own.

    \b
    Example:
      penstock topic retained "plant/+/state" --format json
    """
    _check(filter)
    browse(
        f"{channel}-retained", selector=selector_of(filter, ()), limit=count, format=format, url=url
    )


@commands.command()
def sessions(
    channel: Channel = "mqtt", format: ListFormat = "table", url: Url = DEFAULT_URL
) -> None:
    """List the sessions that outlive their connections, with their subscriptions.

    What waits is outstanding at the durables of a subscription, which are on the channel of all
    topics and on those with topics of their own that its filter takes; of QoS 0 nothing waits.

    \b
    Example:
      penstock topic sessions
    """
    with session(url) as realm:
        waiting: Counter[str] = Counter()
        for name in (channel, *_channels_with_topics(realm)):
            try:
                durables = realm.channels.get(name).durables.list()
            except (AccessDenied, NameDoesNotExist) as error:
                if name == channel:
                    raise
                note(f"what waits on {name} is not counted: {error}")
                continue
            for durable in durables:
                waiting[durable.name] += durable.outstanding
        records = [
            json.loads(event.data)
            for event in realm.channels.get(f"{channel}-sessions").browse()
            if event.data and str(event.properties.get("entry", "")).startswith(_SESSION)
        ]
    found = [
        {
            "client": record["client_id"],
            "connected": not record.get("ended_us"),
            "filter": each["filter"],
            "qos": each.get("qos", 0),
            "waiting": waiting[each.get("durable", "")],
        }
        for record in sorted(records, key=lambda record: str(record["client_id"]))
        for each in record.get("filters") or [{"filter": ""}]
    ]
    if format == "json":
        write_json(found)
        return
    rows: Sequence[Sequence[Any]] = [
        (
            each["client"],
            "yes" if each["connected"] else "no",
            each["filter"] or "no subscription",
            each["qos"],
            each["waiting"],
        )
        for each in found
    ]
    columns = ("client", "connected", "filter", "qos", "waiting")
    write_table(columns, rows, "no session outlives its connection")


def _channels_with_topics(realm: Session) -> dict[str, tuple[str, ...]]:
    """The channels that have topics of their own, with these."""
    found = destinations.infos(realm, "channel")
    return {each.name: each.definition.topics for each in found if each.definition.topics}


def _check(filter: str) -> None:
    """Raises ``BadParameter`` for what is no topic filter."""
    if fault := filter_fault(filter):
        raise typer.BadParameter(fault)
