"""The native protocol's listener, which accepts connections, checks their timeouts, and closes them
in order."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

from msgspec import Struct

from penstock_core.access.rights import Principal
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    AccessDenied,
    AddressInUse,
    InvalidArgument,
    LimitReached,
    PenstockError,
    RealmStopping,
    Unavailable,
)
from penstock_core.wire.addresses import is_loopback
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import FRAME_BYTES_MAX
from penstock_server.frontends.native.connection import Connection
from penstock_server.frontends.native.schemas import SMALL_SCHEMAS_BYTES, USER_SCHEMAS_BYTES_MAX
from penstock_server.frontends.shared.buffers import Buffers
from penstock_server.frontends.shared.front_end_service import FrontEndService
from penstock_server.frontends.shared.handshakes import Handshake, TlsServer
from penstock_server.frontends.shared.peer import PeerConnection
from penstock_server.frontends.shared.ports import HeldPorts, SocketServers, open_server
from penstock_server.frontends.shared.protocol_detection import ProtocolSniffer
from penstock_server.frontends.shared.relayed import PrefaceSniffer, RelayGate
from penstock_server.frontends.shared.tls import Tls
from penstock_server.runtime.access.access import Mode
from penstock_server.runtime.access.internal_errors import new_incident_id
from penstock_server.runtime.access.quota import ConnectionLimits
from penstock_server.runtime.realm import RunningRealm

if TYPE_CHECKING:  # a realm without a cluster does not load this module
    from penstock_core.vocabulary.node_figures import NodeFigures

REFUSABLE_MAX = 64
"""Connections above the limit that are read until their protocol is known, so that they can be
refused in that protocol."""

INCOMPLETE_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Maximum bytes of incomplete native frames, AMQP messages and MQTT packets of all connections."""
INCOMPLETE_SMALL_BYTES = 64 << 10
"""Bytes of each incomplete frame, message or packet that are not counted."""
ANSWERS_S = 1.0
"""Longest time in seconds for which an orderly end waits for requests in progress."""
_POLL_S = 0.01
"""Seconds between two checks whether requests in progress are answered."""

P = ParamSpec("P")

_log = logger("penstock.native")


class NativeLimits(Struct, frozen=True):
    """Limits for connections of all protocols except HTTP."""

    hello_timeout_s: float = 10.0
    """Seconds after which a connection without a Hello is closed."""
    idle_timeout_s: float = 45.0
    """Seconds of silence after which a connection counts as dead; clients ping more often."""
    connections_max: int = 10_000
    refusable_max: int = REFUSABLE_MAX
    check_interval_s: float = 1.0
    connections_per_user_max: int = 0
    """Largest number of connections of one user; 0 means no limit."""
    mqtt_sessions_per_user_max: int = 0
    """Largest number of stored MQTT sessions of one user; 0 means no limit."""
    mqtt_session_bytes_per_user_max: int = 0
    """Largest number of bytes of the stored MQTT sessions of one user; 0 means no limit."""
    mqtt_retained_messages_max: int = 0
    """Largest number of MQTT topics with a retained message; 0 means no limit."""
    mqtt_retained_bytes_max: int = 0
    """Largest number of bytes of memory for topics with a retained message; 0 means no limit."""
    each: ConnectionLimits = ConnectionLimits()
    """Limits of each connection."""


class OfferedProtocol(NamedTuple):
    """A protocol that is available inside WebSockets, and possibly at the native port."""

    make: Callable[[], asyncio.Protocol]
    first_bytes: bytes
    """Bytes with which a connection of this protocol begins at the native port; empty if the
    protocol is available only inside WebSockets."""


class NativeListener:
    """All native connections of a realm."""

    gate: RelayGate | None = None
    """Admits connections that other cluster nodes relay; None without relays."""
    figures_of: Callable[[str], NodeFigures | None] = staticmethod(lambda node: None)
    """Returns the figures of a node's process; None if they are unknown."""
    is_draining = False
    """Whether reading has stopped while requests in progress are still answered."""

    def __init__(
        self, realm: RunningRealm, version: str, limits: NativeLimits, tls: Tls | None = None
    ) -> None:
        """With ``tls``, clients on the network must use TLS."""
        self.realm = realm
        self.tls = tls
        self.traffic = realm.connections.traffic["native"]
        self.version = version
        self.limits = limits
        self.connections: dict[PeerConnection, None] = {}
        """All connections except those of HTTP, oldest first."""
        self.heard_elsewhere: list[Callable[[float], bool]] = []
        """Functions that return whether other connections have sent data since a time of the
        loop."""
        self.sessions: dict[str, PeerConnection] = {}
        self.openings: dict[str, dict[asyncio.Event, None]] = {}
        """Openings of subscriptions that were in progress when their connection ended, by session.
        The asyncio.Event of an opening is set when the opening has ended and its seat was given
        back."""
        self._tasks: asyncio.TaskGroup | None = None
        self.servers: list[asyncio.Server | SocketServers | TlsServer] = []
        self._stopping = False
        self.ports: HeldPorts | None = None
        """Ports that the process holds, before and after the life of this listener."""
        self.heartbeat_s = 0.0
        """Interval at which clients ping a cluster node; 0 without a cluster."""
        self.owners: Callable[[], wire.Owners] | None = None
        """Returns the nodes of the cluster and their ownership; None without a cluster."""
        self.suspended: PenstockError | None = None
        """Reason why clients are not served at the moment; None while they are served."""
        realm.access.on_changed(self._rights_changed)
        self.services: dict[str, FrontEndService] = {}
        """Services of the other front ends by name."""
        self._offered: dict[str, OfferedProtocol] = {}
        """Protocols other than the native one, by name."""
        self.arriving: dict[ProtocolSniffer | PrefaceSniffer | Handshake, None] = {}
        """Connections in a TLS handshake, or whose first bytes have not arrived."""
        self.incomplete = Buffers(INCOMPLETE_BYTES_MAX, INCOMPLETE_SMALL_BYTES)
        """Counts the bytes of incomplete frames and messages of signed-in clients."""
        self._opened = self.pending_bytes = 0
        """``_opened`` is the number of connections so far; ``pending_bytes`` is the number of bytes
        of unanswered publishes of all connections."""
        self._unsent: list[PeerConnection] = []
        self._flush_is_due = False
        self._loop = asyncio.get_running_loop()
        realm.on_answered(self.flush)
        realm.on_deposed(self.cut)

    async def run(self, ready: asyncio.Event) -> None:
        """Run the tasks of all connections until cancelled; set ``ready`` when tasks can start."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            ready.set()
            await self._check_forever()

    async def listen(
        self, host: str, port: int, protocol: Callable[[], asyncio.BaseProtocol] | None = None
    ) -> int:
        """Accept connections and return the port. ``protocol`` creates connections of another
        protocol. Raises ``AddressInUse``, ``InvalidArgument``."""
        check_exposed(host, self.realm.access.mode)
        make = protocol or self.new_protocol
        server: asyncio.Server | SocketServers | TlsServer
        try:
            gate = self.gate
            if self.tls is None:
                make = make if gate is None else partial(self._new_preface_sniffer, gate, make)
                server = await open_server(make, host, port, held_ports=self.ports)
            else:
                # The time limit of a handshake is that of a Hello.
                server = TlsServer(
                    self.tls.context,
                    self.limits.hello_timeout_s,
                    make,
                    enter=self._enter,
                    leave=self._leave,
                    before=None if gate is None else gate.before_tls,
                )
                await server.listen(host, port, self.ports)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"port {port} of {host} is in use by another process; stop it, or choose "
                    "another port (--port 0 takes any free port)"
                ) from error
            raise InvalidArgument(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self.servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    @cached_property
    def announced_schemas(self) -> Buffers:
        """The bytes of the Arrow schemas that clients have announced."""
        return Buffers(2 * USER_SCHEMAS_BYTES_MAX, SMALL_SCHEMAS_BYTES)

    @property
    def web_protocols(self) -> Mapping[str, Callable[[], asyncio.BaseProtocol]]:
        """Factories of the protocols inside WebSockets, by the name of the sub-protocol."""
        makers: dict[str, Callable[[], asyncio.BaseProtocol]] = {
            name: offered.make for name, offered in reversed(self._offered.items())
        }
        return makers | {"penstock": partial(Connection, self)}

    def offer(
        self, name: str, make: Callable[[], asyncio.Protocol], *, first_bytes: bytes = b""
    ) -> None:
        """Accept another protocol inside WebSockets, with ``name`` as its sub-protocol, and at the
        native port if ``first_bytes`` identify it; ``make`` creates its connections."""
        self._offered[name] = OfferedProtocol(make, first_bytes)

    def new_protocol(self) -> asyncio.BaseProtocol:
        """Create the protocol of a connection that has just been accepted."""
        recognized = {
            offered.first_bytes: offered.make
            for offered in self._offered.values()
            if offered.first_bytes
        }
        if not recognized:
            return Connection(self)
        patience_s = self.limits.hello_timeout_s
        native = partial(Connection, self)
        return ProtocolSniffer(native, recognized, patience_s, enter=self._enter, leave=self._leave)

    def _new_preface_sniffer(
        self, gate: RelayGate, make: Callable[[], asyncio.BaseProtocol]
    ) -> PrefaceSniffer:
        patience_s = self.limits.hello_timeout_s
        return PrefaceSniffer(gate, make, patience_s, enter=self._enter, leave=self._leave)

    def _enter(self, arrival: ProtocolSniffer | PrefaceSniffer | Handshake) -> bool:
        """Count a connection that begins its handshake or has sent no bytes yet, and return whether
        it is admitted."""
        free = self.limits.connections_max - len(self.connections)
        if self._stopping or len(self.arriving) >= max(free, self.limits.refusable_max):
            return False
        self.arriving[arrival] = None
        return True

    def _leave(self, arrival: ProtocolSniffer | PrefaceSniffer | Handshake) -> None:
        """Stop counting a connection whose handshake has ended, whose protocol is known, or that is
        closed."""
        del self.arriving[arrival]

    async def adopt(self, sock: socket.socket, principal: Principal | None = None) -> None:
        """Serve a connected socket with an authenticated ``principal``, as an embedded realm
        does."""
        loop = asyncio.get_running_loop()
        # With uvloop's create_connection(sock=), a transport that is closed in connection_made
        # would close the file descriptor twice; by then another socket may use that number.
        await loop.connect_accepted_socket(lambda: Connection(self, principal), sock)

    def spawn(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run a request of a connection concurrently. After the end of :meth:`run` nothing is
        started, because connections may be lost later than that.

        The coroutine of the work is created when its task begins. :meth:`run` cancels tasks that
        have not begun, and a coroutine created earlier would never be awaited.
        """
        assert self._tasks is not None, "run() has been started"
        guarded = self._run_guarded(work, *args, **kwargs)
        try:
            self._tasks.create_task(guarded)
        except RuntimeError:  # the task group has ended
            guarded.close()

    async def _run_guarded(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run the work of one connection, and log its failure."""
        try:
            await work(*args, **kwargs)
        except Exception:  # noqa: BLE001  a failure must not cancel the other tasks of the group
            _log.exception("request.failed", incident=new_incident_id())

    def flush_soon(self, connection: PeerConnection) -> None:
        """Send a connection's queued output at the end of this turn of the loop."""
        self._unsent.append(connection)
        if not self._flush_is_due and not self.realm.is_answering:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the queued output of all connections. A failure ends only the connection that
        failed, because the caller serves all of them."""
        self._flush_is_due = False
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            try:
                connection.flush()
            except Exception:  # noqa: BLE001  a failure must not affect other connections
                _log.exception("connection.failed", connection=connection.number)
                connection.abort()

    def others_heard(self, connection: PeerConnection, since_s: float) -> bool:
        """Return whether any other connection has sent data since a time of the loop."""
        for other in self.connections:
            if other.heard_s >= since_s and other is not connection:
                return True
        return any(heard(since_s) for heard in self.heard_elsewhere)

    # --- start and end of connections ----------------------------------------------------

    def opened(self, connection: PeerConnection, *, is_refused_later: bool = False) -> bool:
        """Count a connection, and return whether it is accepted. With ``is_refused_later`` a
        suspension does not refuse it, because its protocol sends the reason later."""
        is_exempt = is_refused_later and self.suspended is not None
        if self._refusal if is_exempt else self.refusal:
            return False
        self.connections[connection] = None
        self._opened += 1
        connection.number = self._opened
        self.realm.connections.add(connection.number, connection)
        return True

    @property
    def refusal(self) -> PenstockError | None:
        """Reason why no more connections are accepted; None if they are accepted."""
        return self.suspended or self._refusal

    @property
    def _refusal(self) -> PenstockError | None:
        if self._stopping or len(self.connections) >= self.limits.connections_max:
            return Unavailable("the realm accepts no more connections at the moment")
        return None

    def suspend(self, reason: PenstockError) -> None:
        """End all sessions, and accept no more until :meth:`resume`. Their seats are kept."""
        self.suspended = reason
        self.realm.subscriptions.keep_seats()
        for connection in list(self.connections):
            connection.end(reason)

    def resume(self) -> None:
        """Accept sessions again. The time in which they may resume their seats starts now."""
        self.suspended = None
        self.realm.subscriptions.await_seats()

    def greeted(self, connection: PeerConnection, session: str) -> None:
        """Register a session after its Hello, and end an older connection of the session.

        Raises ``AccessDenied`` if the session belongs to another user, and ``LimitReached``.
        """
        older = self.sessions.get(session)
        if older is not None and _user(older) != _user(connection):
            raise AccessDenied("this session belongs to another user; open a new session")
        self._check_user(connection, older)
        # The new connection is registered before the older one ends, so that `closed` does not
        # remove the entry of the session.
        self.sessions[session] = connection
        if older is not None and older is not connection:
            older.end(RealmStopping("the session has reconnected"))
        user = "" if connection.principal is None else connection.principal.name
        _log.info(
            "connection.opened",
            connection=connection.number,
            user=user,
            protocol=connection.protocol,
            tls=self.tls is not None,
        )

    def tell_owners(self) -> None:
        """Send changed owners to the clients that follow them."""
        if self.owners is None:
            return
        owners = self.owners()
        for connection in list(self.connections):
            if isinstance(connection, Connection):
                connection.tell_owners(owners)

    def _check_user(self, connection: PeerConnection, older: PeerConnection | None) -> None:
        """Raise ``LimitReached`` if a user has too many connections. ``older`` is about to end and
        does not count."""
        most = self.limits.connections_per_user_max
        if not most:
            return
        user = _user(connection)
        others = [
            other
            for other in self.connections
            if other not in (connection, older) and other.session and _user(other) == user
        ]
        if len(others) >= most:
            raise LimitReached(
                f"{user} has {len(others)} connections, which is the limit "
                f"(limits.connections_per_user_max); close one"
            )

    def _rights_changed(self) -> None:
        for connection in list(self.connections):
            connection.check_rights()

    def connection_left(self, connection: Connection) -> None:
        """Record that a connection has ended while it was taking seats, which are given back as
        soon as they are taken."""
        pending = self.openings.setdefault(connection.session, {})
        pending |= dict.fromkeys(connection.openings.values())
        if not pending:
            del self.openings[connection.session]

    def opening_ended(self, session: str, finished: asyncio.Event) -> None:
        """Record that an opening has ended, so that later connections of the session no longer wait
        for it. ``finished`` is the opening's asyncio.Event."""
        pending = self.openings.get(session, {})
        # All values are None, so the default distinguishes a missing opening from a removed one.
        if pending.pop(finished, finished) is None and not pending:
            del self.openings[session]

    async def seats_given_back(
        self, session: str, current: Collection[asyncio.Event] = frozenset()
    ) -> None:
        """Wait until the session's earlier connections have given back seats that they were still
        taking when they ended (SEM D14).

        ``current`` are the completion events of the openings that the caller's own connection has
        in progress. The wait ends at the first of these: that opening and later ones wait for the
        caller, so waiting for them would deadlock."""
        while pending := self.openings.get(session):
            oldest = next(iter(pending))
            if oldest in current:
                return
            await oldest.wait()

    def closed(self, connection: PeerConnection) -> None:
        """Stop counting a connection, and log its end."""
        self.connections.pop(connection, None)
        self.realm.connections.remove(connection.number)
        if connection.session:  # connections that were never welcomed are not logged
            info = connection.describe()
            duration_s = round(self._loop.time() - info.opened_s, 3)
            _log.info(
                "connection.closed",
                connection=info.number,
                user=info.user,
                protocol=info.protocol,
                client=info.client,
                lasted_s=duration_s,
            )
        if self.sessions.get(connection.session) is connection:
            del self.sessions[connection.session]

    # --- timeouts and shutdown -----------------------------------------------------------

    async def _check_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.check_interval_s)
            self.check_connections(loop.time())

    def check_connections(self, now_s: float) -> None:
        """Check the connections that may have become silent or have not signed in."""
        # Idle connections cost one comparison, so that many of them leave the loop to others.
        due = [connection for connection in self.connections if connection.quiet_until_s <= now_s]
        for connection in due:
            with self.realm.incidents.barrier("connections"):
                connection.check(now_s)
        if not due:
            self.realm.incidents.close("connections")

    @property
    def is_stopping(self) -> bool:
        """Whether the realm is being closed."""
        return self._stopping

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait, because too much waits to be stored or sealed."""
        realm = self.realm
        return self.pending_bytes > realm.limits.backlog_bytes_max or realm.is_congested

    def cut(self) -> None:
        """Drop all connections immediately and accept no more; called when the realm is deposed."""
        self._stop_accepting()
        for connection in list(self.connections):
            connection.cut()

    def _stop_accepting(self) -> None:
        self._stopping = True
        for server in self.servers:
            server.close()
        for arrival in list(self.arriving):
            arrival.abort()

    async def close(self) -> None:
        """Accept no more connections, answer requests in progress, and end all connections with a
        reason. In a cluster, seats are kept for their sessions, which resume them at the next
        owner."""
        self.realm.subscriptions.keep_seats()
        self._stop_accepting()
        await self._drain()
        for connection in list(self.connections):
            connection.end(RealmStopping("the realm is shutting down"))
        for _ in range(200):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        _log.debug("native.closed", left=len(self.connections))

    async def _drain(self) -> None:
        """Stop reading, and wait up to ``ANSWERS_S`` for the answers to requests in progress.

        A client without an answer would repeat its request at the next owner, and so execute it
        twice. The wait is short, because another node may be waiting to take over.
        """
        self.is_draining = True
        for connection in list(self.connections):
            connection.stop_reading()
        with suppress(TimeoutError, PenstockError):  # a realm that has failed answers nothing
            async with asyncio.timeout(ANSWERS_S):
                await self.realm.wait_for_earlier()
                for connection in list(self.connections):
                    while connection.owes_answers:  # noqa: ASYNC110  many tasks, so no single event
                        await asyncio.sleep(_POLL_S)


def _user(connection: PeerConnection) -> str:
    return connection.principal.user if connection.principal is not None else ""


def check_exposed(host: str, mode: Mode) -> None:
    """Raise ``InvalidArgument`` if authentication is off and other machines can reach the host (SEM
    A4)."""
    if mode == "off" and not is_loopback(host):
        raise InvalidArgument(
            f"cannot listen on {host!r} while authentication is off, because all clients that "
            "reach the address could read and delete all data; listen on 127.0.0.1, ::1 or "
            "localhost, or set access.mode to mandatory or optional"
        )
