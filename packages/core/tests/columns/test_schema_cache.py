"""What is remembered about schemas."""

from __future__ import annotations

import pyarrow as pa

from penstock_core.columns.schema.schema_cache import ENTRIES_MAX, SchemaMemo


def schema(name: str, note: str = "") -> pa.Schema:
    return pa.schema([pa.field(name, pa.int8(), metadata={"note": note})])


def test_an_equal_schema_is_worked_out_once_and_metadata_counts() -> None:
    asked: list[str] = []
    memo = SchemaMemo(lambda given: asked.append(given.names[0]) or len(asked))  # type: ignore[func-returns-value]  # append, then count

    assert [memo.of(schema("a")), memo.of(schema("b")), memo.of(schema("a"))] == [1, 2, 1]
    assert memo.of(schema("a", "other")) == 3


def test_the_schemas_used_last_are_kept() -> None:
    asked: list[str] = []

    def work_out(given: pa.Schema) -> str:
        asked.append(given.names[0])
        return asked[-1]

    memo = SchemaMemo(work_out)
    for number in range(ENTRIES_MAX):
        memo.of(schema(str(number)))
        memo.of(schema("0"))
    memo.of(schema("new"))
    memo.of(schema("0"))
    memo.of(schema("1"))

    assert asked == [*map(str, range(ENTRIES_MAX)), "new", "1"]
