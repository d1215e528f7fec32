"""Temporary destinations: where the replies to requests go (SEM R2, R3)."""

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
"""Before 32 hexadecimal digits that nobody can guess: the name of a session's reply queue."""

STORE_BYTES_MAX: Final = 16 << 20
"""Bytes of events that one temporary destination keeps; a single event may be larger (SEM R4)."""
USER_PERCENT_MAX: Final = 25
"""The part of the realm's memory for events that all temporary destinations of a user may take."""
SESSION_STORES_MAX: Final = 200
"""Temporary destinations that a session may have at a time."""

_TEMPORARY: Final = re.compile(r"temp-(queue|topic|reply)-[0-9a-f]{32}")
_REPLY_QUEUE: Final = re.compile(REPLY_QUEUE_PREFIX + "[0-9a-f]{32}")
_SCHEMES: Final = ("queue://", "topic://")


def is_temporary(name: str) -> bool:
    """Whether a name is that of a temporary destination."""
    return _TEMPORARY.fullmatch(name) is not None


def is_reply_queue(name: str) -> bool:
    """Whether a name is that of a session's reply queue."""
    return _REPLY_QUEUE.fullmatch(name) is not None


def is_temporary_store(name: str, definition: Definition) -> bool:
    """Whether a store is a temporary destination. The name alone proves nothing: a client may give
    it to a store of another kind, type or engine."""
    if not is_temporary(name):
        return False
    own = TEMPORARY["queue" if definition.kind == "queue" else "channel"]
    asked = (definition.kind, definition.type, definition.engine)
    return asked == (own.kind, own.type, own.engine)


def refuse_as_chosen(name: str) -> None:
    """Raise ``InvalidName`` where a client would give a store the name of a temporary destination,
    which would then have no owner."""
    if is_temporary(name):
        raise InvalidName(
            f"{name} is a name of temporary destinations, which the realm makes for sessions and "
            f"connections that ask for replies; choose another name"
        )


def name_in_address(address: str) -> str:
    """The name in a reply-to address, which an AMQP client may have given a scheme."""
    for scheme in _SCHEMES:
        if address.startswith(scheme):
            return address.removeprefix(scheme)
    return address


class IdleReplyQueues:
    """Finds the reply queues that nobody reads any more: their sessions have ended without a
    word (SEM R3). A session that reconnects in time reads again, and keeps its queue."""

    def __init__(self, patience_us: int) -> None:
        """``patience_us``: how long a reply queue stays without a reader, in microseconds."""
        self._patience_us = patience_us
        self._idle_since_us: dict[str, int] = {}

    def due(self, queues: Iterable[tuple[str, bool]], now_us: int) -> list[str]:
        """The queues to be removed. ``queues`` has the name of each reply queue that there is, and
        whether it has a reader. ``now_us`` is the time of a clock that nobody sets: a session does
        not lose its queue because the time of day has jumped."""
        idle = [name for name, is_read in queues if not is_read]
        before = self._idle_since_us
        self._idle_since_us = {name: before.get(name, now_us) for name in idle}
        since = self._idle_since_us
        return [name for name in idle if now_us - since[name] >= self._patience_us]
