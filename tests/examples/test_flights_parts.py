"""The parts of the flights job that need neither a realm nor Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from examples.flights import picture, reconciliation, statistics, timetable
from examples.flights.reconciliation import Acknowledged, Findings, Outstanding
from examples.flights.run_record import Beginning, CannotBegin, RunRecord
from examples.flights.spark_files import committed_table
from examples.flights.spark_stream import RESTARTS_MAX, Stream
from examples.flights.worker import is_rolled_back

ROWS = 2_000


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return timetable.load(ROWS)


# --- the flights themselves ------------------------------------------------------------------


def test_the_whole_year_is_there_in_departure_order_with_its_nulls() -> None:
    flights = timetable.load()

    scheduled = flights["scheduled"].to_numpy()
    assert flights.num_rows == 336_776
    assert (np.diff(scheduled) >= np.timedelta64(0)).all()
    assert flights["dep_delay"].null_count == 8_255
    assert flights["tailnum"].null_count == 2_512


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


@pytest.mark.parametrize("size", [1, 7, 300, ROWS])
def test_partial_sums_add_up_wherever_the_flights_are_cut(flights: pa.Table, size: int) -> None:
    cut = flights.slice(0, 600).to_batches(max_chunksize=size)
    parts = [part for batch in cut for part in statistics.partial_sums([batch])]

    whole = statistics.added_up(statistics.daily(flights.slice(0, 600)))
    assert statistics.added_up(pa.Table.from_batches(parts)) == whole


def test_a_cancelled_flight_counts_as_a_flight_and_adds_no_delay(flights: pa.Table) -> None:
    cancelled = flights.filter(flights["dep_delay"].is_null()).slice(0, 1)

    row = statistics.daily(cancelled).to_pylist()[0]

    assert (row["flights"], row["departed"], row["departure_delay"]) == (1, 0, 0)


def test_nothing_comes_of_no_flights() -> None:
    assert list(statistics.partial_sums([])) == []


# --- Spark's files ---------------------------------------------------------------------------


def test_files_spark_has_not_committed_do_not_count(tmp_path: Path, flights: pa.Table) -> None:
    sums = statistics.daily(flights)
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for number, name in enumerate(("committed-0", "committed-1", "left-by-a-crash")):
        pq.write_table(sums, tmp_path / f"{name}.parquet")
        if name.startswith("committed"):
            entry = {"path": f"file://{tmp_path}/{name}.parquet", "action": "add"}
            (log / str(number)).write_text(f"v1\n{json.dumps(entry)}\n")

    assert committed_table(tmp_path, statistics.SCHEMA).num_rows == 2 * sums.num_rows


# --- reconciliation --------------------------------------------------------------------------


def findings(flights: pa.Table, **changes: Any) -> Findings:
    """What a run without a flaw has counted, with ``changes``."""
    rows = flights.num_rows
    ids, chosen = np.arange(rows), is_rolled_back(np.arange(rows))
    half = rows // 2
    sums = statistics.daily(flights)
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
            Acknowledged("1", half, int(ids[:half].sum()), int(chosen.sum()), 0),
            Acknowledged("2", rows - half, int(ids[half:].sum()), 0, int(chosen.sum())),
        ),
        channel_statistics=sums,
        parquet_statistics=sums,
        archive=flights.append_column("event_id", pa.array(ids)),
    )
    return msgspec.structs.replace(flawless, **changes)


def failed(found: Findings) -> list[str]:
    return [check.claim for check in reconciliation.checks(found) if not check.is_true]


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


@pytest.mark.parametrize("output", ["channel_statistics", "parquet_statistics"])
def test_a_micro_batch_written_twice_is_found(flights: pa.Table, output: str) -> None:
    sums = statistics.daily(flights)
    twice = pa.concat_tables([sums, statistics.daily(flights.slice(0, 10))])

    assert len(failed(findings(flights, **{output: twice}))) == 1


def test_an_archived_event_too_few_is_found(flights: pa.Table) -> None:
    archive = flights.append_column("event_id", pa.array(range(ROWS))).slice(1)

    assert "archived = published" in failed(findings(flights, archive=archive))


def test_a_resumed_run_counts_what_was_acknowledged_before(flights: pa.Table) -> None:
    # 500 stored before, 20 of them outstanding (ids 480 to 499).
    left = np.arange(480, ROWS)
    resumed = findings(
        flights,
        is_resumed=True,
        published_before=500,
        outstanding_before=Outstanding(20, int(np.arange(480, 500).sum())),
        workers=(Acknowledged("1", len(left), int(left.sum())),),
    )

    assert failed(resumed) == []


# --- the record of a run ---------------------------------------------------------------------


def test_a_first_run_an_interrupted_one_and_a_finished_one_begin_differently(
    tmp_path: Path,
) -> None:
    assert RunRecord(tmp_path).beginning(10, fresh=False) is Beginning.FIRST

    RunRecord(tmp_path).running(10)
    assert RunRecord(tmp_path).beginning(None, fresh=False) is Beginning.RESUMED
    assert RunRecord(tmp_path).beginning(10, fresh=True) is Beginning.REPLACED

    RunRecord(tmp_path).finished()
    assert RunRecord(tmp_path).beginning(10, fresh=False) is Beginning.REPLACED


def test_an_interrupted_run_is_not_resumed_with_another_number_of_flights(tmp_path: Path) -> None:
    RunRecord(tmp_path).running(10)

    with pytest.raises(CannotBegin, match="10 flights"):
        RunRecord(tmp_path).beginning(20, fresh=False)


def test_clearing_removes_what_a_run_has_made_and_nothing_else(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.archive.mkdir(parents=True)
    record.report_text.write_text("old")
    (tmp_path / "mine.txt").write_text("mine")

    record.clear(10)

    assert not record.archive.exists()
    assert not record.report_text.exists()
    assert (tmp_path / "mine.txt").read_text() == "mine"


# --- the picture -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, ROWS, None])
def test_the_picture_is_drawn_for_any_number_of_flights(tmp_path: Path, rows: int | None) -> None:
    sums = statistics.added_up(statistics.daily(timetable.load(rows)))

    picture.draw(sums, timetable.airline_names(), tmp_path / "delays.png")

    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")


class FailingQuery:
    """A streaming query that Spark has lost."""

    name = "to-channel"

    def exception(self) -> StreamingQueryException:
        return StreamingQueryException("lost")

    def processAllAvailable(self) -> None:  # noqa: N802  Spark's name for it
        raise self.exception()


class SoundQuery:
    name = "to-channel"

    def exception(self) -> None:
        return None

    def processAllAvailable(self) -> None:  # noqa: N802  Spark's name for it
        pass


def test_a_stream_that_spark_has_lost_is_started_again() -> None:
    queries: list[Any] = [FailingQuery(), FailingQuery(), SoundQuery()]
    stream = Stream(lambda: queries.pop(0))

    stream.look_after()
    stream.drain()

    assert stream.error is None
    assert isinstance(stream.query, SoundQuery)


def test_a_stream_that_fails_again_and_again_is_given_up() -> None:
    made: list[Any] = []

    def start() -> Any:
        made.append(FailingQuery())
        return made[-1]

    stream = Stream(start)
    stream.drain()

    assert len(made) == 1 + RESTARTS_MAX
    with pytest.raises(StreamingQueryException, match="lost"):
        stream.look_after()
