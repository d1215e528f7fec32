"""A struct that gets one more field later, as the headers of an archive do."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from penstock.tables import Table
from penstock_core.columns.schema.layout import HEADERS
from penstock_core.vocabulary.errors import InvalidArgument


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_table_of_before_the_newest_header_is_appended_to(
    tmp_path: Path, kind: Literal["delta", "parquet"]
) -> None:
    now = pa.struct(list(HEADERS.items()))
    before = pa.struct([field for field in now if field.name != "amqp"])
    table = Table.open(str(tmp_path / "archive"), kind)
    for version, struct, expected_error in (
        (1, before, {"type": "t"}),
        (2, now, {"type": "t", "amqp": "{}"}),
        (3, before, {"type": "u"}),
    ):
        rows = pa.table({"event_id": [version], "headers": pa.array([expected_error], struct)})
        assert table.append(rows, "app", version)

    stored_rows = Table.open(str(tmp_path / "archive"), kind).to_arrow().sort_by("event_id")

    assert [row["type"] for row in stored_rows.column("headers").to_pylist()] == ["t", "t", "u"]
    assert [row["amqp"] for row in stored_rows.column("headers").to_pylist()] == [None, "{}", None]


def test_fields_that_delta_does_not_tell_apart_are_refused_by_name(tmp_path: Path) -> None:
    inner = pa.struct([("sku", pa.string()), ("SKU", pa.int64())])
    rows = pa.table({"lines": pa.array([[{"sku": "a", "SKU": 1}]], pa.list_(inner))})

    with pytest.raises(InvalidArgument, match="'lines' has the fields 'sku' and 'SKU', which"):
        Table.open(str(tmp_path / "t"), "delta").append(rows, "app", 1)
