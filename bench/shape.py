"""The definitions of shapes and contenders; the folders ``shapes`` and ``peers`` contain them."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, Protocol

from msgspec import Struct

from bench.ledger import Ledger
from bench.workload import Events

Figures = dict[str, float]
"""Measured values of one run, by name; each name ends with the unit."""

EQUAL_WINDOW = 500
WINDOW_IN = "PENSTOCK_BENCH_WINDOW"
WINDOW = int(os.environ.get(WINDOW_IN, EQUAL_WINDOW))
"""Largest number of unacknowledged events of a consumer, equal for all contenders. A case may have
another window, which its client process reads from its environment."""
WIDE = 5_000
"""A window that is large enough for the highest rate of every contender."""
OWN_WINDOW = 0
"""A case with this window leaves the window to the contender's default."""
WINDOWS: Final = ((WIDE, f"windows of {WIDE:,}"), (OWN_WINDOW, "default windows"))
"""Windows that are not equal for all shapes, and their headings in tables."""
HAVE_WINDOWS: Final = ("penstock", "nats", "rabbitmq")
"""The contenders whose server chooses the window of a consumer that names none."""
BATCH = 1_000
"""Events in one call of a batch API, equal for all."""
CONTENDERS: Final = ("penstock", "nats", "redis", "rabbitmq", "postgres", "kafka", "artemis")
"""The contenders in shapes that every broker supports, in the order of the tables' columns."""
CLUSTERS: Final = (
    "penstock-cluster",
    "penstock",
    "nats-cluster",
    "rabbitmq-cluster",
    "kafka-cluster",
)
"""The contenders in shapes of clusters."""
OURS: Final = "penstock"
"""The contender that ratios compare with the others, unless a shape names another one."""


class Case(Struct, frozen=True):
    """One line of a shape's table."""

    label: str
    durability: str = ""
    """``D0`` memory, ``D1`` written, ``D2`` on disk before the acknowledgement; empty if it does
    not apply."""
    parameters: Mapping[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]


class Server(Struct, frozen=True):
    """A running server; ``pid`` is the ancestor of all its processes."""

    url: str
    pid: int


class Broker(Protocol):
    """A connection to a peer, in the client process. For each need it uses the fastest call of the
    peer's client."""

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        """Make the stream and a durable for all its events; attach to the durable if it
        ``consumes``."""
        ...

    async def publish_batch(self, events: Events, api: str) -> None:
        """Publish a batch; all of it is confirmed on return. ``api`` is ``columns`` or ``rows``."""
        ...

    async def send(self, events: Events, row: int) -> None:
        """Publish one event without waiting for its confirmation."""
        ...

    async def flush(self) -> None:
        """Wait until all sent events are confirmed."""
        ...

    async def publish_one(self, events: Events, row: int) -> None:
        """Publish one event and wait for its confirmation."""
        ...

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        """Take some events, at most ``count`` and at least one, read the data and properties of
        each, and acknowledge them. Return their number and the sum of their prices."""
        ...

    async def settled(self) -> None:
        """Wait until the server has processed every acknowledgement."""
        ...

    async def close(self) -> None: ...


class Crowded(Broker, Protocol):
    """A broker with many streams and many connections."""

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        """Make streams, each with one durable for all its events and without clients."""
        ...

    async def another(self) -> Crowded:
        """Open one more connection to the same server."""
        ...

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        """Work with a prepared stream, whichever connection prepared it, even before a restart."""
        ...

    async def attach_at_end(self, stream: str) -> None:
        """Attach to a stream like :meth:`attach`, but with a new durable for the events that are
        published from now on."""
        ...

    async def publish_to(self, stream: str, events: Events) -> None:
        """Publish a batch to one of the streams that this connection has prepared; all of it is
        confirmed on return."""
        ...

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        """Store all batches this number of times, in the fastest way of the peer; this is not
        measured."""
        ...


class Subscriber(Protocol):
    """Receives all events that are published from now on, over a separate connection."""

    async def work(self, ledger: Ledger, api: str) -> None:
        """Take events until cancelled, and read the data and properties of each."""
        ...

    async def close(self) -> None: ...


class Broadcasting(Broker, Protocol):
    """A broker that sends events to its subscribers without storing their progress."""

    async def prepare_broadcast(self, durability: str) -> None:
        """Make the stream that :meth:`publish_batch` publishes to; at D0 it need not store
        anything."""
        ...

    async def subscriber(self) -> Subscriber:
        """Open one more subscriber; it receives all events that are published after this call."""
        ...


class Keyed(Broker, Protocol):
    """A broker that stores the newest events of each value of a key."""

    async def prepare_keyed(self, durability: str, keys: Mapping[str, int]) -> None:
        """Make a stream that stores a number of events of each value of a property; it has no
        reader."""
        ...

    async def publish_keyed(self, events: Events, api: str) -> None:
        """Publish a batch as :meth:`publish_batch` does."""
        ...

    async def stored(self) -> int:
        """Return the number of stored events."""
        ...


class Expiring(Broker, Protocol):
    """A broker whose events may have individual times to live."""

    async def prepare_expiring(self, durability: str, *, buries: bool) -> None:
        """Make a stream without readers; with ``buries``, expired events go to another stream."""
        ...

    async def publish_expiring(self, events: Events, ttls_ms: Sequence[int]) -> None:
        """Publish a batch, each event with its time to live; confirmed on return."""
        ...

    async def expired_count(self) -> int:
        """Return the number of events that have expired and are in their final place."""
        ...


class Client(Protocol):
    """One client of a durable, over a separate connection, with its own window."""

    async def work(self, ledger: Ledger, api: str) -> None:
        """Take events until cancelled, read the data and properties of each, and settle it. Events
        that ``ledger`` calls flawed are rolled back at their first delivery."""
        ...

    async def hold(self) -> None:
        """Receive events up to the window, without settling any."""
        ...

    async def settled(self) -> None:
        """Wait until the server has processed every settlement."""
        ...

    async def close(self) -> None:
        """Close the connection; the unsettled events return to the durable."""
        ...


class Fanned(Broker, Protocol):
    """A broker with any number of durables, and of clients of each durable."""

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        """Make a stream with these durables, each for this number of clients: ``shared``,
        ``serial`` or ``strict``. ``mode`` selects one of several ways of a peer."""
        ...

    async def client(self, durable: str) -> Client:
        """Attach one more client to a durable."""
        ...


class Peer(Protocol):
    """A server that is measured, including Penstock."""

    name: str

    def missing(self) -> str:
        """Return why it cannot run here; empty if it can."""
        ...

    def version(self) -> str: ...

    def serve(self, directory: Path, durability: str) -> AbstractContextManager[Server]:
        """Start the server on a free loopback port; it is stopped after the block."""
        ...

    async def connect(self, url: str) -> Broker: ...


class Shape(Protocol):
    """One kind of work."""

    name: str
    title: str
    figure: str
    """Name of the figure that its ratios compare."""
    higher_is_better: bool
    contenders: Sequence[str]

    def cases(self, *, quick: bool) -> Sequence[Case]: ...

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        """Measure one run, in separate processes. Raises ``Missing`` if it cannot run here."""
        ...


class Missing(Exception):
    """A contender cannot run on this machine; the text says what to install."""


class ClientWork(Protocol):
    """A shape whose work is done by one client process."""

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures: ...


def ours_in(shape: Shape) -> str:
    """Return the contender that the ratios of a shape compare with the others."""
    return str(getattr(shape, "ours", OURS))


def shapes() -> Mapping[str, Shape]:
    """Return every shape by name: each file of ``bench.shapes`` is one."""
    return _registered("bench.shapes", "SHAPE")


def peers() -> Mapping[str, Peer]:
    """Return every peer by name: each file of ``bench.peers`` is one."""
    return _registered("bench.peers", "PEER")


def lacks_window(case: Case, contender: str) -> str:
    """Return why the contender cannot take part in a case with default windows; empty if it can."""
    if case.parameters.get("window") != OWN_WINDOW or contender in HAVE_WINDOWS:
        return ""
    return peers()[contender].missing() or "its consumers always set a window"


def _registered(package_name: str, export: str) -> Mapping[str, Any]:
    """Return the objects of the name ``export`` in all modules of a package, by their own name."""
    package: ModuleType = importlib.import_module(package_name)
    exports: dict[str, Any] = {}
    for module in pkgutil.iter_modules(package.__path__):
        thing = getattr(importlib.import_module(f"{package_name}.{module.name}"), export)
        exports[thing.name] = thing
    return MappingProxyType(dict(sorted(exports.items(), key=lambda item: _order(item[0]))))


def _order(name: str) -> tuple[int, str]:
    """Return a sort key that orders ``S2`` before ``S10``."""
    digits = "".join(filter(str.isdigit, name))
    return int(digits or 0), name
