"""The interface of a storage engine for the faults of a cluster: three servers, one of them the
leader, that are killed, frozen and cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Protocol

from penstock_tools.demo.links import DemoLinks


class FaultyEngine(Protocol):
    """Three servers on loopback, and the faults that can be applied to them."""

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the servers, from 0 on."""
        ...

    @property
    def ports(self) -> Sequence[int]:
        """Ports of the servers, in the order of their numbers."""
        ...

    def url_of(self, ports: Sequence[int]) -> str:
        """Return the argument of ``penstock serve --cluster`` for servers at these ports."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Environment variables that a node needs for this engine."""
        ...

    def leader(self) -> int:
        """Return the number of the leading server. Raises ``AssertionError`` if no server leads for
        a long time."""
        ...

    def move_leader(self, random: Random) -> str:
        """Let other servers lead, one after the other; return a description."""
        ...

    def wait_until_whole(self) -> None:
        """Wait until each server has a current copy of everything. Raises ``AssertionError`` if
        that takes too long."""
        ...

    def kill(self, number: int) -> None: ...

    def start(self, number: int) -> None: ...

    def freeze(self, number: int) -> None: ...

    def thaw(self, number: int) -> None: ...

    def fill(self, number: int, room_bytes: int) -> None:
        """Leave a server only this much room."""
        ...

    def make_room(self, number: int) -> None:
        """Give a server the same room as before."""
        ...


class EngineKind(Protocol):
    """One kind of engine."""

    name: str

    @property
    def unsupported(self) -> Mapping[str, str]:
        """Faults that cannot be played on it, with the reasons."""
        ...

    def missing(self) -> str:
        """Return the reason why it cannot be started here, or ""."""
        ...

    def running(
        self, folder: Path, links: DemoLinks | None
    ) -> AbstractContextManager[FaultyEngine]:
        """Run its servers until the end of the block. If ``links`` are given, the servers find each
        other over them as ``server N``."""
        ...


def server_named(number: int) -> str:
    """Return the name of a server on the network of links."""
    return f"server {number}"


def kinds() -> Mapping[str, EngineKind]:
    """Return every engine that a loop may use, by name."""
    from tests.faults.cluster.engine import JetStreamKind
    from tests.faults.cluster.postgres import PostgresKind

    return {kind.name: kind for kind in (JetStreamKind(), PostgresKind())}
