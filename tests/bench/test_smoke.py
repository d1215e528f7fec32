"""Every shape of the benchmark runs, however small, and says so where a peer is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.report import Cell, Result, between_marks, markdown
from bench.shape import peers, shapes

ROOT = Path(__file__).parent.parent.parent


def run_bench(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env=os.environ | ({} if path is None else {"PATH": path}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def results_in(file: Path) -> dict[str, Result]:
    results = msgspec.json.decode(file.read_bytes(), type=list[Result])
    return {result.shape: result for result in results}


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "shape", ["S1", "S3", "S4", "S6", "S7", "S7M", "S8", "S9", "S11", "S13", "S14"]
)
def test_a_shape_measures_every_contender_or_says_what_it_lacks(shape: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench(shape, "--quick", "--json", str(kept))

    assert done.returncode == 0, done.stderr
    result = results_in(kept)[shape]
    assert {cell.contender for cell in result.cells} == set(shapes()[shape].contenders)
    for cell in result.cells:
        assert cell.missing or all(run[result.figure] > 0 for run in cell.runs)
        assert cell.missing or len(cell.runs) == 1
    assert all(cell.runs for cell in result.cells if cell.contender == "penstock")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.process
def test_spark_reads_and_writes_what_was_stored(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench("S12", "--quick", "--case", "sealed files, three", "--json", str(kept))

    assert done.returncode == 0, done.stderr
    assert [len(cell.runs) for cell in results_in(kept)["S12"].cells] == [1, 1]


@pytest.mark.process
def test_a_peer_that_is_not_installed_is_in_the_table_with_the_reason(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench(
        "S1", "--quick", "--peer", "redis", "--case", "128 B, batches of columns D1",
        "--json", str(kept), path=str(tmp_path),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "redis-server is not installed" in done.stdout
    ours, theirs = results_in(kept)["S1"].cells
    assert ours.runs
    assert not theirs.runs


def test_an_unknown_shape_is_refused_with_those_there_are() -> None:
    done = run_bench("S99")

    assert done.returncode == 2
    assert (
        "no shape S99; there are S1, S3, S4, S6, S7, S7M, S8, S9, S11, S12, S12T, S13, S14"
        in done.stderr
    )


def test_an_unknown_peer_is_refused_with_those_there_are() -> None:
    done = run_bench("S1", "--peer", "kafka")

    assert done.returncode == 2
    assert "no peer kafka; there are nats, nats, alone, nats, pulled, parquet," in done.stderr


def test_every_shape_and_peer_is_found_under_its_name() -> None:
    assert list(shapes()) == [
        *("S1", "S3", "S4", "S6", "S7", "S7M", "S8"),
        *("S9", "S11", "S12", "S12T", "S13", "S14"),
    ]
    assert set(peers()) == {"nats", "penstock", "redis"}


def result_of(*cells: Cell, higher_is_better: bool = True) -> Result:
    return Result(
        "S1", "a title", "events_per_s", higher_is_better, "a machine", "now", {}, list(cells)
    )


def cell(contender: str, *rates: float, missing: str = "") -> Cell:
    return Cell("a case", "D1", contender, [{"events_per_s": rate} for rate in rates], missing)


def test_the_ratio_is_of_the_medians_and_above_one_when_penstock_is_better() -> None:
    table = markdown(result_of(cell("penstock", 900, 400, 500), cell("nats", 100, 50, 300)))

    assert "| a case | D1 | penstock | 500 ± 50% |  |" in table
    assert "| a case | D1 | nats | 100 ± 125% | 5.00 |" in table


def test_the_ratio_of_a_time_is_turned_round() -> None:
    table = markdown(result_of(cell("penstock", 200), cell("nats", 100), higher_is_better=False))

    assert "| nats | 100 ± 0% | 0.50 |" in table


def test_a_contender_that_ran_in_no_case_has_its_first_reason() -> None:
    table = markdown(
        result_of(cell("nats", missing="not installed"), cell("nats", missing="has no keys"))
    )

    assert "| every case |  | nats | not installed |" in table


def test_a_missing_contender_has_its_reason_and_no_ratio() -> None:
    table = markdown(result_of(cell("penstock", 200), cell("nats", missing="not installed")))

    assert "| every case |  | nats | not installed |  |" in table
    assert "| a case | D1 | nats |" not in table


def test_tables_replace_what_is_between_their_marks() -> None:
    page = "before\n<!-- S1 -->\nold\n<!-- /S1 -->\nafter\n"

    written = between_marks(page, {"S1": "new\n"})

    assert written == "before\n<!-- S1 -->\nnew\n<!-- /S1 -->\nafter\n"
    assert between_marks(written, {"S1": "new\n"}) == written


def test_a_page_without_a_place_for_a_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for S1"):
        between_marks("nothing here", {"S1": "new\n"})
