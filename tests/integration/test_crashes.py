"""Servers and clients that die, by force and in order: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_testing.process import ServerProcess, search_path
from tests.integration.lives import WAIT_S, Lives

pytestmark = pytest.mark.process

KILLS = 5
PUBLISHERS = 3
"""Two that pipeline and one that waits each time."""
WORKER = """
import sys, penstock
with penstock.connect(sys.argv[1]) as session:
    durable = session.channels.get("orders").durables.get("d")
    with durable.subscribe(window=5) as subscription:
        subscription.next_batch()
        print("holding", flush=True)
        sys.stdin.read()
"""


def eventually(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(6_000):
        if is_so():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come about")


@contextmanager
def running(*work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do ``work`` in threads of its own until the block ends."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(work)) as pool:
        futures = [pool.submit(job, stop) for job in work]
        try:
            yield
        finally:
            stop.set()
        for future in futures:
            future.result(WAIT_S)


def started_worker(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": search_path()},
    )


class Traffic:
    """Work that runs while servers die, and the answers that it has received."""

    def __init__(self, url: str, orders: Channel) -> None:
        self._url = url
        self.orders = orders
        self.durable = orders.durables.create("d")
        self.acknowledged: dict[str, int] = {}
        self.seen: list[int] = []
        self._counting = threading.Lock()
        self._left = PUBLISHERS
        self._all_published = threading.Event()

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Around each publisher; who consumes goes on until all have ended."""
        try:
            yield
        finally:
            with self._counting:
                self._left -= 1
                if not self._left:
                    self._all_published.set()

    def pipeline(self, name: str, stop: threading.Event) -> None:
        sent = 0
        with (
            self._publishing(),
            penstock.connect(self._url, reconnect_timeout=WAIT_S) as session,
            session.channels.get("orders").producer(batch_events=20) as producer,
        ):
            while not stop.is_set():
                for n in range(sent, sent + 20):
                    producer.send(b"x" * 50, properties={"by": name, "n": n})
                sent += 20
                producer.flush()
                self.acknowledged[name] = producer.acknowledged

    def publish_singly(self, stop: threading.Event) -> None:
        with self._publishing():
            for sent in itertools.count():
                if stop.is_set():
                    return
                self.orders.publish(b"", properties={"by": "single", "n": sent})
                self.acknowledged["single"] = sent + 1

    def subscribe(self, _: threading.Event) -> None:
        with self.orders.subscribe(start="earliest") as subscription:
            while (
                not self._all_published.is_set()
                or len(self.seen) <= self.orders.info().last_event_id
            ):
                batch = subscription.next_batch(1.0)
                if batch is not None:
                    self.seen += batch.event_ids.tolist()

    def work(self, _: threading.Event) -> None:
        with self.durable.subscribe(window=200) as subscription:
            while not self._all_published.is_set() or self.durable.info().outstanding:
                batch = subscription.next_batch(0.5)
                # Refused: the connection was lost, and the realm delivers them again.
                with suppress(penstock.ConnectionLost, penstock.IllegalState):
                    if batch is not None:
                        batch.ack()

    def wait_for_more(self) -> None:
        before = self.orders.info().last_event_id
        eventually(lambda: self.orders.info().last_event_id > before + 100)


@pytest.mark.slow
@pytest.mark.spec("X3", "E4", "E6", "D4")
def test_kills_during_publish_lose_nothing_acknowledged_and_double_nothing(
    lives: Lives, session: Session
) -> None:
    """Pipelined and single producers, a subscriber and a worker live through several crashes."""
    orders = session.channels.create("orders", type="persistent", retain_consumed=True)
    traffic = Traffic(lives.url, orders)
    with running(
        partial(traffic.pipeline, "first"),
        partial(traffic.pipeline, "second"),
        traffic.publish_singly,
        traffic.subscribe,
        traffic.work,
    ):
        for _ in range(KILLS):
            traffic.wait_for_more()
            lives.kill()
        traffic.wait_for_more()

    table = orders.read()
    assert table["event_id"].to_pylist() == list(range(table.num_rows))
    assert traffic.seen == list(range(table.num_rows))
    for name, acknowledged in traffic.acknowledged.items():
        numbers = table.filter(pc.equal(table["by"], name))["n"].to_pylist()
        assert numbers == list(range(len(numbers))), f"{name}: out of order, missing or doubled"
        assert len(numbers) >= acknowledged > 0, f"{name}: acknowledged, and gone"
    assert traffic.acknowledged.keys() == {"first", "second", "single"}
    assert traffic.durable.info().outstanding == 0
    assert orders.info().counters.published == table.num_rows


@pytest.mark.slow
@pytest.mark.spec("D13", "E9")
def test_what_a_killed_worker_held_goes_to_the_other_counted_once(
    lives: Lives, session: Session
) -> None:
    orders = session.channels.create("orders", type="persistent")
    orders.publish_many([penstock.Event()] * 8)
    durable = orders.durables.create("d")
    with started_worker(lives.url) as worker:
        assert worker.stdout is not None, "a pipe"
        assert worker.stdout.readline() == "holding\n"
        assert durable.info().in_flight == 5
        worker.kill()
        worker.wait()

        with durable.subscribe(window=20) as subscription:
            counts: dict[int | None, int] = {}
            while len(counts) < 8:
                batch = subscription.next_batch(WAIT_S)
                assert batch is not None
                counts |= {event.event_id: event.redelivery_count for event in batch}
                batch.ack()

    assert counts == {n: 1 for n in range(5)} | {n: 0 for n in range(5, 8)}
    assert durable.info().outstanding == 0


@pytest.mark.slow
@pytest.mark.spec("D11", "D4")
def test_lanes_keep_their_order_when_the_server_dies(lives: Lives, session: Session) -> None:
    lanes, count = 6, 100
    orders = session.channels.create("orders", type="persistent")
    events = [penstock.Event(properties={"lane": n % lanes}) for n in range(lanes * count)]
    orders.publish_many(events)
    durable = orders.durables.create("d", type="serial", order_by="lane")
    acked: list[int] = []

    def work(stop: threading.Event) -> None:
        with durable.subscribe(window=5) as subscription:
            while not stop.is_set():
                batch = subscription.next_batch(0.2)
                for event in batch or ():
                    assert event.event_id is not None
                    acked.append(event.event_id)
                    with suppress(penstock.ConnectionLost, penstock.IllegalState):
                        subscription.ack([event.event_id])  # returns when it is on disk

    with running(work, work, work):
        for part in (1, 2, 3):
            eventually(lambda part=part: len(acked) > part * len(events) // 4)  # type: ignore[misc]
            lives.kill()
        eventually(lambda: durable.info().outstanding == 0)

    in_order = list(dict.fromkeys(acked))  # what was not on disk is delivered again
    for lane in range(lanes):
        mine = [event_id for event_id in in_order if event_id % lanes == lane]
        assert mine == list(range(lane, len(events), lanes))


@pytest.mark.spec("D4", "E4")
def test_an_orderly_end_keeps_everything_acknowledged_and_the_next_start_is_quick(
    lives: Lives, session: Session
) -> None:
    orders = session.channels.create("orders", type="persistent", retain_consumed=True)
    durable = orders.durables.create("d")
    orders.publish_many([penstock.Event(properties={"n": n}) for n in range(5_000)])
    with durable.subscribe(window=10) as subscription:
        batch = subscription.next_batch(WAIT_S)
        assert batch is not None
        batch.ack()

    assert lives.server.terminate() == 0
    lives.start()

    assert orders.read()["n"].to_pylist() == list(range(5_000))
    assert durable.info().outstanding == 5_000 - len(batch)
    assert orders.publish(b"") == 5_000
    assert lives.server.logged("realm.recovered")[0]["damage"] == 0


@pytest.mark.spec("X3")
def test_a_publish_that_was_being_staged_survives_a_crash(lives: Lives, session: Session) -> None:
    """Parts put aside die with the server; the client stages them again."""
    orders = session.channels.create("orders", type="persistent")
    events = [penstock.Event(data=bytes(1 << 20), properties={"n": n}) for n in range(60)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(orders.publish_many, events)
        lives.kill()

        assert waiting.result(WAIT_S) == range(60)
    assert orders.read(columns=["n"])["n"].to_pylist() == list(range(60))


@pytest.mark.slow
@pytest.mark.spec("D13")
def test_a_client_that_stands_still_loses_its_seat(tmp_path: Path) -> None:
    """Stopped, not dead: its connection stays open, and nothing is heard."""
    settings = {"PENSTOCK_LISTEN_IDLE_TIMEOUT_S": "2"}
    with (
        ServerProcess(tmp_path / "realm", environment=settings) as server,
        penstock.connect(server.url) as session,
    ):
        orders = session.channels.create("orders", type="persistent")
        durable = orders.durables.create("d")
        orders.publish_many([penstock.Event()] * 5)
        with started_worker(server.url) as worker:
            assert worker.stdout is not None, "a pipe"
            assert worker.stdout.readline() == "holding\n"
            worker.send_signal(signal.SIGSTOP)

            eventually(lambda: durable.info().clients == ())

            assert [event.redelivery_count for event in durable.fetch(5, WAIT_S)] == [1] * 5
            worker.kill()
