"""Attributes of a selector, and the column types it reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from packages.core.tests.columns.selectors.batches import properties_batch
from penstock_core.columns.selectors import InvalidSelector, Selector, selector_of


def typed(column: Any) -> pa.RecordBatch:
    """Return a batch with a single property ``p``, in exactly this column."""
    return pa.RecordBatch.from_pydict({"properties": pa.StructArray.from_arrays([column], ["p"])})


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (
            "carrier = 'UA' AND dep_delay > 60",
            {"properties.carrier", "properties.dep_delay", "more"},
        ),
        ("a.b.c[].d = 1", {"properties.a.b.c", "more"}),
        ("NAMES[1] = tag", {"properties.NAMES", "tag", "more"}),
        ("JMSType = 'x' OR JMSPriority > 4", {"headers.type", "priority"}),
        ("JMSTimestamp > 1 OR published > 1", {"published"}),
        ("JMSDeliveryMode = 'PERSISTENT'", {"headers.delivery_mode", "persistent"}),
        ("EVENTDATA.LENGTH() > 1", {"data"}),
        ("EVENTDATA.AS_STRING(0, 1) = 'x' AND event_id > 3", {"data", "event_id"}),
        ("DISTANCE(1, 1, K) < 5", {"properties.latitude", "properties.longitude", "more"}),
        ("NOW() > 5", set()),
    ],
)
def test_columns_it_reads(text: str, columns: set[str]) -> None:
    assert Selector(text).columns == columns


@pytest.mark.spec("F5")
def test_spellings_of_one_selector_are_equal() -> None:
    one, same = Selector("a=1 and(b like'x%')"), Selector("a = 1  AND b LIKE 'x%'")

    assert one == same
    assert hash(one) == hash(same)
    assert one.text == "a = 1 AND b LIKE 'x%'"
    assert one != Selector("A = 1 AND b LIKE 'x%'")


@pytest.mark.slow
@pytest.mark.spec("F4")
def test_text_that_gets_too_long_when_spaced_is_refused() -> None:
    with pytest.raises(InvalidSelector, match="at most 65536 characters"):
        Selector(" or ".join(["a=1"] * 9_000))


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([1, 2], pa.int8()), "p = 2"),
        (pa.array([1, 2], pa.int16()), "p + 100000 = 100002"),
        (pa.array([1, 2], pa.int32()), "p * 4000000000 = 8000000000"),
        (pa.array([1, 2], pa.uint8()), "p - 3 = -1"),
        (pa.array([0.5, 1.5], pa.float32()), "p = 1.5"),
        (pa.array(["a", "b"], pa.large_string()), "p LIKE 'b%'"),
        (pa.array(["a", "b"], pa.string()).dictionary_encode(), "p IN ('b')"),
        (pa.array([1, 2], pa.timestamp("s", "UTC")), "p = 2000"),
        (pa.array([1_000, 2_500], pa.timestamp("ms", "UTC")), "p = '1970-01-01T00:00:02.500Z'"),
        (pa.array([1, 1_999], pa.timestamp("ns", "UTC")), "p = '1970-01-01T00:00:00.000001Z'"),
        (pa.array([0, -1], pa.timestamp("ns", "UTC")), "p = -1"),
        (pa.array([[1], [2]], pa.list_(pa.int64(), 1)), "p[] = 2"),
        (pa.array([[1], [2]], pa.large_list(pa.int64())), "p[0] = 2"),
        (pa.array([None, [2]], pa.list_(pa.int64(), 1)), "p[0] IS NOT NULL"),
        (pa.array([None, 2**63 - 1], pa.uint64()), "p IS NOT NULL"),
        (pa.array([1, 2], pa.uint64()), "p = 2"),
        (pa.array([1, 2**64 - 1], pa.uint64()), "p > 1.8446744073709e19"),
    ],
)
def test_stored_types(column: Any, text: str) -> None:
    assert Selector(text).mask(typed(column)).to_pylist() == [False, True]


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.nulls(2), "p = 1 OR p <> 1"),
        (pa.array([2**62, -(2**62)], pa.timestamp("s", "UTC")), "p > 0 OR p <= 0"),
        (pa.array([b"a", b"b"]), "p = 'a' OR p LIKE 'a'"),
    ],
)
def test_what_does_not_compare_is_unknown(column: Any, text: str) -> None:
    assert Selector(text).mask(typed(column)).to_pylist() == [False, False]
    assert Selector(f"NOT ({text})").mask(typed(column)).to_pylist() == [False, False]


@pytest.mark.spec("F1")
def test_nulls_under_an_absent_dictionary_do_not_show() -> None:
    inner = pa.array([7, 7], pa.int64())
    outer = pa.StructArray.from_arrays([inner], ["k"], mask=pa.array([True, False]))

    assert Selector("p.k = 7").mask(typed(outer)).to_pylist() == [False, True]


@pytest.mark.spec("F2")
def test_elements_under_a_null_list_do_not_show() -> None:
    values = pa.array([1, 1, 2])
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 3], pa.int32()), values, mask=pa.array([True, False])
    )

    assert Selector("p[] = 1").mask(typed(lists)).to_pylist() == [False, True]
    assert Selector("p[0] = 1").mask(typed(lists)).to_pylist() == [False, True]


@pytest.mark.spec("F1")
def test_an_empty_batch_has_an_empty_mask() -> None:
    batch = properties_batch({"a": [1], "b": 2**62}).slice(1)

    for text in ("TRUE", "a[] = 1", "b * 4 > 0", "absent = 1", "EVENTDATA.LENGTH() = 0"):
        mask = Selector(text).mask(batch)
        assert mask.type == pa.bool_()
        assert len(mask) == 0


@pytest.mark.spec("F1")
def test_sums_of_a_property_with_two_number_types_stay_small() -> None:
    batch = properties_batch({"n": 1}, {"n": 1.5})

    mask = Selector(" + ".join(["n"] * 60) + " = 90").mask(batch)

    assert mask.to_pylist() == [False, True]


@pytest.mark.spec("F1")
def test_the_costliest_pattern_allowed_works() -> None:
    text = "p LIKE '" + ("%_" + "é" * 79) * 50 + "'"
    fits = ("a" + "é" * 79) * 50

    assert Selector(text).mask(typed(pa.array(["x", fits]))).to_pylist() == [False, True]


@pytest.mark.spec("F1")
def test_times_of_other_properties() -> None:
    batch = properties_batch(
        {"when": datetime(2024, 1, 1, tzinfo=UTC)}, {"when": datetime(2025, 1, 1, tzinfo=UTC)}
    )

    assert Selector("when >= '2025-01-01'").mask(batch).to_pylist() == [False, True]
    assert Selector("'2025-01-01' > when").mask(batch).to_pylist() == [True, False]
    assert Selector("when < 1735689600000").mask(batch).to_pylist() == [True, False]


@pytest.mark.spec("F5")
def test_a_text_used_again_is_parsed_once_and_its_now_still_moves() -> None:
    batch = typed(pa.array([5, 7]))
    selector = selector_of("p > NOW()")

    assert selector_of("p > NOW()") is selector
    assert selector.mask(batch, now_us=4_000).to_pylist() == [True, True]
    assert selector.mask(batch, now_us=6_000).to_pylist() == [False, True]
    with pytest.raises(InvalidSelector, match="line 1, column 4"):
        selector_of("p >")


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    ("text", "work"),
    [
        ("urgent", 1),
        ("NOT urgent", 1),
        ("urgent OR late", 2),
        ("urgent OR late AND n = 1", 3),
        ("(urgent OR late) AND NOT paid", 3),
        ("TRUE", 1),
        ("n = 1", 1),
        ("n IN (1, 2, 3)", 1),
        ("n + 1 > 2", 2),
    ],
)
def test_a_property_that_stands_alone_is_work_as_a_comparison_is(text: str, work: int) -> None:
    assert Selector(text).work == work
