"""The message selector rules of the JMS specification, one small case each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from packages.core.tests.columns.selectors.batches import batch_of, properties_batch
from penstock_core.columns.selectors import Selector


def selects(text: str, **properties: Any) -> bool:
    """Whether a selector matches an event with these properties; False also if it is unknown."""
    batch = properties_batch(properties, {"other": 1})
    return bool(Selector(text).mask(batch)[0].as_py())


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        ("age BETWEEN 15 AND 19", {"age": 15}, True),
        ("age BETWEEN 15 AND 19", {"age": 19}, True),
        ("age BETWEEN 15 AND 19", {"age": 20}, False),
        ("age NOT BETWEEN 15 AND 19", {"age": 20}, True),
        ("age NOT BETWEEN 15 AND 19", {}, False),
        ("Country IN ('UK', 'US', 'France')", {"Country": "UK"}, True),
        ("Country IN ('UK', 'US', 'France')", {"Country": "Peru"}, False),
        ("Country NOT IN ('UK', 'US', 'France')", {"Country": "Peru"}, True),
        ("Country NOT IN ('UK', 'US', 'France')", {}, False),
        ("Country IN ('UK')", {"Country": "uk"}, False),
        ("phone LIKE '12%3'", {"phone": "123"}, True),
        ("phone LIKE '12%3'", {"phone": "12993"}, True),
        ("phone LIKE '12%3'", {"phone": "1234"}, False),
        ("word LIKE 'l_se'", {"word": "lose"}, True),
        ("word LIKE 'l_se'", {"word": "loose"}, False),
        (r"under LIKE '\_%' ESCAPE '\'", {"under": "_foo"}, True),
        (r"under LIKE '\_%' ESCAPE '\'", {"under": "bar"}, False),
        ("w LIKE 'a_b%c'", {"w": "a\nb\n\nc"}, True),
        ("w LIKE 'a_b%c'", {"w": "aéb\nc\n"}, False),
        ("w LIKE '_.[x]+%^$_'", {"w": "a.[x]+^$b"}, True),
        ("w LIKE '_.[x]+%^$_'", {"w": "ab[x]+^$b"}, False),
        ("w LIKE '%'", {"w": ""}, True),
        ("w LIKE ''", {"w": ""}, True),
        ("w LIKE ''", {"w": "x"}, False),
        ("w LIKE '%%x%%'", {"w": "axb"}, True),
        ("w LIKE 'A%'", {"w": "ab"}, False),
        ("phone NOT LIKE '12%3'", {"phone": "1234"}, True),
        ("phone NOT LIKE '12%3'", {}, False),
        ("name IS NULL", {}, True),
        ("name IS NULL", {"name": "x"}, False),
        ("name IS NOT NULL", {"name": "x"}, True),
        ("flag", {"flag": True}, True),
        ("flag = TRUE", {"flag": False}, False),
        ("flag <> TRUE", {"flag": False}, True),
        ("flag > FALSE", {"flag": True}, False),
        ("NOT (flag > FALSE)", {"flag": True}, False),
        ("JMSType", {}, False),
        ("n = '1'", {"n": 1}, False),
        ("NOT n = '1'", {"n": 1}, False),
        ("n <> '1'", {"n": 1}, False),
        ("s = 1", {"s": "1"}, False),
        ("n = 1.0", {"n": 1}, True),
        ("n / 2 = 3", {"n": 7}, True),
        ("n / 2 = -3", {"n": -7}, True),
        ("n / 2.0 = 3.5", {"n": 7}, True),
        ("2 * n + 1 = 7", {"n": 3}, True),
        ("-n = 3", {"n": -3}, True),
        ("absent + 1 = 1", {}, False),
        ("absent = 1 OR n = 1", {"n": 1}, True),
        ("absent = 1 AND n = 2", {"n": 1}, False),
        ("NOT (absent = 1 AND n = 2)", {"n": 1}, True),
        ("NOT (absent = 1 OR n = 2)", {"n": 1}, False),
        ("NOT absent", {}, False),
        ("s = 'literal''s'", {"s": "literal's"}, True),
        ("s < 'b'", {"s": "a"}, True),
    ],
)
def test_properties(text: str, properties: dict[str, Any], expected: bool) -> None:
    assert selects(text, **properties) is expected


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("n / 0 = 1", {"n": 1}),
        ("n / 0.0 > 1", {"n": 1}),
        ("n / zero > 0", {"n": 1.5, "zero": 0}),
        ("n + 1 > 0", {"n": 2**63 - 1}),
        ("n - 1 < 0", {"n": -(2**63)}),
        ("n * n > 0", {"n": 2**40}),
        ("n / -1 > 0", {"n": -(2**63)}),
        ("-n <> 0", {"n": -(2**63)}),
        ("s + 1 = 2", {"s": "1"}),
        ("-s = 1", {"s": "1"}),
        ("n LIKE '1'", {"n": 1}),
        ("n AND TRUE", {"n": 1}),
        ("d = 'x'", {"d": {"k": 1}}),
        ("l = 'x'", {"l": ["x"]}),
        ("x = 'x'", {"x": b"x"}),
        ("when = 'yesterday'", {"when": datetime(2024, 1, 1, tzinfo=UTC)}),
    ],
)
def test_what_has_no_answer_is_unknown_both_ways(text: str, properties: dict[str, Any]) -> None:
    assert not selects(text, **properties)
    assert not selects(f"NOT ({text})", **properties)


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    "text",
    [
        "s = 'a'",
        "s IN ('a', 'b')",
        "s IN ('a', 1)",
        "s BETWEEN 'a' AND 'b'",
        "s LIKE 'a'",
        "s LIKE '%a'",
        "s LIKE 'a%'",
        "s LIKE '%a%'",
        "s LIKE '%'",
        "s LIKE '_'",
        "n = 1",
        "n IN (1, 2)",
        "n * 9223372036854775807 > 0",
    ],
)
def test_an_event_without_the_property_is_unknown_among_events_with_it(text: str) -> None:
    batch = properties_batch({"s": "a", "n": 1}, {"n": None}, None)

    assert Selector(text).mask(batch).to_pylist() == [True, False, False]
    assert Selector(f"NOT {text}").mask(batch).to_pylist() == [False, False, False]


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n / m IN (-3, 6)", [False, True, True, False]),
        ("n * m < 7", [False, True, True, True]),
        ("n + m < 8", [False, True, True, True]),
        ("NOT n + m < 8", [False, False, False, False]),
        ("n - 1 < 0", [False, True, False, True]),
        ("NOT n - 1 < 0", [False, False, True, False]),
    ],
)
def test_one_overflow_leaves_the_other_events_alone(text: str, expected: list[bool]) -> None:
    batch = properties_batch(
        {"n": -(2**63), "m": -1}, {"n": -7, "m": 2}, {"n": 6, "m": 1}, {"n": 0, "m": 0}
    )

    assert Selector(text).mask(batch).to_pylist() == expected


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 9007199254740993", [False, True, False]),
        ("n = 9007199254740992.0", [True, False, False]),
        ("n > 9007199254740992.0", [False, True, True]),
        ("n < 9223372036854775808.0", [True, True, True]),
        ("n = 9223372036854775808.0", [False, False, False]),
        ("n <= f", [True, False, True]),
        ("f = n", [True, False, False]),
        ("f > n", [False, False, True]),
    ],
)
def test_whole_numbers_are_not_rounded_to_compare(text: str, expected: list[bool]) -> None:
    batch = properties_batch(
        {"n": 2**53, "f": 2.0**53}, {"n": 2**53 + 1, "f": 2.0**53}, {"n": 2**63 - 1, "f": 2.0**63}
    )

    assert Selector(text).mask(batch).to_pylist() == expected


@pytest.mark.spec("F1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("JMSPriority >= 5", [False, True]),
        ("JMSPriority = 4", [True, False]),
        ("JMSDeliveryMode = 'PERSISTENT'", [True, False]),
        ("JMSDeliveryMode = 'NON_PERSISTENT'", [False, True]),
        ("JMSMessageID = 'ID:7'", [False, True]),
        ("JMSCorrelationID IS NULL", [True, False]),
        ("JMSType = 'car' AND color = 'blue' AND weight > 2500", [False, True]),
        ("JMSTimestamp = 1700000000123", [True, False]),
        ("published = 1700000000123", [True, False]),
        ("published = '2023-11-14T22:13:20.123456Z'", [True, False]),
        ("published < '2023-11-14T23:13:20.123457+01:00'", [True, False]),
        ("published BETWEEN '2023-11-14' AND '2023-11-15'", [True, False]),
        ("published > '2023-11-15'", [False, True]),
        ("published IN ('2023-11-14T22:13:20.123456', '2020-01-01')", [True, False]),
        ("NOW() - published <= 1000", [False, True]),
        ("event_id = 7", [True, False]),
        ("tag = 'b'", [False, True]),
        ("priority IS NULL", [True, True]),
    ],
)
def test_headers(text: str, expected: list[bool]) -> None:
    events = [
        {
            "event_id": 7,
            "published": datetime(
                2023, 11, 14, hour=22, minute=13, second=20, microsecond=123_456, tzinfo=UTC
            ),
            "tag": "a",
        },
        {
            "event_id": 9,
            "published": datetime(2024, 1, 1, tzinfo=UTC),
            "tag": "b",
            "priority": 8,
            "persistent": False,
            "headers": {"message_id": "ID:7", "correlation_id": "c", "type": "car"},
            "properties": {"color": "blue", "weight": 3000},
        },
    ]

    mask = Selector(text).mask(batch_of(events), now_us=1_704_067_201_000_000)

    assert mask.to_pylist() == expected


@pytest.mark.spec("F1")
def test_a_body_has_no_id_and_no_time_yet() -> None:
    body = batch_of([{"tag": "a", "data": b"x"}])

    assert Selector("event_id IS NULL AND published IS NULL").mask(body).to_pylist() == [True]
    assert Selector("event_id >= 0").mask(body).to_pylist() == [False]
    assert Selector("NOT published > 0").mask(body).to_pylist() == [False]
    assert Selector("JMSPriority = 4 AND tag = 'a'").mask(body).to_pylist() == [True]
