"""``penstock channel``, whose commands create, show, edit, purge and delete channels."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_server.cli.shared import parsers
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import ListFormat, moment, write, write_json, write_table
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session
from penstock_server.cli.stores.destinations import ChannelName, add_to

commands = command_group("Create, inspect, edit, purge and delete channels.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="channel")


add_to(
    commands,
    "channel",
    {
        "create": """Create a channel.

    \b
    Examples:
      penstock channel create orders --type persistent --dead-event-store dead
      penstock channel create prices --ttl 5m --capacity 10000 --key sku=1
      penstock channel create rates --engine merge --key ccy
      penstock channel create readings --local n2
    """,
        "list": """List the channels of the realm.

    \b
    Example:
      penstock channel list --format json
    """,
        "show": """Show a channel: attributes, content, and the counts of all events by outcome.

    \b
    Example:
      penstock channel show orders
    """,
    },
)


@commands.command()
def state(
    name: ChannelName,
    key: Annotated[
        str,
        typer.Argument(
            help="Value of the publish key: EUR, 7, or with its type string:7.", metavar="KEY"
        ),
    ],
    as_of: Annotated[
        int | None,
        typer.Option(min=0, help="Show the state right after this event.", metavar="ID"),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            help="Channel to which a join has copied the events of this one.", metavar="NAME"
        ),
    ] = None,
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Show the state of one key of a merge channel, now or as of an earlier event.

    \b
    Examples:
      penstock channel state rates EUR
      penstock channel state rates EUR --as-of 1041 --archive rates-history
    """
    with session(url) as realm:
        channel = realm.channels.get(name)
        key_state = channel.state(parsers.value(key), as_of=as_of, archive=archive)
    if format == "json":
        write_json(key_state)
        return
    published = moment(key_state.published)
    write(f"event {key_state.event_id} of {channel.name}, published {published}")
    if key_state.found_in != channel.name:
        write(f"found in {key_state.found_in}")
    write_table(("property", "value"), list(key_state.properties.items()), "no properties")


add_to(
    commands,
    "channel",
    {
        "edit": """Change attributes of a channel; the changes apply immediately.

    Type, engine, keys and the id of the first event cannot be changed.

    \b
    Example:
      penstock channel edit orders --ttl 1h --capacity 0
    """,
        "missing": None,
        "purge": """Remove all events, a range of ids, or the events that match a selector.

    \b
    Examples:
      penstock channel purge orders --from 3 --to 5 --yes
      penstock channel purge orders --selector "price < 1" --yes
    """,
        "delete": """Delete a channel with its events and its durables.

    \b
    Example:
      penstock channel delete orders --yes
    """,
        "maintain": None,
        "export": None,
        "import": None,
    },
)
