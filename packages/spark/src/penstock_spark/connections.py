"""One session with each realm in each process of Spark: planners, tasks, stream drivers.

Spark starts these processes, reuses them for later tasks, and kills them without notice. So a
session is opened when it is first needed, and kept for the next task.
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
"""Sessions by process and realm, since a forked child cannot use its parent's."""

_existing: set[tuple[int, Where]] = set()
"""Channels and queues that existed when this process first checked, by process id."""


class ChannelLink:
    """An existing channel or queue, and the epoch that distinguishes it from another one of the
    same name."""

    def __init__(self, destination: Channel | Queue) -> None:
        self._destination = destination
        self.store: Destination = destination
        """The channel or queue, for reads."""
        self.name = destination.name
        self.epoch = destination.epoch

    @property
    def channel(self) -> Channel:
        """The channel. Raises ``IllegalState`` for a queue."""
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
        """Return the age in ms of the first stored event with this id or a later one; 0 without
        such an event."""
        published = self.store.published_at(event_id)
        return 0 if published is None else max(0, (now - published) // timedelta(milliseconds=1))


def ask(where: Where, question: Callable[[ChannelLink], T], *, patient: bool = False) -> T:
    """Call ``question`` with the channel; it may be called twice, so it must be safe to repeat.

    Raises ``CannotConnect``, and ``NameDoesNotExist`` naming the channel.
    """
    return ask_realm(where.realm, lambda session: question(link(session, where)), patient=patient)


def check_exists(where: Where, *, patient: bool = False) -> None:
    """Raise ``NameDoesNotExist`` naming the channel if it does not exist, or ``CannotConnect``.

    A channel that existed once is not checked again: Spark makes two writers for each micro-batch,
    and tasks notice if the channel was deleted."""
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
    """Call ``question`` with a session; it may be called twice, so it must be safe to repeat.

    ``realm_id`` is the id of the realm that a task was connected to. If this process has a session
    with a realm of another id, that session is out of date and a new one is opened.

    Tasks, and callers that are ``patient``, wait up to ``realm.reconnect_s`` for an unavailable
    realm: the query has reached it before. All calls of a stream are patient except the first
    read of its columns, because Spark may make each call in a new process, which has no session
    that could wait. Raises ``CannotConnect``.
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
            sessions.pop(key, None)  # its reconnect timeout has passed; a new session may succeed
    patient = patient or TaskContext.get() is not None
    session = sessions[key] = _connected(realm, realm.reconnect_s if patient else 0)
    return question(session)


def _connected(realm: RealmAt, patience_s: float) -> Session:
    pause_s, waited_s = 0.05, 0.0
    while True:
        try:
            return connect(realm.url, reconnect_timeout=realm.reconnect_s)
        except CannotConnect:
            if waited_s >= patience_s:
                raise
        # An interruptible wait that doubles, because many tasks may wait for the same realm.
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
    """Return the channel or queue. Raises ``NameDoesNotExist``, which shows how to create it."""
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
