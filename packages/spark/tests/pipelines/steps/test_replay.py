"""Tests for penstock_spark.pipelines.steps.replay."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from packages.spark.tests.pipelines.steps.contexts import StepContext
from packages.spark.tests.replaying.histories import START_US, events, stored
from penstock.client.sync.sync import Session
from penstock.tables import Table
from penstock_core.columns.files.archives import DAY, ArchiveLayout
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist
from penstock_spark.pipelines import parse
from penstock_spark.pipelines.step import WorkOutcome
from penstock_spark.pipelines.steps.replay import ReplayStep, bounds_of, speed_of

HOUR_US = 3_600_000_000


def step(**keys: Any) -> ReplayStep:
    parsed = parse({"name": "p", "step": [{"name": "again", "kind": "replay", **keys}]}).steps[0]
    assert isinstance(parsed, ReplayStep)
    return parsed


def run(step: ReplayStep, context: StepContext) -> WorkOutcome:
    work = step.plan(context)
    return work()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Archives of two channels: a flight each hour, and a delay half an hour later."""
    hours = range(10)
    flights = events(range(1, 11), [hour * HOUR_US for hour in hours], number=list(hours))
    delays = events(range(1, 11), [hour * HOUR_US + HOUR_US // 2 for hour in hours])
    Table.open(str(tmp_path / "lake/flights"), "delta").append(flights, "test", 1)
    Table.open(str(tmp_path / "lake/delays"), "parquet").append(delays, "test", 1)
    return tmp_path


@pytest.mark.slow
def test_an_archive_goes_back_to_its_channel(client: Session, url: str, lake: Path) -> None:
    client.channels.create("flights", type="persistent")
    context = StepContext(url, lake, "again")
    done = run(step(archive="lake/flights", speed="flat out"), context)

    assert done.text == "10 events replayed to flights"
    assert done.facts["is_complete"]
    assert list(stored(client, "flights")) == [f"e{event}".encode() for event in range(1, 11)]
    assert (context.reports[-1].rows, context.reports[-1].total) == (10, 10)
    assert context.reports[-1].text == "at 2013-01-01 09:26:40"
    assert run(step(archive="lake/flights", speed="flat out"), context).rows == 0


@pytest.mark.slow
def test_two_archives_of_two_formats_come_into_one_channel_in_order(
    client: Session, url: str, lake: Path
) -> None:
    client.channels.create("all", type="persistent")
    archives = {"flights": "lake/flights", "delays": "lake/delays"}
    definition = step(archive=archives, channel="all", speed=1_000_000_000, replay_of=True)
    run(definition, StepContext(url, lake, "again"))
    marks = [event.properties["replay_of"] for event in client.channels.get("all").browse()]

    assert [(mark["channel"], mark["event_id"]) for mark in marks] == [
        (name, event) for event in range(1, 11) for name in ("flights", "delays")
    ]


def test_a_range_of_time_and_a_selector(client: Session, url: str, lake: Path) -> None:
    client.channels.create("again/flights", type="persistent")
    start = datetime.fromtimestamp(START_US / 1e6, UTC)
    until = start.replace(hour=start.hour + 6).isoformat()
    definition = step(
        **{"archive": "lake/flights", "prefix": "again/", "speed": "flat out", "from": 3},
        until=until,
        selector="number <> 4",
    )
    run(definition, StepContext(url, lake, "again"))

    assert list(stored(client, "again/flights")) == [b"e3", b"e4", b"e6"]


@pytest.mark.slow
def test_a_channel_goes_on_where_its_archive_ends(client: Session, url: str, lake: Path) -> None:
    flights = client.channels.create("flights", type="persistent", start_event_id=11)
    for number in range(11, 14):
        flights.publish(f"e{number}".encode())
    client.channels.create("copy", type="persistent")
    definition = step(archive="lake/flights", live=True, channel="copy", speed="flat out")
    context = StepContext(url, lake, "again")
    run(definition, context)
    flights.publish(b"e14")
    run(definition, context)

    assert list(stored(client, "copy")) == [f"e{event}".encode() for event in range(1, 15)]


@pytest.mark.slow
def test_channels_can_be_replayed_without_an_archive(
    client: Session, url: str, tmp_path: Path
) -> None:
    flights = client.channels.create("flights", type="persistent")
    flights.publish(b"a", properties={"n": 1})
    flights.publish(b"b", properties={"n": None, "more": [1, "x"]})
    copy = client.channels.create("copy", type="persistent")
    run(
        step(live=["flights"], channel="copy", speed="flat out"),
        StepContext(url, tmp_path, "again"),
    )

    assert [event.properties for event in copy.browse()] == [
        {"n": 1},
        {"n": None, "more": [1, "x"]},
    ]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_what_an_archive_knows_besides_comes_back(
    client: Session, url: str, tmp_path: Path, format: Literal["delta", "parquet"]
) -> None:
    flights = client.channels.create("flights", type="persistent")
    event_fields: list[dict[str, Any]] = [
        {"n": None, "mixed": [1, "x"]},
        {"n": 2, "Tag": "mine"},
        {"deep": {"a": None}},
    ]
    for properties in event_fields:
        flights.publish(b"x", properties=properties)
    layout = ArchiveLayout(flights.columns(), channel="flights", epoch="1")
    table = Table.open(str(tmp_path / "lake/flights"), format, [DAY])
    rows = [layout.of(batch.to_arrow()) for batch in flights.browse().batches()]
    table.append(rows, "test", 1)
    copy = client.channels.create("copy/flights", type="persistent")
    keys = {"archive": "lake/flights", "prefix": "copy/", "speed": "flat out", "selector": "1 = 1"}
    run(step(**keys), StepContext(url, tmp_path, "again"))

    assert [event.properties for event in copy.browse()] == event_fields


@pytest.mark.slow
def test_a_stopped_step_goes_on(client: Session, url: str, lake: Path) -> None:
    client.channels.create("flights", type="persistent")
    context = StepContext(url, lake, "again")
    context.stopping.set()
    stopped = run(step(archive="lake/flights"), context)
    context.stopping.clear()
    done = run(step(archive="lake/flights", speed="flat out"), context)

    assert stopped.text == "0 events replayed to flights; the next run continues from there"
    assert done.rows == 10


@pytest.mark.slow
def test_another_range_is_another_replay(client: Session, url: str, lake: Path) -> None:
    client.channels.create("flights", type="persistent")
    context = StepContext(url, lake, "again")
    run(step(archive="lake/flights", speed="flat out", until=5), context)

    with pytest.raises(InvalidArgument, match="until is '9'; this replay started with '5'"):
        run(step(archive="lake/flights", speed="flat out", until=9), context)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("archive", "channel"), [("lake/none", "flights"), ("lake/flights", "nowhere")]
)
def test_what_is_missing_is_named(
    client: Session, url: str, lake: Path, archive: str, channel: str
) -> None:
    client.channels.create("flights", type="persistent")

    with pytest.raises(NameDoesNotExist, match=r"none|nowhere"):
        run(step(archive=archive, channel=channel), StepContext(url, lake, "again"))


@pytest.mark.parametrize(
    ("setting", "speed"),
    [("original", 1.0), ("flat out", 0.0), (10, 10.0), ("10x", 10.0), ("x 2.5", 2.5), (0.5, 0.5)],
)
def test_speeds(setting: str | float, speed: float) -> None:
    assert speed_of(setting) == speed


def test_bounds_are_of_each_channel() -> None:
    definition = step(
        **{"archive": {"a": "x/a", "b": "x/b"}, "from": {"a": 7}}, until="2013-01-01T00:00:00Z"
    )

    assert (bounds_of(definition, "a").first_id, bounds_of(definition, "b").first_id) == (7, 0)
    assert bounds_of(definition, "a").until_us == 1_356_998_400_000_000
    assert definition.reads({}) == ("table x/a", "table x/b")
    assert definition.writes() == ("channel a", "channel b")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "archive is missing"),
        ({"archive": "a", "speed": "fast"}, "speed is 'fast'; it must be \"original\""),
        ({"archive": "a", "speed": 0}, "speed is 0"),
        ({"archive": "a", "speed": "0x"}, "speed is '0x'"),
        ({"archive": "a", "speed": -1}, "speed is -1"),
        (
            {"archive": "a", "from": "yesterday"},
            "from is 'yesterday'; it must be an event id, a time",
        ),
        ({"archive": "a", "until": "2013-01-01T00:00:00"}, "a time with a time zone"),
        ({"archive": "a", "until": -1}, "until is '-1'"),
        ({"archive": "a", "from": {"b": 1}}, "from names b, which is not replayed; replayed are a"),
        ({"archive": "a", "channel": "b", "prefix": "c"}, "channel and prefix are both given"),
        ({"archive": "a", "selector": "x ="}, "selector"),
        ({"archive": "a", "live": True}, "live would replay a channel into itself"),
        ({"archive": "a", "sped": 1}, "unknown key 'sped': did you mean speed"),
    ],
)
def test_wrong_keys_are_named_with_what_is_right(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match="step again") as caught:
        step(**keys)
    assert text in str(caught.value)
