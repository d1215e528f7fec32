"""structlog is not loaded for lines that are not logged."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from penstock_core.loggers import Logger, logger, set_up_later

FIRST_EVENT = """
import json, sys
import penstock
from penstock_core.loggers import logger
with penstock.Realm() as realm, realm.connect() as session:
    session.channels.create("orders").publish(b"hello")
    loaded = [name for name in ("structlog", "rich", "pygments") if name in sys.modules]
    logger("penstock.test").warning("disk.slow", seconds=2)
    print(json.dumps([loaded, "structlog" in sys.modules]))
"""


@pytest.mark.process
def test_a_first_event_loads_no_structlog_and_a_first_warning_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_EVENT], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == [[], True]
    assert "disk.slow" in done.stderr
    assert "seconds=2" in done.stderr


def test_lines_of_each_level_are_those_of_structlog() -> None:
    log = logger("penstock.test")
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    with capture_logs() as lines:
        log.debug("a.seen", of=1)
        log.info("b.seen")
        log.warning("c.seen")
        log.error("d.seen")
        try:
            int("bad")
        except ValueError:
            log.exception("e.seen")
    structlog.configure(wrapper_class=before)

    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("a.seen", "debug"),
        ("b.seen", "info"),
        ("c.seen", "warning"),
        ("d.seen", "error"),
        ("e.seen", "error"),
    ]
    assert lines[0]["of"] == 1
    assert lines[4]["exc_info"]


def test_where_the_application_has_loaded_structlog_the_log_is_set_up_at_once() -> None:
    done: list[Any] = []
    set_up_later(lambda: done.append(1))
    Logger("penstock.test").debug("nothing.said")

    assert done == [1]
