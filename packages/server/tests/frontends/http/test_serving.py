"""``penstock serve`` with HTTP: where it listens, what a taken port means, how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from packages.server.tests.frontends.http.asking import Web
from penstock_testing.process import ServerDidNotStart, ServerProcess

pytestmark = pytest.mark.process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_open_view_does_not_keep_the_server(
    serve: Callable[..., ServerProcess], number: signal.Signals
) -> None:
    server = serve("--http", "--http-port", "0")
    web = Web(server.http_url)
    web.send("POST", "channels", {"name": "orders"})
    with web.watching("channels/orders/live") as events:
        server.signal(number)

        assert [name for name, _ in events] == ["end"]
        assert server.wait() == 0
    assert not server.logged("request.failed")


def test_a_configured_port_is_used_or_the_start_fails(
    serve: Callable[..., ServerProcess],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port_in_use:
        port = str(port_in_use.getsockname()[1])

        with pytest.raises(ServerDidNotStart, match="address-in-use"):
            serve("--http", "--http-port", port)


def test_a_realm_without_http_does_not_listen(serve: Callable[..., ServerProcess]) -> None:
    assert not serve().logged("http.listening")


def test_http_is_only_imported_where_it_is_served() -> None:
    program = "import sys, penstock_server.serving; print('uvicorn' in sys.modules)"
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert completed.stdout.strip() == "False"
