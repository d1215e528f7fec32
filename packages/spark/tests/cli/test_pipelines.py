"""``penstock pipeline``: what needs neither Spark nor a running pipeline."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console
from rich.live import Live as Screen

from penstock.client.sync.sync import Channel
from penstock_spark.cli.flowing import Lines, LiveTable
from penstock_spark.cli.pipelines import realm_of
from penstock_spark.pipelines import load
from penstock_spark.pipelines.standing import Status, StepFiles, pipeline_locked
from penstock_spark.pipelines.step import Progress

if TYPE_CHECKING:
    from tests.commands import Run

DEFINITION = """
name = "shop"

[[source]]
name = "orders"
channel = "orders"

[[step]]
name = "dear"
sql = "SELECT price FROM orders WHERE price > 2"
channel = "dear"
table = "lake/dear"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(DEFINITION)
    return path


@pytest.fixture
def stands(file: Path) -> StepFiles:
    """The step has done two micro-batches."""
    files = StepFiles(load(file), "dear")
    files.prepare()
    for folder, text in (("commits", "v1\n{}"), ("offsets", 'v1\n{}\n{"c":{"orders":{"n":3}}}')):
        path = Path(files.checkpoint) / "query" / folder / "1"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    progress = Progress(step="dear", rows=3, batch=1, batch_ms=120)
    files.write(Status(state="runs", progress=progress, error="it was away", restarts=2))
    return files


def test_a_definition_is_checked(penstock_command: Run, file: Path) -> None:
    result = penstock_command("pipeline", "check", str(file))

    assert result.exit_code == 0
    assert result.output.startswith(f"{file}: 1 source, 1 step, realm penstock://")
    assert "the definition is valid (SQL is checked when a step starts)" in result.output


def test_a_pipeline_runs_on_the_realm_of_this_machine_if_none_is_named(file: Path) -> None:
    pipeline = load(file)

    assert realm_of(pipeline, "") == "penstock://localhost:9000"
    named = msgspec.structs.replace(pipeline, url="penstock://realm:9000")
    assert realm_of(named, "") == "penstock://realm:9000"
    assert realm_of(named, "penstock://other:9000") == "penstock://other:9000"


def test_what_is_wrong_in_a_definition_is_told(penstock_command: Run, file: Path) -> None:
    file.write_text(DEFINITION.replace("sql =", "sqll ="))

    result = penstock_command("pipeline", "check", str(file))

    assert result.exit_code == 1
    assert f"error: {file}: step dear: unknown key 'sqll': did you mean sql?" in result.output


def test_steps_are_listed_with_where_they_stand(
    penstock_command: Run, file: Path, stands: StepFiles
) -> None:
    listed = penstock_command("pipeline", "list", str(file))
    document = json.loads(penstock_command("pipeline", "list", str(file), "--format=json").output)

    assert [line.split("  ") for line in listed.output.splitlines()][1][0] == "dear"
    assert "broken off" in listed.output
    assert "orders 3" in listed.output
    assert document[0]["reads"] == ["channel orders"]
    assert document[0]["writes"] == ["channel dear", "table lake/dear"]
    assert (document[0]["batch"], document[0]["next"]) == (1, {"orders": 3})


def test_a_step_of_a_run_that_was_killed_does_not_run_because_another_step_does(
    penstock_command: Run, file: Path, stands: StepFiles
) -> None:
    status = stands.status()
    assert status is not None
    status.pid = 1  # of another run
    stands.write(status)

    with pipeline_locked(load(file)):
        assert "broken off" in penstock_command("pipeline", "list", str(file)).output


def test_a_step_that_never_ran_says_so(penstock_command: Run, file: Path) -> None:
    assert "never ran" in penstock_command("pipeline", "list", str(file)).output


def test_a_step_is_shown_with_what_is_left_to_read(
    penstock_command: Run, orders: Channel, file: Path, stands: StepFiles
) -> None:
    with pipeline_locked(load(file)):
        shown = penstock_command("pipeline", "show", str(file), "dear").output

    assert "  orders    next event 3, 2 events behind\n" in shown
    assert "state       runs\n" in shown
    assert "restarts    2\n" in shown
    assert "rows        3 in this run, last batch 120 ms\n" in shown
    assert "last error  it was away\n" in shown


def test_steps_are_listed_with_how_far_they_are_behind(
    penstock_command: Run, orders: Channel, file: Path, stands: StepFiles
) -> None:
    lines = penstock_command("pipeline", "list", str(file)).output.splitlines()

    assert [line.split()[-1] for line in lines] == ["behind", "2"]


def test_a_realm_that_has_no_such_channel_or_does_not_answer_is_said(
    penstock_command: Run, file: Path, stands: StepFiles
) -> None:
    shown = penstock_command("pipeline", "show", str(file))
    document = json.loads(penstock_command("pipeline", "show", str(file), "--format=json").output)
    output = penstock_command("pipeline", "show", str(file), "--url", "penstock://127.0.0.1:9")
    listed = penstock_command("pipeline", "list", str(file), "--url", "penstock://127.0.0.1:9")

    assert "next event 3, the realm has no such channel" in shown.output
    assert document[0]["lag"] == {"orders": None}
    assert "next event 3, the realm does not answer" in output.output
    assert listed.output.splitlines()[1].endswith("orders 3")


def test_a_step_that_is_none_gets_a_hint(penstock_command: Run, file: Path) -> None:
    result = penstock_command("pipeline", "show", str(file), "deer")

    assert result.exit_code == 1
    assert "pipeline shop has no step 'deer': did you mean dear?" in result.output


def test_without_spark_it_is_said_what_to_install(
    penstock_command: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    result = penstock_command("pipeline", "run", str(file))

    assert result.exit_code == 1
    assert 'pip install "penstock-realm[spark]"' in result.output


def test_a_line_tells_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(every_s=0)

    lines.told("dear", "runs")
    for rows in (3, 3, 5):
        lines.moved([Progress(step="dear", rows=rows, batch=rows, lag_events=7, lag_ms=1_500)])

    assert capsys.readouterr().err.splitlines() == [
        "dear: runs",
        "dear: rows in 3, batch 3, behind 7, by 1.5 s",
        "dear: rows in 5, batch 5, behind 7, by 1.5 s",
    ]


def test_what_a_step_says_is_text_at_a_terminal_too() -> None:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with Screen(console=console, auto_refresh=False) as screen:
        live = LiveTable(screen)
        live.told("archive", "failed: [red]\x1b]0;taken\x07")
        live.moved([Progress(step="archive", rows=7, text="[/] \u202ewaits")])
        screen.refresh()
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()

    assert r"archive: failed: [red]\x1b]0;taken\x07" in output
    assert r"[/] \u202ewaits" in output
    assert "\x1b]" not in output
