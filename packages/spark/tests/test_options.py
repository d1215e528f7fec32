"""Errors name the allowed values of options, and the most similar name of unknown ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock_core.vocabulary.choice import Choice, choice_of
from penstock_core.vocabulary.errors import InvalidArgument, InvalidName, InvalidSelector
from penstock_spark.options import READ_LIMIT_EVENTS, Where, sink_options, source_options
from penstock_spark.pipelines.sources import joined_names
from penstock_spark.session.starts import StartPositions

HERE = {"url": "penstock://localhost:9000", "channel": "orders"}


def test_a_read_needs_a_realm_and_a_channel_only() -> None:
    options = source_options(HERE)

    assert options.where == Where("penstock://localhost:9000", "orders", "either")
    assert (options.starting, options.ending) == (StartPositions(), StartPositions())
    assert options.events_per_trigger == READ_LIMIT_EVENTS
    assert options.access == "auto"


def test_the_channel_may_come_as_the_path_of_load() -> None:
    all_options = {"url": HERE["url"], "path": "orders/eu"}

    assert source_options(all_options).where.channel == "orders/eu"
    assert sink_options(all_options).where.channel == "orders/eu"


def test_spark_hands_names_over_in_lower_case() -> None:
    options = source_options(
        HERE
        | {
            "startingoffsets": "earliest",
            "endingoffsets": "1200",
            "maxeventspertrigger": "500",
            "minpartitions": "4",
            "includeheaders": "TRUE",
            "columns": "event_id, price",
        }
    )

    assert (options.starting, options.ending) == (StartPositions("earliest"), StartPositions(1200))
    assert (options.events_per_trigger, options.partitions_min) == (500, 4)
    assert options.include_headers
    assert options.columns == ("event_id", "price")


def test_the_environment_names_the_realm_where_no_option_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "penstock://elsewhere:9001")

    assert source_options({"channel": "orders"}).where.url == "penstock://elsewhere:9001"
    assert source_options({"channel": "orders"}, HERE["url"]).where.url == HERE["url"]


def test_no_realm_anywhere_is_an_error_that_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PENSTOCK_URL", raising=False)

    with pytest.raises(InvalidArgument, match="set the option url, or PENSTOCK_URL"):
        source_options({"channel": "orders"})


@pytest.mark.parametrize(
    ("text", "starting"),
    [("latest", "latest"), ("Earliest", "earliest"), ("17", 17), ('{"orders": 1200}', 1200)],
)
def test_a_start_is_a_word_an_id_or_json(text: str, starting: str | int) -> None:
    assert (
        source_options(HERE | {"startingoffsets": text}).starting.position_of("orders") == starting
    )


def test_each_channel_may_have_a_start_of_its_own() -> None:
    several = HERE | {"channel": "orders, day/*"}
    noon = datetime(2013, 1, 31, hour=12, tzinfo=UTC)
    offsets = source_options(several | {"startingoffsets": '{"orders": 7, "/day/1": "latest"}'})
    times = source_options(several | {"startingtimestamp": '{"orders": "2013-01-31T12:00:00Z"}'})

    assert [offsets.starting.position_of(name) for name in ("orders", "day/1", "day/2")] == [
        7,
        "latest",
        None,
    ]
    assert [times.starting.position_of(name) for name in ("orders", "day/1")] == [noon, None]


@pytest.mark.parametrize(
    "text", ["2013-01-31T09:30:00Z", "2013-01-31 09:30+00:00", "1359624600000"]
)
def test_a_start_may_be_a_time(text: str) -> None:
    options = source_options(HERE | {"startingtimestamp": text})

    assert options.starting.position_of("orders") == datetime(
        2013, 1, 31, hour=9, minute=30, tzinfo=UTC
    )


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("startingoffset", "1", "did you mean startingOffsets?"),
        ("maxEventPerTriger", "1", "did you mean maxEventsPerTrigger?"),
        ("zzz", "1", "there are url, channel"),
        ("durables", "lake", "did you mean durable"),
        ("txnAppId", "app", "txnAppId is only for a write"),
        ("startingoffsets", "yesterday", '"earliest", "latest", an event id, or JSON'),
        ("startingoffsets", "-3", '"earliest", "latest", an event id, or JSON'),
        ("startingoffsets", '{"trades": 1}', "names trades; this reads orders"),
        ("startingoffsets", "{", "not JSON"),
        ("startingtimestamp", "soon", "milliseconds since 1970"),
        ("endingtimestamp", '{"orders": []}', "endingTimestamp is"),
        ("endingtimestamp", '{"trades": 1}', "endingTimestamp names trades; this reads orders"),
        ("endingoffsets", '{"orders": "earliest"}', "which reads nothing"),
        ("startingoffsets", '{"orders": true}', '"earliest", "latest", an event id, or JSON'),
        ("queue", "orders", "the option channel or the option queue, not both"),
        ("endingoffsets", "earliest", "which reads nothing"),
        ("maxeventspertrigger", "0", "1 or more"),
        ("minpartitions", "many", "1 or more"),
        ("includeheaders", "yes", "false or true"),
        ("access", "near", "auto or local or remote"),
        ("url", "http://x", "is not the URL of a realm"),
        ("channel", "", "set the option channel"),
        ("path", "trades", "give only one of them"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(option: str, text: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        source_options(HERE | {option: text})

    assert says in str(refusal.value)


def test_a_start_is_given_once() -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        source_options(HERE | {"startingoffsets": "1", "startingtimestamp": "1359624600000"})


def test_a_selector_is_checked_before_anything_is_read() -> None:
    with pytest.raises(InvalidSelector):
        source_options(HERE | {"selector": "price >"})


def test_a_write_takes_a_name_and_a_number_for_its_transaction() -> None:
    options = sink_options(HERE | {"txnappid": "nightly", "txnversion": "0"})

    assert (options.app, options.version) == ("nightly", 0)


def test_a_write_refuses_what_is_for_reading() -> None:
    with pytest.raises(InvalidArgument, match="startingOffsets is only for a read"):
        sink_options(HERE | {"startingoffsets": "1"})
    with pytest.raises(InvalidArgument, match="whole number"):
        sink_options(HERE | {"txnversion": "v1"})


def test_what_spark_adds_itself_is_no_mistake() -> None:
    all_options = HERE | {"checkpointLocation": "somewhere", "queryname": "q", "path": "orders"}

    assert sink_options(all_options).where.channel == "orders"


def test_a_durable_is_for_channels() -> None:
    url = "penstock://localhost:9000"
    options = source_options({"url": url, "channel": "orders, more/*", "durable": " lake "})
    assert options.durable == "lake"
    with pytest.raises(InvalidArgument, match="queues have no durables"):
        source_options({"url": url, "queue": "work", "durable": "lake"})
    with pytest.raises(InvalidName):
        source_options({"url": url, "channel": "orders", "durable": "a\nb"})


@pytest.mark.spec("C2")
def test_a_list_of_a_pipeline_is_one_option() -> None:
    assert choice_of(joined_names(["a,b", "c*"])) == Choice(("a,b",), ("c*",))


def test_a_table_of_sparks_catalog_is_refused_with_what_to_use() -> None:
    all_options = {"url": "penstock://localhost:1", "channel": "orders", "provider": "penstock"}
    with pytest.raises(InvalidArgument, match="instead of CREATE TABLE use CREATE TEMPORARY VIEW"):
        source_options(all_options)
    all_options = {"option.channel": "orders", "url": "penstock://localhost:1"}  # without columns
    with pytest.raises(InvalidArgument, match="instead of CREATE TABLE use CREATE TEMPORARY VIEW"):
        source_options(all_options)
