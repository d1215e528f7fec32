"""Definitions: files become pipelines, and errors name the mistakes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.tables.log import PARQUET_DEPRECATED
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines import (
    ChannelTarget,
    Pipeline,
    Query,
    Source,
    TableTarget,
    Watermark,
    load,
    parse,
)
from penstock_spark.pipelines.step import (
    channel_target,
    check_trigger,
    describe_targets,
    table_target,
)

WHOLE = """
name = "flights"
url = "penstock://localhost:9000"
master = "local[2]"
checkpoints = "var/checkpoints"
restarts = 3

[spark]
driver.memory = "2g"
"spark.sql.shuffle.partitions" = 4

[[source]]
name = "flights"
channel = ["flights/ewr", "flights/jfk"]
starting = 2013-01-31T09:30:00Z
selector = "dep_delay > 0"
columns = ["event_id", "carrier"]
max_events = 5000
watermark = { column = "published", delay = "10 minutes" }
options = { access = "remote" }

[[source]]
name = "airlines"
table = "airlines.csv"

[[step]]
name = "late"
sql = "SELECT carrier FROM flights JOIN airlines USING (carrier)"
trigger = "1 second"
channel = "late"
table = { path = "lake/late", format = "parquet", partition_by = ["carrier"] }
"""

FLIGHTS = {"name": "flights", "channel": "flights"}
LATE = {"name": "late", "sql": "SELECT * FROM flights", "channel": "late"}


def small_pipeline(**fields: Any) -> Pipeline:
    """A small pipeline, other keys laid over it."""
    document = {"name": "small", "source": [FLIGHTS], "step": [LATE], **fields}
    return parse(document, file="small.toml")


def with_step(**fields: Any) -> Pipeline:
    return small_pipeline(step=[{**LATE, **fields}])


def with_source(**fields: Any) -> Pipeline:
    return small_pipeline(source=[{**FLIGHTS, **fields}])


def test_a_step_without_a_key_that_it_needs_is_told_so() -> None:
    with pytest.raises(InvalidArgument, match="step s: the step needs the key 'source', which is"):
        small_pipeline(step=[{"name": "s", "kind": "latest", "table": "lake"}])


def test_a_file_says_everything(tmp_path: Path) -> None:
    file = tmp_path / "flights.toml"
    file.write_text(WHOLE)

    pipeline = load(file)

    assert pipeline.spark == {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": 4}
    assert pipeline.restarts == 3
    assert pipeline.source("flights") == Source(
        name="flights",
        channel=("flights/ewr", "flights/jfk"),
        starting=datetime(2013, 1, 31, hour=9, minute=30, tzinfo=UTC),
        selector="dep_delay > 0",
        columns=("event_id", "carrier"),
        max_events=5_000,
        watermark=Watermark(column="published", delay="10 minutes"),
        options={"access": "remote"},
    )
    assert pipeline.step("late") == Query(
        name="late",
        sql="SELECT carrier FROM flights JOIN airlines USING (carrier)",
        trigger="1 second",
        channel="late",
        table=TableTarget(path="lake/late", format="parquet", partition_by=("carrier",)),
    )
    assert pipeline.place == f"{tmp_path}/var/checkpoints/flights"
    assert pipeline.located("airlines.csv") == f"{tmp_path}/airlines.csv"
    assert pipeline.located("s3://lake/late") == "s3://lake/late"


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "archive", "source": "flights"},
        {"kind": "query", "sql": "SELECT * FROM flights"},
        {"kind": "latest", "source": "flights", "key": "carrier", "as_of": 7},
    ],
)
def test_a_step_names_the_deprecated_format_of_its_table(keys: dict[str, Any]) -> None:
    def texts(format: str) -> tuple[str, ...]:
        target: dict[str, Any] = {"table": {"path": "lake", "format": format}}
        if keys["kind"] == "archive":
            target = {"table": "lake", "format": format}
        (step,) = small_pipeline(step=[{"name": "late", **keys, **target}]).steps
        return step.deprecations()

    assert texts("parquet") == (PARQUET_DEPRECATED,)
    assert texts("delta") == ()


def test_python_says_the_same_as_a_file() -> None:
    made = Pipeline(
        name="small",
        sources=(Source(name="flights", channel="flights"),),
        steps=(Query(name="late", sql="SELECT * FROM flights", channel="late"),),
        file="small.toml",
    )

    assert made == small_pipeline()


def test_a_source_becomes_options_of_the_format() -> None:
    source = tomllib.loads(WHOLE)["source"][0]

    assert small_pipeline(source=[source]).source("flights").format_options() == {
        "channel": "flights/ewr,flights/jfk",
        "startingTimestamp": "2013-01-31T09:30:00+00:00",
        "selector": "dep_delay > 0",
        "columns": "event_id,carrier",
        "maxEventsPerTrigger": "5000",
        "access": "remote",
    }
    assert Source(name="a", channel="a", durable="lake").format_options() == {
        "channel": "a",
        "durable": "lake",
    }
    assert Source(name="q", queue="work", options={"includeHeaders": True}).format_options() == {
        "queue": "work",
        "includeHeaders": "true",
    }


@pytest.mark.parametrize(
    ("starting", "option", "text"),
    [
        ("earliest", "startingOffsets", "earliest"),
        (1200, "startingOffsets", "1200"),
        ("1200", "startingOffsets", "1200"),
        ({"b": 2, "a": "latest"}, "startingOffsets", '{"a": "latest", "b": 2}'),
        ("2013-01-31T09:30:00+01:00", "startingTimestamp", "2013-01-31T09:30:00+01:00"),
    ],
)
def test_a_source_begins_where_it_says(starting: Any, option: str, text: str) -> None:
    options = Source(name="a", channel="a", starting=starting).format_options()

    assert options == {"channel": "a", option: text}


def test_the_format_of_a_table_is_said_or_seen() -> None:
    assert Source(name="a", table="a.csv").table_format == "csv"
    assert Source(name="a", table="a.parquet", format="delta").table_format == "delta"
    assert Source(name="a", table="lake/a").table_format == ""
    assert Source(name="a", table="iceberg://prod/lake/a.csv").table_format == "iceberg"


def test_the_uri_of_an_iceberg_table_says_the_format_and_its_maintenance() -> None:
    iceberg, delta = TableTarget(path="iceberg://prod/lake/a"), TableTarget(path="lake/a")

    assert (iceberg.table_format, iceberg.compaction_interval) == ("iceberg", 100)
    assert (delta.table_format, delta.compaction_interval) == ("delta", 0)
    assert TableTarget(path="lake/a", compact_every=7).compaction_interval == 7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "small.toml: name is ''; it is used as the name of a folder"),
        ({"name": "../up"}, "it is used as the name of a folder"),
        ({"nmae": "x"}, "small.toml: unknown key 'nmae': did you mean name?"),
        ({"url": "http://x"}, "small.toml: .*penstock://"),
        ({"restarts": -1}, "restarts is -1; it must be 0 or more"),
        ({"restarts": "many"}, "small.toml: restarts must be an integer, not 'many'"),
        ({"step": []}, r"small.toml: the pipeline has no steps; add a \[\[step\]\]"),
        ({"step": LATE}, r"step must be a list of tables, written \[\[step\]\]"),
        ({"source": [1]}, r"source must be a list of tables, written \[\[source\]\]"),
        ({"spark": 1}, r"spark must be a table .*written \[spark\]"),
        ({"spark": {"a": [1]}}, "small.toml: a value of spark must be .* or a string, not a list"),
        ({"source": [FLIGHTS, FLIGHTS]}, "two of the sources are called flights"),
        ({"step": [LATE, LATE]}, "two of the steps are called late"),
    ],
)
def test_what_is_wrong_at_the_top_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        small_pipeline(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "my flights"}, "source my flights: name is 'my flights'; names are used in SQL"),
        ({"chanel": "x"}, "small.toml: source flights: unknown key 'chanel': did you mean channel"),
        ({"table": "x"}, "channel and table are given; give exactly one"),
        ({"channel": ""}, "none is given; give exactly one"),
        ({"format": "csv"}, "format applies to a table, but this reads a channel"),
        ({"max_events": 0}, "max_events is 0; it must be 1 or more"),
        ({"max_events": "all"}, "max_events must be an integer, not 'all'"),
        ({"durable": "d", "bounded": True}, "durable applies to a stream, but bounded is true"),
        (
            {"durable": "d", "starting": 1},
            "starting and durable are both given, but the durable decides",
        ),
        ({"starting": "yesterday"}, "starting is 'yesterday'; it must be \"earliest\""),
        ({"starting": -1}, "starting is -1; it must be"),
        ({"starting": {"a": "soon"}}, "starting is .*soon.*it must be"),
        ({"watermark": {"column": "t"}}, "watermark needs the key 'delay', which is missing"),
        (
            {"watermark": {"column": "t", "delay": "soon"}},
            "watermark.delay is 'soon'; it must be a time",
        ),
        ({"watermark": {"colum": "t", "delay": "1 day"}}, "watermark"),
        ({"columns": "event_id"}, "columns must be a list, not 'event_id'"),
        ({"options": {"a": [1]}}, "options"),
        ({"channel": "", "queue": "q", "durable": "d"}, "durable applies to a channel"),
        (
            {"channel": "", "table": "t", "selector": "a > 1"},
            "selector applies to a channel or queue",
        ),
        ({"channel": "", "table": "t", "format": "orc"}, "format must be .*'delta'.*, not 'orc'"),
        ({"channel": "", "table": "t", "format": "iceberg"}, "format is 'iceberg' and the table"),
        (
            {"channel": "", "table": "iceberg://p/l/t", "format": "csv"},
            "format is 'csv' and the table is 'iceberg://p/l/t'",
        ),
    ],
)
def test_what_is_wrong_in_a_source_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        with_source(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sq": "x"}, "small.toml: step late: unknown key 'sq': did you mean sql"),
        ({"kind": "archiv"}, "small.toml: step late: kind is 'archiv': did you mean archive"),
        ({"kind": 1}, "kind must be a string, not 1"),
        ({"sql": ""}, "sql or python: none is given; give exactly one"),
        ({"sql": 1}, "step late: sql must be a string, not 1"),
        ({"python": "a:b"}, "sql or python: both are given"),
        ({"sql": "SELECT 1"}, r"sql reads no \[\[source\]\]; defined are flights"),
        ({"sql": "SELECT 'flights' -- flights"}, "sql reads no"),
        ({"channel": None}, "step late: channel"),
        ({"channel": {}}, "channel has neither name nor column"),
        ({"channel": {"nam": "x"}}, "channel has no key 'nam'; there are name"),
        ({"table": {"format": "delta"}}, "table needs the key 'path', which is missing"),
        ({"table": {"path": "x", "format": "orc"}}, "table.format"),
        ({"table": {"path": "x", "format": "iceberg"}}, "format is 'iceberg' and the table is 'x'"),
        (
            {"table": {"path": "iceberg://p/l/t", "format": "delta"}},
            "format is 'delta' and the table is 'iceberg://p/l/t'",
        ),
        ({"table": {"path": "iceberg://p/t"}}, "write iceberg://CATALOG/NAMESPACE/TABLE"),
        ({"table": {"path": "x", "compact_every": -1}}, "compact_every is -1; it must be 0"),
        ({"table": {"path": "x", "keep_hours": -1}}, "keep_hours is -1; it must be 0 or more"),
        ({"trigger": "often"}, "trigger is 'often'; it must be an interval such as \"1 second\""),
        ({"poison": "eat"}, "poison must be .*, not 'eat'"),
        ({"output_mode": "update", "table": "t"}, "for a table it must be append"),
        ({"sql": "", "python": "x"}, "python is 'x'; it must be \"module:function\""),
        ({"sql": "", "python": "nowhere_at_all:f"}, "the module nowhere_at_all does not exist"),
        ({"sql": "", "python": "nowhere.py:f"}, "the file nowhere.py does not exist"),
    ],
)
def test_what_is_wrong_in_a_step_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        with_step(**fields)


def test_a_step_has_to_say_where_its_rows_go() -> None:
    with pytest.raises(InvalidArgument, match="step late: channel, table: none is given"):
        small_pipeline(step=[{"name": "late", "sql": "SELECT * FROM flights"}])


def test_a_step_that_reads_no_stream_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="sql reads no stream, only flights"):
        small_pipeline(source=[{"name": "flights", "table": "flights.csv"}])


def test_a_definition_without_sources_says_so() -> None:
    with pytest.raises(InvalidArgument, match=r"sql reads no \[\[source\]\]; none is defined"):
        small_pipeline(source=[])


def test_a_durable_serves_one_step() -> None:
    with pytest.raises(InvalidArgument, match=r"source flights: durable lake .* late and later"):
        small_pipeline(
            source=[{**FLIGHTS, "durable": "lake"}],
            step=[LATE, {**LATE, "name": "later"}],
        )


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"missing.toml: No such file"):
        load(tmp_path / "missing.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("name = \n")
    with pytest.raises(InvalidArgument, match=r"bad.toml: this is not TOML: .*line 1"):
        load(bad)


def test_names_that_are_none_get_a_hint() -> None:
    with pytest.raises(InvalidArgument, match="has no step 'lat': did you mean late"):
        small_pipeline().step("lat")
    with pytest.raises(InvalidArgument, match=r"source is 'flihgts', .* did you mean flights"):
        small_pipeline().source("flihgts")


def test_targets_may_be_written_short() -> None:
    assert channel_target("late") == ChannelTarget(name="late")
    assert table_target("lake") == TableTarget(path="lake")
    assert channel_target(None) is None
    assert describe_targets(ChannelTarget(column="to"), "lake") == (
        "channels of column to",
        "table lake",
    )


def test_a_channel_target_becomes_options_of_the_format() -> None:
    target = ChannelTarget(name="a", column="to", delta=True, options={"nulls": "absent"})

    assert target.sink_options() == {
        "channel": "a",
        "channelColumn": "to",
        "delta": "true",
        "nulls": "absent",
    }


@pytest.mark.parametrize("text", ["1 second", "500 ms", "as soon as possible", "available now"])
def test_a_trigger_may_be(text: str) -> None:
    check_trigger(text)


@pytest.mark.slow
def test_a_definition_is_read_without_spark(tmp_path: Path) -> None:
    (tmp_path / "flights.toml").write_text(WHOLE)
    program = (
        "import sys; from penstock_spark.pipelines import load; "
        f"load({str(tmp_path / 'flights.toml')!r}); print('pyspark' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("durable", [{}, {"bounded": True}])
def test_poison_is_buried_through_a_durable(durable: dict[str, Any]) -> None:
    other_source = {"name": "others", "channel": "others"}
    step = {**LATE, "sql": "SELECT * FROM flights, others", "poison": "bury"}

    with pytest.raises(InvalidArgument, match="step late: poison needs a durable"):
        small_pipeline(source=[{**FLIGHTS, **durable}, other_source], step=[step])


def test_a_step_that_reads_what_it_writes_is_refused() -> None:
    document = {
        "name": "loop",
        "source": [{"name": "orders", "channel": ["orders", "more"]}],
        "step": [{"name": "copy", "sql": "SELECT * FROM orders", "channel": "more"}],
    }

    with pytest.raises(InvalidArgument, match="step copy: copy writes the channel more, which"):
        parse(document)
    document["source"] = [{"name": "orders", "channel": "orders"}]
    assert parse(document).steps


@pytest.mark.parametrize("length", [2, 3])
def test_steps_that_read_what_they_write_through_one_another_are_refused(length: int) -> None:
    names = [f"c{number}" for number in range(length)]
    steps = [
        {
            "name": f"s{index}",
            "sql": f"SELECT * FROM c{index}",
            "channel": names[(index + 1) % length],
        }
        for index in range(length)
    ]
    document = {
        "name": "loop",
        "source": [{"name": name, "channel": name} for name in names],
        "step": steps,
    }

    with pytest.raises(InvalidArgument, match="each row would be read again") as caught:
        parse(document)
    assert str(caught.value).startswith("step s0: s0 writes the channel c1, s1 writes the channel")
    assert f"s{length - 1} writes the channel c0, which s0 reads as source c0" in str(caught.value)

    steps[-1]["channel"] = "end"
    assert len(parse(document).steps) == length, "a chain that meets itself nowhere"
    steps.append({"name": "twice", "sql": "SELECT * FROM c0, c1", "channel": "end"})
    assert len(parse(document).steps) == length + 1
