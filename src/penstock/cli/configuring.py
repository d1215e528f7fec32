"""A realm's settings, as commands take them: a file, the environment, and flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.core.vocabulary.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.settings import Settings
    from penstock.settings.loading import InForce

SettingsFile = Annotated[
    Path | None, typer.Option("--settings", help="Settings file (TOML).", metavar="FILE")
]
Host = Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port; 0 takes any free one. [default: 9000]")]
AmqpPort = Annotated[
    int | None,
    typer.Option(help="Port of AMQP 1.0, usually 5672; 0 takes any free one. [default: no AMQP]"),
]
MqttPort = Annotated[
    int | None, typer.Option(help="Port of MQTT; not given: no MQTT.", metavar="N")
]
HttpPort = Annotated[
    int | None,
    typer.Option(
        help="Port of the console, the API and the metrics; 0 takes any free one. [default: 9080]"
    ),
]
Http = Annotated[bool | None, typer.Option("--http/--no-http", help="Serve HTTP. [default: http]")]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="URL of the storage engine of a cluster, with all its servers. [default: no cluster]",
        metavar="URL",
    ),
]
Node = Annotated[
    str | None,
    typer.Option(help="Name of this node of a cluster. [default: one that is made and kept]"),
]
Advertise = Annotated[
    str | None,
    typer.Option(help="Host under which others reach this node. [default: that of --host]"),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(help="Least important line to log. [default: info]"),
]
LogFormat = Annotated[
    Literal["auto", "text", "json"] | None,
    typer.Option(help="auto is text on a terminal, JSON lines elsewhere. [default: auto]"),
]


def chosen(file: Path | None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a server that would be started here with this file and these flags.

    Raises ``InvalidArgument``, which names what is wrong and where it was set.
    """
    from penstock.settings.loading import load

    return load(text_of(file), os.environ, flags, file=_name_of(file))


def shown(file: Path | None, flags: Mapping[str, Any] | None = None) -> list[InForce]:
    """The settings of such a server as a list, with the origin of each value."""
    from penstock.settings.loading import in_force

    return in_force(text_of(file), os.environ, flags, file=_name_of(file))


def _name_of(file: Path | None) -> str:
    return "" if file is None else str(file.expanduser())


def text_of(file: Path | None) -> str:
    """The text of a settings file; empty if none is named. Raises ``InvalidArgument``."""
    if file is None:
        return ""
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the settings file {file} cannot be read: {error}") from error
