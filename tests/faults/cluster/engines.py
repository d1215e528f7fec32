"""What faults of a cluster ask of a storage engine, whichever it is: three servers that are killed,
frozen and cut off, one of which leads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Protocol

from penstock_tools.demo.links import DemoLinks


class FaultyEngine(Protocol):
    """Three servers on loopback, and what is done to them."""

    @property
    def numbers(self) -> Sequence[int]:
        """What the servers are called, from 0 on."""
        ...

    @property
    def ports(self) -> Sequence[int]:
        """Where the servers listen, in their order."""
        ...

    def named(self, ports: Sequence[int]) -> str:
        """What ``penstock serve --cluster`` takes for servers that are found at these ports."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """What a node has in its environment because of this engine."""
        ...

    def leader(self) -> int:
        """The number of the server that leads. Raises ``AssertionError`` when none does for
        long."""
        ...

    def move_leader(self, random: Random) -> str:
        """Have others lead, one after the other; gives what was done."""
        ...

    def wait_until_whole(self) -> None:
        """Until each server has a current copy of everything. Raises ``AssertionError`` when that
        takes too long."""
        ...

    def kill(self, number: int) -> None: ...

    def start(self, number: int) -> None: ...

    def freeze(self, number: int) -> None: ...

    def thaw(self, number: int) -> None: ...

    def fill(self, number: int, room_bytes: int) -> None:
        """Leave a server so much room for what it stores."""
        ...

    def make_room(self, number: int) -> None:
        """Give a server as much room as before."""
        ...


class EngineKind(Protocol):
    """One kind of engine."""

    name: str

    @property
    def left_out(self) -> Mapping[str, str]:
        """Faults that cannot be played on it, and why."""
        ...

    def missing(self) -> str:
        """Why it cannot be started here, or nothing."""
        ...

    def running(
        self, folder: Path, links: DemoLinks | None
    ) -> AbstractContextManager[FaultyEngine]:
        """Its servers, which have ended when the block has. Servers find each other over
        ``links``, where there are any, as ``server N``."""
        ...


def server_named(number: int) -> str:
    """What a server is called on the network of links."""
    return f"server {number}"


def kinds() -> Mapping[str, EngineKind]:
    """Every engine that a loop may be played on, by name."""
    from tests.faults.cluster.engine import JetStreamKind
    from tests.faults.cluster.postgres import PostgresKind

    return {kind.name: kind for kind in (JetStreamKind(), PostgresKind())}
