"""The two formats of the log, and the setting that selects the logged lines."""

from __future__ import annotations

import io
import json
import logging
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
import structlog

import penstock
from penstock.client.connection.connection import RealmConnection
from penstock.client.connection.urls import parse_url
from penstock_server.logs import LEFT_OUT, LINES_A_SECOND, configure, configure_unless_done
from penstock_testing.loop import pass_time, simulated

pytestmark = pytest.mark.usefixtures("untouched_logging")


def test_json_lines_begin_with_when_how_bad_and_what() -> None:
    out = io.StringIO()
    configure("info", "json", out)

    structlog.get_logger().info("durable.rolled_back", durable="billing", events=3)
    entry = json.loads(out.getvalue())

    assert list(entry) == ["timestamp", "level", "event", "durable", "events"]
    assert (entry["level"], entry["event"]) == ("info", "durable.rolled_back")


def test_text_is_one_line_an_event() -> None:
    out = io.StringIO()
    configure("info", "text", out)

    structlog.get_logger().warning("realm.damage", what="block 7")

    line = out.getvalue()
    assert line.endswith("[warning  ] realm.damage         what='block 7'\n")
    assert datetime.fromisoformat(line.partition(" [")[0]).tzinfo is not None


OBEYED = "\x1b]0;taken\x07\x9b31m\u202eback\u2028\x7f\r\n2026-01-01 [info] forged"
"""A name that a client may choose, or an error text that it may cause, with control characters."""
SHOWN = r"\x1b]0;taken\x07\x9b31m\u202eback\u2028\x7f\r\n2026-01-01 [info] forged"


def fail() -> None:
    raise ValueError(OBEYED)


class Person:
    def __repr__(self) -> str:
        return OBEYED


def test_control_characters_in_a_name_are_escaped() -> None:
    out = io.StringIO()
    configure("info", "text", out)
    log = structlog.get_logger()

    log.info(OBEYED, client=OBEYED, names=[OBEYED], person=Person(), n=3, some=None)
    log.info("a.b", client="größe 日", n=3)
    logging.getLogger("other").error("of another library: %s", OBEYED)

    first, second, third = out.getvalue().removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in (first, second, third))
    assert SHOWN in first
    assert f"person={SHOWN} n=3 some=None" in first
    assert second.endswith("client='größe 日' n=3")
    assert third.endswith(f"of another library: {SHOWN}")


@pytest.mark.parametrize("logged_by", ["penstock", "another library"])
def test_the_text_of_an_error_begins_no_line_of_the_log(logged_by: str) -> None:
    out = io.StringIO()
    configure("info", "text", out)
    try:
        fail()
    except ValueError:
        if logged_by == "penstock":
            structlog.get_logger().exception("request.failed")
        else:
            logging.getLogger("other").exception("request.failed")

    lines = out.getvalue().removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert "    Traceback (most recent call last):" in lines
    assert [line for line in lines if not line.startswith("    ")] == lines[:1]
    assert "2026-01-01 [info] forged" in lines[-1]


def test_json_lines_have_the_same_name_in_printable_characters() -> None:
    out = io.StringIO()
    configure("info", "json", out)
    try:
        fail()
    except ValueError:
        structlog.get_logger().exception(OBEYED, client=OBEYED, names=[OBEYED])

    line = out.getvalue().removesuffix("\n")
    assert line.isprintable()
    entry = json.loads(line)
    assert (entry["event"], entry["client"], entry["names"]) == (OBEYED, OBEYED, [OBEYED])
    assert OBEYED in entry["exception"]


@pytest.mark.parametrize(("level", "lines"), [("debug", 3), ("warning", 1), ("error", 0)])
def test_lines_below_the_level_are_left_out(level: str, lines: int) -> None:
    out = io.StringIO()
    configure(level, "json", out)  # type: ignore[arg-type]  # the three are levels

    log = structlog.get_logger()
    log.debug("a")
    log.info("b")
    log.warning("c")

    assert len(out.getvalue().splitlines()) == lines


def test_other_libraries_come_out_in_the_same_form() -> None:
    out = io.StringIO()
    configure("info", "json", out)

    logging.getLogger("asyncio").error("socket.accept() out of system resource")
    entry = json.loads(out.getvalue())

    assert (entry["level"], entry["event"]) == ("error", "socket.accept() out of system resource")


def test_a_traceback_is_a_value_in_json() -> None:
    out = io.StringIO()
    configure("info", "json", out)

    structlog.get_logger().error("connection.failed", exc_info=ValueError("bad"))

    assert "ValueError: bad" in json.loads(out.getvalue())["exception"]


def test_the_configuration_of_the_application_is_kept() -> None:
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    chosen = structlog.get_config()["processors"]

    configure_unless_done()

    assert structlog.get_config()["processors"] is chosen


def test_an_embedded_realm_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    structlog.reset_defaults()
    with penstock.Realm() as realm, realm.connect() as session:
        session.channels.create("orders").publish(b"x")

    assert capfd.readouterr() == ("", "")


def test_the_client_warns_where_the_application_listens(caplog: pytest.LogCaptureFixture) -> None:
    RealmConnection(parse_url("penstock://localhost")).report(penstock.CapacityReached("full"))

    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("penstock.client", "WARNING")
    ]
    assert caplog.messages == ["session.error: full [capacity-reached]"]


class Clock:
    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        return self.us


def written(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_storm_of_one_event_is_limited_and_reported_and_other_events_are_logged() -> None:
    out, clock = io.StringIO(), Clock()
    configure("info", "json", out, steady_us=clock)
    log = structlog.get_logger()

    for number in range(LINES_A_SECOND + 250):
        log.info("connection.opened", connection=number)
    log.info("store.created", name="orders")
    clock.us += 1_000_000
    log.info("connection.opened", connection=-1)

    lines = written(out)
    opened = [entry["connection"] for entry in lines if entry["event"] == "connection.opened"]
    assert opened == [*range(LINES_A_SECOND), -1]
    assert [entry["name"] for entry in lines if entry["event"] == "store.created"] == ["orders"]
    (left_out,) = [entry for entry in lines if entry["event"] == LEFT_OUT]
    assert (left_out["of"], left_out["lines"]) == ("connection.opened", 250)
    assert left_out["level"] == "warning"


def test_a_long_storm_is_reported_every_second_and_all_lines_are_counted() -> None:
    out, clock = io.StringIO(), Clock()
    configure("info", "json", out, steady_us=clock)
    log = structlog.get_logger()

    for _ in range(4):
        for _ in range(LINES_A_SECOND * 2):
            log.info("connection.opened")
            log.warning("connection.refused")
        clock.us += 1_000_000
    log.info("realm.stopped")

    left_out_counts: Counter[str] = Counter()
    lines = written(out)
    for entry in lines:
        if entry["event"] == LEFT_OUT:
            left_out_counts[entry["of"]] += entry["lines"]
    kept = Counter(entry["event"] for entry in lines)
    assert left_out_counts == {
        name: LINES_A_SECOND * 4 for name in ("connection.opened", "connection.refused")
    }
    assert kept["connection.opened"] == kept["connection.refused"] == LINES_A_SECOND * 4


@simulated
async def test_the_end_of_a_storm_is_reported_without_other_log_lines() -> None:
    out, clock = io.StringIO(), Clock()
    configure("info", "json", out, steady_us=clock)

    for _ in range(LINES_A_SECOND + 3):
        structlog.get_logger().info("connection.closed")
    await pass_time(2)

    assert written(out)[-1]["lines"] == 3


def test_debug_lines_are_not_limited() -> None:
    out = io.StringIO()
    configure("debug", "json", out, steady_us=Clock())

    for _ in range(LINES_A_SECOND * 3):
        structlog.get_logger().debug("channel.sealed")

    assert len(written(out)) == LINES_A_SECOND * 3
