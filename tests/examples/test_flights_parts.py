"""The parts of the flights job that need neither a realm nor Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights import picture, reconciliation, statistics, timetable
from examples.flights.companion import Companion, PartFailed
from examples.flights.reconciliation import Acknowledged, Findings, Outstanding
from examples.flights.run_record import PIPELINE, Beginning, CannotBegin, RunRecord
from examples.flights.spark_part import AIRCRAFT, ARCHIVE, DELAYS_STEP, position
from examples.flights.worker import is_rolled_back
from penstock_spark.pipelines import load

ROWS = 2_000


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return timetable.load(ROWS)


# --- the flights themselves ------------------------------------------------------------------


@pytest.mark.slow
def test_the_whole_year_is_there_in_departure_order_with_its_nulls() -> None:
    flights = timetable.load()

    scheduled = flights["scheduled"].to_numpy()
    assert flights.num_rows == 336_776
    assert (np.diff(scheduled) >= np.timedelta64(0)).all()
    assert flights["dep_delay"].null_count == 8_255
    assert flights["tailnum"].null_count == 2_512


@pytest.mark.slow
def test_a_flight_becomes_an_event_with_its_columns_as_properties(flights: pa.Table) -> None:
    first = timetable.events_of(flights).slice(0, 1).to_pylist()[0]

    assert first["tag"] == "UA"
    assert first["data"] == b"UA 1545 EWR-IAH"
    assert first["scheduled"].isoformat() == "2013-01-01T10:15:00+00:00"
    assert set(flights.column_names) <= set(first)


def test_about_one_percent_is_rolled_back_and_always_the_same() -> None:
    chosen = is_rolled_back(np.arange(336_776))

    assert 3_200 < chosen.sum() < 3_500
    assert np.array_equal(chosen[5_000:6_000], is_rolled_back(np.arange(5_000, 6_000)))


# --- statistics ------------------------------------------------------------------------------


def test_a_cancelled_flight_counts_as_a_flight_and_adds_no_delay(flights: pa.Table) -> None:
    cancelled = flights.filter(flights["dep_delay"].is_null()).slice(0, 1)

    row = statistics.daily(cancelled).to_pylist()[0]

    assert (row["flights"], row["departed"], row["departure_delay"]) == (1, 0, 0)


def test_carriers_are_added_up_from_their_days(flights: pa.Table) -> None:
    by_carrier = statistics.added_up(statistics.daily(flights), by=("carrier",))

    united = flights.filter(pc.equal(flights["carrier"], "UA"))
    row = by_carrier.filter(pc.equal(by_carrier["carrier"], "UA")).to_pylist()[0]
    assert row["flights"] == united.num_rows
    assert row["distance"] == pc.sum(united["distance"]).as_py()


def test_the_window_of_a_roll_up_is_a_day(flights: pa.Table) -> None:
    sums = statistics.added_up(statistics.daily(flights))

    assert statistics.of_windows(windows(sums)).equals(sums)


# --- the pipeline ----------------------------------------------------------------------------


def test_the_pipeline_is_one_that_anybody_may_run() -> None:
    pipeline = load(PIPELINE)

    assert {step.name: step.kind for step in pipeline.steps} == {
        ARCHIVE: "archive",
        DELAYS_STEP: "roll-up",
        AIRCRAFT: "latest",
    }
    assert pipeline.url == ""


def test_a_run_keeps_its_pipeline_beside_its_tables(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.record_start(10)

    pipeline = load(record.pipeline)

    assert record.pipeline.read_bytes() == PIPELINE.read_bytes()
    assert Path(pipeline.place) == record.checkpoints / "flights"
    assert pipeline.located("lake/delays") == str(record.delays)


def test_a_step_goes_on_behind_its_last_whole_micro_batch(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.record_start(10)
    pipeline = load(record.pipeline)
    assert position(pipeline, ARCHIVE) == 0

    query = record.checkpoints / "flights" / ARCHIVE / "query"
    for folder, numbers in (("commits", (0, 1)), ("offsets", (0, 1, 2))):
        (query / folder).mkdir(parents=True)
        for number in numbers:
            offset = f'{{"c":{{"flights":{{"e":"x","n":{100 * number + 7}}}}},"v":1}}'
            (query / folder / str(number)).write_text(f"v1\n{{}}\n{offset}\n")

    assert position(pipeline, ARCHIVE) == 107


# --- reconciliation --------------------------------------------------------------------------


def windows(sums: pa.Table) -> pa.Table:
    """Sums as the roll-up has them, in the order of its days."""
    starts = [datetime.fromisoformat(day).replace(tzinfo=UTC) for day in sums["day"].to_pylist()]
    column = pa.array(starts, pa.timestamp("us", tz="UTC"))
    return sums.append_column("window_start", column).drop_columns(["day"]).sort_by("window_start")


def findings(flights: pa.Table, **changes: Any) -> Findings:
    """Return the counts of a run without a flaw, with ``changes``."""
    rows = flights.num_rows
    ids, chosen = np.arange(rows), is_rolled_back(np.arange(rows))
    half = rows // 2
    sums = windows(statistics.daily(flights))
    flawless = Findings(
        flights=flights,
        is_resumed=False,
        stored=rows,
        last_event_id=rows - 1,
        published_before=0,
        outstanding_before=Outstanding(0, 0),
        outstanding_after=0,
        delivered_ids=ids,
        filtered_ids=reconciliation.late_from_jfk(flights),
        workers=(
            Acknowledged(
                "1", half, int(ids[:half].sum()), rolled_back=int(chosen.sum()), redelivered=0
            ),
            Acknowledged(
                "2",
                rows - half,
                int(ids[half:].sum()),
                rolled_back=0,
                redelivered=int(chosen.sum()),
            ),
        ),
        channel_delays=sums,
        table_delays=sums,
        aircraft=reconciliation.newest_flights(flights),
        archived_ids=pa.chunked_array([ids[::-1]]),
        archive="lake/flights",
        read_back=flights.append_column("event_id", pa.array(ids)),
    )
    return msgspec.structs.replace(flawless, **changes)


def failed(findings: Findings) -> list[str]:
    return [check.claim for check in reconciliation.checks(findings) if not check.is_true]


def test_a_flawless_run_reconciles(flights: pa.Table) -> None:
    assert failed(findings(flights)) == []


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"stored": ROWS - 1}, "published"),
        ({"delivered_ids": np.arange(1, ROWS)}, "delivered"),
        ({"delivered_ids": np.roll(np.arange(ROWS), 1)}, "delivered"),
        ({"filtered_ids": np.arange(3)}, "filtered"),
        ({"outstanding_after": 1}, "acknowledged"),
        ({"workers": (Acknowledged("1", ROWS, 17),)}, "acknowledged"),
    ],
)
def test_a_miscount_is_found(flights: pa.Table, changes: dict[str, Any], claim: str) -> None:
    assert any(name.startswith(claim) for name in failed(findings(flights, **changes)))


@pytest.mark.parametrize("output", ["channel_delays", "table_delays"])
def test_a_day_that_comes_twice_is_found(flights: pa.Table, output: str) -> None:
    sums = windows(statistics.daily(flights))
    twice = pa.concat_tables([sums, sums.slice(0, 1)])

    assert len(failed(findings(flights, **{output: twice}))) == 1


@pytest.mark.parametrize("output", ["channel_delays", "table_delays"])
def test_a_day_that_is_not_closed_is_found(flights: pa.Table, output: str) -> None:
    sums = windows(statistics.daily(flights))

    assert len(failed(findings(flights, **{output: sums.slice(0, sums.num_rows - 1)}))) == 1


@pytest.mark.parametrize("ids", [range(1, ROWS), [*range(ROWS), 0]], ids=["missing", "twice"])
def test_an_archived_event_too_few_or_too_many_is_found(flights: pa.Table, ids: Any) -> None:
    findings_ = findings(flights, archived_ids=pa.chunked_array([list(ids)]))

    assert failed(findings_) == ["archived = published"]


def test_reading_back_with_a_gap_is_found(flights: pa.Table) -> None:
    read = flights.append_column("event_id", pa.array(range(ROWS))).slice(1)

    assert failed(findings(flights, read_back=read)) == [
        "read back through the archive = published",
        "sums by carrier and day, archive = CSV",
    ]


def test_a_channel_without_an_archive_is_not_read_back_through_one(flights: pa.Table) -> None:
    assert failed(findings(flights, archive="")) == ["read back through the archive = published"]


def test_the_newest_flight_of_an_aircraft_is_its_last_row(flights: pa.Table) -> None:
    newest = reconciliation.newest_flights(flights)

    rows = {row["tailnum"]: i for i, row in enumerate(flights.to_pylist()) if row["tailnum"]}
    assert (
        dict(zip(*newest.select(["tailnum", "last_event_id"]).to_pydict().values(), strict=True))
        == rows
    )


def test_an_aircraft_with_an_older_flight_is_found(flights: pa.Table) -> None:
    newest = reconciliation.newest_flights(flights)
    older = pc.subtract(newest["last_event_id"], 1)
    aircraft = newest.set_column(1, "last_event_id", older)

    assert failed(findings(flights, aircraft=aircraft)) == ["newest flight of each aircraft = CSV"]


def test_a_resumed_run_counts_what_was_acknowledged_before(flights: pa.Table) -> None:
    # 500 stored before, 20 of them outstanding (ids 480 to 499).
    remaining = np.arange(480, ROWS)
    resumed = findings(
        flights,
        is_resumed=True,
        published_before=500,
        outstanding_before=Outstanding(20, int(np.arange(480, 500).sum())),
        workers=(Acknowledged("1", len(remaining), int(remaining.sum())),),
    )

    assert failed(resumed) == []


# --- the record of a run ---------------------------------------------------------------------


def test_a_first_run_an_interrupted_one_and_a_finished_one_begin_differently(
    tmp_path: Path,
) -> None:
    assert RunRecord(tmp_path).beginning(10, fresh=False) is Beginning.FIRST

    RunRecord(tmp_path).record_start(10)
    assert RunRecord(tmp_path).beginning(None, fresh=False) is Beginning.RESUMED
    assert RunRecord(tmp_path).beginning(10, fresh=True) is Beginning.REPLACED

    RunRecord(tmp_path).record_end()
    assert RunRecord(tmp_path).beginning(10, fresh=False) is Beginning.REPLACED


def test_an_interrupted_run_is_not_resumed_with_another_number_of_flights(tmp_path: Path) -> None:
    RunRecord(tmp_path).record_start(10)

    with pytest.raises(CannotBegin, match="10 flights"):
        RunRecord(tmp_path).beginning(20, fresh=False)


def test_clearing_removes_what_a_run_has_made_and_nothing_else(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.archive.mkdir(parents=True)
    record.report_text.write_text("old")
    log = record.work / "spark.log"
    log.write_text("old")
    (tmp_path / "mine.txt").write_text("mine")

    record.clear(10)

    assert not record.archive.exists()
    assert not record.report_text.exists()
    assert not log.exists()
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.process
def test_the_log_of_a_part_that_failed_is_still_there_after_the_next_run(tmp_path: Path) -> None:
    log = tmp_path / "flights" / "part.log"

    for run in ("first", "second"):
        part = Companion("part", f"no_module_of_the_{run}", [], log=log)
        part.start(lambda report: None)
        part.stop()
        with pytest.raises(PartFailed, match=re.escape(str(log))):
            assert part.has_ended

    log_text = log.read_text()
    assert log_text.count("--- part starts, ") == 2
    assert log_text.index("no_module_of_the_first") < log_text.index("no_module_of_the_second")


# --- the picture -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, ROWS, None])
def test_the_picture_is_drawn_for_any_number_of_flights(tmp_path: Path, rows: int | None) -> None:
    sums = statistics.added_up(statistics.daily(timetable.load(rows)))

    picture.draw(sums, timetable.airline_names(), tmp_path / "delays.png")

    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
