"""``penstock topic``: topics, retained messages and sessions of MQTT."""

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
        help="The channel of all topics, or a channel with topics.",
        metavar="NAME",
        autocompletion=completing.channels,
    ),
]
Count = Annotated[
    int | None, typer.Option(min=1, help="Stop after this number of messages.", metavar="N")
]
DEPTH: Final = 2

commands = command_group("Inspect MQTT: live and retained messages by topic, and sessions.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="topic")


@commands.command("list")
def list_(
    filter: Filter = "#",
    depth: Annotated[int, typer.Option(min=1, help="Number of levels to show.")] = DEPTH,
    channel: Channel = "mqtt",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Count the topics with a retained message, level by level.

    The retained messages of all topics are in one channel (see --channel), even if the topic
    belongs to a channel with the attribute topics.

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
        nothing=f"no topic that matches {filter} has a retained message",
    )


def counted_by_level(topics: Iterable[str], depth: int) -> list[tuple[str, int]]:
    """Return how many topics begin with each level, down to a depth; deeper levels end with
    ``/#``."""
    counts: Counter[tuple[str, ...]] = Counter()
    for topic in topics:
        levels = topic.split("/")
        for end in range(1, min(len(levels), depth) + 1):
            counts[(*levels[:end], "#") if end < len(levels) else tuple(levels)] += 1
    return [("/".join(levels), count) for levels, count in sorted(counts.items())]


@commands.command()
def tail(
    filter: Filter = "#",
    count: Count = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after this time without a message.", metavar="SECONDS"),
    ] = None,
    channel: Followed = "mqtt",
    format: EventFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print new messages of one channel whose topics match a filter.

    Other channels with matching topics are named on stderr.

    \b
    Examples:
      penstock topic tail "plant/+/temp"
      penstock topic tail "plant/#" --channel temperatures
    """
    _check(filter)
    with session(url) as realm:
        topics_of_channels = _channels_with_topics(realm)
    selector = selector_of(
        filter, [template_of(template) for template in topics_of_channels.pop(channel, ())]
    )
    for name, topics in topics_of_channels.items():
        if any(may_meet(filter, template_of(template).filter) for template in topics):
            note(f"channel {name} also has topics that match {filter}: use --channel {name}")
    subscribe(channel, selector=selector, limit=count, timeout=timeout, format=format, url=url)


@commands.command()
def retained(
    filter: Filter = "#",
    count: Count = None,
    channel: Channel = "mqtt",
    format: EventFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Print the retained messages of the topics that match a filter, the oldest first.

    The retained messages of all topics are in one channel (see --channel), even if the topic
    belongs to a channel with the attribute topics.

    \b
    Example:
      penstock topic retained "plant/+/state" --format json
    """
    _check(filter)
    with session(url) as realm, realm.mqtt.retained(filter, channel=channel) as messages:
        print_events(messages.batches(), format, count)


@commands.command()
def forget(filter: Filter, channel: Channel = "mqtt", url: Url = DEFAULT_URL) -> None:
    """Delete the retained messages of the topics that match a filter.

    Later subscribers do not receive them. Connected clients are not notified.

    \b
    Example:
      penstock topic forget "plant/9/#"
    """
    _check(filter)
    with session(url) as realm:
        count = realm.mqtt.forget(filter, channel=channel)
    note(f"deleted the retained messages of {count} topics that match {filter}")


@commands.command()
def sessions(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the MQTT sessions with their subscriptions.

    Waiting messages are outstanding at the durables of a subscription, on the channel of all
    topics and on channels with matching topics. Subscriptions of QoS 0 have no waiting messages.

    \b
    Example:
      penstock topic sessions
    """
    with session(url) as realm:
        records = realm.mqtt.sessions()
    rows: list[dict[str, Any]] = [
        {
            "client": record.client_id,
            "user": record.user,
            "connected": record.ended_us is None,
            "filter": subscription.filter,
            "qos": subscription.qos,
            "waiting": subscription.waiting,
        }
        for record in records
        for subscription in record.filters
        or (SessionFilter(filter="", qos=0, durable="", waiting=0),)
    ]
    write_list(
        format,
        rows,
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
        typer.Option(help="The user of the session, if several users have the client id."),
    ] = "",
    url: Url = DEFAULT_URL,
) -> None:
    """End an MQTT session with its connection and its waiting messages.

    Its will is published as if the session had expired.

    \b
    Example:
      penstock topic end pump-7
    """
    with session(url) as realm:
        realm.mqtt.end_session(client, user)
    note(f"the session of client {client} has ended")


def _channels_with_topics(realm: Session) -> dict[str, tuple[str, ...]]:
    """Return the topics of all channels that have some, by channel name."""
    channels = destinations.infos(realm, "channel")
    return {
        channel.name: channel.definition.topics for channel in channels if channel.definition.topics
    }


def _check(filter: str) -> None:
    """Raise ``BadParameter`` if the text is not a topic filter."""
    if fault := filter_fault(filter):
        raise typer.BadParameter(fault)
