"""Temporary destinations, which receive the replies to requests (SEM R2, R3)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidName

TEMPORARY: Final[dict[Literal["channel", "queue"], Definition]] = {
    "channel": Definition(type="reliable", engine="jms"),
    "queue": Definition(kind="queue", type="reliable"),
}
"""Definitions of temporary destinations: their events are kept in memory."""
REPLY_QUEUE_PREFIX: Final = "temp-reply-"
"""Prefix of the name of a session's reply queue, followed by 32 random hexadecimal digits."""

STORE_BYTES_MAX: Final = 16 << 20
"""Bytes of events that one temporary destination keeps; a single event may be larger (SEM R4)."""
USER_PERCENT_MAX: Final = 25
"""Largest share of the realm's memory for events that the temporary destinations of one user may
take, in percent."""
SESSION_STORES_MAX: Final = 200
"""Temporary destinations that a session may have at a time."""

_TEMPORARY: Final = re.compile(r"temp-(queue|topic|reply)-[0-9a-f]{32}")
_REPLY_QUEUE: Final = re.compile(REPLY_QUEUE_PREFIX + "[0-9a-f]{32}")
_SCHEMES: Final = ("queue://", "topic://")


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temporary destination."""
    return _TEMPORARY.fullmatch(name) is not None


def is_reply_queue(name: str) -> bool:
    """Whether this is the name of a session's reply queue."""
    return _REPLY_QUEUE.fullmatch(name) is not None


def is_temporary_store(name: str, definition: Definition) -> bool:
    """Whether a store is a temporary destination. The name alone is not sufficient, because a
    client may give it to a store of another kind, type or engine."""
    if not is_temporary(name):
        return False
    expected = TEMPORARY["queue" if definition.kind == "queue" else "channel"]
    actual = (definition.kind, definition.type, definition.engine)
    return actual == (expected.kind, expected.type, expected.engine)


def refuse_as_chosen(name: str) -> None:
    """Raise ``InvalidName`` if a client chooses the name of a temporary destination for a store,
    which would then have no owner."""
    if is_temporary(name):
        raise InvalidName(
            f"{name} is a name of temporary destinations, which the realm makes for sessions and "
            f"connections that request replies; choose another name"
        )


def name_in_address(address: str) -> str:
    """Return the name in a reply-to address, to which an AMQP client may have added a scheme."""
    for scheme in _SCHEMES:
        if address.startswith(scheme):
            return address.removeprefix(scheme)
    return address


class IdleReplyQueues:
    """Finds reply queues that have had no reader for too long, because their sessions ended without
    closing (SEM R3). A session that reconnects in time reads again and keeps its queue."""

    def __init__(self, patience_us: int) -> None:
        """``patience_us`` is the time after which a queue without reader is removed, in
        microseconds."""
        self._patience_us = patience_us
        self._idle_since_us: dict[str, int] = {}

    def due(self, queues: Iterable[tuple[str, bool]], now_us: int) -> list[str]:
        """Return the names of the queues without reader that are to be removed.

        ``queues`` are the names of all existing reply queues, each with whether it has a reader.
        ``now_us`` comes from a steady clock, so that a session does not lose its queue when the
        time of day is set.
        """
        # Built again on each call, so that queues with a reader, and deleted ones, are forgotten.
        idle = [name for name, is_read in queues if not is_read]
        previous_us = self._idle_since_us
        self._idle_since_us = {name: previous_us.get(name, now_us) for name in idle}
        since_us = self._idle_since_us
        return [name for name in idle if now_us - since_us[name] >= self._patience_us]
