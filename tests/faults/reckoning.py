"""All diaries of a loop held to what its stores hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from penstock.client.sync.sync import Session
from penstock_core.ids.ids import IdSet
from tests.faults import checking
from tests.faults.damage import read_all
from tests.faults.journals import Published, Received, read_published, read_received
from tests.faults.names import (
    BRIEF,
    DEAD,
    DURABLES,
    EXACTLY_ONCE,
    IN_HAND,
    LOG,
    MQTT_CONSUMERS,
    PAGED,
    POPS,
    SINGLE_FILE,
    TARGETS,
    WORK,
)

STORES: Final = (LOG, SINGLE_FILE, PAGED, BRIEF, DEAD)
"""In the order they are read: what expires goes from one to the next."""

Numbers = dict[int, list[int]]
"""Ids by a publisher's numbers."""


class Reckoned(Protocol):
    """What a loop has found."""

    publishers: list[checking.Publishing]
    consumers: list[checking.Consuming]
    violations: checking.Violations


def read_stores(session: Session) -> dict[str, checking.Events]:
    return {name: read_all(session.channels.get(name)) for name in STORES}


def reckon(
    diaries: Path,
    played: Sequence[str],
    content: Mapping[str, checking.Events],
    loop: Reckoned,
    *,
    kills: int,
) -> None:
    """Write the rows of ``loop``, and what did not hold. ``kills``: how often clients that take
    events off a queue without a commit, or know nothing of what they have begun to receive, were
    killed."""
    wrong = loop.violations
    stored: dict[str, dict[str, Numbers]] = {
        name: checking.owners(content[name], name, wrong) for name in STORES
    }
    publishers = {
        role: read_published(diaries / f"{role}.published") for role in played if role in TARGETS
    }

    def received(kind: str) -> list[Received]:
        roles = [role for role in played if role.partition(".")[0] == kind or role == kind]
        return read_received([diaries / f"{role}.received" for role in roles])

    for queue, kind in ((WORK, "reader"), (POPS, "pop")):
        offered = [each for each in publishers.values() if _goes_to(each.name, queue)]
        row, stored[queue] = checking.check_queue(
            queue,
            received(kind),
            offered,
            wrong=wrong,
            tolerated=kills * IN_HAND if kind == "pop" else 0,
        )
        loop.consumers.append(row)
    for name, published in publishers.items():
        numbers = stored[TARGETS[name]].get(name, {})
        if name == "short":
            published, numbers = _moved(published, numbers, stored[DEAD].get(name, {}))
        elif name == "popped":  # whether too many are missing has been looked at
            published = replace(published, acknowledged=_only(published.acknowledged, numbers))
        loop.publishers.append(checking.check_publishing(published, numbers, wrong))
    for kind in DURABLES:
        if lines := received(kind):
            loop.consumers.append(checking.check_durable(kind, lines, content[LOG], wrong=wrong))
    for role in played:
        if role.startswith("subscription"):
            row = checking.check_subscription(role, received(role), content[LOG], wrong=wrong)
            loop.consumers.append(row)
    sent = stored[LOG].get("mqtt", {})
    loop.consumers += _over_mqtt(played, received, sent, wrong=wrong, kills=kills)
    checking.check_together(stored[LOG].get("joint", {}), stored[WORK].get("joint", {}), wrong)


def _over_mqtt(
    played: Sequence[str],
    received: Callable[[str], list[Received]],
    sent: Numbers,
    wrong: checking.Violations,
    kills: int,
) -> Iterator[checking.Consuming]:
    for role in played:
        kind = role.partition(".")[0]
        if kind in MQTT_CONSUMERS:
            tolerated = kills * IN_HAND if kind == EXACTLY_ONCE else 0
            yield checking.check_messages(
                role,
                received(role),
                sent,
                wrong=wrong,
                is_once=kind == EXACTLY_ONCE,
                tolerated=tolerated,
            )


def _goes_to(publisher: str, queue: str) -> bool:
    return TARGETS[publisher] == queue or (publisher == "joint" and queue == WORK)


def _only(acknowledged: IdSet, numbers: Numbers) -> IdSet:
    return IdSet.from_ids([number for number in acknowledged if number in numbers])


def _moved(published: Published, here: Numbers, dead: Numbers) -> tuple[Published, Numbers]:
    """Events that move from one store to another, each with an id of its own in either: once
    there or, as long as it has not moved, once here (SEM T7)."""
    found = {number: [number] * len(ids) for number, ids in here.items()}
    found |= {number: [number] * len(ids) for number, ids in dead.items()}
    return replace(published, answers=[]), found
