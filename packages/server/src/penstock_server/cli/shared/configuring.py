"""Options of commands that are settings of a realm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

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
LocalPort = Annotated[
    int | None,
    typer.Option(
        help="Port of this node's local channels; 0 takes any free one. [default: none]",
        metavar="N",
    ),
]
LocalHttpPort = Annotated[
    int | None,
    typer.Option(help="Port of HTTP for its local channels. [default: no HTTP there]", metavar="N"),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(help="Least important line to log. [default: info]"),
]
LogFormat = Annotated[
    Literal["auto", "text", "json"] | None,
    typer.Option(help="auto is text on a terminal, JSON lines elsewhere. [default: auto]"),
]
