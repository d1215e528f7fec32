"""``penstock serve``: runs a realm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from penstock.cli.configuring import (
    Advertise,
    AmqpPort,
    Cluster,
    Host,
    Http,
    HttpPort,
    LogFormat,
    LogLevel,
    MqttPort,
    Node,
    Port,
    SettingsFile,
    chosen,
)
from penstock.core.vocabulary.errors import Internal, PenstockError

if TYPE_CHECKING:
    from penstock.settings import Settings

FAILED = 1
"""Exit status of a realm that could not start or continue."""


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    data: Annotated[
        Path,
        typer.Option("--data", help="Data directory; made when it is missing.", metavar="DIR"),
    ],
    host: Host = None,
    port: Port = None,
    amqp_port: AmqpPort = None,
    mqtt_port: MqttPort = None,
    http_port: HttpPort = None,
    http: Http = None,
    cluster: Cluster = None,
    node: Node = None,
    advertise: Advertise = None,
    settings: SettingsFile = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run a realm, until SIGTERM or Ctrl-C.

    Every option has a place in the settings file and an environment variable; see
    `penstock settings`. Flags win over the environment, the environment over the file.
    The log goes to standard error; the line `realm.listening` says that clients may come, and
    `realm.failed` why there is no realm.

    With `--cluster` this is one of several nodes that share a storage engine: one of them serves,
    the others stand by, send clients to it, and take over when it is gone. The data directory then
    has the node's name, its audit logs and no events, and each node has its own.

    \b
    Example:
      penstock serve --data ./data --port 9001
      penstock serve --data ./n1 --cluster nats://a,b,c --host 10.0.0.1
    """
    flags: dict[str, Any] = {
        "listen.host": host,
        "listen.port": port,
        "listen.amqp_port": amqp_port,
        "listen.mqtt_port": mqtt_port,
        "http.port": http_port,
        "http.enabled": http,
        "cluster.engine": cluster,
        "cluster.node": node,
        "cluster.advertise": advertise,
        "log.level": log_level,
        "log.format": log_format,
    }
    try:
        _serve(data.expanduser(), settings, flags)
    except Exception as error:  # noqa: BLE001  whatever ends a realm is said where the rest is said
        log_failure(error)
        raise typer.Exit(FAILED) from None


def _serve(data: Path, file: Path | None, flags: dict[str, Any]) -> None:
    from penstock import logs

    try:
        wanted = chosen(file, flags)
    except PenstockError:
        logs.configure("info", format_wanted(flags))
        raise
    _run(data, wanted)


def _run(data: Path, wanted: Settings) -> None:
    from penstock import logs

    logs.configure(wanted.log.level, wanted.log.format)
    # imports Arrow and the server, so only when the flags are right
    from penstock.serving import serve as run

    run(data, wanted)


def format_wanted(flags: dict[str, Any]) -> Any:
    """The log format to use when the settings as a whole are invalid."""
    from penstock.logs import Format

    wanted = flags["log.format"] or os.environ.get("PENSTOCK_LOG_FORMAT", "auto")
    return cast("Format", wanted if wanted in get_args(Format) else "auto")


def log_failure(error: Exception) -> None:
    """Say what has ended a realm, or has kept it from starting."""
    import structlog

    _log = structlog.get_logger("penstock.realm")
    if isinstance(error, PenstockError):
        _log.error("realm.failed", code=error.code, reason=str(error))
    else:
        reason = "an internal error of the realm; please report it"
        _log.error("realm.failed", code=Internal.code, reason=reason, exc_info=error)
