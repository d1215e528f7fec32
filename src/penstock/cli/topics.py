"""``penstock topic``: the topics of MQTT, what is retained, and sessions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import typer

from penstock.cli import completing
from penstock.cli.events import EventFormat
from penstock.cli.grouping import CommandGroup
from penstock.cli.output import ListFormat, write_json, write_table
from penstock.cli.reading import browse, subscribe
from penstock.cli.realm import DEFAULT_URL, Url, session
from penstock.core.vocabulary.topics import filter_fault, topic_matches

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

    \b
    Examples:
      penstock topic list
      penstock topic list "plant/+/#" --depth 4
    """
    _selector(filter)
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
    channel: Channel = "mqtt",
    format: EventFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print what is published from now on to the topics that a filter takes.

    \b
    Example:
      penstock topic tail "plant/+/temp"
    """
    selector = _selector(filter)
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

    \b
    Example:
      penstock topic retained "plant/+/state" --format json
    """
    selector = _selector(filter)
    browse(f"{channel}-retained", selector=selector, limit=count, format=format, url=url)


@commands.command()
def sessions(
    channel: Channel = "mqtt", format: ListFormat = "table", url: Url = DEFAULT_URL
) -> None:
    """List the sessions that outlive their connections, with their subscriptions.

    What waits is outstanding at the durable of a subscription; of QoS 0 nothing waits.

    \b
    Example:
      penstock topic sessions
    """
    with session(url) as realm:
        durables = {each.name: each for each in realm.channels.get(channel).durables.list()}
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
            "waiting": _waiting(durables.get(each.get("durable", ""))),
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


def _waiting(durable: Any) -> int:
    return 0 if durable is None else int(durable.outstanding)


def _selector(filter: str) -> str:
    """The selector for a topic filter. Raises ``BadParameter`` for what is none."""
    if fault := filter_fault(filter):
        raise typer.BadParameter(fault)
    quoted = filter.replace("'", "''")
    return f"topic MATCHES '{quoted}'"
