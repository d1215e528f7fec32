"""The processes of S12T: the time that Spark takes to start and to answer, and its cost while it is
idle.

``tuned`` is the session of ``penstock_spark.session.session``, ``short`` its session for jobs of
seconds; ``plain`` is one with Spark's own settings. All other parts are equal.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

import penstock
from bench.measuring import cpu_s_below, cpu_s_since
from bench.shape import Figures
from penstock_core.vocabulary.errors import SessionClosed
from penstock_spark.session.jvm import find_jvm, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE = 1_000
"""Events per second."""
TICK_S = 0.005
"""Seconds between two publishes of a few events, each with the time at which it was due."""
WARM_UP_S = 8.0


class TimesJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    work: str
    contender: str
    url: str
    server_pid: int
    directory: str
    seconds: float
    """Duration of the measurement."""


def session_of(contender: str) -> SparkSession:
    """Return a local session on all cores."""
    if contender in ("tuned", "short"):
        from penstock_spark.session.session import session

        return session("bench", short=contender == "short")
    os.environ |= {"JAVA_HOME": str(java_home(find_jvm())), "PYSPARK_PYTHON": sys.executable}
    from pyspark.sql import SparkSession

    started = SparkSession.builder.master("local[*]").appName("bench").getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    return started


def start_up(job: TimesJob) -> Figures:
    """Measure the time from the program's first line to the rows of a channel, without the start of
    the interpreter."""
    started_s = time.perf_counter()
    spark = session_of(job.contender)
    session_s = time.perf_counter() - started_s
    rows = spark.read.format("penstock").options(url=job.url, channel="orders").load().collect()
    elapsed_s = time.perf_counter() - started_s
    assert len(rows) == 1_000, f"{len(rows)} rows"
    spark.stop()
    return {"ms": elapsed_s * 1e3, "session_ms": session_s * 1e3}


def idle(job: TimesJob) -> Figures:
    """Measure the processor time of an idle query per second, beyond that of the session."""
    spark = session_of(job.contender)
    rows = spark.read.format("penstock").options(url=job.url, channel="orders").load()
    rows.write.format("noop").mode("overwrite").save()
    before = _used(job, job.seconds)
    query = (
        spark.readStream.format("penstock")
        .options(url=job.url, channel="orders")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", f"{job.directory}/checkpoint")
        .start()
    )
    query.processAllAvailable()
    time.sleep(WARM_UP_S)
    during = _used(job, job.seconds)
    assert query.isActive, "an idle query waits for events"
    query.stop()
    spark.stop()
    mine = {name: during[name] - before[name] for name in during}
    return {
        "ms": sum(mine.values()),
        "session_idle_ms": before["spark"],
        "realm_idle_ms": mine["realm"],
    }


def _used(job: TimesJob, seconds: float) -> dict[str, float]:
    """Return the milliseconds of processor time per second, of Spark's processes and of the
    realm."""
    pids = {"spark": os.getpid(), "realm": job.server_pid}
    before = {name: cpu_s_below(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    return {name: cpu_s_since(before[name], pid) * 1e3 / seconds for name, pid in pids.items()}


def latency(job: TimesJob) -> Figures:
    """Measure the time from the due time of an event to the arrival of its copy at a subscriber of
    the query's target."""
    spark = session_of(job.contender)
    with penstock.connect(job.url) as session:
        orders = session.channels.create("due", type="persistent")
        target = session.channels.create("copies", type="persistent")
        orders.publish(properties={"due_ns": 0})
        query = (
            spark.readStream.format("penstock")
            .options(url=job.url, channel="due", startingOffsets="latest")
            .load()
            .select("due_ns")
            .writeStream.format("penstock")
            .options(url=job.url, channel="copies", checkpointLocation=f"{job.directory}/latency")
            .start()
        )
        late_ns: list[np.ndarray] = []
        reading = target.subscribe()
        reader = threading.Thread(target=_collect, args=(reading, late_ns))
        reader.start()
        due_ns = 0
        for newest_ns in _publishing(orders, WARM_UP_S + job.seconds):
            assert query.isActive, query.exception()
            due_ns = newest_ns
        query.processAllAvailable()
        deadline_s = time.perf_counter() + 10
        while not _has(late_ns, due_ns) and time.perf_counter() < deadline_s:
            time.sleep(0.1)
        reading.close()
        reader.join()
        batches = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
        query.stop()
    spark.stop()
    seen = np.concatenate(late_ns)
    counted = seen[seen[:, 0] > due_ns - job.seconds * 1e9]
    milliseconds = (counted[:, 1] - counted[:, 0]) / 1e6
    return {
        "ms": float(np.percentile(milliseconds, 50)),
        "p95_ms": float(np.percentile(milliseconds, 95)),
        "max_ms": float(milliseconds.max()),
        "trigger_ms": statistics.median(batches),
        "achieved_per_s": len(counted) / job.seconds,
    }


def _publishing(channel: penstock.Channel, seconds: float) -> Iterator[int]:
    """Publish at the rate; yield the newest due time every now and then."""
    started_ns = time.monotonic_ns()
    sent = 0
    while sent < RATE * seconds:
        due = int((time.monotonic_ns() - started_ns) * RATE / 1e9)
        if due > sent:
            whens = [started_ns + number * 10**9 // RATE for number in range(sent, due)]
            channel.publish_many([penstock.Event(properties={"due_ns": when}) for when in whens])
            sent = due
            yield whens[-1]
        time.sleep(TICK_S)


def _collect(reading: penstock.Subscription, late_ns: list[np.ndarray]) -> None:
    try:
        for batch in reading.batches():
            now_ns = time.monotonic_ns()
            dues = batch.to_arrow().column("properties").field("due_ns").to_numpy()
            late_ns.append(np.stack([dues, np.full(len(dues), now_ns)], axis=1))
    except SessionClosed:
        return


def _has(late_ns: list[np.ndarray], due_ns: int) -> bool:
    return any(due_ns in part[:, 0] for part in late_ns[-20:])


WORK = {"start-up": start_up, "idle": idle, "latency": latency}


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=TimesJob)
    Path(job.directory).mkdir(exist_ok=True)
    print(msgspec.json.encode(WORK[job.work](job)).decode())


if __name__ == "__main__":
    main()
