"""Start and end of a loop on any realm: create the stores, wait for the clients, and wait until all
is consumed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import penstock
from penstock.client.sync.sync import Session
from tests.faults import amqp, mqtt
from tests.faults.journals import last_received, read_published
from tests.faults.names import (
    BRIEF,
    BRIEF_TTL_MS,
    DEAD,
    DURABLES,
    LOG,
    MQTT_CONSUMERS,
    PAGED,
    POPS,
    SINGLE_FILE,
    TARGETS,
    TOPICS,
    WORK,
)
from tests.faults.processes import Clients

DRAIN_S: Final = 120.0
"""The longest time until everything is consumed after the last fault."""
RECONNECT_S: Final = 120.0

Cast = Sequence[Sequence[str]]
"""The roles of each process of clients."""


def available_cast(cast: Cast) -> tuple[Cast, list[str]]:
    """Return the roles that can run here, and a note for each that cannot."""
    notes = []
    left_out_roles: set[str] = set()
    for roles_of_kind, is_installed, note in (
        ({"amqp"}, amqp.IS_HERE, "amqp: left out: python-qpid-proton is not installed"),
        ({"mqtt", *MQTT_CONSUMERS}, mqtt.IS_HERE, "mqtt: left out: paho-mqtt is not installed"),
    ):
        if not is_installed and any(
            _kind(role) in roles_of_kind for roles in cast for role in roles
        ):
            left_out_roles |= roles_of_kind
            notes.append(note)
    return [[role for role in roles if _kind(role) not in left_out_roles] for roles in cast], notes


def _kind(role: str) -> str:
    return role.partition(".")[0]


def create_stores(session: Session) -> None:
    """Create all stores of the publishers and consumers."""
    storage: penstock.StorageProperties = {"events_per_spindle": 2_000}
    log = session.channels.create(
        LOG, type="persistent", retain_consumed=True, storage=storage, topics=TOPICS
    )
    for kind in DURABLES:
        log.durables.create(kind, type=kind)
    session.channels.create(SINGLE_FILE, type="persistent", storage={"events_per_spindle": 0})
    session.channels.create(PAGED, type="paged")
    session.channels.create(DEAD, type="persistent")
    session.channels.create(BRIEF, type="persistent", ttl=BRIEF_TTL_MS, dead_event_store=DEAD)
    session.queues.create(WORK, type="persistent")
    session.queues.create(POPS, type="persistent")


def wait_for_clients(url: str, connections: int) -> None:
    """Wait until all clients have connected, so that faults meet working clients."""
    pause = threading.Event()
    with penstock.connect(url) as session:
        for _ in range(int(DRAIN_S / 0.1)):
            if session.info().connections > connections:
                return
            pause.wait(0.1)
    raise AssertionError(f"not all of {connections} clients have come")


def finish(
    clients: Sequence[Clients], url: str, diaries: Path, cast: Cast, patience_s: float = DRAIN_S
) -> list[str]:
    """Stop the publishers, wait until all is consumed, and stop the consumers. Return the failures.
    Each step may take ``patience_s``."""
    publishing = [process for process in clients if process.roles[0] in TARGETS]
    consuming = [process for process in clients if process not in publishing]
    for process in publishing:
        process.terminate()
    violations = [process.wait(patience_s) for process in publishing]
    with penstock.connect(url, reconnect_timeout=patience_s) as session:
        remaining = _drain(session, diaries, cast, patience_s=patience_s)
    if remaining:
        violations.append(f"{patience_s:g} s after the last fault there is still {remaining}")
    for process in consuming:
        process.terminate()
    violations += [process.wait(patience_s) for process in consuming]
    return [what for what in violations if what]


def _drain(session: Session, diaries: Path, cast: Cast, patience_s: float) -> str:
    pause = threading.Event()
    remaining = ""
    for _ in range(int(patience_s / 0.25)):
        remaining = _remaining_work(session, diaries, cast)
        if not remaining:
            return ""
        pause.wait(0.25)
    return remaining


def _remaining_work(session: Session, diaries: Path, cast: Cast) -> str:
    """Describe work that a consumer still has to do; "" if none."""
    played = {role for roles in cast for role in roles}
    kinds = {_kind(role) for role in played}
    log = session.channels.get(LOG)
    for durable in log.durables.list():
        if durable.type in kinds and durable.outstanding:
            return (
                f"{durable.outstanding} events outstanding at {durable.type}, {durable.in_flight} "
                f"of them in the hands of {len(durable.clients)} clients"
            )
    for queue, kind in ((WORK, "reader"), (POPS, "pop")):
        events = session.queues.get(queue).info().events
        if kind in kinds and events:
            return f"{events} events on {queue}"
    last = log.info().last_event_id
    sent = read_published(diaries / "mqtt.published").acknowledged
    last_sent = sent.spans[-1].end - 1 if sent else -1
    for role in sorted(played):
        last_read = last_received(diaries / f"{role}.received")
        if role.startswith("subscription") and last_read < last:
            return f"something to read for {role}: it has read to {last_read} of {last}"
        if _kind(role) in MQTT_CONSUMERS and last_read < last_sent:
            return f"something to receive for {role}: it has come to {last_read} of {last_sent}"
    return ""
