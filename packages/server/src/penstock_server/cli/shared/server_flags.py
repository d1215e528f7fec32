"""The flags of a server, declared once for both readers: the command line's parser and
:mod:`penstock_server.cli.serving.plain_start`, which does without it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple


class Flag(NamedTuple):
    """A setting that commands take as an option."""

    name: str
    setting: str
    """Path of the setting; empty: the flag names the settings file."""
    kind: type | tuple[str, ...]
    """``bool`` is a switch; a tuple has the allowed texts."""
    help: str
    metavar: str | None = None

    @property
    def word(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"


FLAGS: Final = (
    Flag("host", "listen.host", str, help="Address to listen on. [default: 127.0.0.1]"),
    Flag("port", "listen.port", int, help="Port; 0 takes any free one. [default: 9000]"),
    Flag(
        "amqp_port",
        "listen.amqp_port",
        int,
        help="Port of AMQP 1.0, usually 5672; 0 takes any free one. [default: no AMQP]",
    ),
    Flag(
        "mqtt_port",
        "listen.mqtt_port",
        int,
        help="Port of MQTT; not given: no MQTT.",
        metavar="N",
    ),
    Flag(
        "http_port",
        "http.port",
        int,
        help="Port of the console, the API and the metrics; 0 takes any free one. [default: 9080]",
    ),
    Flag("http", "http.enabled", bool, help="Serve HTTP. [default: http]"),
    Flag(
        "cluster",
        "cluster.engine",
        str,
        help="URL of the storage engine of a cluster, with all its servers. [default: no cluster]",
        metavar="URL",
    ),
    Flag(
        "node",
        "cluster.node",
        str,
        help="Name of this node of a cluster. [default: one that is made and kept]",
    ),
    Flag(
        "advertise",
        "cluster.advertise",
        str,
        help="Host under which others reach this node. [default: that of --host]",
    ),
    Flag(
        "local_port",
        "cluster.local_port",
        int,
        help="Port of this node's local channels; 0 takes any free one. [default: none]",
        metavar="N",
    ),
    Flag(
        "local_http_port",
        "cluster.local_http_port",
        int,
        help="Port of HTTP for its local channels. [default: no HTTP there]",
        metavar="N",
    ),
    Flag("settings", "", Path, help="Settings file (TOML).", metavar="FILE"),
    Flag(
        "log_level",
        "log.level",
        ("debug", "info", "warning", "error"),
        help="Least important line to log. [default: info]",
    ),
    Flag(
        "log_format",
        "log.format",
        ("auto", "text", "json"),
        help="auto is text on a terminal, JSON lines elsewhere. [default: auto]",
    ),
)
"""All of them, in the order in which ``penstock serve`` lists them."""
PORTS: Final = ("port", "amqp_port", "mqtt_port", "http_port", "http")
CLUSTER: Final = ("cluster", "node", "advertise", "local_port", "local_http_port")
LOG: Final = ("log_level", "log_format")


def flags_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of flags by the paths of their settings; None: the flag was not used."""
    return {
        flag.setting: values[flag.name] for flag in FLAGS if flag.setting and flag.name in values
    }
