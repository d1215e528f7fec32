"""The stores of a run, with their publishers and consumers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

LOG: Final = "log"
"""A channel that keeps all its events, so that in the end it can be compared with the
acknowledgements."""
SINGLE_FILE: Final = "grows"
PAGED: Final = "paged"
BRIEF: Final = "brief"
"""Its events expire after a few seconds and move to :data:`DEAD`."""
DEAD: Final = "dead"
WORK: Final = "work"
"""A queue for readers with transactions."""
POPS: Final = "pops"
"""A queue for single pops."""

BRIEF_TTL_MS: Final = 3_000

DURABLES: Final = ("exclusive", "priority", "shared", "serial", "shared_queued")
"""Durables on :data:`LOG`, one of each type, named after the type."""

TARGETS: Final[Mapping[str, str]] = {
    "single": LOG,
    "pipelined": LOG,
    "table": LOG,
    "transaction": LOG,
    "joint": LOG,
    "named": LOG,
    "careless": LOG,
    "amqp": LOG,
    "mqtt": LOG,
    "grown": SINGLE_FILE,
    "put": PAGED,
    "short": BRIEF,
    "pushed": WORK,
    "popped": POPS,
}
"""Store of each publisher; events of ``joint`` also go to :data:`WORK` in the same transaction."""

TOPICS: Final = ("faults/{role}",)
"""MQTT topics whose messages go to :data:`LOG`."""
AT_LEAST_ONCE: Final = "mqtt_qos1"
EXACTLY_ONCE: Final = "mqtt_qos2"
MQTT_CONSUMERS: Final = frozenset({AT_LEAST_ONCE, EXACTLY_ONCE})
"""Consumers of the events of ``mqtt``."""
IN_HAND: Final = 10
"""Number of events that a killed consumer may have received without a record."""

NOT_IDEMPOTENT: Final = frozenset({"amqp", "careless"})
"""Publishers that repeat an unanswered publish under a new name."""

_EVENT: Final = re.compile(b"(%s):([0-9]{1,18}):" % "|".join(TARGETS).encode())
_FILLING = bytes(range(33, 127)) * 8


def event_of(name: str, number: int) -> bytes:
    """Return the data of a publisher's event: the publisher, the number, and bytes derived from
    both."""
    offset = (number * 7919 + len(name)) % 94
    return b"%s:%d:" % (name.encode(), number) + _FILLING[offset : offset + 16 + number * 31 % 500]


def events_in(content: bytes) -> Iterator[tuple[str, int]]:
    """Yield publisher and number of all events that are complete in these bytes."""
    for match in _EVENT.finditer(content):
        name, number = match[1].decode(), int(match[2])
        if content.startswith(event_of(name, number), match.start()):
            yield name, number


def publisher_of(data: bytes) -> tuple[str, int] | None:
    """Return publisher and number of an event; None if no publisher has created these bytes."""
    name, _, rest = data.partition(b":")
    number, _, _ = rest.partition(b":")
    if not number.isdigit() or not name.isascii():
        return None
    publisher = (name.decode(), int(number))
    return publisher if data == event_of(*publisher) else None
