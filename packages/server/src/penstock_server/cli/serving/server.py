"""``penstock serve``: runs a realm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_server.cli.serving.realm_process import run_realm
from penstock_server.cli.shared.configuring import (
    Advertise,
    AmqpPort,
    Cluster,
    Host,
    Http,
    HttpPort,
    LocalHttpPort,
    LocalPort,
    LogFormat,
    LogLevel,
    MqttPort,
    Node,
    Port,
    SettingsFile,
)


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
    local_port: LocalPort = None,
    local_http_port: LocalHttpPort = None,
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
    has the node's name, its audit logs and no events of the cluster, and each node has its own.
    With `--local-port` it has channels of this node alone, too, which go on without the cluster.

    \b
    Example:
      penstock serve --data ./data --port 9001
      penstock serve --data ./n1 --cluster nats://a,b,c --host 10.0.0.1
      penstock serve --data ./n1 --cluster nats://a,b,c --local-port 9001
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
        "cluster.local_port": local_port,
        "cluster.local_http_port": local_http_port,
        "log.level": log_level,
        "log.format": log_format,
    }
    status = run_realm(data, settings, flags)
    if status:
        raise typer.Exit(status)
