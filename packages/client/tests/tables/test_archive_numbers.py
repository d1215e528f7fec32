"""An archive that is opened as a table: numbers of one property are one column."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from packages.core.tests.columns.stored_rows import stored
from penstock.tables import Table
from penstock_core.columns.files.archives import ArchiveLayout
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.vocabulary.errors import InvalidArgument

pytestmark = pytest.mark.spec("E10")


def archive(folder: Path, *prices: float) -> Table:
    """Write an archive with an event for each price, in this order."""
    table = Table.open(str(folder / "archive"), "parquet")
    channel = ChannelSchema.empty()
    for number, price in enumerate(prices):
        batch = stored([{"price": price, "at": "rome"}], first=number)
        channel = channel.grown(batch.schema)
        existing_schema = table.schema if table.exists else None
        layout = ArchiveLayout(channel.arrow, existing_schema, channel="orders", epoch="1")
        table.append(layout.of(batch), "archive", number)
    return table


def test_integers_and_floats_of_a_property_are_one_column(tmp_path: Path) -> None:
    table = archive(tmp_path, 3, 9.5, 4)

    rows = table.to_arrow()

    assert rows.column("price").to_pylist() == [3.0, 9.5, 4.0]
    assert [name for name in rows.column_names if name.startswith("price")] == ["price"]
    assert rows.column("at").to_pylist() == ["rome"] * 3
    assert table.to_arrow(["price"]).to_pydict() == {"price": [3.0, 9.5, 4.0]}
    assert table.to_arrow(["price::float", "price::int"]).to_pydict() == {
        "price::float": [None, 9.5, None],
        "price::int": [3, None, 4],
    }
    stored_names = table.dataset().to_table().column_names
    assert [name for name in stored_names if "price" in name] == ["price", "price::float"]


def test_an_integer_without_an_exact_double_keeps_the_types_apart(tmp_path: Path) -> None:
    table = archive(tmp_path, 1.5, 2**53 + 1)

    with pytest.warns(UserWarning, match="no exact double"):
        rows = table.to_arrow()

    assert rows.column("price::int").to_pylist() == [None, 2**53 + 1]
    assert rows.column("price::float").to_pylist() == [1.5, None]
    assert "price" not in rows.column_names
    with pytest.raises(InvalidArgument, match=r"unknown column price; the table has .*price::int"):
        table.to_arrow(["price"])


def test_a_table_that_is_no_archive_is_given_as_it_is(tmp_path: Path) -> None:
    table = Table.open(str(tmp_path / "table"), "parquet")
    rows = pa.table({"price": [1], "price::float": [None]})
    table.append(rows.cast(pa.schema([("price", "i8"), ("price::float", "f8")])), "one", 1)

    assert table.to_arrow().column_names == ["price", "price::float"]
