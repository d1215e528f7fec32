"""The Spark part: runs the pipeline ``flights.toml`` while flights are published, and then to its
end.

It is a separate process, so that it can fail or be killed without the others.

While flights are published, the pipeline runs as under ``penstock pipeline run``. When it has
processed all of them, it is stopped, and the roll-up is run once more as with ``--once``. This
closes the last day, which would otherwise stay open forever, because no event follows it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from examples.flights.companion import Instructions, report, serve
from examples.flights.names import FLIGHTS
from penstock.client.sync.sync import Channel
from penstock.spark.pipelines import Pipeline, load, run
from penstock_spark.pipelines.runner import session_for
from penstock_spark.pipelines.standing import StepFiles

if TYPE_CHECKING:
    from penstock_spark.pipelines.step import Progress

ARCHIVE, DELAYS_STEP, AIRCRAFT = "archive", "delays", "aircraft"
"""The steps of the pipeline."""

_LOOK_INTERVAL_S = 0.1


class StepReporter:
    """Reports the progress of the steps to the main process."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def told(self, step: str, text: str) -> None:
        """Write a message of a step to the log of this process."""
        print(f"{step}: {text}", file=sys.stderr, flush=True)

    def moved(self, progress: Sequence[Progress]) -> None:
        """Report the positions of the steps; called a few times per second."""
        report(
            steps={
                each.step: {"done": position(self._pipeline, each.step), "behind": each.lag_events}
                for each in progress
            }
        )


class FinishingReporter(StepReporter):
    """Reports progress, and stops the pipeline when every published flight is processed."""

    def __init__(self, pipeline: Pipeline, flights: Channel, instructions: Instructions) -> None:
        super().__init__(pipeline)
        self._flights = flights
        self._instructions = instructions
        self.stopping = threading.Event()

    def moved(self, progress: Sequence[Progress]) -> None:
        super().moved(progress)
        if self._instructions.finish:
            last = self._flights.info().last_event_id
            if all(position(self._pipeline, each.step) > last for each in progress):
                self.stopping.set()


def position(pipeline: Pipeline, step: str) -> int:
    """Return the number of flights that a step has completed, which is also the id at which it
    continues."""
    return StepFiles(pipeline, step).positions().channels.get(FLIGHTS, 0)


def until_published(flights: Channel, instructions: Instructions) -> None:
    """Wait for the first flight: only the events of a channel show which columns it has."""
    pause = threading.Event()
    while flights.info().last_event_id < 0 and not instructions.finish:
        pause.wait(_LOOK_INTERVAL_S)


def work(url: str, file: Path, instructions: Instructions) -> None:
    """Run the pipeline until everything is published and processed."""
    pipeline = load(file)
    spark = session_for(pipeline, pipeline.master, url)
    report(ready=True)
    with penstock.connect(url) as session:
        flights = session.channels.get(FLIGHTS)
        until_published(flights, instructions)
        reporter = FinishingReporter(pipeline, flights, instructions)
        run(pipeline, url=url, spark=spark, watch=reporter, stopping=reporter.stopping)
    run(
        pipeline, url=url, spark=spark, watch=StepReporter(pipeline), steps=[DELAYS_STEP], once=True
    )
    spark.stop()


if __name__ == "__main__":
    serve(partial(work, sys.argv[1], Path(sys.argv[2])))
