"""The cache of values computed from schemas."""

from __future__ import annotations

import pyarrow as pa

from penstock_core.columns.schema.schema_cache import ENTRIES_MAX, SchemaMemo


def schema(name: str, note: str = "") -> pa.Schema:
    return pa.schema([pa.field(name, pa.int8(), metadata={"note": note})])


def test_an_equal_schema_is_worked_out_once_and_metadata_counts() -> None:
    computed: list[str] = []
    memo = SchemaMemo(lambda schema: computed.append(schema.names[0]) or len(computed))  # type: ignore[func-returns-value]  # append, then count

    assert [memo.of(schema("a")), memo.of(schema("b")), memo.of(schema("a"))] == [1, 2, 1]
    assert memo.of(schema("a", "other")) == 3


def test_recently_used_schemas_are_cached() -> None:
    computed: list[str] = []

    def work_out(schema: pa.Schema) -> str:
        computed.append(schema.names[0])
        return computed[-1]

    memo = SchemaMemo(work_out)
    for number in range(ENTRIES_MAX):
        memo.of(schema(str(number)))
        memo.of(schema("0"))
    memo.of(schema("new"))
    memo.of(schema("0"))
    memo.of(schema("1"))

    assert computed == [*map(str, range(ENTRIES_MAX)), "new", "1"]
