"""``penstock realm``: look at a realm; pause publishing, and resume it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from msgspec.structs import asdict

from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import ListFormat, size, write, write_facts, write_json
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock_core.api.realm import RealmInfo

commands = command_group("Look at the realm; pause and resume publishing.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="realm")
    app.command("info")(info)


@commands.command()
def show(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show what the realm says of itself: memory by kind, whether publishing is paused.

    \b
    Example:
      penstock realm show
    """
    _show(format, url)


def info(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show what the realm says of itself; the same as `penstock realm show`.

    \b
    Example:
      penstock info --url penstock://localhost:9000
    """
    _show(format, url)


@commands.command()
def pause(url: Url = DEFAULT_URL) -> None:
    """Refuse publishes and commits of all clients from now on, also after a restart.

    Reading, joins and administration go on.

    \b
    Example:
      penstock realm pause
    """
    with session(url) as realm:
        realm.pause_publishing()
    write("publishing is paused; penstock realm resume ends that")


@commands.command()
def resume(url: Url = DEFAULT_URL) -> None:
    """Take publishes and commits again.

    \b
    Example:
      penstock realm resume
    """
    with session(url) as realm:
        realm.resume_publishing()
    write("publishing goes on")


def _show(style: str, url: str) -> None:
    from penstock.client.connection.urls import safe

    with session(url) as realm:
        said = realm.info()
        identity = realm.realm_id
    if style == "json":
        document: dict[str, Any] = {"url": safe(url), "identity": identity, **asdict(said)}
        write_json(document)
        return
    write_facts(
        [
            ("realm", said.name),
            ("identity", identity),
            ("version", said.version),
            ("url", safe(url)),
            ("publishing", "paused" if said.publishing_paused else "goes on"),
            ("channels", f"{said.channels:,}"),
            ("queues", f"{said.queues:,}"),
            ("connections", f"{said.connections:,}, this one among them"),
            ("journal", size(said.journal_bytes)),
            *_memory_facts(said),
        ]
    )


def _memory_facts(said: RealmInfo) -> list[tuple[str, str]]:
    kinds = (
        ("memory", said.memory_bytes, said.memory_bytes_max, "events that live in memory"),
        ("off heap", said.off_heap_bytes, said.off_heap_bytes_max, "off-heap channels"),
        ("paged", said.paged_bytes, said.paged_bytes_max, "paged channels, on disk"),
    )
    return [
        (name, f"{size(used)} of {size(limit)} for {what}") for name, used, limit, what in kinds
    ]
