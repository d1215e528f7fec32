"""Functions of selectors (SEM F3)."""

from __future__ import annotations

import pytest

from packages.core.tests.columns.selectors.batches import batch_of, properties_batch
from penstock_core.columns.selectors import Selector

DATA = [b"hello", b"h\xc3\xa9llo", b"\xff\xfe", b"", b"\xed\xa0\x80ab"]


@pytest.mark.spec("F3")
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("EVENTDATA.LENGTH() = 5", [0, 4]),
        ("EVENTDATA.LENGTH() = 0", [3]),
        ("EVENTDATA.AS_STRING(0, 1) = 'h'", [0, 1]),
        ("EVENTDATA.AS_STRING(1, 2) = 'é'", [1]),
        ("EVENTDATA.AS_STRING(1, 1) <> 'x'", [0, 3]),
        ("EVENTDATA.AS_STRING(2, 100) = 'llo'", [0]),
        ("EVENTDATA.AS_STRING(3, 2147483648) LIKE 'l%'", [0, 1]),
        ("EVENTDATA.AS_STRING(3, 2) = 'ab'", [4]),
        ("EVENTDATA.AS_STRING(9, 1) = ''", [0, 1, 2, 3, 4]),
        ("EVENTDATA.AS_STRING(0, 3) IS NULL", [2, 4]),
    ],
)
def test_event_data(text: str, rows: list[int]) -> None:
    mask = Selector(text).mask(batch_of([{"data": data} for data in DATA])).to_pylist()

    assert [row for row, selected in enumerate(mask) if selected] == rows


@pytest.mark.spec("F3")
def test_event_data_of_a_batch_without_data_is_empty() -> None:
    batch = batch_of([{"tag": "t"}])

    assert Selector("EVENTDATA.LENGTH() = 0").mask(batch).to_pylist() == [True]
    assert Selector("EVENTDATA.TAG() = 't'").mask(batch).to_pylist() == [True]


@pytest.mark.spec("F3")
def test_now_is_in_milliseconds() -> None:
    batch = properties_batch({"at": 1_700_000_000_000}, {"at": 1_700_000_000_001})

    mask = Selector("at <= NOW()").mask(batch, now_us=1_700_000_000_000_999)

    assert mask.to_pylist() == [True, False]


@pytest.mark.spec("F3")
@pytest.mark.parametrize(
    ("unit", "low", "high"), [("K", 343, 344), ("M", 213, 214), ("N", 185, 186)]
)
def test_distance_from_london_to_paris(unit: str, low: int, high: int) -> None:
    batch = properties_batch(
        {"latitude": 48.8566, "longitude": 2.3522},
        {"latitude": 51.5074, "longitude": -0.1278},
        {"latitude": 48.8566},
        {"latitude": "48.8566", "longitude": 2.3522},
        {"latitude": 148.8, "longitude": 2.3522},
    )
    text = f"DISTANCE(51.5074, -0.1278, {unit})"

    between = Selector(f"{text} BETWEEN {low} AND {high}").mask(batch).to_pylist()
    outside = Selector(f"{text} NOT BETWEEN {low} AND {high}").mask(batch).to_pylist()

    assert between == [True, False, False, False, False]
    assert outside == [False, True, False, False, False]
