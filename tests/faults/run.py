"""One loop: a fresh realm, clients at work, faults for a while, peace, and then the reckoning."""

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
from tests.faults.phases import RECONNECT_S, arrived, finished, furnish, possible
from tests.faults.processes import Clients, Network, Server
from tests.faults.reckoning import read_stores, reckon
from tests.faults.report import Loop

DISK_MIB: Final = 192

CAST: Final[Sequence[Sequence[str]]] = (
    ("single", "pipelined", "careless", "short", "popped"),
    ("table", "transaction", "joint", "named", "grown", "put", "pushed", "amqp", "mqtt"),
    ("exclusive.1", "shared.1", "serial.1", "reader.1", "subscription.1", "mqtt_qos1.1"),
    ("priority.1", "shared_queued.1", "shared.2", "serial.2", "pop.1", "mqtt_qos2.1"),
    ("priority.2", "shared_queued.2", "reader.2", "pop.2", "subscription.2"),
)
"""Who shares a process, and with it its deaths."""


class Given(Struct, frozen=True):
    """What a loop is played with."""

    seed: int
    minutes: float
    folder: Path
    """Empty, or not there."""
    cases: int
    """Cases of damage at the end."""
    kinds: Sequence[str] = tuple(KINDS)
    cast: Sequence[Sequence[str]] = CAST
    may_mount: bool = True
    is_whole: bool = False
    """Play the whole schedule, however slow the machine is and however long it takes."""


class Loose(NamedTuple):
    """Everything that runs."""

    disk: Disk
    data: Path
    diaries: Path
    server: Server
    network: Network
    clients: list[Clients]


def play(given: Given) -> Loop:
    """Play one loop; what did not hold is among its violations."""
    random = Random(given.seed)
    wrong: list[str] = []
    cast, notes = possible(given.cast)
    given = replace(given, cast=cast)
    with _running(given) as all_of_it:
        means = all_of_it.disk.means or "left out: this machine allows no means"
        notes.append(f"disk full: {means}")
        kinds = [kind for kind in given.kinds if kind != "full" or all_of_it.disk.means]
        faults = schedule(random, given.minutes * 60, kinds)
        nemesis = Nemesis(
            all_of_it.server, all_of_it.network, all_of_it.clients, disk=all_of_it.disk
        )
        began_s = time.monotonic_ns() / 1e9
        nemesis.play(faults, inf if given.is_whole else began_s + given.minutes * 60)
        minutes = (time.monotonic_ns() / 1e9 - began_s) / 60
        nemesis.wait(1.0)
        nemesis.look()
        wrong += nemesis.failures
        url = all_of_it.server.url
        wrong += finished(all_of_it.clients, url, all_of_it.diaries, cast=given.cast)
        loop = Loop(
            given.seed,
            minutes,
            0,
            faults=dict(nemesis.done),
            publishers=[],
            consumers=[],
            damages=[],
            notes=notes,
            violations=wrong,
        )
        with penstock.connect(url, reconnect_timeout=RECONNECT_S) as session:
            content = read_stores(session)
        played = [role for roles in given.cast for role in roles]
        kills = sum(each.kills for each in all_of_it.clients if "pop.1" in each.roles)
        reckon(all_of_it.diaries, played, content, loop=loop, kills=kills)
        known = {name: content[name] for name in (LOG, SINGLE_FILE, PAGED)}
        _stop_server(all_of_it.server, random, wrong)
        loop.lives = all_of_it.server.lives
        _spoil(all_of_it.data, given, random, known=known, loop=loop)
    return loop


@contextmanager
def _running(given: Given) -> Iterator[Loose]:
    with ExitStack() as stack:
        disk = stack.enter_context(
            disk_at(given.folder / "disk", DISK_MIB, may_mount=given.may_mount)
        )
        diaries = given.folder / "diaries"
        diaries.mkdir(parents=True)
        clock = given.folder / "clock" if "clock" in given.kinds else None
        server = Server(given.folder / "disk" / "realm", clock)
        stack.callback(server.close)
        with penstock.connect(server.url) as session:
            furnish(session)
        network = Network(server.port, server.mqtt_port)
        stack.callback(network.close)
        mqtt.subscribed(network.mqtt_at, [role for roles in given.cast for role in roles])
        clients: list[Clients] = []
        for roles in given.cast:
            clients.append(Clients(network.url, diaries, roles, mqtt_at=network.mqtt_at))
            stack.callback(clients[-1].close)
        roles_played = sum(map(len, given.cast)) - ("careless" in given.cast[0])
        arrived(server.url, roles_played)
        yield Loose(
            disk,
            given.folder / "disk" / "realm",
            diaries,
            server=server,
            network=network,
            clients=clients,
        )


# --- the end of it -----------------------------------------------------------------------


def _stop_server(server: Server, random: Random, wrong: list[str]) -> None:
    if random.random() < 0.5:
        server.process.kill()
        return
    status = server.process.terminate()
    if status != 0:
        wrong.append(f"the last server ends with status {status}")


def _spoil(data: Path, given: Given, random: Random, known: damage.Content, loop: Loop) -> None:
    """Damage of every sort to copies of what is left; the kinds of file take turns."""
    for case in range(given.cases):
        folder = given.folder / "spoilt"
        copy = damage.copied(data, folder)
        kind = damage.KINDS[case % len(damage.KINDS)]
        done = damage.spoil(copy, random, kind, way=random.choice(damage.WAYS))
        if done is not None:
            damage.judge(data, copy, known, damage=done, wrong=loop.violations)
            loop.damages.append(done)
        shutil.rmtree(folder)
