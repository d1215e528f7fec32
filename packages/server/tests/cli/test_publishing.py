"""``penstock publish``."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from penstock.client.sync.sync import Channel, Session

if TYPE_CHECKING:
    from tests.commands import Run


@pytest.fixture
def trades(session: Session) -> Channel:
    return session.channels.create("trades")


def test_an_event_is_published_with_typed_properties(
    penstock_command: Run, trades: Channel
) -> None:
    properties = ["price=9.5", "count=3", "open=true", "zip:string=0815", "gone:null="]
    properties += ["at:time=2026-05-04T12:00:00+02:00", 'lines:json=[{"sku":"a"}]']
    options = [word for text in properties for word in ("--property", text)]

    printed = penstock_command("publish", "trades", "hello", "--tag", "new", *options)
    (event,) = trades.browse()

    assert printed.stdout == "event 0 published on trades\n"
    assert (event.data, event.tag) == (b"hello", "new")
    assert event.properties == {
        "price": 9.5,
        "count": 3,
        "open": True,
        "zip": "0815",
        "gone": None,
        "at": datetime(2026, 5, 4, hour=10, tzinfo=UTC),
        "lines": [{"sku": "a"}],
    }


def test_options_of_the_event_reach_it(penstock_command: Run, trades: Channel) -> None:
    penstock_command("publish", "trades", "x", "--ttl", "1h", "--priority", "9", "--volatile")
    (event,) = trades.browse()

    assert (event.ttl, event.priority, event.persistent) == (3_600_000, 9, False)


def test_data_may_come_from_standard_input(penstock_command: Run, trades: Channel) -> None:
    penstock_command("publish", "trades", "-", stdin=b"\x00\xff")
    (event,) = trades.browse()

    assert event.data == b"\x00\xff"


def test_lines_of_json_become_events(
    penstock_command: Run, trades: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "trades.ndjson"
    file.write_text('{"data": "a", "tag": "t", "price": 1}\n\n{"price": "two", "note": null}\n')

    printed = penstock_command("publish", "trades", "--file", str(file))
    first, second = trades.browse()

    assert printed.stdout.startswith("2 events published on trades, ids 0 .. 1, in ")
    assert (first.data, first.tag, first.properties) == (b"a", "t", {"price": 1})
    assert second.properties == {"price": "two", "note": None}


def test_lines_of_json_may_come_from_standard_input(penstock_command: Run, trades: Channel) -> None:
    penstock_command("publish", "trades", "--file", "-", stdin='{"price": 1}\n{"price": 2}\n')

    assert [event.properties["price"] for event in trades.browse()] == [1, 2]


def test_columns_of_a_csv_file_are_properties(
    penstock_command: Run, trades: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "trades.csv"
    file.write_text("day,count,at,tag\n2013-01-01,1,05:15,a\n2013-01-02,,06:15,b\n")

    penstock_command("publish", "trades", "--file", str(file))
    first, second = trades.browse()

    assert first.tag == "a"
    assert first.properties == {"day": "2013-01-01", "count": 1, "at": "05:15:00"}
    assert second.properties["count"] is None


@pytest.mark.spec("E11")
@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (
            ["21602730330000060100100000358582", "21602730330000060100100000358583"],
            ["21602730330000060100100000358582", "21602730330000060100100000358583"],
        ),
        (["18446744073709551615", "1"], ["18446744073709551615", "1"]),
        (["9223372036854775807", "-9223372036854775808"], [(1 << 63) - 1, -(1 << 63)]),
        (["9007199254740993", "0.5"], ["9007199254740993", "0.5"]),
        (["9007199254740992", "0.5"], [float(1 << 53), 0.5]),
        (["0815", "4711"], ["0815", "4711"]),
        (["00.50", "1"], ["00.50", "1"]),
        (["0", "-0.5"], [0.0, -0.5]),
        (["", "007"], ["", "007"]),
        (["00E1", "12E4"], ["00E1", "12E4"]),
        (["0.5e1", "12E4"], [5.0, 120_000.0]),
        (["+4912345", "1"], ["+4912345", "1"]),
        ([" 18446744073709551615", " 1"], [" 18446744073709551615", " 1"]),
        (["0x1F", "3"], ["0x1F", "3"]),
        (["1e400", "2"], ["1e400", "2"]),
        (["1e300", "inf"], [1e300, float("inf")]),
        (["true", "1"], ["true", "1"]),
        (["true", "FALSE"], [True, False]),
        (["NA", "NA"], ["NA", "NA"]),
        (["NA", "1"], [None, 1]),
        (["", ""], [None, None]),
    ],
)
def test_numbers_of_a_csv_file_keep_their_value(
    penstock_command: Run, trades: Channel, tmp_path: Path, cells: list[str], values: list[Any]
) -> None:
    file = tmp_path / "trades.csv"
    file.write_text("id,n\n" + "".join(f"{cell},1\n" for cell in cells))

    penstock_command("publish", "trades", "--file", str(file))

    ids = [event.properties["id"] for event in trades.browse()]
    assert ids == values
    assert [type(value) for value in ids] == [type(value) for value in values]


def test_a_cell_of_a_csv_file_that_is_not_a_number_stays_one(
    penstock_command: Run, trades: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "trades.csv"
    file.write_text("x,n\nNaN,1\n1.5,NaN\n")

    penstock_command("publish", "trades", "--file", str(file))

    first, second = (event.properties for event in trades.browse())
    assert math.isnan(first["x"])
    assert (second["x"], first["n"]) == (1.5, 1.0)
    assert math.isnan(second["n"])


def test_columns_of_a_csv_file_are_the_parts_of_an_event(
    penstock_command: Run, trades: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "trades.csv"
    file.write_text("data,tag,priority,deliver_at\n5,2024,7,2030-01-01T00:00:00\nä,,2,\n")

    refused = penstock_command("publish", "trades", "--file", str(file))
    assert "deliver_at" in refused.stderr, "one of the two waits"
    file.write_text("data,tag,priority,deliver_at\n5,2024,7,2030-01-01T00:00:00\n")
    penstock_command("publish", "trades", "--file", str(file))
    [waiting] = trades.scheduled.list()
    file.write_text("data,tag,ttl\n5,2024,60000\nä,,\n")
    penstock_command("publish", "trades", "--file", str(file))

    assert waiting.deliver_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert [(e.data, e.tag, e.ttl) for e in trades.browse()] == [
        (b"5", "2024", 60_000),
        ("ä".encode(), None, 0),
    ]


def test_an_index_of_pandas_in_a_parquet_file_is_a_property(
    penstock_command: Run, trades: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "sums.parquet"
    frame = pa.table({"sku": ["a", "b", "a"], "n": [1, 2, 3]}).to_pandas()
    frame.groupby("sku").sum().to_parquet(file)

    penstock_command("publish", "trades", "--file", str(file))

    rows = [event.properties for event in trades.browse()]
    assert rows == [{"n": 4, "sku": "a"}, {"n": 2, "sku": "b"}]


def test_columns_of_a_parquet_file_are_properties(
    penstock_command: Run, trades: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "trades.parquet"
    parquet.write_table(pa.table({"n": range(100_000), "data": [b"x"] * 100_000}), file)

    printed = penstock_command("publish", "trades", "--file", str(file))

    assert printed.stdout.startswith("100,000 events published on trades, ids 0 .. 99999, in ")
    assert trades.read()["n"].to_pylist() == list(range(100_000))


@pytest.mark.parametrize("opened", [ipc.new_file, ipc.new_stream])
def test_an_arrow_file_may_be_a_file_or_a_stream(
    penstock_command: Run, trades: Channel, tmp_path: Path, opened: type[ipc.RecordBatchFileWriter]
) -> None:
    file = tmp_path / "trades.arrow"
    table = pa.table({"n": [1, 2, 3]})
    with pa.OSFile(str(file), "wb") as sink, opened(sink, table.schema) as writer:
        writer.write_table(table)

    penstock_command("publish", "trades", "--file", str(file))

    assert trades.read()["n"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize(("style", "ending"), [("json", "ndjson"), ("arrow", "arrow")])
def test_browsed_events_can_be_published_elsewhere(
    penstock_command: Run, orders: Channel, trades: Channel, tmp_path: Path, style: str, ending: str
) -> None:
    file = tmp_path / f"orders.{ending}"
    file.write_bytes(penstock_command("browse", "orders", "--format", style).stdout_bytes)

    penstock_command("publish", "trades", "--file", str(file))

    copies = [(event.data, event.properties) for event in trades.browse()]
    assert copies == [(event.data, event.properties) for event in orders.browse()]


@pytest.mark.parametrize(("style", "ending"), [("json", "ndjson"), ("arrow", "arrow")])
def test_a_stamp_stays_behind(
    penstock_command: Run,
    session: Session,
    trades: Channel,
    tmp_path: Path,
    style: str,
    ending: str,
) -> None:
    stamping = session.channels.create("stamped", storage={"stamp_dictionary": True})
    stamping.publish(b"x", properties={"price": 1})
    file = tmp_path / f"stamped.{ending}"
    file.write_bytes(penstock_command("browse", "stamped", "--format", style).stdout_bytes)

    printed = penstock_command("publish", "trades", "--file", str(file))

    assert printed.exit_code == 0
    assert [event.properties for event in trades.browse()] == [{"price": 1}]
    assert "$penstock" in next(iter(stamping.browse())).properties


@pytest.mark.spec("E8")
def test_a_transient_event_is_not_stored(penstock_command: Run, trades: Channel) -> None:
    penstock_command("publish", "trades", "x", "--transient")
    info = trades.info()

    assert (info.events, info.counters.published, info.counters.relayed) == (0, 1, 1)


@pytest.mark.parametrize("ending", ["csv", "ndjson"])
def test_an_empty_file_has_no_events(
    penstock_command: Run, trades: Channel, tmp_path: Path, ending: str
) -> None:
    file = tmp_path / f"empty.{ending}"
    file.touch()

    assert "no events in" in penstock_command("publish", "trades", "--file", str(file)).stdout


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.csv", None, "cannot be read: No such file or directory"),
        ("trades.xls", b"", "the format is unknown (.xls); use a file that ends in .ndjson"),
        ("trades.parquet", b"rubbish", "cannot be read in the format of its suffix"),
        ("trades.arrow", b"rubbish", "cannot be read in the format of its suffix"),
        ("trades.ndjson", b'{"a": 1}\nrubbish\n', "line 2: not JSON"),
        ("trades.ndjson", b"[1]\n", "line 1: an event must be an object"),
        ("trades.ndjson", b'{"data": 5}\n', "line 1: 'data' is 5; it must be a string"),
        ("trades.ndjson", b'{"data_base64": "?"}\n', "line 1: 'data_base64' is not base64"),
        (
            "trades.ndjson",
            b'{"properties": {}, "price": 5}\n',
            "price: unknown next to 'properties'",
        ),
        ("trades.ndjson", b'{"ttl": "soon"}\n', "line 1: ttl 'soon'"),
        ("trades.csv", b"a,b\n1\n", "cannot be read in the format of its suffix"),
    ],
)
def test_a_file_that_cannot_be_events_is_refused_whole(
    penstock_command: Run,
    trades: Channel,
    tmp_path: Path,
    name: str,
    content: bytes | None,
    message: str,
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)

    refused = penstock_command("publish", "trades", "--file", str(file))

    assert refused.exit_code == 1
    assert message in refused.stderr
    assert trades.info().last_event_id == -1


def test_a_column_that_cannot_be_a_property_is_named(
    penstock_command: Run, trades: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "trades.parquet"
    parquet.write_table(pa.table({"day": pa.array([1], pa.time32("s"))}), file)

    refused = penstock_command("publish", "trades", "--file", str(file))

    assert refused.exit_code == 1
    assert "column 'day' has type time32[ms]; cast it to string, or int64" in refused.stderr


def test_an_error_within_a_file_names_the_published_events(
    penstock_command: Run, trades: Channel, tmp_path: Path
) -> None:
    file = tmp_path / "trades.ndjson"
    file.write_text('{"n": 1}\n' * 16_384 + "rubbish\n")

    refused = penstock_command("publish", "trades", "--file", str(file))

    assert refused.exit_code == 1
    assert "line 16385: not JSON" in refused.stderr
    assert "16,384 events before it were published, ids 0 .. 16383" in refused.stderr
    assert trades.info().events == 16_384


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give DATA, a --property or a --file"),
        (["x", "--file", "a.csv"], "--file contains whole events"),
        (["--file", "a.csv", "--tag", "t"], "--file contains whole events"),
        (["--property", "price"], "'price' is not a property"),
        (["--property", "price:money=5"], "'money' is not a type; the types are string, int"),
        (["--property", "price:int=cheap"], "'cheap' is not a valid int"),
        (["--property", "a=1", "--property", "a=2"], "property 'a' is given twice"),
        (["x", "--priority", "10"], "--priority"),
    ],
)
def test_wrong_usage_exits_with_2(
    penstock_command: Run, trades: Channel, arguments: list[str], message: str
) -> None:
    refused = penstock_command("publish", "trades", *arguments)

    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())
    assert trades.info().last_event_id == -1


def test_a_number_too_large_for_a_property_is_refused(
    penstock_command: Run, trades: Channel
) -> None:
    refused = penstock_command("publish", "trades", "--property", f"n={1 << 63}")

    assert refused.exit_code == 1
    assert "does not fit int64" in refused.stderr


def test_publishing_where_there_is_no_channel_is_refused(penstock_command: Run) -> None:
    refused = penstock_command("publish", "nowhere", "hello")

    assert refused.exit_code == 1
    assert refused.stderr.endswith("[name-does-not-exist]\n")


def test_json_goes_out_as_it_came_in(penstock_command: Run, trades: Channel) -> None:
    line = '{"data":"a","properties":{"b":[1,2],"c":{"d":null}},"tag":"t"}'
    penstock_command("publish", "trades", "--file", "-", stdin=line)

    printed = json.loads(penstock_command("browse", "trades", "--format", "json").stdout)

    assert {name: printed[name] for name in json.loads(line)} == json.loads(line)
