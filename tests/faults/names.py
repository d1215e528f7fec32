"""The stores of a run, who publishes to them and who consumes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

LOG: Final = "log"
"""Everything stays on it, so that at the end it can be held to what was acknowledged."""
SINGLE_FILE: Final = "grows"
PAGED: Final = "paged"
BRIEF: Final = "brief"
"""Its events live a few seconds and then move to :data:`DEAD`."""
DEAD: Final = "dead"
WORK: Final = "work"
"""A queue for readers that commit."""
POPS: Final = "pops"
"""A queue whose events are taken one by one."""

BRIEF_TTL_MS: Final = 3_000

DURABLES: Final = ("exclusive", "priority", "shared", "serial", "shared_queued")
"""On :data:`LOG`, one of each type, named by it."""

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
"""Where each publisher's events go; those of ``joint`` go to :data:`WORK`, too, in one step."""

TOPICS: Final = ("faults/{role}",)
"""Topics of MQTT whose messages go to :data:`LOG`."""
AT_LEAST_ONCE: Final = "mqtt_qos1"
EXACTLY_ONCE: Final = "mqtt_qos2"
MQTT_CONSUMERS: Final = frozenset({AT_LEAST_ONCE, EXACTLY_ONCE})
"""They have what ``mqtt`` publishes."""
IN_HAND: Final = 10
"""Events a consumer may have been handed when it is killed, and that nobody writes down."""

NOT_IDEMPOTENT: Final = frozenset({"amqp", "careless"})
"""Publishers that publish again under a new name what they got no answer for."""

_ANYBODYS: Final = re.compile(b"(%s):([0-9]{1,18}):" % "|".join(TARGETS).encode())
_FILLING = bytes(range(33, 127)) * 8


def event_of(name: str, number: int) -> bytes:
    """What a publisher's event holds: who, which, and bytes that follow from both."""
    at = (number * 7919 + len(name)) % 94
    return b"%s:%d:" % (name.encode(), number) + _FILLING[at : at + 16 + number * 31 % 500]


def found_in(content: bytes) -> Iterator[tuple[str, int]]:
    """Whose events lie whole in these bytes, whatever is around them: publisher and number."""
    for match in _ANYBODYS.finditer(content):
        name, number = match[1].decode(), int(match[2])
        if content.startswith(event_of(name, number), match.start()):
            yield name, number


def parsed(data: bytes) -> tuple[str, int] | None:
    """Who published it and under which number; None: nobody published these bytes."""
    name, _, rest = data.partition(b":")
    number, _, _ = rest.partition(b":")
    if not number.isdigit() or not name.isascii():
        return None
    found = (name.decode(), int(number))
    return found if data == event_of(*found) else None
