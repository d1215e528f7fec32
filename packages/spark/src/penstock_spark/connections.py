"""One session with each realm in each process of Spark's: planners, tasks, stream drivers.

Spark makes these processes, reuses them for one task after the other, and ends them without a
word, so a session is opened when first needed and kept for the next task.
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

_sessions: dict[tuple[int, RealmAt], Session] = {}
"""Sessions by process and realm, since a forked child cannot use its parent's."""

_there: set[tuple[int, Where]] = set()
"""What was found to exist once, by process."""


class ChannelLink:
    """A channel or queue that is there now, and what tells it from another one of the same
    name."""

    def __init__(self, destination: Channel | Queue) -> None:
        self._destination = destination
        self.store: Destination = destination
        """The channel or queue, to be read."""
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
        """The lowest id an event is stored under; the next one to be given when there is none."""
        return self.extent().first

    def extent(self) -> Span:
        """From the lowest id an event is stored under to the next one to be given."""
        info = self.store.info()
        end = info.last_event_id + 1
        return Span(end if info.first_event_id is None else info.first_event_id, end)

    def age_ms(self, event_id: int, now: datetime) -> int:
        """The age in ms of the first stored event that has this id or a later one; 0 if there is
        none."""
        published = self.store.published_at(event_id)
        return 0 if published is None else max(0, (now - published) // timedelta(milliseconds=1))


def ask(where: Where, question: Callable[[ChannelLink], T], *, patient: bool = False) -> T:
    """Ask ``question`` of the channel; it may be called twice, so it must be safe to repeat.

    Raises ``CannotConnect``, and ``NameDoesNotExist`` naming the channel.
    """
    return ask_realm(where.realm, lambda session: question(link(session, where)), patient=patient)


def check_there(where: Where, *, patient: bool = False) -> None:
    """Raises ``NameDoesNotExist`` naming the channel, and ``CannotConnect``. What was there once is
    not asked for again: for each micro-batch Spark makes a writer twice, and tasks find out."""
    key = (os.getpid(), where)
    if key not in _there:
        ask(where, lambda link: link.epoch, patient=patient)
        _there.add(key)


def ask_realm(
    realm: RealmAt | str,
    question: Callable[[Session], T],
    *,
    patient: bool = False,
    known_as: str = "",
) -> T:
    """Ask ``question`` of the realm; it may be called twice, so it must be safe to repeat.

    ``known_as``: the id that the realm had when a task asked it. A session of this process that is
    with another realm is older than that realm's end, so a new one is opened.

    Tasks, and callers that are ``patient``, wait for a realm that is away as a session does, for as
    long as ``realm`` says: the query has reached it before. So are all that belong to a stream but
    its first look at the columns, for Spark may ask each question in a new process, which has no
    session that could wait. Raises ``CannotConnect``.
    """
    settle_down()
    realm = RealmAt(realm) if isinstance(realm, str) else realm
    key = (os.getpid(), realm)
    known = _sessions.get(key)
    if known is not None and known_as not in ("", known.realm_id):
        _sessions.pop(key).close()
        known = None
    if known is not None:
        try:
            return question(known)
        except (SessionClosed, CannotConnect):
            _sessions.pop(key, None)  # it gave up long ago; a new one may succeed
    patient = patient or TaskContext.get() is not None
    session = _sessions[key] = _connected(realm, realm.reconnect_s if patient else 0)
    return question(session)


def _connected(realm: RealmAt, patience_s: float) -> Session:
    pause_s, waited_s = 0.05, 0.0
    while True:
        try:
            return connect(realm.url, reconnect_timeout=realm.reconnect_s)
        except CannotConnect:
            if waited_s >= patience_s:
                raise
        threading.Event().wait(pause_s)
        waited_s += pause_s
        pause_s = min(2 * pause_s, 2.0)


def disconnect() -> None:
    """Close the sessions of this process; the next question opens new ones."""
    mine = [key for key in _sessions if key[0] == os.getpid()]
    for key in mine:
        _sessions.pop(key).close()
    _there.clear()


def link(session: Session, where: Where) -> ChannelLink:
    """Raises ``NameDoesNotExist`` with the way to create it."""
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
