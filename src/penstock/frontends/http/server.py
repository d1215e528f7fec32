"""The HTTP listener: uvicorn's protocol in the realm's own loop, with limits on time and size.

Uvicorn's server is not used: it would take over the signals of the process, and wake up ten times a
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import h11
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.core.access.rights import Principal
from penstock.core.vocabulary.errors import (
    AddressInUse,
    CrossSite,
    InvalidArgument,
    PenstockError,
    Unavailable,
)
from penstock.frontends.http import metrics
from penstock.frontends.http.access import Guard
from penstock.frontends.http.app import App, stopping
from penstock.frontends.http.console import Files
from penstock.frontends.http.places import ConnectionPlaces
from penstock.frontends.http.quotas import Quotas
from penstock.frontends.http.routes import TABLE
from penstock.frontends.http.routing import Events
from penstock.frontends.http.shares import Shares
from penstock.frontends.http.standstill import STANDSTILL_S, Standstill
from penstock.frontends.http.tunnel import PATHS, Upgrade, WebTunnel, refusal
from penstock.frontends.native.listener import NativeListener, check_exposed
from penstock.frontends.shared.buffers import Buffers
from penstock.frontends.shared.handshakes import Handshake, TlsServer
from penstock.frontends.shared.ports import SocketServers, open_server
from penstock.frontends.shared.relayed import PrefaceSniffer, relayed_by
from penstock.loggers import logger
from penstock.runtime.access.askers import Asker
from penstock.runtime.access.open_connections import TrafficCounts

HEAD_BYTES_MAX: Final = 64 << 10
"""Most bytes of a request's first line and headers."""
CHECK_S: Final = 1.0
GRACE_S: Final = 2.0
"""Seconds for requests in progress when the realm stops."""
_LOOK_S: Final = 0.01
BUFFERS: Final = 4
"""How many bodies of the largest size fit in memory at once."""

_log = logger("penstock.http")
_SILENT: Final = logging.Logger("penstock.uvicorn", logging.CRITICAL)
"""Swallows uvicorn's log lines about peers that do not speak HTTP; such a peer gets an answer."""


class HttpLimits(Struct, frozen=True):
    """Limits for HTTP clients."""

    connections_max: int = 256
    connections_per_address_max: int = 128
    body_bytes_max: int = 32 << 20
    head_timeout_s: float = 20.0
    """Seconds from the connection's start, or its last answer, to the end of a request's
    headers."""
    body_timeout_s: float = 60.0
    send_timeout_s: float = 30.0
    """Seconds after which a peer that does not read is dropped."""
    viewers_max: int = 100
    """Most live views at a time."""
    viewers_per_user_max: int = 25
    requests_per_user_max: int = 128
    """Most requests of a user in progress."""
    channels_named_max: int = 1_000
    """Most channels and queues that have metrics of their own."""
    login_total_s: float = 43_200.0
    """Seconds after which a browser drops its session cookie; the realm may end the session
    before."""
    hosts: frozenset[str] = frozenset()
    """Names of the realm besides those of this machine."""


class _CountedBytes(h11.Connection):
    """What came over a connection, and what goes out over it, head and body, is counted."""

    def __init__(self, traffic: TrafficCounts) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES_MAX)
        self._traffic = traffic

    def receive_data(self, data: bytes) -> None:
        self._traffic.received_bytes += len(data)
        super().receive_data(data)

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        out = super().send_with_data_passthrough(event)  # ``send`` joins these
        self._traffic.sent_bytes += sum(map(len, out or ()))
        return out


class HttpConnection(H11Protocol):
    """One HTTP connection."""

    listener: HttpServer

    def __init__(self, listener: HttpServer) -> None:
        super().__init__(listener.config, listener.uvicorn, {})
        self.conn = _CountedBytes(listener.realm.connections.traffic["http"])
        self.listener = listener
        self.logger = _SILENT
        self.heard_s = self._quiet_from_s = self.loop.time()
        self.address = "localhost"
        self.is_spare = False
        self._asker = Asker()
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
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
        self._asker.go()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.heard_s = self.loop.time()
        super().data_received(data)

    # --- WebSocket -----------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        return self.scope["path"] in PATHS and self._get_upgrade() == b"websocket"

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to the protocol that the client wants inside a WebSocket, or
        refuse it."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        upgrade = Upgrade(event.method.decode("ascii"), headers)
        protocols = self.listener.native.web_protocols
        if (only := PATHS[self.scope["path"]]) is not None:
            protocols = {name: made for name, made in protocols.items() if name in only}
        if refused := self._refused(upgrade, headers, tuple(protocols)):
            self.transport.write(refusal(*refused))
            self.transport.close()
            return
        chosen = upgrade.chosen(tuple(protocols))
        assert chosen is not None, "otherwise it was refused"
        came, _ = self.conn.trailing_data
        self.transport.write(upgrade.answer(chosen))
        self.connections.discard(self)
        self.listener.places.leave(self)
        self._asker.go()
        tunnel = WebTunnel(protocols[chosen]())
        self.transport.set_protocol(tunnel)
        tunnel.connection_made(self.transport)
        if came:
            tunnel.data_received(came)

    def _refused(
        self, upgrade: Upgrade, headers: Mapping[str, str], protocols: Sequence[str]
    ) -> tuple[int, str] | None:
        """Why a WebSocket is not opened, with a status; None: it is. A web page opens one only if
        it is one of the console's, for what it sends may change the realm."""
        local = str(self.server[0]) if self.server else "localhost"
        try:
            self.listener.guard.check_site(headers, local, changes=True)
        except PenstockError as error:
            return (403 if isinstance(error, CrossSite) else 400), str(error)
        if self.is_spare:
            return 503, "all connections are busy; try again"
        return upgrade.fault(protocols)

    # --- looking after it ----------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_in_body(self) -> bool:
        return self._is_busy and self.cycle.more_body and not self.cycle.response_started

    @property
    def is_waited_for(self) -> bool:
        """Whether the realm waits for a request or the rest of one."""
        return not self._is_busy or self._is_in_body

    def drop(self) -> None:
        """Close it, to make room for another."""
        self.transport.abort()

    def check(self, now_s: float) -> None:
        """Drop a peer that sends nothing, or reads nothing, for too long; called regularly."""
        limits = self.listener.limits
        unsent = self.transport.get_write_buffer_size()
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
        self.version = native.version
        self.limits = limits
        self.quotas = Quotas(native.limits.each, native.realm.clock)
        self.requests = Shares(
            limits.requests_per_user_max,
            "requests that are being answered",
            "http.requests_per_user_max",
        )
        self._shares_of_views = Shares(
            limits.viewers_per_user_max, "live views open", "http.viewers_per_user_max"
        )
        self.guard = Guard(self.realm.access, limits.hosts, is_secure=tls is not None)
        self.table = TABLE
        self.files = Files()
        self._views: dict[Events, Callable[[], None]] = {}
        """Live views, each with a check that raises an error when it may not go on."""
        self._viewers: Counter[str] = Counter()
        """Number of live views by principal."""
        self._stop_listening = self.realm.access.on_changed(self._check_views)
        self._stop_listening_for_leases = self.realm.access.on_changed(
            self.realm.leases.check_rights
        )
        self.registry = metrics.registry(self.realm, native, self._views, limits.channels_named_max)
        self.started_us = self.realm.clock.now_us()
        self.is_secure = tls is not None
        self.config = uvicorn.Config(
            App(self),
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
        self._arriving: dict[Handshake | PrefaceSniffer, None] = {}
        """Connections whose handshake is not over, or whose first bytes are still to come."""
        self.buffers = Buffers(BUFFERS * limits.body_bytes_max)
        self.places = ConnectionPlaces(limits.connections_max, limits.connections_per_address_max)
        self._standstill = Standstill()
        self.is_stopping = asyncio.Event()
        self.realm.on_deposed(self.cut)
        native.heard_elsewhere.append(self._is_heard_since)

    def _is_heard_since(self, since_s: float) -> bool:
        return any(
            isinstance(peer, HttpConnection) and peer.heard_s >= since_s
            for peer in self.uvicorn.connections
        )

    # --- coming and going ----------------------------------------------------------------

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; gives the port. Raises ``AddressInUse``, ``InvalidArgument``."""
        check_exposed(host, self.guard.access.mode)
        server: asyncio.Server | SocketServers | TlsServer
        held, gate, patience_s = self.native.ports, self.native.gate, self.limits.head_timeout_s
        make: Callable[[], asyncio.BaseProtocol] = partial(HttpConnection, self)
        try:
            if self._tls is None:
                if gate is not None:
                    known = self._arrives, self._is_known
                    make = partial(PrefaceSniffer, gate, make, patience_s, *known)
                server = await open_server(make, host, port, held)
            else:
                before = None if gate is None else gate.before_tls
                server = TlsServer(
                    self._tls, patience_s, make, self._arrives, self._is_known, before
                )
                await server.listen(host, port, held)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"port {port} of {host} is in use by another process; stop it, choose another "
                    "port (--http-port 0 takes any free one), or go without HTTP (--no-http)"
                ) from error
            raise InvalidArgument(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _arrives(self, waiting: Handshake | PrefaceSniffer) -> bool:
        """Whether there is room for a connection whose TLS handshake or first bytes are to
        come."""
        if self.is_stopping.is_set() or not self.places.take(waiting):
            return False
        self._arriving[waiting] = None
        return True

    def _is_known(self, waiting: Handshake | PrefaceSniffer) -> None:
        """Note that a connection's handshake has ended, or its first bytes have come."""
        del self._arriving[waiting]
        self.places.leave(waiting)

    async def run(self) -> None:
        """Check the connections for timeouts until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_S)
            for peer in list(self.uvicorn.connections):
                assert isinstance(peer, HttpConnection), "it has made them"
                with self.realm.incidents.barrier("http connections"):
                    peer.check(loop.time())
            with self.realm.incidents.barrier("http views"):
                self._check_views()
            backlog = (self.native.pending_bytes, self.realm.waiting_bytes)
            self._standstill.look(loop.time(), backlog, is_congested=self.is_congested)

    def cut(self) -> None:
        """Drop all connections without a word, and take no more."""
        self._shut()
        for peer in list(self.uvicorn.connections):
            peer.transport.abort()

    def _shut(self) -> None:
        self.is_stopping.set()
        for server in self._servers:
            server.close()
        for waiting in list(self._arriving):
            waiting.abort()

    async def close(self) -> None:
        """Accept no more connections, end live views, and let requests in progress finish."""
        self._shut()
        self._stop_listening()
        self._stop_listening_for_leases()
        self.realm.leases.stop(stopping())
        for view in list(self._views):
            view.stop(stopping())
        for peer in list(self.uvicorn.connections):
            peer.shutdown()
        for _ in range(int(GRACE_S / _LOOK_S)):
            if not (self.uvicorn.connections or self.uvicorn.tasks):
                break
            await asyncio.sleep(_LOOK_S)
        for task in list(self.uvicorn.tasks):
            task.cancel()
        for peer in list(self.uvicorn.connections):
            peer.transport.abort()

    # --- limits --------------------------------------------------------------------------

    @property
    def state(self) -> Literal["ok", "stopping", "failed", "no-quorum"]:
        """Whether the realm works: ``ok``, ``stopping``, ``failed`` when it cannot store events, or
        ``no-quorum`` while the engine of its cluster cannot."""
        if self.is_stopping.is_set():
            return "stopping"
        if self.native.suspended is not None:
            return "no-quorum"
        return "failed" if self.realm.has_ended else "ok"

    @property
    def stands_still(self) -> bool:
        """Whether publishers have not been read for so long that no more should be sent here."""
        return self._standstill.lasts_s(asyncio.get_running_loop().time()) >= STANDSTILL_S

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait."""
        return self.native.is_congested

    def waiting_bytes(self, change: int) -> None:
        """Count bytes of publishes that have come, or, negative, were answered."""
        self.native.pending_bytes += change

    @contextlib.contextmanager
    def viewing(
        self, view: Events, principal: Principal, check: Callable[[], None]
    ) -> Iterator[None]:
        """Count a live view while it is open. Raises ``Unavailable`` when there are too many in
        all, and ``LimitReached`` when there are too many of this user or principal."""
        if len(self._views) >= self.limits.viewers_max:
            raise Unavailable(f"{self.limits.viewers_max} live views are open; close some")
        viewer = principal.name
        self.native.limits.each.check_subscriptions(self._viewers[viewer], viewer)
        with self._shares_of_views.one(principal):
            check()  # rights may have been revoked while it was opened
            self._views[view] = check
            self._viewers[viewer] += 1
            try:
                yield
            finally:
                self._viewers -= Counter((viewer,))  # drops entries of zero
                self._views.pop(view, None)

    def _check_views(self) -> None:
        """End the views whose viewers lost the right to them, or whose token or session has
        ended."""
        for view, check in list(self._views.items()):
            try:
                check()
            except PenstockError as reason:
                view.stop(reason)
