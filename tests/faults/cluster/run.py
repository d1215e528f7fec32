"""One loop on a cluster: three servers of an engine, three nodes, working clients, faults for a
while, a quiet end, and the checks."""

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
from tests.faults.phases import (
    RECONNECT_S,
    Cast,
    available_cast,
    create_stores,
    finish,
    wait_for_clients,
)
from tests.faults.processes import Clients
from tests.faults.reckoning import check_loop, read_stores

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
"""Roles that share a process. No role publishes to pages, which a cluster does not have, or tables:
nine processes that all wait for disks are enough for two processors."""


MEASURED_CAST: Final[Cast] = (("single", "pipelined", "named"), ("shared.1", "subscription.1"))
"""Few clients, so that the pauses are those of the cluster and not of a busy machine."""


class ClusterSettings(Struct, frozen=True):
    """The settings of a loop."""

    seed: int
    minutes: float
    folder: Path
    """Empty or missing."""
    kinds: Sequence[str] = tuple(KINDS)
    cast: Cast = CAST
    lease_s: float = LEASE_S
    engine: str = ENGINE
    program: str = PROGRAM
    """The module that nodes run."""
    pauses: int = 0
    """Instead of faults for some minutes: the number of takeovers of each kind to measure."""
    times: int = 0
    """The number of times each kind is played at least; 0: its share of the minutes."""
    events: int = 0
    """Number of events of an additional large channel; if not 0, the nodes have their default
    settings."""
    sessions: int = 0
    """Number of sessions with a subscription to the large channel, which reconnect at once."""
    patience_s: float = WELL_S
    """Longest wait of publishers after a fault, and of everything at the end."""

    @property
    def has_shared_files(self) -> bool:
        """Whether the nodes share a folder for segments and snapshots, as with every second seed;
        otherwise the engine stores them."""
        return self.seed % 2 == 0


class _Running(NamedTuple):
    engine: FaultyEngine
    links: DemoLinks | None
    nodes: Nodes
    clients: list[Clients]
    diaries: Path


def play(settings: ClusterSettings) -> ClusterLoop:
    """Play one loop. Its violations are in the result."""
    random = Random(settings.seed)
    settings, notes = _supported(settings)
    loop = ClusterLoop(
        settings.seed,
        settings.engine,
        0.0,
        load=0.0,
        lease_s=settings.lease_s,
        takeovers=0,
        pauses=[],
        publishers=[],
        consumers=[],
        damages=[],
        notes=notes,
        violations=[],
    )
    with _running(settings) as running:
        roles = [role for part in settings.cast for role in part]
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
            log_path=settings.folder / "played.log",
            patience_s=settings.patience_s,
            connections=sum(map(len, settings.cast)) + settings.sessions
            if settings.sessions
            else 0,
        )
        planned, least = _planned(settings, random)
        began_s = time.monotonic_ns() / 1e9
        nemesis.play(planned, sum(least.values()), began_s + settings.minutes * 60)
        loop.minutes = (time.monotonic_ns() / 1e9 - began_s) / 60
        loop.load = os.getloadavg()[1]
        loop.violations += nemesis.failures
        loop.violations += finish(
            running.clients,
            running.nodes.url,
            running.diaries,
            cast=settings.cast,
            patience_s=settings.patience_s,
        )
        running.nodes.owner().kill()
        running.nodes.owner()  # another node must be able to serve with the stored state alone
        with penstock.connect(running.nodes.url, reconnect_timeout=settings.patience_s) as session:
            content = read_stores(session)
        check_loop(running.diaries, roles, content, loop=loop, kills=0)
        _stop(running.nodes, loop.violations)
        loop.takeovers = oracles.check_owners(running.nodes.logs, loop.violations)
    acknowledged = {name: acknowledged_at(path) for name, path in publishers.items()}
    loop.pauses = pauses(acknowledged, nemesis.played, least)
    if settings.sessions:
        loop.notes += _session_notes(settings, running.diaries / crowd.DIARY, nemesis.played)
    loop.damages = [fault.detail for fault in nemesis.played if fault.what == "copy-damaged"]
    oracles.check_damage_reported(nemesis.damaged, loop.violations)
    oracles.check_relayed(nemesis.cut_off, loop.violations)
    oracles.check_differing(nemesis.differing.seen, loop.violations)
    oracles.check_filled(nemesis.filled, loop.violations)
    oracles.check_played(loop.pauses, loop.violations)
    oracles.check_work(acknowledged, loop.violations)
    oracles.check_not_stopped(map(read_published, publishers.values()), loop.violations)
    _check_confirmed(running.diaries, roles, loop)
    return loop


def _planned(settings: ClusterSettings, random: Random) -> tuple[Iterator[Fault], dict[str, int]]:
    """Return the faults of a run, and the minimum number of each kind."""
    if settings.pauses:
        return measured(settings.pauses, settings.lease_s), dict.fromkeys(MEASURED, settings.pauses)
    least = least_times(settings.minutes, settings.kinds, settings.times)
    return faults(random, settings.minutes, settings.kinds, times_each=settings.times), least


def _session_notes(settings: ClusterSettings, diary: Path, played: Sequence[Played]) -> list[str]:
    """Return a note for each kind of fault on how long sessions were without the realm."""
    after_s = crowd.back_after_s(diary, played)
    notes = []
    for what in dict.fromkeys(fault.what for fault in played):
        times_s = [s for fault, s in zip(played, after_s, strict=True) if fault.what == what]
        notes.append(
            f"{what}, {settings.events:,} events, {settings.sessions} sessions: the last session "
            f"was back after {median(times_s):.1f} s (median), {max(times_s):.1f} s (worst)"
        )
    return notes


def _check_confirmed(diaries: Path, roles: Sequence[str], loop: ClusterLoop) -> None:
    for kind in DURABLES:
        paths = [diaries / f"{role}.received" for role in roles if role.startswith(f"{kind}.")]
        oracles.check_confirmed(kind, read_received(paths), loop.violations)


def _supported(settings: ClusterSettings) -> tuple[ClusterSettings, list[str]]:
    """Return the settings without roles and faults that cannot run here, and a note for each."""
    cast, notes = available_cast(settings.cast)
    unsupported = dict(_kind(settings).unsupported)
    if not settings.has_shared_files:
        unsupported |= dict.fromkeys(UNMOUNTS, "with this seed the files are on the engine")
    notes += [
        f"{kind}: left out: {unsupported[kind]}" for kind in settings.kinds if kind in unsupported
    ]
    kinds = [kind for kind in settings.kinds if kind not in unsupported]
    return replace(settings, cast=cast, kinds=kinds), notes


def _kind(settings: ClusterSettings) -> EngineKind:
    return engines.kinds()[settings.engine]


@contextmanager
def _running(settings: ClusterSettings) -> Iterator[_Running]:
    """Everything that is started here has ended when the block has."""
    with ExitStack() as stack:
        folders = {name: settings.folder / name for name in ("engine", "nodes", "diaries", "blobs")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        links = None
        if CUTS.intersection(settings.kinds) and not settings.pauses:
            links = DemoLinks()
            stack.callback(links.close)
        engine = stack.enter_context(_kind(settings).running(folders["engine"], links))
        nodes = Nodes(
            folders["nodes"],
            engine,
            settings.lease_s,
            links=links,
            program=settings.program,
            settings={} if settings.events else SETTINGS_OF_NODES,
            owned_s=min(OWNED_S, settings.patience_s),
            blobs=folders["blobs"] if settings.has_shared_files else None,
        )
        stack.callback(nodes.close)
        nodes.start()
        with penstock.connect(nodes.url, reconnect_timeout=RECONNECT_S) as session:
            create_stores(session)
            session.channels.create(BALLAST, type="persistent")
            if settings.events:
                crowd.fill(session, settings.events)
        mqtt.create_sessions(nodes.mqtt_at, [role for roles in settings.cast for role in roles])
        program, mqtt_at = _clients_of(nodes, links)
        clients: list[Clients] = []
        for roles in settings.cast:
            clients.append(
                Clients(nodes.url, folders["diaries"], roles, program=program, mqtt_at=mqtt_at)
            )
            stack.callback(clients[-1].close)
        if settings.sessions:
            role = (f"sessions.{settings.sessions}",)
            clients.append(Clients(nodes.url, folders["diaries"], role, program=crowd.PROGRAM))
            stack.callback(clients[-1].close)
        players = sum(map(len, settings.cast)) - ("careless" in settings.cast[0])
        wait_for_clients(nodes.url, players + settings.sessions)
        yield _Running(engine, links, nodes, clients=clients, diaries=folders["diaries"])


def _clients_of(nodes: Nodes, links: DemoLinks | None) -> tuple[Sequence[str], str]:
    """Return the program of clients and the addresses of MQTT: with links, clients reach each node
    over a separate one."""
    if links is None:
        return ("tests.faults.clients",), nodes.mqtt_at

    def open_link(node: Node, address: str) -> int:
        return links.open("clients", node.client_link, int(address.rpartition(":")[2]))

    ports = {
        int(node.address.rpartition(":")[2]): open_link(node, node.address) for node in nodes.all
    }
    mqtt_at = ",".join(f"127.0.0.1:{open_link(node, node.mqtt_at)}" for node in nodes.all)
    return ("tests.faults.cluster.linked", msgspec.json.encode(ports).decode()), mqtt_at


def _stop(nodes: Nodes, violations: list[str]) -> None:
    """End the nodes one after the other, so that each takes over from the one before."""
    running = [node for node in nodes.all if node.process is not None]
    statuses = {node.name: node.stop() for node in running}
    violations += [
        f"after SIGTERM the exit status of {name} is {status}"
        for name, status in statuses.items()
        if status
    ]
