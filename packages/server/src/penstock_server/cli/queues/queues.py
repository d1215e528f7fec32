"""``penstock queue``, whose commands create, show, edit, purge and delete queues, and push
events."""

from __future__ import annotations

from typing import Any

import typer

from penstock_server.cli.events import publishing
from penstock_server.cli.queues import queue_reading
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.realm import DEFAULT_URL, Url
from penstock_server.cli.stores.attributes import parsed
from penstock_server.cli.stores.destinations import QueueName, add_to

commands = command_group("Create, inspect, edit and delete queues; push and pop events.")


def register(app: typer.Typer) -> None:
    queue_reading.register(commands)
    app.add_typer(commands, name="queue")
    add_to(commands, "queue", {"export": None, "import": None})


add_to(
    commands,
    "queue",
    {
        "create": """Create a queue; each of its events goes to one reader.

    \b
    Examples:
      penstock queue create work
      penstock queue create mail --dead-event-store dead/mail --max-deliveries 5
      penstock queue create sensors --local n2
    """,
        "list": """List the queues of the realm.

    \b
    Example:
      penstock queue list
    """,
        "show": """Show a queue: attributes, content, readers, and the counts of all events by
    outcome.

    \b
    Example:
      penstock queue show work
    """,
        "edit": """Change attributes of a queue; the changes apply immediately.

    Type, keys and the id of the first event cannot be changed.

    \b
    Example:
      penstock queue edit work --capacity 1000 --honour-capacity
    """,
        "delete": """Delete a queue with its events.

    \b
    Example:
      penstock queue delete work --yes
    """,
        "missing": None,
        "purge": """Remove all events, a range of ids, or the events that match a selector.

    \b
    Example:
      penstock queue purge work --from 3 --to 5 --yes
    """,
        "maintain": None,
    },
)


@commands.command()
@publishing.event_options("queue")
def push(
    name: QueueName,
    data: publishing.Data = None,
    file: publishing.File = None,
    *,
    message: publishing.MessageType = None,
    url: Url = DEFAULT_URL,
    **written: Any,
) -> None:
    """Push events to a queue and wait until they are stored safely.

    Files have the same formats as for `penstock publish`.

    \b
    Examples:
      penstock queue push work "mow the lawn" --property minutes=30
      penstock queue push work --file work.ndjson
    """
    parts = parsed(publishing.OF_EVENTS, written)
    publishing.send("queue", name, data, file=file, parts=parts, url=url, message=message)
