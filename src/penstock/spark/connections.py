"""One session with each realm in each process of Spark's: planners, tasks, stream drivers.

Spark makes these processes, reuses them for one task after the other, and ends them without a
word, so a session is opened when first needed and kept for the next task.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from penstock.client.sync import Channel, Session, connect
from penstock.core.errors import CannotConnect, NameDoesNotExist, SessionClosed
from penstock.spark.options import Where

T = TypeVar("T")

_sessions: dict[tuple[int, str], Session] = {}
"""By process, as a forked child cannot use its parent's, and URL."""


class Link:
    """A channel that is there now, and what tells it from another one of the same name."""

    def __init__(self, session: Session, channel: Channel) -> None:
        self.channel = channel
        self.epoch = f"{session.realm_id}/{channel.number}"
        """Identity of the realm and of the channel in it: another one after delete and create."""

    @property
    def end(self) -> int:
        """One more than the newest event id."""
        return self.channel.info().last_event_id + 1


def ask(where: Where, question: Callable[[Link], T]) -> T:
    """What ``question`` gives for the channel. It may be asked twice, so it has to bear that.

    Raises ``CannotConnect``, and ``NameDoesNotExist`` naming the channel.
    """
    key = (os.getpid(), where.url)
    known = _sessions.get(key)
    if known is not None:
        try:
            return question(_link(known, where))
        except (SessionClosed, CannotConnect):
            _sessions.pop(key, None)  # it gave up long ago; a new one may fare better
    session = _sessions[key] = connect(where.url)
    return question(_link(session, where))


def disconnect() -> None:
    """Close the sessions of this process; the next question opens new ones."""
    mine = [key for key in _sessions if key[0] == os.getpid()]
    for key in mine:
        _sessions.pop(key).close()


def _link(session: Session, where: Where) -> Link:
    try:
        return Link(session, session.channels.get(where.channel))
    except NameDoesNotExist as error:
        raise NameDoesNotExist(
            f"the realm at {where.url} has no channel {where.channel!r}; create it first, for "
            f"example: penstock channel create {where.channel}"
        ) from error
