"""How a loop begins and ends, whatever realm it is played on: the stores it needs, clients that
have come, and everything consumed at the end."""

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
"""How long everything may take to come to an end once nothing goes wrong any more."""
RECONNECT_S: Final = 120.0

Cast = Sequence[Sequence[str]]
"""The roles of each process of clients."""


def possible(cast: Cast) -> tuple[Cast, list[str]]:
    """Who can play here, and a note of each that cannot."""
    notes = []
    left_out: set[str] = set()
    for whose, is_here, named in (
        ({"amqp"}, amqp.IS_HERE, "amqp: left out: python-qpid-proton is not installed"),
        ({"mqtt", *MQTT_CONSUMERS}, mqtt.IS_HERE, "mqtt: left out: paho-mqtt is not installed"),
    ):
        if not is_here and any(_kind(role) in whose for roles in cast for role in roles):
            left_out |= whose
            notes.append(named)
    return [[role for role in roles if _kind(role) not in left_out] for roles in cast], notes


def _kind(role: str) -> str:
    return role.partition(".")[0]


def furnish(session: Session) -> None:
    """Make everything that clients publish to and consume from."""
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


def arrived(url: str, connections: int) -> None:
    """Wait until all clients are there: what is to go wrong is to find them at work."""
    pause = threading.Event()
    with penstock.connect(url) as session:
        for _ in range(int(DRAIN_S / 0.1)):
            if session.info().connections > connections:
                return
            pause.wait(0.1)
    raise AssertionError(f"not all of {connections} clients have come")


def finished(
    clients: Sequence[Clients], url: str, diaries: Path, cast: Cast, patience_s: float = DRAIN_S
) -> list[str]:
    """Stop who publishes, wait until everything is consumed, stop the others; what went wrong.
    Each of these may take ``patience_s``."""
    publishing = [each for each in clients if each.roles[0] in TARGETS]
    consuming = [each for each in clients if each not in publishing]
    for each in publishing:
        each.ask_to_end()
    wrong = [each.wait(patience_s) for each in publishing]
    with penstock.connect(url, reconnect_timeout=patience_s) as session:
        left = _drained(session, diaries, cast, patience_s=patience_s)
    if left:
        wrong.append(f"{patience_s:g} s after the last fault there is still {left}")
    for each in consuming:
        each.ask_to_end()
    wrong += [each.wait(patience_s) for each in consuming]
    return [what for what in wrong if what]


def _drained(session: Session, diaries: Path, cast: Cast, patience_s: float) -> str:
    pause = threading.Event()
    left = ""
    for _ in range(int(patience_s / 0.25)):
        left = _left(session, diaries, cast)
        if not left:
            return ""
        pause.wait(0.25)
    return left


def _left(session: Session, diaries: Path, cast: Cast) -> str:
    """What somebody has still to do."""
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
        read = last_received(diaries / f"{role}.received")
        if role.startswith("subscription") and read < last:
            return f"something to read for {role}: it has read to {read} of {last}"
        if _kind(role) in MQTT_CONSUMERS and read < last_sent:
            return f"something to receive for {role}: it has come to {read} of {last_sent}"
    return ""
