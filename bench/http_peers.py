"""Servers that take one event in an HTTP request, and the request of each."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

import penstock
from bench.peers.penstock import Penstock, storage_of
from bench.peers.rabbitmq import STREAM, Rabbit
from bench.processes import server_process, wait_for_port
from bench.shape import Missing
from bench.workload import Encoded, encode, pool
from penstock_testing.ports import free_port

CONTENDERS: Final = ("penstock", "rabbitmq", "nsqd")
NSQD_VERSION: Final = "1.3.0"
BUILT: Final = ("nsqd",)
"""Servers that ``python -m bench install`` builds."""
SIZE: Final = 128
_MODULE: Final = """module bench
go 1.21
require github.com/nsqio/nsq v{version}
replace github.com/judwhite/go-svc => \
github.com/mreiferson/go-svc v1.2.2-0.20210815184239-7a96e00010f6
"""
"""A module that requires nsqd. ``go install`` refuses nsqd, because it replaces a module."""
_SYNCED_EVERY: Final = 1_000_000
"""Messages between two syncs of nsqd, so that it syncs by time only."""
_MANAGEMENT: Final = """
management.tcp.ip = 127.0.0.1
management.tcp.port = {port}
management.tcp.max_keepalive = 1000000000
"""
"""By default the server closes a connection after 1,000 requests."""
_GUEST: Final = "Basic " + base64.b64encode(b"guest:guest").decode()


class HttpTarget(Struct, frozen=True):
    """A running server, and the request that publishes one event to it."""

    pid: int
    port: int
    path: str
    headers: Mapping[str, str]
    body: bytes
    expected: str
    """Text that the body of the answer has if the event is stored."""

    @property
    def request(self) -> bytes:
        """The bytes of the request."""
        headers = {"Host": f"127.0.0.1:{self.port}"} | dict(self.headers)
        headers["Content-Length"] = str(len(self.body))
        lines = [f"POST {self.path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        return "\r\n".join(lines).encode() + self.body


def folder_of_nsqd() -> Path:
    """Return the folder of nsqd, whether or not it exists."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "penstock-bench" / f"nsqd-{NSQD_VERSION}"


def missing(name: str) -> str:
    """Return why a server cannot run; empty if it can."""
    if name == "rabbitmq":
        return Rabbit("rabbitmq_management").missing()
    if name == "nsqd" and not (folder_of_nsqd() / "nsqd").exists():
        return "it is not here: python -m bench install nsqd (needs Go)"
    return ""


def versions_of(names: Iterable[str]) -> Mapping[str, str]:
    """Return the versions of the servers that are installed here, by name."""
    versions = {
        "penstock": penstock.__version__,
        "rabbitmq": Rabbit().server_version(),
        "nsqd": NSQD_VERSION,
    }
    return {name: versions[name] for name in names if not missing(name)}


def install(name: str) -> Path:
    """Build nsqd, and return its folder. Raises ``Missing`` without Go, ``CalledProcessError`` if
    Go fails."""
    go = shutil.which("go")
    if go is None:
        raise Missing("go is not installed: apt-get install golang")
    folder = folder_of_nsqd()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        (Path(directory) / "go.mod").write_text(_MODULE.format(version=NSQD_VERSION))
        command = [go, "build", "-mod=mod", "-o", str(folder / name)]
        subprocess.run([*command, f"github.com/nsqio/nsq/apps/{name}"], cwd=directory, check=True)
    return folder


@contextmanager
def served(name: str, directory: Path, durability: str) -> Iterator[HttpTarget]:
    """Serve a contender on free ports of this machine, with a channel, queue or topic for the
    events. Raises ``Missing`` if it cannot run here."""
    if reason := missing(name):
        raise Missing(reason)
    with _SERVED[name](directory, durability) as target:
        yield target


@contextmanager
def _penstock(directory: Path, durability: str) -> Iterator[HttpTarget]:
    port = free_port()
    data, properties = _event()
    with Penstock("--http-port", str(port)).serve(directory, durability) as server:
        with penstock.connect(server.url) as session:
            session.channels.create(
                STREAM, type="persistent", retain_consumed=True, storage=storage_of(durability)
            ).durables.create("nobody", type="shared")
        yield HttpTarget(
            server.pid,
            port,
            f"/api/v1/channels/{STREAM}/events",
            headers={"Content-Type": "application/json"},
            body=msgspec.json.encode({"data": data.decode(), "properties": properties}),
            expected='"count":1',
        )


@contextmanager
def _rabbitmq(directory: Path, durability: str) -> Iterator[HttpTarget]:
    """Serve a quorum queue. The management API confirms a message once the queue has stored it."""
    port = free_port()
    rabbit = Rabbit("rabbitmq_management", configuration=_MANAGEMENT.format(port=port))
    data, properties = _event()
    headers = {"Authorization": _GUEST, "Content-Type": "application/json"}
    with rabbit.serve(directory, durability) as server:
        wait_for_port(server.pid, port, directory.parent / "server.log")
        connection = http.client.HTTPConnection("127.0.0.1", port)
        queue = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
        connection.request("PUT", f"/api/queues/%2F/{STREAM}", msgspec.json.encode(queue), headers)
        with connection.getresponse() as answer:
            if answer.status != http.HTTPStatus.CREATED:
                raise RuntimeError(answer.read().decode())
        connection.close()
        message = {
            "routing_key": STREAM,
            "payload": data.decode(),
            "payload_encoding": "string",
            "properties": {"delivery_mode": 2, "headers": properties},
        }
        yield HttpTarget(
            server.pid,
            port,
            "/api/exchanges/%2F/amq.default/publish",
            headers=headers,
            body=msgspec.json.encode(message),
            expected='"routed":true',
        )


@contextmanager
def _nsqd(directory: Path, durability: str) -> Iterator[HttpTarget]:
    """Serve a topic whose messages are all written to disk, also while its memory has room."""
    if durability == "D2":
        raise Missing("it confirms a message before it syncs the message")
    port = free_port()
    command = [str(folder_of_nsqd() / "nsqd"), "--mem-queue-size=0", "--log-level=warn"]
    command += [f"--http-address=127.0.0.1:{port}", f"--tcp-address=127.0.0.1:{free_port()}"]
    command += [f"--data-path={directory}", f"--sync-every={_SYNCED_EVERY}"]
    with server_process(command, port, "", directory=directory) as server:
        yield HttpTarget(
            server.pid,
            port,
            f"/pub?topic={STREAM}",
            headers={},
            body=encode(Encoded(*_event())),
            expected="OK",
        )


def _event() -> tuple[bytes, dict[str, object]]:
    """Return the data and properties of the event."""
    events = pool(1, 1, SIZE)[0]
    return events.datas[0], events.properties[0]


_SERVED: Final = MappingProxyType({"penstock": _penstock, "rabbitmq": _rabbitmq, "nsqd": _nsqd})
