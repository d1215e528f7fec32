"""Lets tests reach the realms of this process through another node, as in a cluster.

With ``pytest --through-a-node packages/client/tests`` the node listens at every port that a test
opens, and relays connections to the realm. Tests that connect within the process, or otherwise open
their own port, do not go through the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

import penstock
from penstock_amqp import standby as amqp
from penstock_cluster.relay import RelayChooser, Relays, WantsRelay, relay_before_tls
from penstock_core.wire.relay_preface import secret_name
from penstock_mqtt import standby as mqtt
from penstock_server.frontends.http import standby as http
from penstock_server.frontends.native import standby as native
from penstock_server.frontends.shared.arrivals import Arrivals
from penstock_server.frontends.shared.handshakes import TlsServer
from penstock_server.frontends.shared.ports import open_server
from penstock_server.frontends.shared.relayed import RelayGate
from penstock_server.frontends.shared.serving_node import ServingNode
from penstock_server.runtime.writer.clock import SystemClock

PATIENT_S: Final = 3_600.0
_SECRET: Final = b"s" * 32
_PROCESS: Final = "start 1"
_WANTS: Final[dict[str, WantsRelay]] = {
    # the native port also accepts AMQP
    "native": lambda data: amqp.wants_relay(data) or native.wants_relay(data),
    "amqp": amqp.wants_relay,
    "mqtt": mqtt.wants_relay,
    # a real node answers requests about its own state; here none are sent
    "http": lambda data: http.wants_relay(data) is not None or None,
}


class OtherNode:
    """A node that relays connections to a realm."""

    patience_s = PATIENT_S

    def __init__(self, realm: penstock.Realm) -> None:
        self._realm = realm
        self._serves: dict[str, str] = {}
        clock = SystemClock()
        self._owner = lambda: ServingNode(
            "the realm", self._serves, _PROCESS, secret_name=secret_name(_SECRET)
        )
        self.relays = Relays(self._owner, _SECRET, "another node", clock=clock, relays_max=10_000)
        self._realm.listener.gate = RelayGate(_SECRET, _PROCESS, clock)

    def enter(self, _: object) -> bool:
        return True

    def leave(self, _: object) -> None:
        pass

    def url(self, front_end: str, url: str) -> str:
        """Listen for a front end of the realm, which is at ``url``; return the URL at the node."""
        scheme, _, _ = url.partition("://")
        self._serves[front_end] = url
        host = urlsplit(url).hostname or ""
        port = self._realm.loop.call(self._listen(front_end, host))
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _listen(self, front_end: str, host: str) -> int:
        certificate = self._realm.listener.tls
        arrivals = Arrivals(self._owner, PATIENT_S, 10_000)
        local: Any = partial(amqp.StandbyAmqpConnection, arrivals, "another node")
        server: Any
        wants = _WANTS.get(front_end, lambda data: bool(data) or None)
        if certificate is None:
            make = partial(RelayChooser, self.relays, front_end, wants, local, self)
            server = await open_server(make, host, 0, held_ports=None)
        else:
            before: Any = partial(relay_before_tls, self.relays, front_end)
            callbacks = self.enter, self.leave
            server = TlsServer(certificate.context, PATIENT_S, local, *callbacks, before)
            await server.listen(host, 0)
        self._realm.listener.servers.append(server)  # so that it is closed with the realm
        port: int = server.sockets[0].getsockname()[1]
        return port


@contextmanager
def through_a_node(realm: penstock.Realm) -> Iterator[OtherNode]:
    """Make another node serve the ports that the realm opens in the ``with`` block."""
    node = OtherNode(realm)
    with pytest.MonkeyPatch.context() as patch:
        for name, front_end in _METHODS.items():
            listen = getattr(realm, name)
            patch.setattr(realm, name, partial(_reached, node, front_end, listen), raising=False)
        patch.setattr(realm, "other_node", node, raising=False)
        yield node


def _reached(
    node: OtherNode, front_end: str, listen: Callable[..., str], *at: Any, **more: Any
) -> str:
    return node.url(front_end, listen(*at, **more))


_METHODS: Final[dict[str, str]] = {
    "listen": "native",
    "listen_amqp": "amqp",
    "listen_http": "http",
    "listen_mqtt": "mqtt",
}


def serve_all_through_a_node(patch: pytest.MonkeyPatch) -> None:
    """Make another node serve the ports of all realms of this process."""
    nodes: dict[int, OtherNode] = {}
    for name, front_end in _METHODS.items():
        listen = getattr(penstock.Realm, name)

        def reached(
            realm: penstock.Realm,
            *at: Any,
            _listen: Any = listen,
            _front_end: str = front_end,
            **more: Any,
        ) -> str:
            key = id(realm.listener)
            if key not in nodes:
                nodes[key] = OtherNode(realm)
            return nodes[key].url(_front_end, _listen(realm, *at, **more))

        patch.setattr(penstock.Realm, name, reached)
