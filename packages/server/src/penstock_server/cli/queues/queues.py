"""``penstock queue``: create, show, edit, purge and delete queues, and push events."""

from __future__ import annotations

from typing import Any

import typer

from penstock_server.cli.events import publishing
from penstock_server.cli.queues import queue_reading
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.realm import DEFAULT_URL, Url
from penstock_server.cli.stores.attributes import parsed
from penstock_server.cli.stores.destinations import QueueName, add_to

commands = command_group("Make, look at, change and remove queues; push and pop events.")


def register(app: typer.Typer) -> None:
    queue_reading.register(commands)
    app.add_typer(commands, name="queue")
    add_to(commands, "queue", {"export": None, "import": None})


add_to(
    commands,
    "queue",
    {
        "create": """Make a queue; each of its events goes to one reader.

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
        "show": """Show a queue: attributes, content, readers, what became of every event.

    \b
    Example:
      penstock queue show work
    """,
        "edit": """Change attributes of a queue; they apply at once.

    Type, keys and the first id are for ever.

    \b
    Example:
      penstock queue edit work --capacity 1000 --honour-capacity
    """,
        "delete": """Remove a queue with its events.

    \b
    Example:
      penstock queue delete work --yes
    """,
        "missing": None,
        "purge": """Remove events: all, a range, those a selector matches.

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
    """Put events on a queue; on return they are safe.

    Files are read as by `penstock publish`.

    \b
    Examples:
      penstock queue push work "mow the lawn" --property minutes=30
      penstock queue push work --file work.ndjson
    """
    parts = parsed(publishing.OF_EVENTS, written)
    publishing.send("queue", name, data, file=file, parts=parts, url=url, message=message)
