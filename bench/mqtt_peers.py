"""Servers that speak MQTT, and how to fetch those that no system package contains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

import penstock
from bench.peers.penstock import Penstock, storage_of
from bench.processes import server_process, wait_for_port
from bench.shape import Missing
from penstock_testing.ports import free_port

CONTENDERS: Final = ("penstock", "mosquitto", "rumqttd", "amqtt")
FETCHED: Final[Mapping[str, str]] = MappingProxyType({"rumqttd": "0.20.0", "amqtt": "0.12.1"})
"""Servers that ``python -m bench install`` fetches, with their versions."""
CHANNEL: Final = "mqtt"

_MOSQUITTO = """
listener {port} 127.0.0.1
allow_anonymous true
max_queued_messages 0
max_inflight_messages 100
set_tcp_nodelay true
user root
persistence {persistence}
persistence_location {directory}/
log_type none
"""
_RUMQTTD = """
id = 0
[router]
id = 0
max_connections = 10010
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4-1"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 1
    [v4.1.connections]
    connection_timeout_ms = 60000
    max_payload_size = 20480
    max_inflight_count = 100
    dynamic_filters = true
"""
_AMQTT = """
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


class MqttServer(Struct, frozen=True):
    """A running server."""

    pid: int
    port: int


def folder_of(name: str) -> Path:
    """Return the folder of a fetched server, whether or not it exists."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "penstock-bench" / f"{name}-{FETCHED[name]}"


def missing(name: str) -> str:
    """Return why a server cannot run; empty if it can."""
    if name == "mosquitto" and _mosquitto() is None:
        return "mosquitto is not installed: apt-get install mosquitto"
    if name in FETCHED and not _program(name).exists():
        needs = "cargo" if name == "rumqttd" else "pip"
        return f"it is not here: python -m bench install {name} (needs {needs})"
    return ""


def version_of(name: str) -> str:
    """Return the version that runs here."""
    if name != "mosquitto":
        return FETCHED.get(name, penstock.__version__)
    command = [_mosquitto() or "", "-h"]  # the server reports its version in no other way
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.search(r"version (\S+)", output)
    return "" if match is None else match[1]


def versions_of(names: Iterable[str]) -> Mapping[str, str]:
    """Return the versions of the servers that are installed here, by name."""
    return {name: version_of(name) for name in names if not missing(name)}


def _mosquitto() -> str | None:
    """Return the path of mosquitto; Debian installs it in a folder that only root's ``PATH``
    has."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def _program(name: str) -> Path:
    return folder_of(name) / "bin" / name


def install(name: str) -> Path:
    """Fetch a server, and return its folder. Raises ``Missing`` without the program that fetches
    it, ``CalledProcessError`` if that program fails."""
    folder = folder_of(name)
    if name == "amqtt":
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", f"amqtt=={FETCHED[name]}"]
        subprocess.run(pip, check=True)
        return folder
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Missing("cargo is not installed: apt-get install cargo")
    # Without --locked: the server's lock file names crates that newer versions of Rust refuse
    command = [cargo, "install", "--root", str(folder)]
    subprocess.run([*command, name, "--version", FETCHED[name]], check=True)
    return folder


@contextmanager
def served(
    name: str, directory: Path, durability: str, *, keeps: bool = False, more: str = ""
) -> Iterator[MqttServer]:
    """Serve a contender on a free port of this machine. With ``keeps`` it stores retained messages
    on disk; ``more`` are lines for the configuration of mosquitto. Raises ``Missing`` if it cannot
    run here."""
    if reason := missing(name):
        raise Missing(reason)
    port = free_port()
    if name == "penstock":
        if not any(directory.iterdir()):
            _make_channel(directory, durability)
        with Penstock("--mqtt-port", str(port)).serve(directory, durability) as server:
            wait_for_port(server.pid, port, directory.parent / "server.log")
            yield MqttServer(server.pid, port)
        return
    command = _command(name, port, directory, keeps=keeps, more=more)
    with server_process(command, port, "", directory=directory) as server:
        yield MqttServer(server.pid, port)


def _make_channel(directory: Path, durability: str) -> None:
    """Create the channel of all topics with this durability."""
    with penstock.Realm(directory) as realm, realm.connect() as session:
        session.channels.create(CHANNEL, retain_consumed=True, storage=storage_of(durability))


def _command(name: str, port: int, directory: Path, *, keeps: bool, more: str) -> Sequence[str]:
    configuration = directory / "server.conf"
    if name == "mosquitto":
        persistence = "true" if keeps else "false"
        text = _MOSQUITTO.format(port=port, persistence=persistence, directory=directory)
        configuration.write_text(text + more)
        return [_mosquitto() or "", "-c", str(configuration)]
    if name == "rumqttd":
        configuration = directory / "server.toml"
        configuration.write_text(_RUMQTTD.format(port=port))
        return [str(_program(name)), "-c", str(configuration)]
    configuration = directory / "server.yaml"
    configuration.write_text(_AMQTT.format(port=port))
    return [str(_program(name)), "-c", str(configuration)]
