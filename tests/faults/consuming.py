"""Consumers that record the events they receive and acknowledge: every type of durable, readers
with transactions, single pops, and a subscription that resumes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.client.sync.sync import Durable, Session
from penstock.client.sync.sync_delivered import DeliveredBatch
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    DurableInUse,
    DurableUnbound,
    IllegalState,
    StorageFailed,
)
from tests.faults import mqtt
from tests.faults.journals import Diary, read_received, spans_of
from tests.faults.names import DURABLES, LOG, MQTT_CONSUMERS, POPS, WORK
from tests.faults.publishing import connect

WAIT_S: Final = 0.5
WINDOWED: Final = ("shared", "serial", "shared_queued")
REDELIVERED: Final = (ConnectionLost, IllegalState, DurableUnbound)
"""Errors after which the events are not, or not certainly, acknowledged, and are delivered
again."""


class Consumer:
    """One consumer of a process, in its own thread, until it is stopped."""

    def __init__(
        self, kind: str, number: int, url: str, mqtt_at: str, folder: Path, stop: threading.Event
    ) -> None:
        """``number`` distinguishes consumers of the same kind."""
        self.kind = kind
        self._number = number
        self._url = url
        self._mqtt_at = mqtt_at
        self._stop = stop
        self._path = folder / f"{kind}.{number}.received"
        self._diary = Diary(self._path)

    def run(self) -> None:
        if self.kind in MQTT_CONSUMERS:
            mqtt.Receiver(self._mqtt_at, self.kind, self._number, diary=self._diary).run(self._stop)
            return
        # closing a session raises the error of acknowledgements that a lost connection left open
        with suppress(ConnectionLost), connect(self._url, self._stop) as session:
            if self.kind in DURABLES:
                self._work(session.channels.get(LOG).durables.get(self.kind))
            elif self.kind == "reader":
                self._read(session)
            elif self.kind == "pop":
                self._pop(session)
            else:
                self._subscribe(session)

    def _work(self, durable: Durable) -> None:
        """Take the seat again after each loss; another client may have an exclusive one
        meanwhile."""
        while not self._stop.is_set():
            window = 50 if self.kind in WINDOWED else None
            try:
                with durable.subscribe(window=window) as subscription:
                    while not self._stop.is_set():
                        batch = subscription.next_batch(WAIT_S)
                        if batch is None or not len(batch):
                            continue
                        ids = batch.event_ids.tolist()
                        self._diary.record_received(ids, batch.to_arrow()["data"].to_pylist())
                        if batch.is_stale:
                            self._diary.record_stale(ids)
                            continue
                        self._acknowledge(ids, subscription.ack, batch)
            except (*REDELIVERED, DurableInUse):
                self._stop.wait(WAIT_S)

    def _acknowledge(
        self,
        ids: list[int],
        ack: Callable[[Sequence[int]], None],
        batch: DeliveredBatch | None = None,
    ) -> None:
        """Acknowledge until it is done or the events were given back. Acknowledging events that
        another consumer has meanwhile received and acknowledged does not fail (SEM D15), but is not
        confirmed to this consumer."""
        self._diary.record_acknowledging(ids)
        while not self._stop.is_set():
            try:
                ack(ids)
            except StorageFailed:  # the events are still in flight here
                self._stop.wait(WAIT_S)
            except REDELIVERED as error:
                self._diary.record_unsure(ids, error)
                return
            else:
                if self.kind in WINDOWED and batch is not None and batch.is_stale:
                    self._diary.write("unsure", time.monotonic_ns(), spans_of(ids), "stale")
                else:
                    self._diary.record_confirmed(ids)
                return

    def _read(self, session: Session) -> None:
        with session.queues.get(WORK).reader(transactional=True, window=20) as reader:
            while not self._stop.is_set():
                events = reader.fetch(20, WAIT_S)
                if not events:
                    continue
                ids = [event.event_id for event in events if event.event_id is not None]
                self._diary.record_received(ids, [event.data for event in events], named=True)
                self._acknowledge(ids, lambda _: reader.commit())

    def _pop(self, session: Session) -> None:
        queue = session.queues.get(POPS)
        while not self._stop.is_set():
            try:
                event = queue.pop(WAIT_S)
            except StorageFailed:
                self._stop.wait(WAIT_S)
                continue
            if event is not None and event.event_id is not None:
                self._diary.record_received([event.event_id], [event.data], named=True)

    def _subscribe(self, session: Session) -> None:
        """Subscribe from the event after the last received one of an earlier process, or from the
        first."""
        received_ids = [line.ids[-1] for line in read_received([self._path]) if line.what == "got"]
        start = received_ids[-1] + 1 if received_ids else 0
        with session.channels.get(LOG).subscribe(start=start) as subscription:
            while not self._stop.is_set():
                batch = subscription.next_batch(WAIT_S)
                if batch is not None and len(batch):
                    datas = batch.to_arrow()["data"].to_pylist()
                    self._diary.record_received(batch.event_ids.tolist(), datas)
