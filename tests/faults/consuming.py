"""Consumers that write down what they get and what they have acknowledged: every durable type,
readers that commit, plain pops, and a subscription that goes on where it was."""

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
from tests.faults.publishing import connected

WAIT_S: Final = 0.5
WINDOWED: Final = ("shared", "serial", "shared_queued")
AGAIN: Final = (ConnectionLost, IllegalState, DurableUnbound)
"""Nobody knows whether it is acknowledged, or it is not: it is delivered again."""


class Consumer:
    """One consumer of a process, in a thread of its own, until it is told to stop."""

    def __init__(
        self, kind: str, number: int, url: str, mqtt_at: str, folder: Path, stop: threading.Event
    ) -> None:
        """``number`` tells those of a kind apart."""
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
        # the end of a session raises what was on its way as a connection was lost
        with suppress(ConnectionLost), connected(self._url, self._stop) as session:
            if self.kind in DURABLES:
                self._work(session.channels.get(LOG).durables.get(self.kind))
            elif self.kind == "reader":
                self._read(session)
            elif self.kind == "pop":
                self._pop(session)
            else:
                self._subscribe(session)

    def _work(self, durable: Durable) -> None:
        """Take the seat again whenever it is lost; an exclusive one may be taken meanwhile."""
        while not self._stop.is_set():
            window = 50 if self.kind in WINDOWED else None
            try:
                with durable.subscribe(window=window) as subscription:
                    while not self._stop.is_set():
                        batch = subscription.next_batch(WAIT_S)
                        if batch is None or not len(batch):
                            continue
                        ids = batch.event_ids.tolist()
                        self._diary.got(ids, batch.to_arrow()["data"].to_pylist())
                        if batch.is_stale:
                            self._diary.stale(ids)
                            continue
                        self._acknowledge(ids, subscription.ack, batch)
            except (*AGAIN, DurableInUse):
                self._stop.wait(WAIT_S)

    def _acknowledge(
        self,
        ids: list[int],
        ack: Callable[[Sequence[int]], None],
        batch: DeliveredBatch | None = None,
    ) -> None:
        """Until it is done, or they have gone back. What has gone to another consumer meanwhile and
        is done there is no error (SEM D15): that is not confirmed to this one."""
        self._diary.acking(ids)
        while not self._stop.is_set():
            try:
                ack(ids)
            except StorageFailed:  # they are still in hand
                self._stop.wait(WAIT_S)
            except AGAIN as error:
                self._diary.unsure(ids, error)
                return
            else:
                if self.kind in WINDOWED and batch is not None and batch.is_stale:
                    self._diary.write("unsure", time.monotonic_ns(), spans_of(ids), "stale")
                else:
                    self._diary.acked(ids)
                return

    def _read(self, session: Session) -> None:
        with session.queues.get(WORK).reader(transactional=True, window=20) as reader:
            while not self._stop.is_set():
                events = reader.fetch(20, WAIT_S)
                if not events:
                    continue
                ids = [event.event_id for event in events if event.event_id is not None]
                self._diary.got(ids, [event.data for event in events], named=True)
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
                self._diary.got([event.event_id], [event.data], named=True)

    def _subscribe(self, session: Session) -> None:
        """From the event after the last one of an earlier life on, or from the first."""
        known = [line.ids[-1] for line in read_received([self._path]) if line.what == "got"]
        start = known[-1] + 1 if known else 0
        with session.channels.get(LOG).subscribe(start=start) as subscription:
            while not self._stop.is_set():
                batch = subscription.next_batch(WAIT_S)
                if batch is not None and len(batch):
                    datas = batch.to_arrow()["data"].to_pylist()
                    self._diary.got(batch.event_ids.tolist(), datas)
