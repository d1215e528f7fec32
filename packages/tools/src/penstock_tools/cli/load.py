"""``penstock load``: publishes at a fixed rate, consumes, and reports the latencies."""

from __future__ import annotations

import signal
import sys
import uuid
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock_server.cli.shared import completing, parsers
from penstock_server.cli.shared.output import (
    ListFormat,
    note,
    write,
    write_facts,
    write_json,
    write_table,
)
from penstock_server.cli.shared.progress import is_visible
from penstock_server.cli.shared.realm import DEFAULT_URL, Url
from penstock_server.cli.shared.stopping import INTERRUPTED

if TYPE_CHECKING:
    from penstock_tools.cli.load_plan import LoadPlan
    from penstock_tools.cli.load_run import LatencyLine, LoadPicture, LoadReport, LoadSetup

EVENTS_WRONG: Final = 1
"""Exit status if an event was lost, delivered twice, refused or not delivered."""
_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LATENCIES: Final = ("events", "p50", "p90", "p99", "p99.9", "max")
"""Headings of the columns of the table of latencies."""


def register(app: typer.Typer) -> None:
    """Add the command of this module to ``app``."""
    app.command("load")(load)


def load(
    rate: Annotated[
        list[float] | None,
        typer.Option(
            min=0.001,
            max=10_000_000,
            help="Events per second (1000); repeat it for steps, one after the other.",
        ),
    ] = None,
    duration: Annotated[str, typer.Option(help="How long each step takes: 10s, 5m.")] = "10s",
    size: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="Bytes of data (100); repeat it for several sizes, which take turns."
        ),
    ] = None,
    keys: Annotated[
        int, typer.Option(min=0, help="Number of values of the property `key`, used in turn.")
    ] = 0,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Consume the events of each key in their order.")
    ] = False,
    publishers: Annotated[int, typer.Option(min=1, max=1_000, help="Number of publishers.")] = 1,
    consumers: Annotated[
        int,
        typer.Option(min=0, max=1_000, help="Number of consumers of the durable; 0: no durable."),
    ] = 1,
    window: Annotated[
        int, typer.Option(min=1, help="Most unacknowledged events of a consumer.")
    ] = 1_000,
    rollback: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of events that are rolled back once: 0.01."),
    ] = 0.0,
    type: Annotated[
        str,
        typer.Option(
            help="Type of the channel.", metavar="TYPE", autocompletion=completing.channel_types
        ),
    ] = "persistent",
    channel: Annotated[
        str,
        typer.Option(help="Name of the new channel; by default a random one.", metavar="NAME"),
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the channel and its events.")] = False,
    reconnect: Annotated[
        str, typer.Option(help="Time to keep reconnecting after a lost connection.", metavar="TIME")
    ] = "10s",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Put a realm under load: latencies at a fixed rate, and exactly-once checks.

    Creates a channel, publishes events on it at the given rate, acknowledges them in consumers of a
    durable, and deletes the channel. Latencies count from the moment when an event was due, so they
    include the time that an event waited for a slow realm before it was sent. Ctrl-C stops
    publishing and waits for the events in flight; pressed again, it ends immediately. Exit status:
    1 if an event was lost, delivered twice, refused or not delivered.

    \b
    Examples:
      penstock load --rate 500 --duration 5s
      penstock load --rate 1000 --rate 10000 --size 100 --size 10000 --consumers 4
      penstock load --rollback 0.01 --format json
    """
    if by_key and not (keys and consumers):
        raise typer.BadParameter("--by-key needs --keys and a consumer")
    if rollback and (by_key or not consumers):
        raise typer.BadParameter(
            "--rollback needs a consumer, and cannot be combined with --by-key"
        )
    from penstock_tools.cli.load_plan import LoadPlan
    from penstock_tools.cli.load_run import LoadSetup

    step_ms = parsers.milliseconds(duration)
    if not step_ms:
        raise typer.BadParameter("--duration is 0; it must be longer, such as 10s")
    plan = LoadPlan(
        rates=tuple(rate or [1_000.0]),
        step_s=step_ms / 1_000,
        sizes=tuple(size or [100]),
        keys=keys,
        rollback=rollback,
    )
    setup = LoadSetup(
        url=url,
        channel=channel or f"load-{uuid.uuid4().hex[:8]}",
        type=type,
        publishers=publishers,
        consumers=consumers,
        window=window,
        by_key=by_key,
        keep=keep,
        reconnect_s=parsers.milliseconds(reconnect) / 1_000,
    )
    _write_result(_run(plan, setup), setup, format)


def _run(plan: LoadPlan, setup: LoadSetup) -> LoadReport:
    """Run the load until its end or until a signal, and show its progress at a terminal."""
    import asyncio

    from penstock_server.runtime.writer.clock import SystemClock
    from penstock_tools.cli.load_run import Ending, LoadRun

    async def run() -> LoadReport:
        ending, loop = Ending(), asyncio.get_running_loop()
        for number in _END_SIGNALS:
            loop.add_signal_handler(number, ending.request)
        try:
            load_run = LoadRun(plan, setup, SystemClock(), ending=ending)
            return await load_run.run(_draw if is_visible() else None)
        finally:
            for number in _END_SIGNALS:
                loop.remove_signal_handler(number)
            if is_visible():
                _erase()

    return asyncio.run(run())


def _write_result(report: LoadReport, setup: LoadSetup, format: str) -> None:
    """Print the report and its problems. Raises ``typer.Exit`` if the run was not right."""
    if format == "json":
        write_json(report)
    else:
        _print(report, setup)
    if report.problem:
        note(f"error: {report.problem}")
    if report.is_kept and not setup.keep:
        note(
            "the channel could not be deleted; delete it with: penstock channel delete "
            f"{report.channel} --yes"
        )
    # The realm is not to blame for events in flight when the user interrupted the run.
    if report.ended == "interrupted" and not (report.lost or report.twice):
        raise typer.Exit(INTERRUPTED)
    if not report.is_right:
        raise typer.Exit(EVENTS_WRONG)


# --- output -------------------------------------------------------------------------------


def line(picture: LoadPicture) -> str:
    """Return the progress of a run as one line."""
    parts = (
        f"{picture.at_s:.0f} s: {picture.rate:,.6g}/s due",
        f"{picture.acknowledged_per_s:,.0f}/s safe",
        f"{picture.delivered_per_s:,.0f}/s delivered",
        f"{picture.behind:,} behind",
        f"p99 {_ms(picture.publish_p99_ms)}/{_ms(picture.delivery_p99_ms)} ms",
    )
    return ", ".join(parts) + (f"; {picture.problem}" if picture.problem else "")


def _ms(time_ms: float) -> str:
    """Return a latency with two digits, or with all digits before the point from 100 on."""
    return f"{time_ms:,.0f}" if time_ms >= 100 else f"{time_ms:.2g}"


def _draw(picture: LoadPicture) -> None:
    """Redraw the line at the terminal."""
    import shutil

    from penstock_core.printable import on_one_line

    # A line that fills the last column would wrap, and the next picture would not replace it.
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[K{on_one_line(line(picture))[:width]}")
    sys.stderr.flush()


def _erase() -> None:
    """Remove the line from the terminal."""
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def _print(report: LoadReport, setup: LoadSetup) -> None:
    """Print the report as text: the counts of events, then the latencies of each step."""
    events = f"{report.planned:,} planned, {report.acknowledged:,} safe"
    if setup.consumers:
        events += f", {report.delivered:,} delivered"
    summary = [
        ("channel", f"{report.channel}, {'kept' if report.is_kept else 'removed'}"),
        ("ended", f"{report.ended}, after {report.seconds:.1f} s"),
        ("events", events),
    ]
    if report.rolled_back or report.redelivered:
        summary.append(
            ("rolled back", f"{report.rolled_back:,}; {report.redelivered:,} redelivered")
        )
    for name, number in (("refused", report.refused), ("unanswered", report.unanswered)):
        if number:
            summary.append((name, f"{number:,}"))
    if report.outstanding:
        summary.append(("outstanding", f"{report.outstanding:,} safe but not delivered by the end"))
    summary += [("lost", f"{report.lost:,}"), ("twice", f"{report.twice:,}")]
    write_facts(summary)
    rows: list[list[object]] = []
    for step in report.steps:
        for name, latencies in (("safe", step.publish), ("delivered", step.delivery)):
            if latencies.events:
                rows.append([f"{name}, {step.rate:,.6g}/s", *_cells(latencies)])
    if rows:
        write("")
        write_table(("latency in ms", *_LATENCIES), rows, "")


def _cells(line: LatencyLine) -> list[object]:
    """Return the cells of a row of the table of latencies; times have three digits."""
    times_ms = (line.p50_ms, line.p90_ms, line.p99_ms, line.p999_ms, line.max_ms)
    return [line.events, *(float(f"{time_ms:.3g}") for time_ms in times_ms)]
