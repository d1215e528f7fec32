"""The log's two forms, and who decides what is logged."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest
import structlog

import penstock
from penstock.client.session import Session
from penstock.client.urls import parse_url
from penstock.logs import configure, configure_unless_done


@pytest.fixture(autouse=True)
def _untouched_logging() -> Iterator[None]:
    before, level = logging.root.handlers[:], logging.root.level
    chosen = structlog.get_config() if structlog.is_configured() else None
    yield
    logging.root.handlers[:] = before
    logging.root.setLevel(level)
    structlog.reset_defaults()
    if chosen is not None:
        structlog.configure(**chosen)


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


def test_what_the_application_has_set_up_stays() -> None:
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
    Session(parse_url("penstock://localhost")).report(penstock.CapacityReached("full"))

    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("penstock.client", "WARNING")
    ]
    assert caplog.messages == ["session.error: full [capacity-reached]"]
