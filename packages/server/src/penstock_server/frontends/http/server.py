"""The HTTP listener, which runs uvicorn's protocol in the realm's event loop, with limits on time
and size.

Uvicorn's server is not used, because it takes over the signals of the process and wakes up ten
times per second.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    AddressInUse,
    CrossSite,
    InvalidArgument,
    PenstockError,
    RealmStopping,
)
from penstock_server.frontends.http.app import App
from penstock_server.frontends.http.http_service import HttpLimits, HttpService
from penstock_server.frontends.http.places import ConnectionPlaces
from penstock_server.frontends.http.plain_requests import PlainProtocol
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.tunnel import PATHS, Upgrade, WebTunnel, refusal
from penstock_server.frontends.native.listener import NativeListener, check_exposed
from penstock_server.frontends.shared.handshakes import Handshake, TlsServer
from penstock_server.frontends.shared.ports import SocketServers, open_server
from penstock_server.frontends.shared.relayed import PrefaceSniffer, relayed_by
from penstock_server.runtime.access.askers import Asker
from penstock_server.runtime.access.open_connections import TrafficCounts

HEAD_BYTES_MAX: Final = 64 << 10
"""Maximum size in bytes of a request's first line and headers."""
CHECK_S: Final = 1.0
"""Seconds between two checks of all connections for timeouts."""
GRACE_S: Final = 2.0
"""Seconds that requests in progress may take when the realm stops."""
_POLL_S: Final = 0.01
"""Seconds between two checks whether requests in progress have finished."""

_log = logger("penstock.http")
_SILENT: Final = logging.Logger("penstock.uvicorn", logging.CRITICAL)
"""Discards uvicorn's log lines about peers that do not speak HTTP; these get an error response."""


class _CountedBytes(h11.Connection):
    """An h11 connection that counts all received and sent bytes, including headers."""

    def __init__(self, traffic: TrafficCounts) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES_MAX)
        self._traffic = traffic

    def receive_data(self, data: bytes) -> None:
        self._traffic.received_bytes += len(data)
        super().receive_data(data)

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        # ``send`` calls this method, so bytes of both are counted here once.
        out = super().send_with_data_passthrough(event)
        self._traffic.sent_bytes += sum(map(len, out or ()))
        return out


class HttpConnection(PlainProtocol):
    """One HTTP connection."""

    listener: HttpServer

    def __init__(self, listener: HttpServer) -> None:
        traffic = listener.realm.connections.traffic["http"]
        super().__init__(listener.config, listener.uvicorn, traffic)
        self.conn = _CountedBytes(traffic)
        self.listener = listener
        self.logger = _SILENT
        self.heard_s = self._quiet_from_s = self.loop.time()
        """``heard_s`` is the time of the last received data. ``_quiet_from_s`` is the time since
        which the realm waits for the client to send a request or to read. Both are by the loop's
        clock."""
        self.address = "localhost"
        self.is_spare = False
        self._asker = Asker()
        self._unsent = 0
        """Unsent bytes at the last check."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature
        super().connection_made(transport)
        if self.client:
            self.address = str(self.client[0])
        if not self.listener.places.take(self):
            transport.abort()
        self.app_state = {
            "certificate": transport.get_extra_info("peercert"),
            "is_spare": self.is_spare,
            "asker": self._asker,
            "relayed_by": relayed_by(transport),
        }

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.places.leave(self)
        self._asker.disconnect()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.heard_s = self.loop.time()
        super().data_received(data)

    # --- WebSocket -----------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        return self.scope["path"] in PATHS and self._get_upgrade() == b"websocket"

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Pass the connection to the protocol that the client requests inside a WebSocket, or
        refuse it."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        upgrade = Upgrade(event.method.decode("ascii"), headers)
        protocols = self.listener.native.web_protocols
        if (only := PATHS[self.scope["path"]]) is not None:
            protocols = {name: make for name, make in protocols.items() if name in only}
        if fault := self._upgrade_fault(upgrade, headers, tuple(protocols)):
            self.transport.write(refusal(*fault))
            self.transport.close()
            return
        sub_protocol = upgrade.chosen(tuple(protocols))
        assert sub_protocol is not None, "_upgrade_fault checks this"
        # The client may have sent its first frames directly after the request.
        early_data, _ = self.conn.trailing_data
        self.transport.write(upgrade.answer(sub_protocol))
        # From here on the listener of the inner protocol counts the connection.
        self.connections.discard(self)
        self.listener.places.leave(self)
        self._asker.disconnect()
        tunnel = WebTunnel(protocols[sub_protocol]())
        self.transport.set_protocol(tunnel)
        tunnel.connection_made(self.transport)
        if early_data:
            tunnel.data_received(early_data)

    def _upgrade_fault(
        self, upgrade: Upgrade, headers: Mapping[str, str], protocols: Sequence[str]
    ) -> tuple[int, str] | None:
        """Return the status and reason why a WebSocket is refused; None if it may be opened.

        Among web pages, only those of the console may open a WebSocket, because its messages may
        change the realm.
        """
        local = str(self.server[0]) if self.server else "localhost"
        try:
            self.listener.guard.check_site(headers, local, changes=True)
        except PenstockError as error:
            return (403 if isinstance(error, CrossSite) else 400), str(error)
        if self.is_spare:
            return 503, "all connections are busy; try again"
        return upgrade.fault(protocols)

    # --- timeouts ------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        """Whether a response is not complete yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_in_body(self) -> bool:
        """Whether the rest of a request's body has to arrive before its response can begin."""
        return self._is_busy and self.cycle.more_body and not self.cycle.response_started

    @property
    def owes_data(self) -> bool:
        """Whether the realm waits for a request or the rest of one."""
        return not self._is_busy or self._is_in_body

    def drop(self) -> None:
        """Close the connection to make room for another."""
        self.transport.abort()

    def check(self, now_s: float) -> None:
        """Drop a client that has sent or read nothing for too long; called every ``CHECK_S``."""
        limits = self.listener.limits
        unsent = self.transport.get_write_buffer_size()
        # A buffer that has not shrunk since the last check means that the client does not read.
        if unsent and unsent >= self._unsent > 0:
            if now_s - self._quiet_from_s > limits.send_timeout_s:
                self.transport.abort()
        elif self._is_busy:
            self._quiet_from_s = now_s
        elif now_s - self._quiet_from_s > limits.head_timeout_s:
            self.transport.abort()
        self._unsent = unsent


class HttpServer:
    """All HTTP connections of a realm."""

    def __init__(
        self,
        native: NativeListener,
        limits: HttpLimits,
        *,
        tls: Any = None,
    ) -> None:
        """``native`` has the realm's other connections; ``tls`` is an ``SSLContext``."""
        self.native = native
        self.realm = native.realm
        self.limits = limits
        self.is_secure = tls is not None
        self.service = HttpService(native, limits, is_secure=self.is_secure)
        self.guard = self.service.guard
        self.config = uvicorn.Config(
            App(self.service, TABLE),
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=max(1, int(limits.head_timeout_s)),
        )
        self.config.load()
        self.uvicorn = ServerState()
        self._tls = tls
        self._servers: list[asyncio.Server | SocketServers | TlsServer] = []
        self.arriving: dict[Handshake | PrefaceSniffer, None] = {}
        """Connections in a TLS handshake, or whose first bytes have not arrived."""
        self.places = ConnectionPlaces(limits.connections_max, limits.connections_per_address_max)
        self.realm.on_deposed(self.cut)
        native.heard_elsewhere.append(self._is_heard_since)

    def _is_heard_since(self, since_s: float) -> bool:
        return any(
            isinstance(peer, HttpConnection) and peer.heard_s >= since_s
            for peer in self.uvicorn.connections
        )

    # --- start and end -------------------------------------------------------------------

    async def listen(self, host: str, port: int) -> int:
        """Accept connections and return the port. Raises ``AddressInUse``, ``InvalidArgument``."""
        check_exposed(host, self.guard.access.mode)
        server: asyncio.Server | SocketServers | TlsServer
        ports, gate, timeout_s = self.native.ports, self.native.gate, self.limits.head_timeout_s
        make: Callable[[], asyncio.BaseProtocol] = partial(HttpConnection, self)
        try:
            if self._tls is None:
                if gate is not None:
                    callbacks = self._enter, self._leave
                    make = partial(PrefaceSniffer, gate, make, timeout_s, *callbacks)
                server = await open_server(make, host, port, held_ports=ports)
            else:
                before = None if gate is None else gate.before_tls
                server = TlsServer(
                    self._tls,
                    timeout_s,
                    make,
                    enter=self._enter,
                    leave=self._leave,
                    before=before,
                )
                await server.listen(host, port, ports)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"port {port} of {host} is in use by another process; stop it, choose another "
                    "port (--http-port 0 takes any free port), or serve without HTTP (--no-http)"
                ) from error
            raise InvalidArgument(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _enter(self, arrival: Handshake | PrefaceSniffer) -> bool:
        """Count a connection that begins its TLS handshake or has sent no bytes yet, and return
        whether it is admitted."""
        if self.service.is_stopping.is_set() or not self.places.take(arrival):
            return False
        self.arriving[arrival] = None
        return True

    def _leave(self, arrival: Handshake | PrefaceSniffer) -> None:
        """Stop counting a connection whose handshake has ended or whose first bytes have
        arrived. It is then counted as an ``HttpConnection``."""
        del self.arriving[arrival]
        self.places.leave(arrival)

    async def run(self) -> None:
        """Check the connections for timeouts until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_S)
            for peer in list(self.uvicorn.connections):
                assert isinstance(peer, HttpConnection), "only listen() adds connections"
                with self.realm.incidents.barrier("http connections"):
                    peer.check(loop.time())
            # Tokens and sessions expire without a notification.
            with self.realm.incidents.barrier("http views"):
                self.service.check_views()
            self.service.update_standstill(loop.time())

    def cut(self) -> None:
        """Drop all connections immediately and accept no more; called when the realm is deposed."""
        self._stop_accepting()
        for peer in list(self.uvicorn.connections):
            peer.transport.abort()

    def _stop_accepting(self) -> None:
        self.service.is_stopping.set()
        for server in self._servers:
            server.close()
        for arrival in list(self.arriving):
            arrival.abort()

    async def close(self) -> None:
        """Accept no more connections, end live views, and let requests in progress finish."""
        self._stop_accepting()
        self.service.end(RealmStopping("the realm is shutting down"))
        for peer in list(self.uvicorn.connections):
            peer.shutdown()
        for _ in range(int(GRACE_S / _POLL_S)):
            if not (self.uvicorn.connections or self.uvicorn.tasks):
                break
            await asyncio.sleep(_POLL_S)
        for task in list(self.uvicorn.tasks):
            task.cancel()
        for peer in list(self.uvicorn.connections):
            peer.transport.abort()
