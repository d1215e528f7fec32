"""Starts all parts of a run, waits until they are done, and collects their counts."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
from rich.console import Console

import penstock
from examples.flights import reconciliation, statistics
from examples.flights.companion import Companion
from examples.flights.followers import Follower
from examples.flights.names import DELAYS, FLIGHTS, GROUND_CREW, SELECTOR
from examples.flights.preparation import Prepared
from examples.flights.progress import Board, Part
from examples.flights.publisher import Publisher
from examples.flights.reconciliation import Acknowledged, Findings
from examples.flights.report import Line
from examples.flights.run_record import Beginning, RunRecord
from examples.flights.spark_part import AIRCRAFT, ARCHIVE, DELAYS_STEP, position
from examples.flights.threads import PartThread
from penstock.spark.pipelines import load
from penstock.tables import Table

WORKERS = ("worker 1", "worker 2")
_LOOK_INTERVAL_S = 0.1


class Crew:
    """A publisher, two subscriptions, two workers and Spark."""

    def __init__(
        self,
        record: RunRecord,
        prepared: Prepared,
        session: penstock.Session,
        url: str,
        flights: pa.Table,
        rate: int | None,
        console: Console,
    ) -> None:
        self._record = record
        self._session = session
        self._url = url
        self._flights = flights
        self._rate = rate
        self._console = console
        self._prepared = prepared
        self._create_parts()

    def run(self) -> None:
        """Run all parts until their work is done. Raises ``PartFailed``."""
        try:
            self._console.print("Starting two workers and Spark; this takes some seconds.")
            for companion in self._companions:
                companion.start(self._receive_report)
            self._wait_until_ready()
            for thread in (self._subscriber, self._filtered, self._publisher):
                thread.start()
            with self._board.shown():
                self._wait_until_done()
        finally:
            self._stop()

    def _create_parts(self) -> None:
        """Create all parts without starting them."""
        rows, session, log = self._flights.num_rows, self._session, self._record.work
        expected = reconciliation.late_from_jfk(self._flights)
        settled = self._prepared.stored - self._prepared.outstanding.events
        self._board = Board(self._console)
        add = self._board.add
        self._publisher = Publisher(
            add(Part("published", rows, before=self._prepared.stored)),
            session,
            self._flights,
            rate=self._rate,
        )
        self._subscriber = Follower(add(Part("delivered", rows)), session, rows - 1)
        self._filtered = Follower(
            add(Part("late from JFK", len(expected))),
            session,
            int(expected[-1]) if len(expected) else -1,
            selector=SELECTOR,
        )
        self._acknowledged = add(Part("acknowledged", rows, before=settled))
        self._steps = {
            step: add(self._step(f"Spark {step}", step))
            for step in (ARCHIVE, DELAYS_STEP, AIRCRAFT)
        }
        self._workers = [
            Companion(name, "worker", [self._url], log=log / f"{name.replace(' ', '-')}.log")
            for name in WORKERS
        ]
        self._spark = Companion(
            "Spark",
            "spark_part",
            [self._url, str(self._record.pipeline.absolute())],
            log=log / "spark.log",
        )
        self._companions = [*self._workers, self._spark]

    def _step(self, name: str, step: str) -> Part:
        """Return the progress of a step of the pipeline, as an interrupted run has left it."""
        before = position(load(self._record.pipeline), step)
        return Part(name, self._flights.num_rows, before=before)

    def _receive_report(self, report: dict[str, Any]) -> None:
        """Receive the report of a companion; called on its thread."""
        if "acknowledged" in report:
            counts = [worker.reported.get("acknowledged", 0) for worker in self._workers]
            shares = " + ".join(f"{count:,}" for count in counts)
            self._acknowledged.reach(self._acknowledged.before + sum(counts), note=shares)
        for step, reached in report.get("steps", {}).items():
            behind = reached["behind"]
            note = "" if behind is None else f"{behind:,} behind"
            self._steps[step].reach(reached["done"], note=note)

    def _wait_until_ready(self) -> None:
        """Wait until all companions are ready, so that the speed does not include their start."""
        pause = threading.Event()
        # A list, not a generator: `all` would stop at the first part that is not ready, and a
        # failure of a later one would not be noticed.
        while not all([companion.is_ready for companion in self._companions]):
            pause.wait(_LOOK_INTERVAL_S)
        self._acknowledged.began()

    def _wait_until_done(self) -> None:
        """Wait until all parts have ended, and announce to each when no more work will come."""
        pause = threading.Event()
        is_publishing_announced = is_work_announced = False
        durable = self._session.channels.get(FLIGHTS).durables.get(GROUND_CREW)
        parts: tuple[PartThread | Companion, ...] = (
            self._publisher,
            self._subscriber,
            self._filtered,
            *self._companions,
        )
        # A list, not a generator, as above: every part is checked each time.
        while not all([part.has_ended for part in parts]):
            if self._publisher.has_ended and not is_publishing_announced:
                is_publishing_announced = True
                self._subscriber.all_published.set()
                self._filtered.all_published.set()
                self._spark.finish()
            if (
                is_publishing_announced
                and not is_work_announced
                and durable.info().outstanding == 0
            ):
                is_work_announced = True
                for worker in self._workers:
                    worker.finish()
            self._board.refresh()
            pause.wait(_LOOK_INTERVAL_S)

    def _stop(self) -> None:
        for thread in (self._publisher, self._subscriber, self._filtered):
            thread.stop()
        for companion in self._companions:
            companion.stop()

    def findings(self) -> Findings:
        """Return the counts of all parts, and the contents of the channels and tables."""
        info = self._session.channels.get(FLIGHTS).info()
        durable = self._session.channels.get(FLIGHTS).durables.get(GROUND_CREW)
        return Findings(
            flights=self._flights,
            is_resumed=self._prepared.beginning is Beginning.RESUMED,
            stored=info.events,
            last_event_id=info.last_event_id,
            published_before=self._prepared.stored,
            outstanding_before=self._prepared.outstanding,
            outstanding_after=durable.info().outstanding,
            delivered_ids=self._subscriber.event_ids,
            filtered_ids=self._filtered.event_ids,
            workers=tuple(
                Acknowledged.from_report(worker.name, worker.reported) for worker in self._workers
            ),
            channel_delays=self._session.channels.get(DELAYS).read(
                columns=["window_start", *statistics.NAMES]
            ),
            table_delays=Table.found(str(self._record.delays)).to_arrow(),
            aircraft=Table.found(str(self._record.aircraft)).to_arrow(),
            archived_ids=Table.found(str(self._record.archive)).to_arrow(["event_id"])["event_id"],
            archive=info.definition.archive,
            # This read gets as many events as possible from the archive.
            read_back=self._session.channels.get(FLIGHTS).read(
                start=0, columns=["event_id", *statistics.FLIGHT_COLUMNS]
            ),
        )

    def lines(self, found: Findings) -> tuple[Line, ...]:
        """Return the count and speed of each part."""

        def line(part: Part, note: str = "") -> Line:
            return Line(part.name, part.done, part.seconds, rate=part.rate, note=note)

        rolled_back = sum(worker.rolled_back for worker in found.workers)
        redelivered = sum(worker.redelivered for worker in found.workers)
        archive, delays, aircraft = (self._steps[step] for step in (ARCHIVE, DELAYS_STEP, AIRCRAFT))
        return (
            line(self._publisher.part, "each safe on disk before the next batch"),
            line(self._subscriber.part, "plain subscription from the first event"),
            line(self._filtered.part, SELECTOR),
            line(self._acknowledged, "by two processes that share a durable"),
            *(
                Line(f"  {worker.worker}", worker.acknowledged, 0.0, rate=0.0)
                for worker in found.workers
            ),
            Line("  rolled back", rolled_back, 0.0, rate=0.0, note="one in a hundred"),
            Line("  redelivered", redelivered, 0.0, rate=0.0, note="and then acknowledged"),
            line(archive, f"{len(found.archived_ids):,} rows in a Delta table, ids kept"),
            line(delays, f"{found.channel_delays.num_rows:,} rows in {DELAYS} and in a table"),
            line(aircraft, f"{found.aircraft.num_rows:,} aircraft, the newest flight of each"),
        )
