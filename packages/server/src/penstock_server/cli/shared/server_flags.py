"""The flags of a server, declared once for the command line parser and for
:mod:`penstock_server.cli.serving.plain_start`, which works without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple


class Flag(NamedTuple):
    """A setting that is also a command option."""

    name: str
    setting: str
    """Path of the setting; empty for the flag that names the settings file."""
    kind: type | tuple[str, ...]
    """Type of the value; ``bool`` is a switch, a tuple lists the allowed texts."""
    help: str
    metavar: str | None = None

    @property
    def word(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"


FLAGS: Final = (
    Flag("host", "listen.host", str, help="Address to listen on. [default: 127.0.0.1]"),
    Flag(
        "port",
        "listen.port",
        int,
        help="Port of the native protocol; 0 takes any free port. [default: 9000]",
    ),
    Flag(
        "amqp_port",
        "listen.amqp_port",
        int,
        help="Port of AMQP 1.0, usually 5672; 0 takes any free port. [default: no AMQP]",
    ),
    Flag(
        "mqtt_port",
        "listen.mqtt_port",
        int,
        help="Port of MQTT, usually 1883; 0 takes any free port. [default: no MQTT]",
        metavar="N",
    ),
    Flag(
        "http_port",
        "http.port",
        int,
        help="Port of the console, the HTTP API and the metrics; 0 takes any free port. "
        "[default: 9080]",
    ),
    Flag("http", "http.enabled", bool, help="Serve HTTP. [default: http]"),
    Flag(
        "cluster",
        "cluster.engine",
        str,
        help="URL of the cluster's storage engine, with all its servers. [default: no cluster]",
        metavar="URL",
    ),
    Flag(
        "node",
        "cluster.node",
        str,
        help="Name of this cluster node. [default: a generated name, kept in the data directory]",
    ),
    Flag(
        "advertise",
        "cluster.advertise",
        str,
        help="Host name at which clients and other nodes reach this node. [default: that of "
        "--host]",
    ),
    Flag(
        "local_port",
        "cluster.local_port",
        int,
        help="Port of this node's local channels; 0 takes any free port. [default: no local "
        "channels]",
        metavar="N",
    ),
    Flag(
        "local_http_port",
        "cluster.local_http_port",
        int,
        help="HTTP port of this node's local channels. [default: no HTTP for local channels]",
        metavar="N",
    ),
    Flag("settings", "", Path, help="Settings file (TOML).", metavar="FILE"),
    Flag(
        "log_level",
        "log.level",
        ("debug", "info", "warning", "error"),
        help="Least severe level to log. [default: info]",
    ),
    Flag(
        "log_format",
        "log.format",
        ("auto", "text", "json"),
        help="Format of log lines; auto is text on a terminal, JSON lines elsewhere. [default: "
        "auto]",
    ),
)
"""All flags of a server, in the order in which ``penstock serve --help`` lists them."""
PORTS: Final = ("port", "amqp_port", "mqtt_port", "http_port", "http")
CLUSTER: Final = ("cluster", "node", "advertise", "local_port", "local_http_port")
LOG: Final = ("log_level", "log_format")


def flags_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of flags by the path of their setting; None marks an unused flag."""
    return {
        flag.setting: values[flag.name] for flag in FLAGS if flag.setting and flag.name in values
    }
