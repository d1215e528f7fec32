"""``penstock topic``: the topics of MQTT, what is retained, and sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock_core.api.topics import SessionFilter
from penstock_core.vocabulary.topic_templates import (
    may_meet,
    selector_of,
    template_of,
)
from penstock_core.vocabulary.topics import filter_fault
from penstock_server.cli.events.events import EventFormat, print_events
from penstock_server.cli.events.reading import subscribe
from penstock_server.cli.shared import completing
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import ListFormat, note, write_list
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores import destinations

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

commands = command_group(
    "Look at the topics of MQTT: what comes, what is retained, who has a session."
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
            for event in realm.mqtt.retained(filter, channel=channel)
            if event.data and isinstance(name := event.properties.get("topic"), str)
        }
    counted = [
        {"topic": name, "retained": count} for name, count in counted_by_level(topics, depth)
    ]
    write_list(
        format,
        counted,
        {"topic": lambda row: row["topic"], "retained": lambda row: row["retained"]},
        nothing=f"nothing is retained that {filter} takes",
    )


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
    with session(url) as realm, realm.mqtt.retained(filter, channel=channel) as found:
        print_events(found.batches(), format, count)


@commands.command()
def forget(filter: Filter, channel: Channel = "mqtt", url: Url = DEFAULT_URL) -> None:
    """Forget what is retained for the topics that a filter takes.

    Who subscribes later is not given it. Clients that are connected are not told.

    \b
    Example:
      penstock topic forget "plant/9/#"
    """
    _check(filter)
    with session(url) as realm:
        count = realm.mqtt.forget(filter, channel=channel)
    note(f"what was retained for {count} topics that {filter} takes is forgotten")


@commands.command()
def sessions(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the sessions of MQTT with their subscriptions.

    What waits is outstanding at the durables of a subscription, which are on the channel of all
    topics and on those with topics of their own that its filter takes; of QoS 0 nothing waits.

    \b
    Example:
      penstock topic sessions
    """
    with session(url) as realm:
        records = realm.mqtt.sessions()
    found: list[dict[str, Any]] = [
        {
            "client": record.client_id,
            "user": record.user,
            "connected": record.ended_us is None,
            "filter": each.filter,
            "qos": each.qos,
            "waiting": each.waiting,
        }
        for record in records
        for each in record.filters or (SessionFilter(filter="", qos=0, durable="", waiting=0),)
    ]
    write_list(
        format,
        found,
        {
            "client": lambda row: row["client"],
            "user": lambda row: row["user"],
            "connected": lambda row: "yes" if row["connected"] else "no",
            "filter": lambda row: row["filter"] or "no subscription",
            "qos": lambda row: row["qos"],
            "waiting": lambda row: row["waiting"],
        },
        nothing="no client has a session",
    )


@commands.command()
def end(
    client: Annotated[str, typer.Argument(help="The client id.", metavar="CLIENT")],
    user: Annotated[
        str,
        typer.Option(help="Whose session it is, where several users have the client id."),
    ] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """End a session of MQTT, with its connection and what waits for its client.

    Its will is published as at the end of its expiry.

    \b
    Example:
      penstock topic end pump-7
    """
    with session(url) as realm:
        realm.mqtt.end_session(client, user)
    note(f"the session of client {client} has ended")


def _channels_with_topics(realm: Session) -> dict[str, tuple[str, ...]]:
    """The channels that have topics of their own, with these."""
    found = destinations.infos(realm, "channel")
    return {each.name: each.definition.topics for each in found if each.definition.topics}


def _check(filter: str) -> None:
    """Raises ``BadParameter`` for what is no topic filter."""
    if fault := filter_fault(filter):
        raise typer.BadParameter(fault)
