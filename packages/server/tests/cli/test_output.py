"""The output of commands: cells, tables, sizes, durations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import penstock
from penstock_server.cli.program import app
from penstock_server.cli.shared import parsers
from penstock_server.cli.shared.output import (
    TextTable,
    cell,
    count,
    duration,
    note,
    size,
    write,
    write_json,
    write_json_line,
)
from tests.commands import Run


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "true"),
        (7, "7"),
        (0.1 + 0.2, "0.3"),
        ("two\nlines", "two\\nlines"),
        ("caf\u00e9", "caf\u00e9"),
        (b"text", "text"),
        (b"\xff\x00\x01\x02\x03", "ff 00010203"),
        (
            datetime(2026, 5, 4, hour=12, minute=0, second=0, microsecond=1_500, tzinfo=UTC),
            "2026-05-04 12:00:00.001Z",
        ),
        ([{"a": 1}], '[{"a":1}]'),
        ("x" * 41, "x" * 39 + "\u2026"),
        (b"x" * 200, "x" * 39 + "\u2026"),
    ],
)
def test_a_cell_is_one_short_line(value: Any, text: str) -> None:
    assert cell(value) == text


def test_numbers_stand_right_and_words_left(capsys: pytest.CaptureFixture[str]) -> None:
    TextTable(("name", "n")).write([("a", 1), ("long", 100)])

    assert capsys.readouterr().out == "name    n\na       1\nlong  100\n"


def test_a_table_goes_on_without_another_header(capsys: pytest.CaptureFixture[str]) -> None:
    table = TextTable(("name",))
    table.write([])
    table.write([("a",)])
    table.write([("b",)])

    assert capsys.readouterr().out == "name\na\nb\n"


def test_counts_sizes_and_durations_read_as_people_say_them() -> None:
    assert [count(1, "event"), count(2_000, "event")] == ["1 event", "2,000 events"]
    assert [size(5), size(2_048), size(3 << 30)] == ["5 B", "2.0 KiB", "3.0 GiB"]
    assert [duration(5), duration(1_500), duration(90_000), duration(36 * 3_600_000)] == [
        "5 ms",
        "1.5 s",
        "1.5 min",
        "1.5 d",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=-1", -1),
        ("a=1e3", 1000.0),
        ("a=.5", 0.5),
        ("a=true", True),
        ("a=True", "True"),
        ("a=1.2.3", "1.2.3"),
        ("a=", ""),
        ("a=b=c", "b=c"),
        ("a:string=1", "1"),
        ("a:float=1", 1.0),
        ("a:bool=false", False),
        ("a:json=[1]", [1]),
        ("a:null=", None),
    ],
)
def test_a_property_has_the_type_it_looks_like(text: str, value: Any) -> None:
    parsed_value = parsers.properties([text])["a"]

    assert (type(parsed_value), parsed_value) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500", 500),
        ("500ms", 500),
        ("10s", 10_000),
        ("1.5h", 5_400_000),
        ("0.1ms", 1),
        ("1d", 86_400_000),
        (f"{1 << 50}", 1 << 50),
    ],
)
def test_durations_have_units(text: str, ms: int) -> None:
    assert parsers.milliseconds(text) == ms


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parsers.start("2026-05-04T12:00") == datetime(2026, 5, 4, hour=12, tzinfo=UTC)
    assert parsers.start("2026-05-04T12:00+02:00") == datetime(2026, 5, 4, hour=10, tzinfo=UTC)
    assert [parsers.start("earliest"), parsers.start("17")] == ["earliest", 17]


OBEYED = "\x1b]0;taken\x07\x9b31m\u202eback\u2028\x7f"
"""Characters that control a terminal, or change the order of a line."""


def test_terminal_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    write(f"größe 日 {OBEYED}\nnext line")
    note(OBEYED)
    TextTable(("name",)).write([(OBEYED,)])
    write_json({"name": OBEYED, "nested": [f"ä{OBEYED}"]})
    write_json_line({"name": OBEYED})

    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    assert all(line.isprintable() for line in lines)
    assert lines[0] == r"größe 日 \x1b]0;taken\x07\x9b31m\u202eback\u2028\x7f"
    assert lines[1] == "next line"
    document = printed.out[printed.out.index("{") :]
    assert msgspec.json.decode(document.split("\n{")[0]) == {
        "name": OBEYED,
        "nested": [f"ä{OBEYED}"],
    }
    assert msgspec.json.decode(document.splitlines()[-1]) == {"name": OBEYED}


def test_no_command_prints_terminal_control_characters(
    penstock_command: Run, session: penstock.Session
) -> None:
    orders = session.channels.create("orders")
    orders.durables.create("billing", type="shared", selector=f"sku <> '{OBEYED}'")
    orders.publish(
        OBEYED.encode(), tag=OBEYED, properties={f"{OBEYED}": OBEYED, "sku": ["x", OBEYED]}
    )
    session.queues.create("work").push(b"x", tag=OBEYED)

    for line in (
        "channel show orders",
        "durable show orders billing",
        "durable list orders",
        "browse orders",
        "browse orders --format json",
        "durable browse orders billing",
        "durable show orders billing --format json",
        "queue peek work",
        "queue peek work",
        f"browse orders --selector {OBEYED}",
        f"browse {OBEYED}",
        f"channel create {OBEYED}",
        f"durable show orders {OBEYED}",
        f"selector check {OBEYED}",
    ):
        done = penstock_command(*line.split(" "))
        for printed in done.output.split("\n"):
            assert printed.isprintable(), (line, printed)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "--{}=3",
        "channel {}",
        "channel list {}",
        "channel list --{}",
        "channel list -{}",
        "channel list --form{}",
        "channel list --format {}",
        "channel list --help={}",
        "serve --port {}",
        "browse x --from {}",
        "publish x y --property {}",
        "channel create x --ttl {}",
        "browse x --count {}",
    ],
)
def test_wrong_arguments_come_back_as_text_and_on_their_line(line: str) -> None:
    argument = f"{OBEYED}\nerror:forged"

    done = CliRunner().invoke(app, [part.format(argument) for part in line.split(" ")])

    assert done.exit_code == 2
    lines = done.output.split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("error:forged") for line in lines)
