"""The interface of front ends, whose packages can be installed and removed independently.

A package registers an object with these members under the entry point group
``penstock.front_ends``; docs/reference/front-ends.md explains it with an example. The server loads
all installed front ends and serves those whose port is set.
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

if TYPE_CHECKING:  # a realm without a cluster does not load these modules
    from prometheus_client.core import Metric

    from penstock_server.frontends.native.standby import OwnerFollowers
    from penstock_server.frontends.shared.arrivals import Arrivals

_log = logger("penstock.realm")

GROUP: Final = "penstock.front_ends"
NATIVE: Final = "native"
"""Name of the front end whose listener the others share."""
HTTP: Final = "http"
"""Name of the front end that is opened last, so that its WebSockets offer all other protocols."""


class ListenAddress(NamedTuple):
    """The address at which a front end listens."""

    host: str
    port: int
    """0 takes any free port."""
    is_required: bool = True
    """Whether the server ends if the port is in use; otherwise it runs without the front end."""


class StandbyNode(NamedTuple):
    """A standby node of a cluster, as its front ends see it."""

    arrivals: Arrivals
    """Counts connections, and finds the node that serves the realm."""
    followers: OwnerFollowers
    """Native clients that receive changes of owners."""
    name: str
    is_relaying: Callable[[], bool]
    """Returns whether requests are relayed to the owner."""
    unfit: Callable[[], str]
    """Returns the reason why the node could not take over the realm; empty if it could."""
    incidents: Callable[[], list[Incident]]
    """Returns the failures of the node's background tasks."""


class FrontEnd(Protocol):
    """A protocol that clients speak to a realm."""

    name: str
    """Name of the protocol in the URLs of a node, in descriptions of connections and in metrics."""
    schemes: tuple[str, str]
    """URL schemes without and with TLS."""
    first_bytes: bytes = b""
    """First bytes of a connection, which identify the protocol at the native port; empty if it is
    served only at a separate port."""
    modules: tuple[str, ...] = ()
    """Modules that :meth:`service` imports and that take long. The server imports them in a thread
    beforehand, so that native clients are served meanwhile. ``service`` reports a module that
    cannot be imported."""
    opens_stores: bool = False
    """Whether the front end creates channels when it begins to listen. For the local channels of a
    node their names must be approved first, so the node waits for the approval in the
    background."""

    def place(self, settings: Settings) -> ListenAddress | None:
        """Return the address to listen at; None if the front end is not configured. By default, the
        port is ``port`` in the settings section named after the front end."""
        port = getattr(settings, self.name).port
        return None if port is None else ListenAddress(settings.listen.host, port)

    def at_port(self, settings: Settings, port: int | None) -> Settings:
        """Return the settings with another port; None turns the front end off."""
        section = replace(getattr(settings, self.name), port=port)
        return replace(settings, **{self.name: section})

    def for_local_channels(self, settings: Settings, node: str) -> Settings:
        """Return the settings for serving the local channels of a cluster node."""
        return self.at_port(settings, None)

    def service(self, listener: NativeListener, settings: Settings) -> FrontEndService:
        """Return the service of a realm; called once per realm. Slow imports belong here.

        Raises ``InvalidArgument`` if a required package is not installed.
        """
        ...

    def standby(self, node: StandbyNode) -> Callable[[], asyncio.BaseProtocol]:
        """Return the factory of protocols for connections at a standby node. By default,
        connections that are not relayed are closed."""
        from penstock_server.frontends.shared.arrivals import ClosingStandby  # for clusters only

        return partial(ClosingStandby, node.arrivals)

    def wants_relay(self, data: bytes) -> bool | None:
        """Return whether a connection that begins with ``data`` is relayed to the owner of the
        realm; None if more bytes are needed. By default, all connections are relayed."""
        return bool(data) or None

    def metrics(self, realm: RunningRealm) -> Iterable[Metric]:
        """Return the metrics of this protocol, in addition to those of all protocols; called at
        each scrape."""
        return ()

    def log_listening(self, url: str) -> None:
        """Log the URL at which the front end is served."""
        _log.info("front_end.listening", name=self.name, url=url)

    def log_left_out(self, reason: str) -> None:
        """Log that the front end is not served, because its port is in use and not required."""
        return


class HostedService(FrontEndService):
    """The service of a front end whose connections the realm's listener accepts."""

    def __init__(
        self, listener: NativeListener, make: Callable[[NativeListener], asyncio.BaseProtocol]
    ) -> None:
        """``make`` creates the protocol of a connection."""
        self._listener = listener
        self._make = make

    async def listen(self, host: str, port: int) -> int:
        return await self._listener.listen(host, port, partial(self._make, self._listener))


def front_ends() -> Mapping[str, FrontEnd]:
    """Return all installed front ends, in the order in which to open them.

    Raises ``InvalidArgument`` if one cannot be loaded.
    """
    # False sorts before True: the native front end comes first, HTTP last.
    parts = registered(GROUP)
    names = sorted(parts, key=lambda name: (name != NATIVE, name == HTTP, name))
    return {name: parts[name].load() for name in names}


def front_end_named(name: str) -> FrontEnd:
    """Return an installed front end. Raises ``InvalidArgument`` if none has this name."""
    parts = registered(GROUP)
    if name not in parts:
        raise InvalidArgument(
            f"no installed package serves {name}; installed are {', '.join(parts) or 'none'}: "
            f"{install_line(name)}"
        )
    loaded: FrontEnd = parts[name].load()
    return loaded


def service_of(listener: NativeListener, name: str, settings: Settings) -> FrontEndService:
    """Return the service of a front end; it is created at the first call."""
    if name not in listener.services:
        listener.services[name] = front_end_named(name).service(listener, settings)
    return listener.services[name]
