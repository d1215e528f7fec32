"""One loop on a cluster: three servers of an engine, three nodes, clients at work, faults for a
while, peace, and then the reckoning."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import penstock
from penstock_tools.demo.links import DemoLinks
from tests.faults import mqtt
from tests.faults.cluster import crowd, engines, oracles
from tests.faults.cluster.engines import EngineKind, FaultyEngine
from tests.faults.cluster.nemesis import BALLAST, WELL_S, ClusterNemesis
from tests.faults.cluster.nodes import OWNED_S, PROGRAM, SETTINGS_OF_NODES, Node, Nodes
from tests.faults.cluster.pauses import Played, pauses
from tests.faults.cluster.report import ClusterLoop
from tests.faults.cluster.schedule import (
    CUTS,
    KINDS,
    MEASURED,
    UNMOUNTS,
    Fault,
    faults,
    least_times,
    measured,
)
from tests.faults.journals import acknowledged_at, read_published, read_received
from tests.faults.names import DURABLES, TARGETS
from tests.faults.phases import RECONNECT_S, Cast, arrived, finished, furnish, possible
from tests.faults.processes import Clients
from tests.faults.reckoning import read_stores, reckon

ENGINE: Final = "jetstream"
LEASE_S: Final = 6.0

CAST: Final[Cast] = (
    ("single", "pipelined", "careless", "short", "popped", "amqp"),
    ("transaction", "joint", "named", "grown", "pushed", "mqtt"),
    (
        "exclusive.1",
        "shared.1",
        "serial.1",
        "reader.1",
        "subscription.1",
        "priority.2",
        "mqtt_qos1.1",
    ),
    ("priority.1", "shared_queued.1", "shared.2", "serial.2", "pop.1", "reader.2", "mqtt_qos2.1"),
)
"""Who shares a process. Nobody publishes to pages, which a cluster does not have, or tables: nine
processes that all wait for disks are enough for two processors."""


MEASURED_CAST: Final[Cast] = (("single", "pipelined", "named"), ("shared.1", "subscription.1"))
"""Few, so that pauses are those of the cluster and not of a machine without time."""


class ClusterGiven(Struct, frozen=True):
    """What a loop is played with."""

    seed: int
    minutes: float
    folder: Path
    """Empty, or not there."""
    kinds: Sequence[str] = tuple(KINDS)
    cast: Cast = CAST
    lease_s: float = LEASE_S
    engine: str = ENGINE
    program: str = PROGRAM
    """The module that nodes run."""
    pauses: int = 0
    """Instead of faults for some minutes, so many takeovers of each way, to measure them."""
    times: int = 0
    """How often each kind is played at least; 0: its share of the minutes."""
    events: int = 0
    """Events of a large channel that is there besides; the nodes have their usual settings then."""
    sessions: int = 0
    """Sessions that hold a subscription to the large channel, and come back at once."""
    patience_s: float = WELL_S
    """How long publishers may wait once a fault is over, and everything at the end."""

    @property
    def has_shared_files(self) -> bool:
        """Whether segments and snapshots are in a folder that the nodes share, as with every second
        seed; otherwise the engine has them."""
        return self.seed % 2 == 0


class _Running(NamedTuple):
    engine: FaultyEngine
    links: DemoLinks | None
    nodes: Nodes
    clients: list[Clients]
    diaries: Path


def play(given: ClusterGiven) -> ClusterLoop:
    """Play one loop; what did not hold is among its violations."""
    random = Random(given.seed)
    given, notes = _possible(given)
    loop = ClusterLoop(
        given.seed,
        given.engine,
        0.0,
        load=0.0,
        lease_s=given.lease_s,
        takeovers=0,
        pauses=[],
        publishers=[],
        consumers=[],
        damages=[],
        notes=notes,
        violations=[],
    )
    with _running(given) as running:
        roles = [role for part in given.cast for role in part]
        publishers = {
            role: running.diaries / f"{role}.published" for role in roles if role in TARGETS
        }
        nemesis = ClusterNemesis(
            running.nodes,
            running.engine,
            running.links,
            clients=running.clients,
            diaries=publishers,
            random=random,
            told=given.folder / "played.log",
            patience_s=given.patience_s,
            connections=sum(map(len, given.cast)) + given.sessions if given.sessions else 0,
        )
        drawn, least = _drawn(given, random)
        began_s = time.monotonic_ns() / 1e9
        nemesis.play(drawn, sum(least.values()), began_s + given.minutes * 60)
        loop.minutes = (time.monotonic_ns() / 1e9 - began_s) / 60
        loop.load = os.getloadavg()[1]
        loop.violations += nemesis.failures
        loop.violations += finished(
            running.clients,
            running.nodes.url,
            running.diaries,
            cast=given.cast,
            patience_s=given.patience_s,
        )
        running.nodes.owner().kill()
        running.nodes.owner()  # what is stored is enough for another node
        with penstock.connect(running.nodes.url, reconnect_timeout=given.patience_s) as session:
            content = read_stores(session)
        reckon(running.diaries, roles, content, loop=loop, kills=0)
        _stop(running.nodes, loop.violations)
        loop.takeovers = oracles.check_owners(running.nodes.logs, loop.violations)
    acknowledged = {name: acknowledged_at(path) for name, path in publishers.items()}
    loop.pauses = pauses(acknowledged, nemesis.played, least)
    if given.sessions:
        loop.notes += _sessions_back(given, running.diaries / crowd.DIARY, nemesis.played)
    loop.damages = [each.detail for each in nemesis.played if each.what == "copy-damaged"]
    oracles.check_told(nemesis.spoilt, loop.violations)
    oracles.check_relayed(nemesis.cut_off, loop.violations)
    oracles.check_differing(nemesis.differing.seen, loop.violations)
    oracles.check_filled(nemesis.filled, loop.violations)
    oracles.check_played(loop.pauses, loop.violations)
    oracles.check_work(acknowledged, loop.violations)
    oracles.check_not_stopped(map(read_published, publishers.values()), loop.violations)
    _check_confirmed(running.diaries, roles, loop)
    return loop


def _drawn(given: ClusterGiven, random: Random) -> tuple[Iterator[Fault], dict[str, int]]:
    """What is to go wrong, and how often each kind at least."""
    if given.pauses:
        return measured(given.pauses, given.lease_s), dict.fromkeys(MEASURED, given.pauses)
    least = least_times(given.minutes, given.kinds, given.times)
    return faults(random, given.minutes, given.kinds, times_each=given.times), least


def _sessions_back(given: ClusterGiven, diary: Path, played: Sequence[Played]) -> list[str]:
    """A note for each kind of fault: how long sessions were without the realm."""
    after_s = crowd.back_after_s(diary, played)
    notes = []
    for what in dict.fromkeys(each.what for each in played):
        those = [s for each, s in zip(played, after_s, strict=True) if each.what == what]
        notes.append(
            f"{what}, {given.events:,} events, {given.sessions} sessions: the last session was "
            f"back after {median(those):.1f} s (median), {max(those):.1f} s (worst)"
        )
    return notes


def _check_confirmed(diaries: Path, roles: Sequence[str], loop: ClusterLoop) -> None:
    for kind in DURABLES:
        paths = [diaries / f"{role}.received" for role in roles if role.startswith(f"{kind}.")]
        oracles.check_confirmed(kind, read_received(paths), loop.violations)


def _possible(given: ClusterGiven) -> tuple[ClusterGiven, list[str]]:
    """Who and what can play here, and a note of each that cannot."""
    cast, notes = possible(given.cast)
    left_out = dict(_kind(given).left_out)
    if not given.has_shared_files:
        left_out |= dict.fromkeys(UNMOUNTS, "with this seed the files are on the engine")
    notes += [f"{kind}: left out: {left_out[kind]}" for kind in given.kinds if kind in left_out]
    kinds = [kind for kind in given.kinds if kind not in left_out]
    return replace(given, cast=cast, kinds=kinds), notes


def _kind(given: ClusterGiven) -> EngineKind:
    return engines.kinds()[given.engine]


@contextmanager
def _running(given: ClusterGiven) -> Iterator[_Running]:
    """Everything that is started here has ended when the block has."""
    with ExitStack() as stack:
        folders = {name: given.folder / name for name in ("engine", "nodes", "diaries", "blobs")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        links = None
        if CUTS.intersection(given.kinds) and not given.pauses:
            links = DemoLinks()
            stack.callback(links.close)
        engine = stack.enter_context(_kind(given).running(folders["engine"], links))
        nodes = Nodes(
            folders["nodes"],
            engine,
            given.lease_s,
            links=links,
            program=given.program,
            settings={} if given.events else SETTINGS_OF_NODES,
            owned_s=min(OWNED_S, given.patience_s),
            blobs=folders["blobs"] if given.has_shared_files else None,
        )
        stack.callback(nodes.close)
        nodes.start()
        with penstock.connect(nodes.url, reconnect_timeout=RECONNECT_S) as session:
            furnish(session)
            session.channels.create(BALLAST, type="persistent")
            if given.events:
                crowd.fill(session, given.events)
        mqtt.subscribed(nodes.mqtt_at, [role for roles in given.cast for role in roles])
        program, mqtt_at = _clients_of(nodes, links)
        clients: list[Clients] = []
        for roles in given.cast:
            clients.append(
                Clients(nodes.url, folders["diaries"], roles, program=program, mqtt_at=mqtt_at)
            )
            stack.callback(clients[-1].close)
        if given.sessions:
            who = (f"sessions.{given.sessions}",)
            clients.append(Clients(nodes.url, folders["diaries"], who, program=crowd.PROGRAM))
            stack.callback(clients[-1].close)
        players = sum(map(len, given.cast)) - ("careless" in given.cast[0])
        arrived(nodes.url, players + given.sessions)
        yield _Running(engine, links, nodes, clients=clients, diaries=folders["diaries"])


def _clients_of(nodes: Nodes, links: DemoLinks | None) -> tuple[Sequence[str], str]:
    """What clients run, and where they find MQTT: where there are links, they find nodes over some
    of their own."""
    if links is None:
        return ("tests.faults.clients",), nodes.mqtt_at

    def linked(node: Node, address: str) -> int:
        return links.open("clients", node.for_clients, int(address.rpartition(":")[2]))

    found = {int(node.address.rpartition(":")[2]): linked(node, node.address) for node in nodes.all}
    mqtt_at = ",".join(f"127.0.0.1:{linked(node, node.mqtt_at)}" for node in nodes.all)
    return ("tests.faults.cluster.linked", msgspec.json.encode(found).decode()), mqtt_at


def _stop(nodes: Nodes, wrong: list[str]) -> None:
    """One after the other, and so the last one takes over from the one before."""
    running = [node for node in nodes.all if node.process is not None]
    statuses = {node.name: node.stop() for node in running}
    wrong += [
        f"after SIGTERM the exit status of {name} is {status}"
        for name, status in statuses.items()
        if status
    ]
