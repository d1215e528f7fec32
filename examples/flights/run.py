"""The run: starts a realm and all parts, and writes the report; see ``--help``.

The realm, the publisher and two subscriptions run in this process. Two workers and Spark are
separate processes that connect over TCP, as they would from other machines.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import FrameType

from rich.console import Console

import penstock
from examples.flights import picture, statistics, timetable
from examples.flights.companion import PartFailed
from examples.flights.crew import Crew
from examples.flights.places import alone, in_cluster
from examples.flights.preparation import prepare
from examples.flights.reconciliation import Findings, checks
from examples.flights.report import Line, Report, carrier_rows, machine, write
from examples.flights.run_record import Beginning, CannotBegin, RunRecord

INTERRUPTED = 130
"""Exit status after Ctrl-C, by the convention of shells."""


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 0 if all checks hold, 1 if one does not hold or the run failed, and
    ``INTERRUPTED``."""
    options = _options(arguments)
    console = Console(highlight=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, _interrupt)
    # Arrow would print a warning for each batch whose buffers are not aligned, as happens to those
    # that are received over a network.
    os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")
    try:
        return _run(options, console)
    except KeyboardInterrupt:
        console.print("\nStopped. Acknowledged events are safe; run again to continue.")
        return INTERRUPTED
    except PartFailed as error:
        console.print(f"\nFAILED: {error}\nRun again to continue.", style="red")
    except (CannotBegin, timetable.MissingFlights, penstock.DataDirectoryInUse) as error:
        console.print(f"\nCannot begin: {error}", style="red")
    except penstock.PenstockError as error:
        console.print(f"\nFAILED: {error} [{error.code}]", style="red", markup=False)
    return 1


def _run(options: argparse.Namespace, console: Console) -> int:
    """Execute a run, and write its report. Return the exit status."""
    began = perf_counter()
    record = RunRecord(options.dir / "cluster" if options.cluster else options.dir)
    # The cluster of an interrupted run was removed, so its run cannot be resumed.
    beginning = record.beginning(options.rows, fresh=options.fresh or options.cluster)
    rows = options.rows
    if beginning is Beginning.RESUMED and record.entry is not None:
        rows = record.entry.rows
    flights = timetable.load(rows)
    console.print(f"{flights.num_rows:,} flights from New York in 2013, a row of the CSV each.")
    place = in_cluster if options.cluster else alone
    with place(record, console) as (session, url):
        prepared = prepare(record, session, flights.num_rows, beginning=beginning)
        console.print(f"{prepared}\n", style="bold")
        crew = Crew(
            record, prepared, session, url=url, flights=flights, rate=options.rate, console=console
        )
        crew.run()
        findings = crew.findings()
    report = _report(record, findings, crew.lines(findings), seconds=perf_counter() - began)
    console.print(f"\n{write(report, record.report_text, record.report_json)}", markup=False)
    console.print(f"Report:  {record.report_text} and {record.report_json}")
    console.print(f"Picture: {record.picture}")
    record.record_end()
    return 0 if report.reconciles else 1


def _report(
    record: RunRecord, findings: Findings, lines: tuple[Line, ...], seconds: float
) -> Report:
    """Compare all results with the CSV, and draw the picture."""
    names = timetable.airline_names()
    sums = statistics.of_windows(findings.table_delays)
    picture.draw(sums, names, record.picture)
    return Report(
        beginning="Resumed" if findings.is_resumed else "Fresh run",
        finished=datetime.now(UTC),
        seconds=seconds,
        machine=machine(),
        parts=lines,
        checks=tuple(checks(findings)),
        carriers=carrier_rows(sums, names),
        picture=record.picture.name,
        flights=findings.flights.num_rows,
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights.run",
        description="Sends a year of real flights through a channel, a filtered subscription, a "
        "shared durable with two workers and a pipeline of three steps on Spark, and checks that "
        "everything adds up. An interrupted run is resumed; a finished one is replaced.",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("var"),
        metavar="DIR",
        help="where the realm, the tables and the report go (default: var)",
    )
    parser.add_argument(
        "--rows",
        type=_positive,
        metavar="N",
        help="only the first N flights (default: all 336,776)",
    )
    parser.add_argument(
        "--rate",
        type=_positive,
        metavar="N",
        help="publish at most N flights a second, to watch the parts keep up (default: no limit)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start again even if an interrupted run could be resumed",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="on three nodes of a cluster instead of a realm in this process; results go below "
        "DIR/cluster, and every run is a fresh one",
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    """Parse a number such as ``10,000``."""
    number = int(text.replace(",", "").replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM like Ctrl-C, so that all parts are ended in order."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
