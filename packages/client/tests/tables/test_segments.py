"""Segment files of a channel as one table, without the realm (SEM S, E2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

import penstock
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.files.lean_columns import lean
from penstock_core.columns.files.segments import encode_segment, segment_folder, segment_name
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span

pytestmark = pytest.mark.spec("E2")

Properties = list[dict[str, Any]]
WIDE: dict[str, Any] = {f"p{number:03d}": number for number in range(250)}
ORDERS: Properties = [{"sku": f"a{n % 3}", "price": n} for n in range(2_000)]


def write(data: Path, name: str, *parts: Properties, number: int = 7, at: int = 0) -> Path:
    """A file of each part, as the sealer makes them."""
    channel, folder = ChannelSchema.empty(), segment_folder(name, number)
    for rows in parts:
        body = body_of_columns([b"x"] * len(rows), properties=rows)
        batch = stamp(body, Span(at, at + len(rows)), 0)
        channel = channel.grown(batch.schema)
        kept = lean([batch], channel)
        image = encode_segment(kept, note=channel.note(kept[0].schema))
        file = data / segment_name(folder, at, at + len(rows))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"".join(image.chunks))
        at += len(rows)
    return data / "segments" / folder


@pytest.mark.slow
def test_a_table_has_the_columns_of_all_files(tmp_path: Path) -> None:
    folder = write(tmp_path, "eu/orders", ORDERS, [*ORDERS, {"sku": "w", **WIDE}], [{"qty": 1}])

    table = penstock.segments(tmp_path, "eu/orders")

    assert table.column_names[:6] == ["event_id", "published", "tag", "data", "sku", "price"]
    assert set(table.column_names[6:]) == {*WIDE, "qty"}
    assert table.column("event_id").to_pylist() == list(range(4_002))
    assert table.column("p249").to_pylist()[4_000] == 249
    assert table.column("p249").null_count == 4_001
    assert penstock.segments(folder).equals(table)
    assert penstock.segments(folder, columns=["qty", "event_id"]).column_names == [
        "qty",
        "event_id",
    ]


@pytest.mark.slow
def test_duckdb_and_pandas_take_it_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, "orders", ORDERS, [{"sku": "a1", "price": 2.5, "gone": None}])

    orders = penstock.segments(tmp_path, "orders")

    counts_by_sku = duckdb.sql("SELECT sku, count(*) FROM orders GROUP BY sku ORDER BY sku")
    assert counts_by_sku is not None
    assert counts_by_sku.fetchall() == [("a0", 667), ("a1", 668), ("a2", 666)]
    frame = orders.to_pandas()
    assert frame["price"].sum() == sum(range(2_000)) + 2.5
    average = duckdb.sql("SELECT avg(price), count(price) FROM orders")
    assert average is not None
    assert average.fetchall() == [((sum(range(2_000)) + 2.5) / 2_001, 2_001)]
    exact = penstock.segments(tmp_path, "orders", columns=["price::float", "price::int"])
    assert exact.column("price::float").drop_null().to_pylist() == [2.5]


def test_what_two_files_have_is_there_once(tmp_path: Path) -> None:
    write(tmp_path, "orders", ORDERS)
    write(tmp_path, "orders", ORDERS[:100], at=1_950)

    table = penstock.segments(tmp_path, "orders")

    assert table.column("event_id").to_pylist() == list(range(2_050))


def test_the_newest_channel_of_a_name_is_meant_and_old_folders_are_found(tmp_path: Path) -> None:
    write(tmp_path, "orders", ORDERS, number=3)
    write(tmp_path, "orders", ORDERS[:5], number=12)
    old = write(tmp_path, "x", ORDERS[:7])
    (tmp_path / "segments" / "eu").mkdir()
    old.rename(tmp_path / "segments" / "eu" / "orders.4")

    assert penstock.segments(tmp_path, "orders").num_rows == 5
    assert penstock.segments(tmp_path, "eu/orders").num_rows == 7


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "orders", ORDERS)
    (tmp_path / "empty").mkdir()

    with pytest.raises(penstock.InvalidArgument, match="data directory of a realm; name a channel"):
        penstock.segments(tmp_path)
    with pytest.raises(
        penstock.NameDoesNotExist, match="has no files of other: the channel does not"
    ):
        penstock.segments(tmp_path, "other")
    with pytest.raises(penstock.NameDoesNotExist, match="does not exist"):
        penstock.segments(tmp_path / "nowhere")
    with pytest.raises(penstock.NameDoesNotExist, match="no event of it is sealed yet"):
        penstock.segments(tmp_path / "empty")
    with pytest.raises(
        penstock.InvalidArgument, match="unknown column qty; the table has event_id"
    ):
        penstock.segments(folder, columns=["qty"])
    (folder / "99999999999999999999-99999999999999999999.arrow").write_bytes(b"no arrow")
    with pytest.raises(penstock.Damaged, match=r"9\.arrow cannot be read"):
        penstock.segments(folder)
