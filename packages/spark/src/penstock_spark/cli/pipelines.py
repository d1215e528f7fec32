"""``penstock pipeline``: runs pipelines, and shows their progress."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from penstock_core.vocabulary.errors import NameDoesNotExist, PenstockError, Unavailable
from penstock_server.cli.shared.grouping import command_group
from penstock_server.cli.shared.output import (
    ListFormat,
    count,
    duration,
    moment,
    write,
    write_facts,
    write_json,
    write_list,
)
from penstock_server.cli.shared.realm import DEFAULT_URL
from penstock_server.cli.shared.stopping import stopped_by_signals
from penstock_server.cli.stores.destinations import find
from penstock_spark.cli.flowing import displayed

if TYPE_CHECKING:
    from penstock_spark.pipelines import Pipeline
    from penstock_spark.pipelines.runner import Report, StepReport
    from penstock_spark.pipelines.standing import Positions, Status
    from penstock_spark.pipelines.step import Step

File = Annotated[Path, typer.Argument(help="The definition, a TOML file.", metavar="FILE")]
Realm = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="PENSTOCK_URL",
        help=f"The realm. [default: url in FILE, {DEFAULT_URL}]",
        metavar="URL",
    ),
]

T = TypeVar("T")

SIGNAL_CHECK_S: Final = 0.2
"""Longest time until a signal is handled, in seconds."""

commands = command_group("Run pipelines on Spark, and show their states.")


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="pipeline")


@commands.command("run")
def run_(
    file: File,
    step: Annotated[
        list[str] | None, typer.Option(help="Only this step; may be given again.", metavar="NAME")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process the stored events and end.")
    ] = False,
    master: Annotated[
        str, typer.Option(help="The Spark master. [default: master in FILE, local[*]]")
    ] = "",
    format: ListFormat = "table",
    url: Realm = "",
) -> None:
    """Run a pipeline until Ctrl-C, or until its steps are done; the next run continues there.

    \b
    Examples:
      penstock pipeline run flights.toml
      penstock pipeline run flights.toml --once --step delays
    """
    _check_pyspark()
    from penstock_spark.pipelines import load, run

    pipeline = load(file)
    with displayed() as display:
        report = _run_until_signal(
            lambda stopping: run(
                pipeline,
                url=realm_of(pipeline, url),
                master=master,
                once=once,
                steps=step or (),
                watch=display,
                stopping=stopping,
            )
        )
    _write_report(report, format)


@commands.command("check")
def check(file: File) -> None:
    """Check a definition for mistakes, without Spark and without a realm.

    \b
    Example:
      penstock pipeline check flights.toml
    """
    from penstock.client.connection.urls import safe

    pipeline = _load(file)
    sources, steps = len(pipeline.sources), len(pipeline.steps)
    realm = safe(realm_of(pipeline, os.environ.get("PENSTOCK_URL", "")))
    parts = f"{count(sources, 'source')}, {count(steps, 'step')}, realm {realm}"
    write(f"{file}: {parts}; the definition is valid (SQL is checked when a step starts)")


@commands.command("list")
def list_(file: File, format: ListFormat = "table", url: Realm = "") -> None:
    """List the steps of a pipeline and their states; does not need Spark.

    The column behind, the number of unread events, is empty if the realm does not answer.

    \b
    Example:
      penstock pipeline list flights.toml
    """
    pipeline = _load(file)
    documents = [_document(pipeline, step) for step in pipeline.steps]
    _add_lags(documents, realm_of(pipeline, url))
    write_list(
        format,
        documents,
        {
            "step": lambda step: step["step"],
            "kind": lambda step: step["kind"],
            "reads": lambda step: ", ".join(step["reads"]),
            "writes": lambda step: ", ".join(step["writes"]),
            "state": lambda step: step["state"],
            "batch": lambda step: step["batch"],
            "next": lambda step: ", ".join(f"{name} {id_}" for name, id_ in step["next"].items()),
            "behind": lambda step: ", ".join(
                f"{lag:,}" for lag in step["lag"].values() if lag is not None
            ),
        },
        nothing="no steps",
    )


@commands.command("show")
def show(
    file: File,
    step: Annotated[str, typer.Argument(help="A step. [default: all]", metavar="[STEP]")] = "",
    format: ListFormat = "table",
    url: Realm = "",
) -> None:
    """Show the state of steps: the last micro-batch, the unread events, the last error.

    \b
    Example:
      penstock pipeline show flights.toml delays
    """
    pipeline = _load(file)
    chosen = [pipeline.step(step)] if step else list(pipeline.steps)
    documents = [_document(pipeline, item) for item in chosen]
    is_answering = _add_lags(documents, realm_of(pipeline, url))
    if format == "json":
        write_json(documents[0] if step else documents)
        return
    unknown = "the realm has no such channel" if is_answering else "the realm does not answer"
    for index, document in enumerate(documents):
        if index:
            write("")
        write_facts(_facts(document, unknown))


def _check_pyspark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable(
            'pipelines run on PySpark, which is not installed: pip install "penstock-realm[spark]"'
        )


def _load(file: Path) -> Pipeline:
    from penstock_spark.pipelines import load

    return load(file)


def _run_until_signal(work: Callable[[threading.Event], T]) -> T:
    """Run ``work`` in a thread and return its result.

    Ctrl-C or SIGTERM sets the event that ``work`` receives; a second Ctrl-C ends the process at
    once. ``work`` does not run in the main thread, because Spark would handle Ctrl-C there.
    """
    with stopped_by_signals() as stopping, ThreadPoolExecutor(1, "pipeline") as worker:
        result = worker.submit(work, stopping)
        while wait([result], timeout=SIGNAL_CHECK_S).not_done:
            pass
        return result.result()


def _write_report(report: Report, format: str) -> None:
    if format == "json":
        write_json(report)
        return
    for step in report.steps:
        write(f"{step.name}  {_step_result(step)}")


def _step_result(step: StepReport) -> str:
    if step.text:
        return f"{step.state}: {step.text}"
    out = "" if step.rows_out is None else f", {count(step.rows_out, 'row')} out"
    late = f", {count(step.rows_late, 'row')} too late" if step.rows_late else ""
    return f"{step.state}: {count(step.rows, 'row')} in{out}{late}"


def _document(pipeline: Pipeline, step: Step) -> dict[str, Any]:
    """Return the facts about a step for ``list`` and ``show``, from its definition, its status file
    and its checkpoint."""
    from penstock_spark.pipelines.standing import StepFiles

    files = StepFiles(pipeline, step.name)
    status, positions = files.status(), files.positions()
    return {
        "pipeline": pipeline.name,
        "step": step.name,
        "kind": step.kind,
        "reads": pipeline.reads(step),
        "writes": step.writes(),
        "state": _state(pipeline, status, positions),
        "batch": positions.batch,
        "next": positions.channels,
        "checkpoint": files.checkpoint,
        "status": status,
    }


def _state(pipeline: Pipeline, status: Status | None, positions: Positions) -> str:
    """Return the state of a step; "broken off" if the process that wrote the status is gone."""
    from penstock_spark.pipelines.standing import runner_of

    if status is None:
        return "unknown" if positions.batch is not None else "never ran"
    if status.state in ("starts", "runs", "restarts") and status.pid != runner_of(pipeline):
        return "broken off"
    return status.state


def realm_of(pipeline: Pipeline, url: str) -> str:
    """Return the URL of the realm for a command: ``url``, the definition's, or that of a realm on
    this machine."""
    return url or pipeline.url or DEFAULT_URL


def _add_lags(documents: list[dict[str, Any]], url: str) -> bool:
    """Add the number of unread events to each document; return False if the realm does not
    answer."""
    from penstock.client.sync.sync import connect

    channel_names = sorted({name for document in documents for name in document["next"]})
    ends: dict[str, int] = {}
    is_answering = True
    if channel_names:
        try:
            with connect(url) as realm:
                for name in channel_names:
                    with suppress(NameDoesNotExist):
                        ends[name] = find(realm, name).info().last_event_id + 1
        except PenstockError:
            is_answering = False
    for document in documents:
        document["lag"] = {
            name: ends[name] - next_id if name in ends else None
            for name, next_id in document["next"].items()
        }
    return is_answering


def _facts(document: dict[str, Any], unknown: str) -> list[tuple[str, str]]:
    """Return names and texts of the facts about a step. ``unknown`` is the text for an unknown
    lag."""
    status = document["status"]
    facts = [
        ("step", document["step"]),
        ("kind", document["kind"]),
        ("reads", ", ".join(document["reads"])),
        ("writes", ", ".join(document["writes"])),
        ("state", document["state"]),
        ("batch", "" if document["batch"] is None else str(document["batch"])),
    ]
    for name, next_id in document["next"].items():
        lag = document["lag"][name]
        behind = unknown if lag is None else f"{count(lag, 'event')} behind"
        facts.append((f"  {name}", f"next event {next_id:,}, {behind}"))
    facts.append(("checkpoint", document["checkpoint"]))
    if status is not None:
        facts += _run_facts(status)
    return facts


def _run_facts(status: Status) -> list[tuple[str, str]]:
    """Return names and texts of the facts about the last run, from its status."""
    facts = [("started", moment(status.started)), ("seen", moment(status.at))]
    if status.restarts:
        facts.append(("restarts", str(status.restarts)))
    if status.progress is not None and status.progress.later:
        from penstock_spark.pipelines.step import left_out

        facts.append(("columns", left_out(status.progress.later)))
    if (progress := status.progress) is not None and progress.rows:
        took = "" if progress.batch_ms is None else f", last batch {duration(progress.batch_ms)}"
        facts.append(("rows", f"{progress.rows:,} in this run{took}"))
    if status.text:
        facts.append(("result", status.text))
    if status.error:
        facts.append(("last error", status.error))
    return facts
