"""What a front end gives to the server, so that its package can be installed and removed.

A package registers an object with these members under the entry-point group
``penstock.front_ends``; docs/reference/front-ends.md explains it with an example. The server
loads all front ends that are installed and serves those for which the settings have a port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec.structs import replace

from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.front_end_service import FrontEndService
from penstock_server.parts import install_line, registered
from penstock_server.runtime.access.incidents import Incident
from penstock_server.runtime.realm import RunningRealm
from penstock_server.settings import Settings

if TYPE_CHECKING:  # a realm on its own loads nothing of a node that stands by
    from prometheus_client.core import Metric

    from penstock_server.frontends.native.standby import OwnerFollowers
    from penstock_server.frontends.shared.arrivals import Arrivals

_log = logger("penstock.realm")

GROUP: Final = "penstock.front_ends"
NATIVE: Final = "native"
"""The front end whose listener the others share."""
HTTP: Final = "http"
"""The front end that is opened last, so that its WebSockets offer what the others speak."""


class ListenAddress(NamedTuple):
    """Where the settings have a front end listen."""

    host: str
    port: int
    """0 takes any free port."""
    is_required: bool = True
    """Whether the server ends if the port is in use; otherwise the front end is left out."""


class StandbyNode(NamedTuple):
    """A node of a cluster that stands by, as its front ends see it."""

    arrivals: Arrivals
    """Counts connections, and says which node serves the realm."""
    followers: OwnerFollowers
    """Native clients that follow which node owns what."""
    name: str
    is_relaying: Callable[[], bool]
    """Whether requests are relayed to the owner."""
    unfit: Callable[[], str]
    """Why the node could not take the realm over; empty: it could."""
    incidents: Callable[[], list[Incident]]
    """What the background tasks of the node could not do."""


class FrontEnd(Protocol):
    """A protocol that clients speak to a realm."""

    name: str
    """Tag of the protocol: in the URLs of a node, in the figures of connections and in metrics."""
    schemes: tuple[str, str]
    """Beginnings of its URLs, without TLS and with it."""
    first_bytes: bytes = b""
    """First bytes of each connection, by which it is recognised at the native port. Empty: it is
    served at its own port only."""
    opens_stores: bool = False
    """Whether it makes channels when it begins to listen. In local channels of a node their names
    have to be granted first, so it is waited for in the background."""

    def place(self, settings: Settings) -> ListenAddress | None:
        """Where it listens; None: the settings do not ask for it. By default its section of the
        settings, which has its name, has a ``port``."""
        port = getattr(settings, self.name).port
        return None if port is None else ListenAddress(settings.listen.host, port)

    def at_port(self, settings: Settings, port: int | None) -> Settings:
        """The settings with the port that was bound; None: it is not served."""
        section = replace(getattr(settings, self.name), port=port)
        return replace(settings, **{self.name: section})

    def for_local_channels(self, settings: Settings, node: str) -> Settings:
        """The settings with which it serves the local channels of a node of a cluster."""
        return self.at_port(settings, None)

    def service(self, listener: NativeListener, settings: Settings) -> FrontEndService:
        """Begin to serve a realm; called once for each. What is slow to import is imported here.

        Raises ``InvalidArgument`` if something that it needs is not installed.
        """
        ...

    def standby(self, node: StandbyNode) -> Callable[[], asyncio.BaseProtocol]:
        """What makes the protocol of a connection at a node that stands by. By default connections
        that are not relayed are closed."""
        from penstock_server.frontends.shared.arrivals import ClosingStandby  # for clusters only

        return partial(ClosingStandby, node.arrivals)

    def wants_relay(self, data: bytes) -> bool | None:
        """Whether a connection that begins so is relayed to the owner of the realm; None: more
        bytes have to come first. By default all are."""
        return bool(data) or None

    def metrics(self, realm: RunningRealm) -> Iterable[Metric]:
        """The metrics of this protocol besides those that every protocol has; asked for at each
        scrape."""
        return ()

    def log_listening(self, url: str) -> None:
        """Log where it is served."""
        _log.info("front_end.listening", name=self.name, url=url)

    def log_left_out(self, reason: str) -> None:
        """Log that it is not served, because its port is in use and not required."""
        return


class HostedService(FrontEndService):
    """A front end whose connections the listener of the realm accepts, as most are."""

    def __init__(
        self, listener: NativeListener, make: Callable[[NativeListener], asyncio.BaseProtocol]
    ) -> None:
        """``make`` makes the protocol of a connection."""
        self._listener = listener
        self._make = make

    async def listen(self, host: str, port: int) -> int:
        return await self._listener.listen(host, port, partial(self._make, self._listener))


def front_ends() -> Mapping[str, FrontEnd]:
    """All front ends that are installed, in the order in which they are opened.

    Raises ``InvalidArgument`` if one cannot be loaded.
    """
    parts = registered(GROUP)
    names = sorted(parts, key=lambda name: (name != NATIVE, name == HTTP, name))
    return {name: parts[name].load() for name in names}


def front_end_named(name: str) -> FrontEnd:
    """An installed front end. Raises ``InvalidArgument`` if there is none with this name."""
    parts = registered(GROUP)
    if name not in parts:
        raise InvalidArgument(
            f"no installed package serves {name}; installed are {', '.join(parts) or 'none'}: "
            f"{install_line(name)}"
        )
    loaded: FrontEnd = parts[name].load()
    return loaded


def service_of(listener: NativeListener, name: str, settings: Settings) -> FrontEndService:
    """What serves a front end of a realm, begun at the first call."""
    if name not in listener.services:
        listener.services[name] = front_end_named(name).service(listener, settings)
    return listener.services[name]
