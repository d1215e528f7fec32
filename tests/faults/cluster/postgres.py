"""PostgreSQL as the engine of a cluster under faults: a primary and two standbys, on a disk.

An installation of PostgreSQL has a program that promotes a standby if the primary fails. Here the
fault ``leader-moved`` does that: like such programs it ends the primary before it promotes another
server, and the former primary comes back as a standby.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

from penstock_tools.demo.links import DemoLinks
from tests.contract.postgres_servers import QUORUM, PostgresServers, engine_at, missing
from tests.faults.cluster.engines import FaultyEngine, server_named

STANDBYS: Final = 2


class PostgresFaults:
    """See :class:`tests.faults.cluster.engines.FaultyEngine`."""

    settings: Mapping[str, str] = {}

    def __init__(self, servers: PostgresServers) -> None:
        self._servers = servers
        self.numbers = range(1 + STANDBYS)

    @property
    def ports(self) -> Sequence[int]:
        return self._servers.ports

    def url_of(self, ports: Sequence[int]) -> str:
        return engine_at(ports)

    def leader(self) -> int:
        return self._servers.primary

    def move_leader(self, random: Random) -> str:
        """End the primary, promote the most advanced standby, and restart the former primary as its
        standby."""
        former = self._servers.primary
        self._servers.kill(former)
        chosen = self._servers.farthest_standby()
        self._servers.promote(chosen)
        self._servers.rejoin(former)
        return f"s{former} ended, s{chosen} promoted"

    def wait_until_whole(self) -> None:
        try:
            self._servers.wait_for_standbys(STANDBYS)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"a standby does not follow the primary: {error}") from error

    def kill(self, number: int) -> None:
        self._servers.kill(number)

    def kill_postmaster(self) -> int:
        """Send SIGKILL only to the first process of the primary; return the server's number."""
        self._servers.kill_first_process(self._servers.primary)
        return self._servers.primary

    def start(self, number: int) -> None:
        self._servers.start(number, synchronous_standby_names=QUORUM)

    def freeze(self, number: int) -> None:
        self._servers.freeze(number)

    def thaw(self, number: int) -> None:
        self._servers.thaw(number)

    def fill(self, number: int, room_bytes: int) -> None:
        raise AssertionError("the fault is left out for this engine")

    def make_room(self, number: int) -> None:
        raise AssertionError("the fault is left out for this engine")


class PostgresKind:
    """See :class:`tests.faults.cluster.engines.EngineKind`."""

    name = "postgresql"
    unsupported: Mapping[str, str] = {
        "copy-damaged": "damage of a server's files is found by PostgreSQL's own checksums, and "
        "told by it: tests/contract/test_postgres_faults.py",
        "engine-full": "PostgreSQL has no limit that could be lowered, and its servers share the "
        "disk of this machine; what a node makes of a full one: packages/server/tests/storage/"
        "test_postgres_servers.py",
    }

    def missing(self) -> str:
        return missing()

    @contextmanager
    def running(self, folder: Path, links: DemoLinks | None) -> Iterator[FaultyEngine]:
        """``folder`` is not used: a server that does not run as root may not read it."""

        def between(server: int, peer: int, port: int) -> int:
            assert links is not None, "there are no links"
            return links.open(server_named(server), server_named(peer), port)

        settings = {"wal_keep_size": "256MB"}
        with PostgresServers(
            settings=settings, in_memory=False, between=None if links is None else between
        ) as servers:
            yield PostgresFaults(servers)
