"""The sessions of Spark's processes: one session with each realm in each process.

Spark starts processes for planning and tasks, reuses them for later tasks, and kills them without
notice. A session is therefore opened when it is first needed, and stays open for the next task.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from pyspark import TaskContext

from penstock.client.connection.urls import safe
from penstock.client.sync.sync import Channel, Destination, Queue, Session, connect
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import (
    CannotConnect,
    IllegalState,
    NameDoesNotExist,
    SessionClosed,
)
from penstock_spark.options import RealmAt, Where
from penstock_spark.session.settling import settle_down

T = TypeVar("T")

sessions: dict[tuple[int, RealmAt], Session] = {}
"""Sessions by process id and realm. The process id is in the key because a forked process cannot
use the sessions of its parent."""

_existing: set[tuple[int, Where]] = set()
"""Process ids with the channels and queues that existed when the process checked."""


class ChannelLink:
    """A channel or queue that exists, with its epoch. A channel that is created again under the
    same name has another epoch."""

    def __init__(self, destination: Channel | Queue) -> None:
        self._destination = destination
        self.store: Destination = destination
        """The channel or queue, for requests that both accept."""
        self.name = destination.name
        self.epoch = destination.epoch

    @property
    def channel(self) -> Channel:
        """The channel. Raises ``IllegalState`` if this is a queue."""
        if isinstance(self._destination, Channel):
            return self._destination
        raise IllegalState(f"{self.name} is a queue; a channel is needed here")

    @property
    def end(self) -> int:
        """The newest event id plus one."""
        return self.store.info().last_event_id + 1

    @property
    def first_stored(self) -> int:
        """The lowest stored event id; the next id to be assigned if no event is stored."""
        return self.extent().first

    def extent(self) -> Span:
        """Return the span from the lowest stored event id to the next id to be assigned."""
        info = self.store.info()
        end = info.last_event_id + 1
        return Span(end if info.first_event_id is None else info.first_event_id, end)

    def age_ms(self, event_id: int, now: datetime) -> int:
        """Return the age, in milliseconds, of the first stored event from ``event_id`` on; 0 if no
        such event is stored."""
        published = self.store.published_at(event_id)
        return 0 if published is None else max(0, (now - published) // timedelta(milliseconds=1))


def ask(where: Where, question: Callable[[ChannelLink], T], *, patient: bool = False) -> T:
    """Return the result of ``question`` for a channel or queue.

    ``question`` may be called twice, so it must be safe to repeat. ``patient`` is that of
    :func:`ask_realm`. Raises ``CannotConnect``, and ``NameDoesNotExist`` if the channel does not
    exist.
    """
    return ask_realm(where.realm, lambda session: question(link(session, where)), patient=patient)


def check_exists(where: Where, *, patient: bool = False) -> None:
    """Raise ``NameDoesNotExist`` if a channel or queue does not exist. Raises ``CannotConnect``.

    A process checks each channel only until it exists: Spark makes two writers for each
    micro-batch, and tasks notice if the channel was deleted since.
    """
    key = (os.getpid(), where)
    if key not in _existing:
        ask(where, lambda link: link.epoch, patient=patient)
        _existing.add(key)


def ask_realm(
    realm: RealmAt | str,
    question: Callable[[Session], T],
    *,
    patient: bool = False,
    realm_id: str = "",
) -> T:
    """Return the result of ``question`` for a session with the realm.

    ``question`` may be called twice, so it must be safe to repeat. ``realm_id`` is the id of the
    realm that a task was connected to; if the open session of this process has another id, it is
    replaced.

    Tasks, and callers with ``patient``, wait up to ``realm.reconnect_s`` seconds for an unavailable
    realm, because the query has already reached the realm. All calls of a stream are patient except
    the first read of its columns: Spark may make each call in a new process, which has no session
    that could reconnect. Raises ``CannotConnect``.
    """
    settle_down()
    realm = RealmAt(realm) if isinstance(realm, str) else realm
    key = (os.getpid(), realm)
    session = sessions.get(key)
    if session is not None and realm_id not in ("", session.realm_id):
        sessions.pop(key).close()
        session = None
    if session is not None:
        try:
            return question(session)
        except (SessionClosed, CannotConnect):
            # The session ended because its reconnect timeout had passed; a new one may succeed.
            sessions.pop(key, None)
    patient = patient or TaskContext.get() is not None
    session = sessions[key] = _connected(realm, realm.reconnect_s if patient else 0)
    return question(session)


def _connected(realm: RealmAt, patience_s: float) -> Session:
    """Open a session; retry for ``patience_s`` seconds before ``CannotConnect`` is raised."""
    pause_s, waited_s = 0.05, 0.0
    while True:
        try:
            return connect(realm.url, reconnect_timeout=realm.reconnect_s)
        except CannotConnect:
            if waited_s >= patience_s:
                raise
        # `Event.wait` can be interrupted. The pause doubles, because many tasks may wait for the
        # same realm.
        threading.Event().wait(pause_s)
        waited_s += pause_s
        pause_s = min(2 * pause_s, 2.0)


def disconnect() -> None:
    """Close the sessions of this process; the next call of :func:`ask` opens new ones."""
    own_keys = [key for key in sessions if key[0] == os.getpid()]
    for key in own_keys:
        sessions.pop(key).close()
    _existing.clear()


def link(session: Session, where: Where) -> ChannelLink:
    """Return the channel or queue at ``where``.

    Raises ``NameDoesNotExist`` if it does not exist; the text shows how to create it.
    """
    kind = "queue" if where.kind == "queue" else "channel"
    try:
        if kind == "queue":
            return ChannelLink(session.queues.get(where.channel))
        return ChannelLink(session.channels.get(where.channel))
    except NameDoesNotExist as error:
        if where.kind == "either" and where.channel in session.queues.list():
            return ChannelLink(session.queues.get(where.channel))
        raise NameDoesNotExist(
            f"the realm at {safe(where.url)} has no {kind} {where.channel!r}; create it first, for "
            f"example: penstock {kind} create {where.channel}"
        ) from error
