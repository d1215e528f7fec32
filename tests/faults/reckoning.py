"""Compare all records of a loop with the content of its stores."""

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
"""Stores in reading order: expired events move from one to the next."""

Numbers = dict[int, list[int]]
"""Ids by a publisher's numbers."""


class LoopResult(Protocol):
    """The figures and violations of a loop."""

    publishers: list[checking.Publishing]
    consumers: list[checking.Consuming]
    violations: checking.Violations


def read_stores(session: Session) -> dict[str, checking.Events]:
    return {name: read_all(session.channels.get(name)) for name in STORES}


def check_loop(
    diaries: Path,
    played: Sequence[str],
    content: Mapping[str, checking.Events],
    loop: LoopResult,
    *,
    kills: int,
) -> None:
    """Fill in the figures and violations of ``loop``. ``kills``: number of kills of clients that
    take events off a queue without a transaction, or do not know what they had begun to receive."""
    violations = loop.violations
    stored: dict[str, dict[str, Numbers]] = {
        name: checking.ids_by_publisher(content[name], name, violations) for name in STORES
    }
    publishers = {
        role: read_published(diaries / f"{role}.published") for role in played if role in TARGETS
    }

    def received(kind: str) -> list[Received]:
        roles = [role for role in played if role.partition(".")[0] == kind or role == kind]
        return read_received([diaries / f"{role}.received" for role in roles])

    for queue, kind in ((WORK, "reader"), (POPS, "pop")):
        offered = [
            publisher for publisher in publishers.values() if _goes_to(publisher.name, queue)
        ]
        row, stored[queue] = checking.check_queue(
            queue,
            received(kind),
            offered,
            violations=violations,
            tolerated=kills * IN_HAND if kind == "pop" else 0,
        )
        loop.consumers.append(row)
    for name, published in publishers.items():
        numbers = stored[TARGETS[name]].get(name, {})
        if name == "short":
            published, numbers = _without_ids(published, numbers, stored[DEAD].get(name, {}))
        elif name == "popped":  # `check_queue` has checked whether too many are missing
            published = replace(
                published, acknowledged=_stored_only(published.acknowledged, numbers)
            )
        loop.publishers.append(checking.check_publishing(published, numbers, violations))
    for kind in DURABLES:
        if lines := received(kind):
            loop.consumers.append(
                checking.check_durable(kind, lines, content[LOG], violations=violations)
            )
    for role in played:
        if role.startswith("subscription"):
            row = checking.check_subscription(
                role, received(role), content[LOG], violations=violations
            )
            loop.consumers.append(row)
    sent = stored[LOG].get("mqtt", {})
    loop.consumers += _check_mqtt(played, received, sent, violations=violations, kills=kills)
    checking.check_together(stored[LOG].get("joint", {}), stored[WORK].get("joint", {}), violations)


def _check_mqtt(
    played: Sequence[str],
    received: Callable[[str], list[Received]],
    sent: Numbers,
    violations: checking.Violations,
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
                violations=violations,
                is_once=kind == EXACTLY_ONCE,
                tolerated=tolerated,
            )


def _goes_to(publisher: str, queue: str) -> bool:
    return TARGETS[publisher] == queue or (publisher == "joint" and queue == WORK)


def _stored_only(acknowledged: IdSet, numbers: Numbers) -> IdSet:
    return IdSet.from_ids([number for number in acknowledged if number in numbers])


def _without_ids(published: Published, here: Numbers, dead: Numbers) -> tuple[Published, Numbers]:
    """Return the record without ids, and pseudo-ids for the numbers: events that move from one
    store to another have a different id in each. Each must be once in the second store or, before
    it moves, once in the first (SEM T7)."""
    numbers = {number: [number] * len(ids) for number, ids in here.items()}
    numbers |= {number: [number] * len(ids) for number, ids in dead.items()}
    return replace(published, answers=[]), numbers
