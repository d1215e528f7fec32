"""The process of S6: it contains a realm, a channel full of events, and selectors over it."""

from __future__ import annotations

import sys
import time

import msgspec
import numpy as np
import pyarrow as pa

import penstock
from bench.shape import Figures
from penstock.client.sync.sync import Channel, Session

TABLE_ROWS = 131_072
PER_FILE = 50_000
LOTS = 100_000
REGIONS = ("af", "as", "eu", "us")
PUBLISHED_ROWS = 1_000
WARM_UP = 10
RESTING_S = 0.5


class SelectorJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    work: str
    directory: str
    events: int
    selector: str = ""
    subscriptions: int = 0
    distinct: bool = False
    durables: int = 0
    """Number of shared durables, each with a different selector."""
    rows: int = PUBLISHED_ROWS
    """Events of a batch."""


def scan(job: SelectorJob) -> Figures:
    """Browse a channel with a selector twice; the second time counts."""
    with penstock.Realm(job.directory) as realm, realm.connect() as session:
        channel = session.channels.create(
            "orders", type="persistent", storage={"events_per_spindle": PER_FILE}
        )
        fill(channel, job.events)
        while channel.info().storage.sealed_files < job.events // PER_FILE:
            time.sleep(0.05)  # Moving events into files also takes processor time
        rest()
        before_s = time.process_time()
        _matches(channel, job.selector)
        first_cpu_s = time.process_time() - before_s
        started_s, before_s = time.perf_counter(), time.process_time()
        matches = _matches(channel, job.selector)
        cpu_s, elapsed_s = time.process_time() - before_s, time.perf_counter() - started_s
    return {
        "events": job.events,
        "events_per_cpu_s": job.events / cpu_s,
        "events_per_s": job.events / elapsed_s,
        "first_events_per_cpu_s": job.events / first_cpu_s,
        "matches": matches,
    }


def rest() -> None:
    """Wait until this process is idle. After events have moved into their files, the journal files
    that had them are deleted in the background, which takes a second."""
    used_s = RESTING_S
    while used_s >= RESTING_S / 100:
        before_s = time.process_time()
        time.sleep(RESTING_S)
        used_s = time.process_time() - before_s


def publish(job: SelectorJob) -> Figures:
    """Publish batches to a channel with subscriptions and durables whose selectors match no
    event."""
    with penstock.Realm(job.directory) as realm, realm.connect() as session:
        kind: penstock.ChannelType = "reliable" if job.durables else "transient"
        channel = session.channels.create("orders", type=kind)
        for number in range(job.durables):
            channel.durables.create(f"d{number}", type="shared", selector=f"lot = {-1 - number}")
        with realm.connect() as readers:
            opened = [
                _subscribed(readers, number if job.distinct else 0)
                for number in range(job.subscriptions)
            ]
            table = _table(0, job.rows)
            for _ in range(WARM_UP):
                channel.publish_table(table)
            batches = job.events // job.rows
            started_s, before_s = time.perf_counter(), time.process_time()
            for _ in range(batches):
                channel.publish_table(table)
            cpu_s, elapsed_s = time.process_time() - before_s, time.perf_counter() - started_s
            for subscription in opened:
                subscription.close()
    return {
        "events": job.events,
        "events_per_cpu_s": job.events / cpu_s,
        "events_per_s": job.events / elapsed_s,
        "cpu_us_per_batch": cpu_s / batches * 1e6,
    }


def fill(channel: Channel, events: int) -> None:
    """Fill the channel: ``lot`` is scattered, ``seq`` ascends."""
    for first in range(0, events, TABLE_ROWS):
        channel.publish_table(_table(first, min(TABLE_ROWS, events - first)))


def _table(first: int, rows: int) -> pa.Table:
    draw = np.random.default_rng(first)
    return pa.table(
        {
            "data": pa.array([b"x" * 64] * rows, pa.binary()),
            "price": draw.random(rows) * 100,
            "sku": np.char.add("sku-", draw.integers(0, 1_000, rows).astype(str)),
            "region": np.array(REGIONS)[draw.integers(0, len(REGIONS), rows)],
            "lot": draw.integers(0, LOTS, rows),
            "seq": np.arange(first, first + rows),
        }
    )


def _subscribed(session: Session, number: int) -> penstock.Subscription:
    subscription = session.channels.get("orders").subscribe(selector=f"lot = {-1 - number}")
    subscription.open()
    return subscription


def _matches(channel: Channel, selector: str) -> int:
    return sum(len(batch) for batch in channel.browse(selector=selector).batches())


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=SelectorJob)
    figures = {"scan": scan, "publish": publish}[job.work](job)
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
