"""``penstock subscribe`` and ``penstock browse``."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import ipc

from packages.client.tests.archiving import Archiver
from penstock.client.sync.sync import Channel, Session
from tests.patience import until

if TYPE_CHECKING:
    from tests.commands import Run


def ids(lines: str) -> list[int]:
    return [json.loads(line)["event_id"] for line in lines.splitlines()]


def test_a_table_has_a_column_for_each_property(penstock_command: Run, orders: Channel) -> None:
    header, *rows = penstock_command("browse", "orders").stdout.splitlines()

    assert header.split() == ["event_id", "published", "data", "price"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[2].endswith("event 2      2")


def test_browse_reads_matching_events_in_a_range(penstock_command: Run, orders: Channel) -> None:
    printed = penstock_command(
        "browse",
        "orders",
        "--from",
        "1",
        "--to",
        "3",
        "--selector",
        "price <> 2",
        "--format",
        "json",
    )

    assert ids(printed.stdout) == [1, 3]


def test_browse_stops_after_so_many(penstock_command: Run, orders: Channel) -> None:
    printed = penstock_command("browse", "orders", "--count", "2", "--format", "json")

    assert ids(printed.stdout) == [0, 1]


def test_browse_without_events_prints_a_message(penstock_command: Run, orders: Channel) -> None:
    printed = penstock_command("browse", "orders", "--from", "100")

    assert (printed.exit_code, printed.stdout) == (0, "no such events on orders\n")


def test_an_arrow_stream_has_all_events_under_one_schema(
    penstock_command: Run, orders: Channel
) -> None:
    orders.publish(b"odd", properties={"note": "later"})

    printed = penstock_command("browse", "orders", "--format", "arrow")
    table = ipc.open_stream(printed.stdout_bytes).read_all()

    assert table["price"].to_pylist() == [0, 1, 2, 3, 4, None]
    assert table["note"].to_pylist() == [None] * 5 + ["later"]


@pytest.mark.spec("E10")
def test_an_arrow_stream_has_one_column_for_numbers_or_a_note(
    penstock_command: Run, orders: Channel
) -> None:
    orders.publish(properties={"price": 9.5})

    printed = penstock_command("browse", "orders", "--format", "arrow")
    table = ipc.open_stream(printed.stdout_bytes).read_all()
    assert table["price"].to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0, 9.5]
    assert printed.stderr == ""

    orders.publish(properties={"price": (1 << 53) + 1})
    printed = penstock_command("browse", "orders", "--format", "arrow")
    table = ipc.open_stream(printed.stdout_bytes).read_all()
    assert table["price::int"].to_pylist() == [0, 1, 2, 3, 4, None, (1 << 53) + 1]
    assert printed.stderr.startswith("price: some integers are beyond 2**53")


def test_an_arrow_stream_of_nothing_is_a_stream(penstock_command: Run, orders: Channel) -> None:
    printed = penstock_command("browse", "orders", "--from", "9", "--format", "arrow")
    table = ipc.open_stream(printed.stdout_bytes).read_all()

    assert (table.num_rows, table.schema.field("event_id").type) == (0, pa.int64())


@pytest.mark.spec("E6")
@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [0, 1, 2, 3, 4]), ("3", [3, 4]), ("2000-01-01", [0, 1, 2, 3, 4]), ("latest", [])],
)
def test_subscribe_begins_at_the_start_position(
    penstock_command: Run, orders: Channel, start: str, expected: list[int]
) -> None:
    printed = penstock_command(
        "subscribe", "orders", "--from", start, "--timeout", "0.1", "--format", "json"
    )

    assert ids(printed.stdout) == expected


def test_subscribe_stops_after_so_many(penstock_command: Run, orders: Channel) -> None:
    printed = penstock_command(
        "subscribe", "orders", "--from", "1", "--count", "2", "--format", "json"
    )

    assert ids(printed.stdout) == [1, 2]


def test_data_that_is_no_text_is_base64_in_json(penstock_command: Run, orders: Channel) -> None:
    orders.publish(b"\xff\x00")

    printed = penstock_command("browse", "orders", "--from", "5", "--format", "json")

    assert json.loads(printed.stdout)["data_base64"] == "/wA="


def test_printed_events_of_a_durable_are_acknowledged(
    penstock_command: Run, orders: Channel
) -> None:
    durable = orders.durables.create("billing", type="shared", selector="price > 0")

    printed = penstock_command(
        "subscribe", "orders", "--durable", "billing", "--count", "3", "--format", "json"
    )
    info = durable.info()

    assert ids(printed.stdout) == [1, 2, 3]
    assert (info.outstanding, info.redelivered, info.clients) == (1, 0, ())


@pytest.mark.spec("D18")
@pytest.mark.parametrize("name", ["orders", "order?"], ids=["by name", "by pattern"])
def test_printed_events_of_a_durable_are_rolled_back_with_a_delay(
    penstock_command: Run, orders: Channel, name: str
) -> None:
    durable = orders.durables.create("billing", type="shared")
    of_durable = ("subscribe", name, "--durable", "billing", "--format", "json")

    printed = penstock_command(*of_durable, "--count", "2", "--rollback", "--delay", "1h")
    others = penstock_command(*of_durable, "--timeout", "0.3")
    info = durable.info()

    assert (ids(printed.stdout), ids(others.stdout)) == ([0, 1], [2, 3, 4])
    assert (info.outstanding, info.waiting, info.redelivered) == (2, 2, 2)


@pytest.mark.spec("D18", "D21")
@pytest.mark.parametrize("name", ["orders", "order?"], ids=["by name", "by pattern"])
def test_rolled_back_events_of_a_durable_are_counted_once(
    penstock_command: Run, orders: Channel, name: str
) -> None:
    durable = orders.durables.create("billing", type="shared")
    of_durable = ("subscribe", name, "--durable", "billing", "--format", "json")

    for _ in range(3):
        penstock_command(*of_durable, "--count", "1", "--rollback")

    lines = penstock_command(*of_durable, "--timeout", "0.3").stdout.splitlines()
    counts = [json.loads(line).get("redelivery_count", 0) for line in lines]
    assert counts == [3, 0, 0, 0, 0]
    assert durable.info().clients == ()


@pytest.mark.spec("D22")
def test_a_durable_of_a_pattern_is_consumed_also_of_a_channel_made_meanwhile(
    penstock_command: Run, session: Session
) -> None:
    session.channels.create("shop/eu")
    session.durables.create("shop/*", "billing")
    command = ("subscribe", "shop/*", "--durable", "billing", "--format", "json", "--count", "2")

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(penstock_command, *command)
        until(lambda: session.channels.get("shop/eu").durables.get("billing").info().clients)
        session.channels.create("shop/us").publish(b"first")
        session.channels.delete("shop/eu")
        session.channels.create("shop/eu").publish(b"made again")
        printed = [json.loads(line) for line in waits.result(60).stdout.splitlines()]
    assert sorted((event["channel"], event["data"]) for event in printed) == [
        ("shop/eu", "made again"),
        ("shop/us", "first"),
    ]


def test_a_durable_that_no_channel_of_a_pattern_has_is_refused(
    penstock_command: Run, session: Session
) -> None:
    session.channels.create("shop/eu")

    refused = penstock_command("subscribe", "shop/*", "--durable", "none", "--timeout", "0.1")
    assert refused.exit_code == 1
    assert "no channel of shop/* that you may read has a durable none" in refused.stderr


@pytest.mark.spec("T11")
@pytest.mark.parametrize("name", ["orders", "order?"], ids=["by name", "by pattern"])
def test_printed_events_of_a_durable_are_rejected_with_a_reason(
    session: Session, penstock_command: Run, orders: Channel, name: str
) -> None:
    session.channels.create("dead")
    orders.edit(dead_event_store="dead")
    durable = orders.durables.create("billing", type="shared")
    rejecting = ("subscribe", name, "--durable", "billing", "--reject", "no such customer")

    penstock_command(*rejecting, "--count", "2")

    dead = list(session.channels.get("dead").browse())
    assert [(event.origin.event_id, event.origin.reason) for event in dead if event.origin] == [
        (0, "no such customer"),
        (1, "no such customer"),
    ]
    assert durable.info().outstanding == 3


def test_a_durable_with_nothing_left_ends_at_the_timeout(
    penstock_command: Run, orders: Channel
) -> None:
    orders.durables.create("billing", type="exclusive", start="latest")

    printed = penstock_command("subscribe", "orders", "--durable", "billing", "--timeout", "0")

    assert (printed.exit_code, printed.stdout, printed.stderr) == (0, "", "no events arrived\n")


def test_a_redelivered_event_is_printed_with_its_count(
    penstock_command: Run, orders: Channel
) -> None:
    durable = orders.durables.create("billing", type="shared")
    for event in durable.fetch(1, timeout=5.0):
        event.rollback()
    durable.close()

    printed = penstock_command("subscribe", "orders", "--durable", "billing", "--count", "1")
    header, row = printed.stdout.splitlines()

    assert header.split()[2] == "redelivered"
    assert row.split()[0] == "0"


def test_a_bad_selector_is_shown_with_the_place(penstock_command: Run, orders: Channel) -> None:
    refused = penstock_command("subscribe", "orders", "--selector", "price >> 5")
    sentence, text, caret = refused.stderr.splitlines()

    assert refused.exit_code == 1
    assert sentence.endswith("expected a value after '>', found '>' [invalid-selector]")
    assert text[caret.index("^")] == ">"
    assert text.strip() == "price >> 5"


def test_a_held_durable_is_refused(
    penstock_command: Run, session: Session, orders: Channel
) -> None:
    durable = orders.durables.create("billing", type="exclusive")
    with durable.subscribe():
        refused = penstock_command("subscribe", "orders", "--durable", "billing", "--count", "1")

    assert refused.exit_code == 1
    assert refused.stderr.endswith("[durable-in-use]\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--from", "yesterday"],
            "'yesterday' is not a start position; give earliest, latest, an event id",
        ),
        (["--durable", "d", "--from", "0"], "a durable has its own start and selector"),
        (["--durable", "d", "--selector", "a = 1"], "a durable has its own start and selector"),
        (["--durable", "d", "--format", "arrow"], "use --format json"),
        (["--rollback"], "need --durable"),
        (["--reject", "no"], "need --durable"),
        (["--durable", "d", "--reject", "no", "--rollback"], "use one of them"),
        (["--durable", "d", "--delay", "5s"], "--delay needs --rollback"),
        (["--durable", "d", "--rollback", "--count", "1001"], "may not exceed 1000"),
        (["--format", "xml"], "xml"),
        (["--count", "0"], "--count"),
    ],
)
def test_wrong_usage_exits_with_2(
    penstock_command: Run, orders: Channel, arguments: list[str], message: str
) -> None:
    refused = penstock_command("subscribe", "orders", *arguments)

    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())


@pytest.mark.spec("T9")
@pytest.mark.parametrize(
    "command", ["browse orders", "channel purge orders --yes", "durable purge orders d --yes"]
)
def test_a_range_of_no_events_is_refused(
    penstock_command: Run, orders: Channel, command: str
) -> None:
    orders.durables.create("d")

    refused = penstock_command(*command.split(), "--from", "5", "--to", "2")

    assert refused.exit_code == 1
    assert "start is 5 and end is 2, an empty range" in refused.stderr


def test_events_that_have_left_are_read_from_the_archive(
    penstock_command: Run, session: Session, orders: Channel, tmp_path: Path
) -> None:
    archiver = Archiver(session, orders, tmp_path / "lake")
    archiver.move(3)
    orders.edit(archive=archiver.uri)

    back = penstock_command(
        "subscribe", "orders", "--from", "1", "--count", "4", "--format", "json"
    )
    only = penstock_command(
        "subscribe",
        "orders",
        "--from",
        "1",
        "--archive",
        "",
        "--count",
        "2",
        "--format",
        "json",
    )
    assert (ids(back.stdout), ids(only.stdout)) == ([1, 2, 3, 4], [3, 4])
    for options, expected in (
        ((), [3, 4]),
        (("--archived",), [0, 1, 2, 3, 4]),
        (("--archive", archiver.uri), [0, 1, 2, 3, 4]),
    ):
        assert ids(penstock_command("browse", "orders", *options, "--format", "json").stdout) == (
            expected
        )
    durable = penstock_command("subscribe", "orders", "--durable", "d", "--archive", "x")
    assert durable.exit_code == 2
    assert "leave out --archive" in durable.stderr


@pytest.mark.spec("D21")
def test_a_pattern_prints_the_events_of_all_its_channels(
    penstock_command: Run, session: Session
) -> None:
    for name in ("shop/eu", "shop/us", "other"):
        session.channels.create(name).publish(name.encode(), properties={"channel": 5})
    command = ("subscribe", "shop/*", "--from", "earliest", "--timeout", "0.1")

    lines = penstock_command(*command, "--format", "json").stdout.splitlines()
    printed_events = [json.loads(line) for line in lines]
    assert sorted((event["channel"], event["data"]) for event in printed_events) == [
        ("shop/eu", "shop/eu"),
        ("shop/us", "shop/us"),
    ]

    header, *rows = penstock_command(*command).stdout.splitlines()
    assert header.split() == ["channel", "event_id", "published", "data", "properties.channel"]
    assert sorted(row.split()[0] for row in rows) == ["shop/eu", "shop/us"]

    printed = penstock_command(*command, "--format", "arrow")
    table = ipc.open_stream(printed.stdout_bytes).read_all()
    assert sorted(table["channel"].to_pylist()) == ["shop/eu", "shop/us"]
    assert table["properties.channel"].to_pylist() == [5, 5]

    again = penstock_command("publish", "other", "--file", "-", stdin="\n".join(lines))
    assert again.exit_code == 0, again.stderr
    assert session.channels.get("other").info().events == 3


@pytest.mark.spec("D21")
def test_a_durable_of_a_pattern_is_consumed_up_to_a_limit(
    penstock_command: Run, session: Session
) -> None:
    for name in ("shop/eu", "shop/us"):
        channel = session.channels.create(name)
        channel.durables.create("billing", type="shared")
        for n in range(3):
            channel.publish(b"%d" % n)
    command = ("subscribe", "shop/*", "--durable", "billing", "--timeout", "0.1")

    first = penstock_command(*command, "--count", "4", "--format", "json").stdout.splitlines()
    rest = penstock_command(*command, "--format", "json").stdout.splitlines()

    printed = [json.loads(line) for line in (*first, *rest)]
    assert (len(first), len(rest)) == (4, 2)
    assert not any("redelivery_count" in event for event in printed), "what is left was not taken"
    assert sorted((event["channel"], event["data"]) for event in printed) == [
        (name, str(n)) for name in ("shop/eu", "shop/us") for n in range(3)
    ]


@pytest.mark.spec("D21")
def test_a_channel_that_is_called_like_a_pattern_is_meant_by_it(
    penstock_command: Run, session: Session
) -> None:
    for name in ("a*", "ab"):
        session.channels.create(name).publish(name.encode())

    printed = penstock_command(
        "subscribe", "a*", "--from", "earliest", "--timeout", "0.1", "--format", "json"
    )

    assert [json.loads(line)["data"] for line in printed.stdout.splitlines()] == ["a*"]
    refused = penstock_command("subscribe", "b*", "--archive", "")
    assert "does not read archives" in refused.stderr
