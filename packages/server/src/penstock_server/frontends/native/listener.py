"""The native protocol's listener: it accepts connections, checks their timeouts, and closes them in
order."""

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

if TYPE_CHECKING:  # a realm on its own loads nothing of a cluster
    from penstock_core.vocabulary.node_figures import NodeFigures

TOLD_MAX = 64
"""How many connections above the limit are read until they say which protocol they speak, so that
they can be refused in it."""

INCOMPLETE_BYTES_MAX = 4 * FRAME_BYTES_MAX
"""Bytes of native frames, AMQP messages and MQTT packets whose end has not come, over all
connections."""
INCOMPLETE_SMALL_BYTES = 64 << 10
"""Bytes of each of them that are not counted."""
ANSWERS_S = 1.0
"""Seconds that an orderly end waits for what is in progress."""
_LOOK_S = 0.01

P = ParamSpec("P")

_log = logger("penstock.native")


class NativeLimits(Struct, frozen=True):
    hello_timeout_s: float = 10.0
    """Seconds after which a connection that has not said hello is closed."""
    idle_timeout_s: float = 45.0
    """Seconds of silence after which a connection counts as dead; clients ping more often."""
    connections_max: int = 10_000
    check_interval_s: float = 1.0
    connections_per_user_max: int = 0
    """Most connections of one user; 0: no limit."""
    mqtt_sessions_per_user_max: int = 0
    """Most stored sessions of MQTT of one user; 0: no limit."""
    mqtt_session_bytes_per_user_max: int = 0
    """Most bytes of these; 0: no limit."""
    mqtt_retained_messages_max: int = 0
    """Most topics of MQTT that have a retained message; 0: no limit."""
    mqtt_retained_bytes_max: int = 0
    """Most bytes of memory of these topics; 0: no limit."""
    each: ConnectionLimits = ConnectionLimits()
    """Limits of each connection."""


class OfferedProtocol(NamedTuple):
    """A protocol that clients speak inside WebSockets, and perhaps at the native port."""

    make: Callable[[], asyncio.Protocol]
    first_bytes: bytes
    """First bytes of its connections at the native port; empty: it is not spoken there."""


class NativeListener:
    """All native connections of a realm."""

    gate: RelayGate | None = None
    """Lets in what other nodes of the cluster relay; None: nobody relays."""
    figures_of: Callable[[str], NodeFigures | None] = staticmethod(lambda node: None)
    """Figures of the process of a node; None: they are not known."""
    is_draining = False
    """Whether nothing more is read, and what was begun is still answered."""

    def __init__(
        self, realm: RunningRealm, version: str, limits: NativeLimits, tls: Tls | None = None
    ) -> None:
        """With ``tls``, clients on the network must use it."""
        self.realm = realm
        self.tls = tls
        self.traffic = realm.connections.traffic["native"]
        self.version = version
        self.limits = limits
        self.connections: dict[PeerConnection, None] = {}
        """All connections but those of HTTP, oldest first."""
        self.heard_elsewhere: list[Callable[[float], bool]] = []
        """Each gives whether connections that are not among these have sent something since a
        time of the loop."""
        self._sessions: dict[str, PeerConnection] = {}
        self._opening: dict[str, dict[asyncio.Event, None]] = {}
        """Seats, by session, that were still being taken when the connection ended; each event is
        set once the seat is given back."""
        self._tasks: asyncio.TaskGroup | None = None
        self._servers: list[asyncio.Server | SocketServers | TlsServer] = []
        self._stopping = False
        self.ports: HeldPorts | None = None
        """Ports that the process has opened already, and keeps when this listener has closed."""
        self.heartbeat_s = 0.0
        """How often clients of a cluster's node ask whether it is there; 0: this is none."""
        self.owners: Callable[[], wire.Owners] | None = None
        """Which node of the cluster owns what, and which nodes there are; None: this is none."""
        self.suspended: PenstockError | None = None
        """Why nobody is served at the moment."""
        realm.access.on_changed(self._rights_changed)
        self.services: dict[str, FrontEndService] = {}
        """What the connections of each other front end share, by its name."""
        self._offered: dict[str, OfferedProtocol] = {}
        """The protocols besides the native one, by name."""
        self._arriving: dict[ProtocolSniffer | PrefaceSniffer | Handshake, None] = {}
        """Connections whose handshake is not over, or whose first bytes are still to come."""
        self.incomplete = Buffers(INCOMPLETE_BYTES_MAX, INCOMPLETE_SMALL_BYTES)
        """What clients that are signed in have sent of frames and messages without their end."""
        self._opened = self.pending_bytes = 0
        """Connections so far; bytes of publishes that are not answered yet, of all connections."""
        self._unsent: list[PeerConnection] = []
        self._flush_is_due = False
        self._loop = asyncio.get_running_loop()
        realm.on_answered(self.flush)
        realm.on_deposed(self.cut)

    async def run(self, ready: asyncio.Event) -> None:
        """Run the tasks of all connections until cancelled; ``ready`` is set once it does."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            ready.set()
            await self._check_forever()

    async def listen(
        self, host: str, port: int, protocol: Callable[[], asyncio.BaseProtocol] | None = None
    ) -> int:
        """Accept connections; gives the port. ``protocol`` makes connections of another protocol.
        Raises ``AddressInUse``, ``InvalidArgument``."""
        check_exposed(host, self.realm.access.mode)
        make = protocol or self._made
        server: asyncio.Server | SocketServers | TlsServer
        try:
            gate = self.gate
            if self.tls is None:
                make = make if gate is None else partial(self._prefaced, gate, make)
                server = await open_server(make, host, port, held=self.ports)
            else:
                # A handshake has as much time as a hello.
                server = TlsServer(
                    self.tls.context,
                    self.limits.hello_timeout_s,
                    make,
                    enter=self._arrives,
                    leave=self._is_known,
                    before=None if gate is None else gate.before_tls,
                )
                await server.listen(host, port, self.ports)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"port {port} of {host} is in use by another process; stop it, or choose "
                    "another port (--port 0 takes any free one)"
                ) from error
            raise InvalidArgument(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    @cached_property
    def announced_schemas(self) -> Buffers:
        """The bytes of the Arrow schemas that clients have announced."""
        return Buffers(2 * USER_SCHEMAS_BYTES_MAX, SMALL_SCHEMAS_BYTES)

    @property
    def web_protocols(self) -> Mapping[str, Callable[[], asyncio.BaseProtocol]]:
        """Makes the protocols that are spoken inside WebSockets, by the name of the
        sub-protocol."""
        makers: dict[str, Callable[[], asyncio.BaseProtocol]] = {
            name: offered.make for name, offered in reversed(self._offered.items())
        }
        return makers | {"penstock": partial(Connection, self)}

    def offer(
        self, name: str, make: Callable[[], asyncio.Protocol], *, first_bytes: bytes = b""
    ) -> None:
        """Accept another protocol inside WebSockets, where ``name`` is its sub-protocol, and at the
        native port, if its connections begin with ``first_bytes``; ``make`` makes them."""
        self._offered[name] = OfferedProtocol(make, first_bytes)

    def _made(self) -> asyncio.BaseProtocol:
        recognized = {
            offered.first_bytes: offered.make
            for offered in self._offered.values()
            if offered.first_bytes
        }
        if not recognized:
            return Connection(self)
        patience_s = self.limits.hello_timeout_s
        native = partial(Connection, self)
        return ProtocolSniffer(
            native, recognized, patience_s, enter=self._arrives, leave=self._is_known
        )

    def _prefaced(
        self, gate: RelayGate, make: Callable[[], asyncio.BaseProtocol]
    ) -> PrefaceSniffer:
        patience_s = self.limits.hello_timeout_s
        return PrefaceSniffer(gate, make, patience_s, enter=self._arrives, leave=self._is_known)

    def _arrives(self, waiting: ProtocolSniffer | PrefaceSniffer | Handshake) -> bool:
        """Whether there is room for a connection whose handshake or first bytes are still to
        come."""
        free = self.limits.connections_max - len(self.connections)
        if self._stopping or len(self._arriving) >= max(free, TOLD_MAX):
            return False
        self._arriving[waiting] = None
        return True

    def _is_known(self, waiting: ProtocolSniffer | PrefaceSniffer | Handshake) -> None:
        """Note that a connection's handshake has ended, its protocol is known, or it is closed."""
        del self._arriving[waiting]

    async def adopt(self, sock: socket.socket, principal: Principal | None = None) -> None:
        """Serve one connected socket with a known ``principal``, as an embedded realm does."""
        loop = asyncio.get_running_loop()
        # uvloop's create_connection(sock=) does not know the socket yet when connection_made ends
        # the transport: its number would be closed twice, and be somebody else's by then
        await loop.connect_accepted_socket(lambda: Connection(self, principal), sock)

    def spawn(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run a request of a connection concurrently. Once :meth:`run` ends nothing is begun any
        more: connections may be lost later than that.

        The coroutine of the work is made when its task begins: :meth:`run` cancels tasks that have
        not begun yet, and a coroutine made before would never be awaited."""
        assert self._tasks is not None, "run() has been started"
        apart = self._apart(work, *args, **kwargs)
        try:
            self._tasks.create_task(apart)
        except RuntimeError:  # the group is over
            apart.close()

    async def _apart(
        self, work: Callable[P, Coroutine[Any, Any, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Do the work of one connection; its failure is not that of the others."""
        try:
            await work(*args, **kwargs)
        except Exception:  # noqa: BLE001  the root of a task: the others must live on
            _log.exception("request.failed", incident=new_incident_id())

    def flush_soon(self, connection: PeerConnection) -> None:
        """Send what a connection has queued at the end of this turn of the loop."""
        self._unsent.append(connection)
        if not self._flush_is_due and not self.realm.is_answering:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what all connections have queued. A connection that fails is ended alone, since the
        caller serves all of them."""
        self._flush_is_due = False
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            try:
                connection.flush()
            except Exception:  # noqa: BLE001  whatever it is, the others must live on
                _log.exception("connection.failed", connection=connection.number)
                connection.abort()

    def others_heard(self, connection: PeerConnection, since_s: float) -> bool:
        """Whether anybody but this connection has sent something since a time of the loop."""
        for each in self.connections:
            if each.heard_s >= since_s and each is not connection:
                return True
        return any(heard(since_s) for heard in self.heard_elsewhere)

    # --- connections coming and going ----------------------------------------------------

    def opened(self, connection: PeerConnection, *, is_told_later: bool = False) -> bool:
        """Count a connection; gives whether it is taken. Of one that ``is_told_later`` why nobody
        is served at the moment, that is no reason to refuse it."""
        is_told = is_told_later and self.suspended is not None
        if self._refusal if is_told else self.refusal:
            return False
        self.connections[connection] = None
        self._opened += 1
        connection.number = self._opened
        self.realm.connections.add(connection.number, connection)
        return True

    @property
    def refusal(self) -> PenstockError | None:
        """Why no more connections are accepted; None: they are."""
        return self.suspended or self._refusal

    @property
    def _refusal(self) -> PenstockError | None:
        if self._stopping or len(self.connections) >= self.limits.connections_max:
            return Unavailable("the realm accepts no more connections at the moment")
        return None

    def suspend(self, reason: PenstockError) -> None:
        """End all sessions, and take no more until :meth:`resume`. Seats wait for them."""
        self.suspended = reason
        self.realm.subscriptions.keep_seats()
        for connection in list(self.connections):
            connection.end(reason)

    def resume(self) -> None:
        """Take sessions again. They have from now on the time to come back to their seats."""
        self.suspended = None
        self.realm.subscriptions.await_seats()

    def greeted(self, connection: PeerConnection, session: str) -> None:
        """Register a session that has said hello, and end an older connection of it.

        Raises ``AccessDenied`` if the session belongs to another user, and ``LimitReached``.
        """
        older = self._sessions.get(session)
        if older is not None and _user(older) != _user(connection):
            raise AccessDenied("this session belongs to another user; open a new session")
        self._check_user(connection, older)
        self._sessions[session] = connection
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
        """Tell clients that follow the owners in the cluster what has changed."""
        if self.owners is None:
            return
        owners = self.owners()
        for connection in list(self.connections):
            if isinstance(connection, Connection):
                connection.tell_owners(owners)

    def _check_user(self, connection: PeerConnection, older: PeerConnection | None) -> None:
        most = self.limits.connections_per_user_max
        if not most:
            return
        user = _user(connection)
        others = [
            each
            for each in self.connections
            if each not in (connection, older) and each.session and _user(each) == user
        ]
        if len(others) >= most:
            raise LimitReached(
                f"{user} has {len(others)} connections, which is the limit "
                f"(limits.connections_per_user_max); close one"
            )

    def _rights_changed(self) -> None:
        for connection in list(self.connections):
            connection.check_rights()

    def left(self, connection: Connection) -> None:
        """Note that a connection has ended; seats it was about to take are given back once they are
        taken."""
        still = self._opening.setdefault(connection.session, {})
        still |= dict.fromkeys(connection.opening.values())
        if not still:
            del self._opening[connection.session]

    def given_back(self, session: str, opened: asyncio.Event) -> None:
        """Note that the seat of ``opened`` is given back."""
        still = self._opening.get(session, {})
        if still.pop(opened, opened) is None and not still:
            del self._opening[session]

    async def seats_given_back(
        self, session: str, own: Collection[asyncio.Event] = frozenset()
    ) -> None:
        """Wait until the seats that an earlier connection of the session was about to take are
        given back (SEM D14). ``own`` are the caller's, and later ones than those are not waited
        for: they wait for the caller's instead, so that nobody waits in a circle."""
        while still := self._opening.get(session):
            oldest = next(iter(still))
            if oldest in own:
                return
            await oldest.wait()

    def closed(self, connection: PeerConnection) -> None:
        self.connections.pop(connection, None)
        self.realm.connections.remove(connection.number)
        if connection.session:  # it was welcomed
            info = connection.describe()
            lasted = round(self._loop.time() - info.opened_s, 3)
            _log.info(
                "connection.closed",
                connection=info.number,
                user=info.user,
                protocol=info.protocol,
                client=info.client,
                lasted_s=lasted,
            )
        if self._sessions.get(connection.session) is connection:
            del self._sessions[connection.session]

    # --- being honest --------------------------------------------------------------------

    async def _check_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.check_interval_s)
            for connection in list(self.connections):
                with self.realm.incidents.barrier("connections"):
                    connection.check(loop.time())

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
        """End all connections without a word about the realm, and take no more."""
        self._shut()
        for connection in list(self.connections):
            connection.cut()

    def _shut(self) -> None:
        self._stopping = True
        for server in self._servers:
            server.close()
        for waiting in list(self._arriving):
            waiting.abort()

    async def close(self) -> None:
        """Accept no more connections, answer what was begun, and tell those there are. In a
        cluster seats wait for their sessions, which find them at the next owner."""
        self.realm.subscriptions.keep_seats()
        self._shut()
        await self._answer_what_was_begun()
        for connection in list(self.connections):
            connection.end(RealmStopping("the realm is shutting down"))
        for _ in range(200):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        _log.debug("native.closed", left=len(self.connections))

    async def _answer_what_was_begun(self) -> None:
        """Read nothing more, and wait for the answers to what was read; not for long, because
        others wait for this one to end. A client whose request was begun and not answered could
        only ask again, and would do twice what is done."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.stop_reading()
        with suppress(TimeoutError, PenstockError):  # a realm that has failed answers nothing
            async with asyncio.timeout(ANSWERS_S):
                await self.realm.answered()
                for connection in list(self.connections):
                    while connection.owes_answers:  # noqa: ASYNC110  of a whole connection
                        await asyncio.sleep(_LOOK_S)


def _user(connection: PeerConnection) -> str:
    return connection.principal.user if connection.principal is not None else ""


def check_exposed(host: str, mode: Mode) -> None:
    """Raise ``InvalidArgument`` for a host that other machines reach, if authentication is off (SEM
    A4)."""
    if mode == "off" and not is_loopback(host):
        raise InvalidArgument(
            f"cannot listen on {host!r} while authentication is off: anyone who can reach that "
            f"address could read and delete everything; "
            "listen on 127.0.0.1, ::1 or localhost, or "
            "set access.mode to mandatory or optional"
        )
