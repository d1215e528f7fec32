"""``penstock realm`` and ``penstock info``, which describe a realm, and pause and resume
publishing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from msgspec.structs import asdict

from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import ListFormat, size, write, write_facts, write_json
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock_core.api.realm import RealmInfo

commands = command_group("Describe the realm; pause and resume publishing.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="realm")
    app.command("info")(info)


@commands.command()
def show(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show the realm's name, version, contents and memory use, and whether publishing is paused.

    \b
    Example:
      penstock realm show
    """
    _show(format, url)


def info(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Describe the realm; the same as `penstock realm show`.

    \b
    Example:
      penstock info --url penstock://localhost:9000
    """
    _show(format, url)


@commands.command()
def pause(url: Url = DEFAULT_URL) -> None:
    """Refuse publishes and commits of all clients until `penstock realm resume`.

    The pause survives a restart. Reading, joins and administration continue.

    \b
    Example:
      penstock realm pause
    """
    with session(url) as realm:
        realm.pause_publishing()
    write("publishing is paused; penstock realm resume ends the pause")


@commands.command()
def resume(url: Url = DEFAULT_URL) -> None:
    """Accept publishes and commits again.

    \b
    Example:
      penstock realm resume
    """
    with session(url) as realm:
        realm.resume_publishing()
    write("publishing is resumed")


def _show(style: str, url: str) -> None:
    from penstock.client.connection.urls import safe

    with session(url) as realm:
        info = realm.info()
        identity = realm.realm_id
    if style == "json":
        document: dict[str, Any] = {"url": safe(url), "identity": identity, **asdict(info)}
        write_json(document)
        return
    write_facts(
        [
            ("realm", info.name),
            ("identity", identity),
            ("version", info.version),
            ("url", safe(url)),
            ("publishing", "paused" if info.publishing_paused else "allowed"),
            ("channels", f"{info.channels:,}"),
            ("queues", f"{info.queues:,}"),
            ("connections", f"{info.connections:,}, including this one"),
            ("journal", size(info.journal_bytes)),
            *_memory_facts(info),
        ]
    )


def _memory_facts(info: RealmInfo) -> list[tuple[str, str]]:
    kinds = (
        ("memory", info.memory_bytes, info.memory_bytes_max, "events kept in memory"),
        ("off heap", info.off_heap_bytes, info.off_heap_bytes_max, "off-heap channels"),
        ("paged", info.paged_bytes, info.paged_bytes_max, "paged channels, on disk"),
    )
    return [(name, f"{size(used)} of {size(limit)} for {use}") for name, used, limit, use in kinds]
