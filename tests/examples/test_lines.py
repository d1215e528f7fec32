"""The front end of `examples/lines`, which the server finds by its entry point."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import penstock
from examples.lines.penstock_lines import FRONT_END
from penstock_core.wire.native import messages as wire
from penstock_server.frontends.front_end import StandbyNode
from penstock_server.frontends.native.standby import OwnerFollowers
from penstock_server.frontends.shared.arrivals import Arrivals
from penstock_testing.process import ServerProcess
from tests.loops import on_a_loop

LINES = Path(__file__).resolve().parents[2] / "examples" / "lines"
ENTRY_POINTS = """
[penstock.front_ends]
lines = penstock_lines:FRONT_END
[penstock.settings]
lines = penstock_lines:LineSettings
"""


@pytest.mark.process
def test_a_server_speaks_lines_once_the_package_is_installed(tmp_path: Path) -> None:
    metadata = tmp_path / "penstock_lines-1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join((f"{tmp_path}", f"{LINES}", os.environ.get("PYTHONPATH", "")))

    environment = {"PYTHONPATH": path, "PENSTOCK_LINES_PORT": "0"}
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        with penstock.connect(server.url) as session:
            session.channels.create("orders")
        (listening,) = server.logged("front_end.listening")
        place = urlsplit(str(listening["url"]))
        with (
            socket.create_connection((place.hostname, place.port)) as connection,
            connection.makefile("rw") as stream,
        ):

            def answer(line: str) -> str:
                stream.write(f"{line}\n")
                stream.flush()
                return stream.readline().strip()

            assert answer("SUB orders") == "OK"
            assert {answer("PUB orders hello world"), stream.readline().strip()} == {
                "OK 0",
                "EVENT orders 0 hello world",
            }
            assert answer("PUB none text").startswith("ERROR name-does-not-exist: there is no")
            assert answer("HELP").startswith("ERROR invalid-argument: send USER name password")


class Wire(asyncio.Transport):
    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        pass


@on_a_loop
async def test_a_node_that_stands_by_closes_a_connection_that_it_does_not_relay() -> None:
    arrivals = Arrivals(lambda: None, 9.0, 1)
    followers = OwnerFollowers(lambda: wire.Owners(1, {}))
    node = StandbyNode(arrivals, followers, "n1", lambda: False, str, incidents=list)
    transport = Wire()

    connection = FRONT_END.standby(node)()
    assert isinstance(connection, asyncio.Protocol)
    connection.connection_made(transport)
    connection.data_received(b"SUB orders\n")
    connection.connection_lost(None)

    assert transport.is_closed
    assert FRONT_END.wants_relay(b"S") is True
    assert FRONT_END.wants_relay(b"") is None
