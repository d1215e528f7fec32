"""What a shape and a contender are; the folders ``shapes`` and ``peers`` hold them."""

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
"""What one run measured, by name; the unit ends the name."""

EQUAL_WINDOW = 500
WINDOW_IN = "PENSTOCK_BENCH_WINDOW"
WINDOW = int(os.environ.get(WINDOW_IN, EQUAL_WINDOW))
"""Events a consumer may hold unacknowledged, equal for all; a case may have one of its own, which
its client process finds in its environment."""
WIDE = 5_000
"""A window that is large enough for every contender to be as fast as it can be."""
OWN_WINDOW = 0
"""Stands for what a contender gives a consumer that has not said how much it takes."""
WINDOWS: Final = ((WIDE, f"windows of {WIDE:,}"), (OWN_WINDOW, "default windows"))
"""Windows that are not equal for all shapes, and what tables call them."""
HAVE_WINDOWS: Final = ("penstock", "nats", "rabbitmq")
"""Whose server decides how much a consumer gets that has not said so."""
BATCH = 1_000
"""Events in one call of a batch API, equal for all."""
CONTENDERS: Final = ("penstock", "nats", "redis", "rabbitmq", "postgres", "kafka", "artemis")
"""Who takes part in what every broker does, in the order of the tables' columns."""
CLUSTERS: Final = (
    "penstock-cluster",
    "penstock",
    "nats-cluster",
    "rabbitmq-cluster",
    "kafka-cluster",
)
"""Who takes part in what clusters do."""
OURS: Final = "penstock"
"""Whom ratios are of, unless a shape says otherwise."""


class Case(Struct, frozen=True):
    """One line of a shape's table."""

    label: str
    durability: str = ""
    """``D0`` memory, ``D1`` written, ``D2`` on disk before the ack; empty where it has no
    meaning."""
    parameters: Mapping[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]


class Server(Struct, frozen=True):
    """A running server; ``pid`` is the process above all others of it."""

    url: str
    pid: int


class Broker(Protocol):
    """A connection to a peer, in the client process: the best its client offers for each need."""

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        """Make the stream and one durable that wants all of it; attach to it if it ``consumes``."""
        ...

    async def publish_batch(self, events: Events, api: str) -> None:
        """Publish a batch; all of it is confirmed on return. ``api``: ``columns`` or ``rows``."""
        ...

    async def send(self, events: Events, row: int) -> None:
        """Publish one event without waiting for its confirmation."""
        ...

    async def flush(self) -> None:
        """Wait until everything sent is confirmed."""
        ...

    async def publish_one(self, events: Events, row: int) -> None:
        """Publish one event and wait for its confirmation."""
        ...

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        """Take some events, at most ``count`` and at least one, read each one's data and
        properties, acknowledge them: how many, and the sum of their prices."""
        ...

    async def settled(self) -> None:
        """Wait until every acknowledgement has been taken by the server."""
        ...

    async def close(self) -> None: ...


class Crowded(Broker, Protocol):
    """A broker of many streams and many connections."""

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        """Make streams, each with one durable that wants all of it; nobody is attached."""
        ...

    async def another(self) -> Crowded:
        """One more connection to the same server."""
        ...

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        """Work with a stream that was prepared, by whatever connection, even before a restart."""
        ...

    async def attach_at_end(self, stream: str) -> None:
        """As ``attach``, with a durable of its own that wants only what is published later."""
        ...

    async def publish_to(self, stream: str, events: Events) -> None:
        """Publish a batch to one of the streams this connection has prepared; all of it is
        confirmed on return."""
        ...

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        """Store all batches so many times, the quickest way there is: it is not measured."""
        ...


class Subscriber(Protocol):
    """Has everything that is published from now on, over a connection of its own."""

    async def work(self, ledger: Ledger, api: str) -> None:
        """Take events until cancelled, and read each one's data and properties."""
        ...

    async def close(self) -> None: ...


class Broadcasting(Broker, Protocol):
    """A broker that sends events to whoever listens; it keeps no account of them."""

    async def prepare_broadcast(self, durability: str) -> None:
        """Make what ``publish_batch`` publishes to; at D0 it need not keep anything."""
        ...

    async def subscriber(self) -> Subscriber:
        """One more who listens; it misses nothing that is published after this returns."""
        ...


class Keyed(Broker, Protocol):
    """A broker that keeps the newest events of each value of a key."""

    async def prepare_keyed(self, durability: str, keys: Mapping[str, int]) -> None:
        """Make a stream that keeps so many events of each value of a property; nobody reads it."""
        ...

    async def publish_keyed(self, events: Events, api: str) -> None:
        """Publish a batch as ``publish_batch`` does."""
        ...

    async def stored(self) -> int:
        """How many events there are."""
        ...


class Expiring(Broker, Protocol):
    """A broker whose events may have a time to live of their own."""

    async def prepare_expiring(self, durability: str, *, buries: bool) -> None:
        """Make a stream nobody reads; what expires is kept elsewhere if it ``buries``."""
        ...

    async def publish_expiring(self, events: Events, ttls_ms: Sequence[int]) -> None:
        """Publish a batch, each event with its time to live; confirmed on return."""
        ...

    async def left(self) -> int:
        """How many events have expired, and are where they go."""
        ...


class Client(Protocol):
    """One client of a durable, over a connection of its own; it has its seat, and its window."""

    async def work(self, ledger: Ledger, api: str) -> None:
        """Take events until cancelled, read each one's data and properties, and settle it: what
        ``ledger`` calls flawed is rolled back when it comes for the first time."""
        ...

    async def hold(self) -> None:
        """Take as much as the window allows, and do nothing."""
        ...

    async def settled(self) -> None:
        """Wait until every settlement has been taken by the server."""
        ...

    async def close(self) -> None:
        """Leave; what it holds goes back."""
        ...


class Fanned(Broker, Protocol):
    """A broker with any number of durables, and of clients of each."""

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        """Make a stream with these durables, each for so many clients, ``shared`` or ``serial``
        or ``strict``; ``mode`` picks one of several ways a peer may have."""
        ...

    async def client(self, durable: str) -> Client:
        """Attach one more client to a durable."""
        ...


class Peer(Protocol):
    """A server to compare with, Penstock among them."""

    name: str

    def missing(self) -> str:
        """Why it cannot run here; empty when it can."""
        ...

    def version(self) -> str: ...

    def serve(self, directory: Path, durability: str) -> AbstractContextManager[Server]:
        """Start the server on a free loopback port; it is stopped at the end."""
        ...

    async def connect(self, url: str) -> Broker: ...


class Shape(Protocol):
    """One kind of work."""

    name: str
    title: str
    figure: str
    """The figure its ratios are made of."""
    higher_is_better: bool
    contenders: Sequence[str]

    def cases(self, *, quick: bool) -> Sequence[Case]: ...

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        """One run, in processes of its own. Raises ``Missing`` when it cannot run here."""
        ...


class Missing(Exception):
    """A contender cannot run on this machine; the text says what it would take."""


class ClientWork(Protocol):
    """A shape whose work is done by one client process."""

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures: ...


def ours_in(shape: Shape) -> str:
    """Whom the ratios of a shape are of: its ``ours``, where it has one."""
    return str(getattr(shape, "ours", OURS))


def shapes() -> Mapping[str, Shape]:
    """Every shape, by name: each file of ``bench.shapes`` is one."""
    return _registered("bench.shapes", "SHAPE")


def peers() -> Mapping[str, Peer]:
    """Every peer, by name: each file of ``bench.peers`` is one."""
    return _registered("bench.peers", "PEER")


def lacks_window(case: Case, contender: str) -> str:
    """Why the contender can take no part in a case with default windows; empty if it can."""
    if case.parameters.get("window") != OWN_WINDOW or contender in HAVE_WINDOWS:
        return ""
    return peers()[contender].missing() or "its consumers always set a window"


def _registered(package_name: str, export: str) -> Mapping[str, Any]:
    package: ModuleType = importlib.import_module(package_name)
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(package.__path__):
        thing = getattr(importlib.import_module(f"{package_name}.{module.name}"), export)
        found[thing.name] = thing
    return MappingProxyType(dict(sorted(found.items(), key=lambda item: _order(item[0]))))


def _order(name: str) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, name))
    return int(digits or 0), name
