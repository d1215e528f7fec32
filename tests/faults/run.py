"""One loop: a new realm, working clients, faults for a while, a quiet end, and the checks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

import penstock
from tests.faults import damage, mqtt
from tests.faults.disks import Disk, disk_at
from tests.faults.names import LOG, PAGED, SINGLE_FILE
from tests.faults.nemesis import KINDS, Nemesis, schedule
from tests.faults.phases import RECONNECT_S, available_cast, create_stores, finish, wait_for_clients
from tests.faults.processes import Clients, Network, Server
from tests.faults.reckoning import check_loop, read_stores
from tests.faults.report import Loop

DISK_MIB: Final = 192

CAST: Final[Sequence[Sequence[str]]] = (
    ("single", "pipelined", "careless", "short", "popped"),
    ("table", "transaction", "joint", "named", "grown", "put", "pushed", "amqp", "mqtt"),
    ("exclusive.1", "shared.1", "serial.1", "reader.1", "subscription.1", "mqtt_qos1.1"),
    ("priority.1", "shared_queued.1", "shared.2", "serial.2", "pop.1", "mqtt_qos2.1"),
    ("priority.2", "shared_queued.2", "reader.2", "pop.2", "subscription.2"),
)
"""Roles that share a process, and so are killed together."""


class LoopSettings(Struct, frozen=True):
    """The settings of a loop."""

    seed: int
    minutes: float
    folder: Path
    """Empty or missing."""
    cases: int
    """Number of damaged files at the end."""
    kinds: Sequence[str] = tuple(KINDS)
    cast: Sequence[Sequence[str]] = CAST
    may_mount: bool = True
    is_whole: bool = False
    """Whether to play the whole schedule, however long that takes on this machine."""


class Running(NamedTuple):
    """All processes of a loop."""

    disk: Disk
    data: Path
    diaries: Path
    server: Server
    network: Network
    clients: list[Clients]


def play(settings: LoopSettings) -> Loop:
    """Play one loop. Its violations are in the result."""
    random = Random(settings.seed)
    violations: list[str] = []
    cast, notes = available_cast(settings.cast)
    settings = replace(settings, cast=cast)
    with _running(settings) as running:
        means = running.disk.means or "left out: this machine allows no means"
        notes.append(f"disk full: {means}")
        kinds = [kind for kind in settings.kinds if kind != "full" or running.disk.means]
        faults = schedule(random, settings.minutes * 60, kinds)
        nemesis = Nemesis(running.server, running.network, running.clients, disk=running.disk)
        began_s = time.monotonic_ns() / 1e9
        nemesis.play(faults, inf if settings.is_whole else began_s + settings.minutes * 60)
        minutes = (time.monotonic_ns() / 1e9 - began_s) / 60
        nemesis.wait(1.0)
        nemesis.check_processes()
        violations += nemesis.failures
        url = running.server.url
        violations += finish(running.clients, url, running.diaries, cast=settings.cast)
        loop = Loop(
            settings.seed,
            minutes,
            0,
            faults=dict(nemesis.counts),
            publishers=[],
            consumers=[],
            damages=[],
            notes=notes,
            violations=violations,
        )
        with penstock.connect(url, reconnect_timeout=RECONNECT_S) as session:
            content = read_stores(session)
        played = [role for roles in settings.cast for role in roles]
        kills = sum(process.kills for process in running.clients if "pop.1" in process.roles)
        check_loop(running.diaries, played, content, loop=loop, kills=kills)
        expected = {name: content[name] for name in (LOG, SINGLE_FILE, PAGED)}
        _stop_server(running.server, random, violations)
        loop.lives = running.server.lives
        _damage_copies(running.data, settings, random, expected=expected, loop=loop)
    return loop


@contextmanager
def _running(settings: LoopSettings) -> Iterator[Running]:
    with ExitStack() as stack:
        disk = stack.enter_context(
            disk_at(settings.folder / "disk", DISK_MIB, may_mount=settings.may_mount)
        )
        diaries = settings.folder / "diaries"
        diaries.mkdir(parents=True)
        clock = settings.folder / "clock" if "clock" in settings.kinds else None
        server = Server(settings.folder / "disk" / "realm", clock)
        stack.callback(server.close)
        with penstock.connect(server.url) as session:
            create_stores(session)
        network = Network(server.port, server.mqtt_port)
        stack.callback(network.close)
        mqtt.create_sessions(network.mqtt_at, [role for roles in settings.cast for role in roles])
        clients: list[Clients] = []
        for roles in settings.cast:
            clients.append(Clients(network.url, diaries, roles, mqtt_at=network.mqtt_at))
            stack.callback(clients[-1].close)
        roles_played = sum(map(len, settings.cast)) - ("careless" in settings.cast[0])
        wait_for_clients(server.url, roles_played)
        yield Running(
            disk,
            settings.folder / "disk" / "realm",
            diaries,
            server=server,
            network=network,
            clients=clients,
        )


# --- the end ---------------------------------------------------------------------------


def _stop_server(server: Server, random: Random, violations: list[str]) -> None:
    if random.random() < 0.5:
        server.process.kill()
        return
    status = server.process.terminate()
    if status != 0:
        violations.append(f"the last server ends with status {status}")


def _damage_copies(
    data: Path, settings: LoopSettings, random: Random, expected: damage.Content, loop: Loop
) -> None:
    """Damage copies of the data directory, one kind of file after the other."""
    for case in range(settings.cases):
        folder = settings.folder / "spoilt"
        copy = damage.copy_directory(data, folder)
        kind = damage.KINDS[case % len(damage.KINDS)]
        case_damage = damage.spoil(copy, random, kind, way=random.choice(damage.WAYS))
        if case_damage is not None:
            damage.check_damage(
                data, copy, expected, damage=case_damage, violations=loop.violations
            )
            loop.damages.append(case_damage)
        shutil.rmtree(folder)
