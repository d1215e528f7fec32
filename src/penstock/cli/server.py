"""``penstock serve``: run a realm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from penstock.core.errors import InvalidArgument


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    data: Annotated[
        Path,
        typer.Option("--data", help="Data directory; made when it is missing.", metavar="DIR"),
    ],
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes any free one. [default: 9000]")
    ] = None,
    amqp_port: Annotated[
        int | None,
        typer.Option(
            help="Port of AMQP 1.0, usually 5672; 0 takes any free one. [default: no AMQP]"
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the console, the API and the metrics; 0 takes any free one. "
            "[default: 9080]"
        ),
    ] = None,
    http: Annotated[
        bool | None, typer.Option("--http/--no-http", help="Serve HTTP. [default: http]")
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help="Settings file (TOML).", metavar="FILE")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(help="Least important line to log. [default: info]"),
    ] = None,
    log_format: Annotated[
        Literal["auto", "text", "json"] | None,
        typer.Option(help="auto is text on a terminal, JSON lines elsewhere. [default: auto]"),
    ] = None,
) -> None:
    """Run a realm, until SIGTERM or Ctrl-C.

    Every option has a place in the settings file and an environment variable; see
    `penstock settings`. Flags win over the environment, the environment over the file.
    The log goes to standard error; the line `realm.listening` says that clients may come.

    \b
    Example:
      penstock serve --data ./data --port 9001
    """
    from penstock import logs
    from penstock.settings import load

    flags: dict[str, Any] = {
        "listen.host": host,
        "listen.port": port,
        "listen.amqp_port": amqp_port,
        "http.port": http_port,
        "http.enabled": http,
        "log.level": log_level,
        "log.format": log_format,
    }
    chosen = load(text_of(settings), os.environ, flags)
    logs.configure(chosen.log.level, chosen.log.format)
    from penstock.serving import serve as run  # Arrow and the server: once the flags are right

    run(data.expanduser(), chosen)


def text_of(file: Path | None) -> str:
    """A settings file; nothing where none is named. Raises ``InvalidArgument``."""
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the settings file {file} cannot be read: {error}") from error
