"""Publishers that record their attempts and answers, with every way to publish.

Most leave it to the client to repeat publishes that a lost connection left open (SEM X3).
``careless`` and ``amqp`` repeat them themselves, and may publish twice. ``named`` keeps its name
and sequence over its own death, and so publishes exactly once even then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.events.body import body_of_columns
from penstock_core.vocabulary.errors import CannotConnect, ConnectionLost, RealmStopping
from tests.faults import amqp, mqtt
from tests.faults.journals import Diary, read_published
from tests.faults.names import LOG, NOT_IDEMPOTENT, TARGETS, WORK, event_of

PATIENCE_S = 600.0
"""Longer than a realm is away; the run ends earlier."""
PAUSE_S = 0.02
REFUSED_PAUSE_S = 0.25

Attempt = Callable[[int, int], int]
"""Publish COUNT events from number FIRST on. Returns the first id, or -1 if it is unknown."""


def connect(url: str, stop: threading.Event) -> Session:
    """Open a session as soon as a realm is available; ``penstock.connect`` alone does not wait."""
    while True:
        try:
            return penstock.connect(url, reconnect_timeout=PATIENCE_S)
        except CannotConnect:
            if stop.wait(REFUSED_PAUSE_S):
                raise


class Publisher:
    """One publisher of a process, in its own thread, until it is stopped."""

    def __init__(
        self, kind: str, url: str, mqtt_at: str, folder: Path, stop: threading.Event
    ) -> None:
        self.kind = kind
        self._mqtt_at = mqtt_at
        self._url = url
        self._stop = stop
        path = folder / f"{kind}.published"
        earlier = read_published(path)
        self._next = earlier.next
        self._open = earlier.open
        """The attempt that an earlier process left without an answer."""
        self._diary = Diary(path)

    def run(self) -> None:
        with self._attempts() as (attempt, count):
            if self.kind == "named" and self._open is not None:
                # the same name and sequence, so it is stored once
                self._publish(attempt, *self._open)
            while not self._stop.wait(PAUSE_S):
                first, self._next = self._next, self._next + count
                self._publish(attempt, first, count)

    def _publish(self, attempt: Attempt, first: int, count: int) -> None:
        """Attempt until it is done, or its outcome is unknown."""
        while True:
            self._diary.record_attempt(first, count)
            try:
                self._diary.record_acknowledged(first, count, attempt(first, count))
            except RealmStopping:  # the events may or may not have been stored
                self._diary.record_stopped(first, count)
                self._stop.wait(REFUSED_PAUSE_S)
            except (ConnectionLost, CannotConnect):
                if self.kind not in NOT_IDEMPOTENT:
                    raise
                if not self._stop.wait(REFUSED_PAUSE_S):
                    continue
            except penstock.PenstockError as error:
                self._diary.record_refused(first, count, error.code)
                if not error.retryable:
                    raise
                if not self._stop.wait(REFUSED_PAUSE_S):
                    continue
            return

    @contextlib.contextmanager
    def _attempts(self) -> Iterator[tuple[Attempt, int]]:
        if self.kind == "careless":
            yield self._carelessly, 1
            return
        if self.kind == "amqp":
            sender = amqp.Sender(self._url)
            yield lambda first, _: sender.send(event_of("amqp", first)), 1
            sender.close()
            return
        if self.kind == "mqtt":
            messages = mqtt.Sender(self._mqtt_at, self._next)
            yield lambda first, count: messages.send(_datas("mqtt", first, count)), 5
            messages.close()
            return
        with connect(self._url, self._stop) as session:
            target = TARGETS[self.kind]
            if target in session.queues.list():
                queue = session.queues.get(target)
                yield lambda first, _: queue.push(event_of(self.kind, first)), 1
            elif self.kind in ("table", "transaction", "joint", "named"):
                yield self._together(session, session.channels.get(target))
            elif self.kind == "pipelined":
                yield self._pipelined(session.channels.get(target)), 20
            else:
                store = session.channels.get(target)
                yield lambda first, _: store.publish(event_of(self.kind, first)), 1

    def _together(self, session: Session, store: Channel) -> tuple[Attempt, int]:
        def table(first: int, count: int) -> int:
            rows = pa.table({"data": pa.array(_datas("table", first, count), pa.binary())})
            return store.publish_table(rows)[0]

        def transaction(first: int, count: int) -> int:
            with store.transaction() as tx:
                for data in _datas("transaction", first, count):
                    tx.publish(data)
            return tx.ids[0]

        def joint(first: int, _: int) -> int:
            with session.transaction() as tx:
                tx.publish(store, event_of("joint", first))
                tx.publish(queue, event_of("joint", first))
            return tx.ids[LOG][0]

        def named(first: int, count: int) -> int:
            body = body_of_columns(_datas("named", first, count))
            event_ids = store.publish_bodies([body], producer="named", sequence=first // count + 1)
            return event_ids[0]

        if self.kind == "table":
            return table, 50
        if self.kind == "transaction":
            return transaction, 5
        if self.kind == "named":
            return named, 10
        queue = session.queues.get(WORK)
        return joint, 1

    def _pipelined(self, store: Channel) -> Attempt:
        refusals: list[penstock.PenstockError] = []
        producer = store.producer(
            batch_events=20, linger_ms=1_000, on_error=lambda error, _: refusals.append(error)
        )

        def attempt(first: int, count: int) -> int:
            refusals.clear()
            for number in range(first, first + count):
                producer.send(event_of(self.kind, number))
            producer.flush()
            if refusals:
                raise refusals[0]
            return -1

        return attempt

    def _carelessly(self, first: int, _: int) -> int:
        with penstock.connect(self._url, reconnect_timeout=0.5) as session:
            return session.channels.get(LOG).publish(event_of(self.kind, first))


def _datas(name: str, first: int, count: int) -> list[bytes]:
    return [event_of(name, number) for number in range(first, first + count)]
