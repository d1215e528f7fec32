"""The Java on the pages for users of other systems: all of it parses, and what is plain JMS runs
over an unmodified Apache Qpid JMS against a realm with the queues of its page."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock_testing.process import ServerProcess
from tests.docs.pages import COMING_FROM, Block, blocks
from tests.interop.programs import compile_java, parse_java, run_program

URL = "amqp://localhost:5672"
"""URL of the realm on the page."""
SAID_S = 60.0


def programs(page: str) -> list[Block]:
    """The Java of a page."""
    (page_path,) = [path for path in COMING_FROM if path.stem == page]
    return [block for block in blocks(page_path) if block.language == "java"]


def causes(queue: penstock.Queue) -> list[str]:
    """Why what is there has died."""
    return [event.origin.cause.partition(":")[0] for event in queue.peek(9) if event.origin]


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
def test_all_java_on_the_pages_is_java(tmp_path: Path) -> None:
    """Where the libraries cannot be had, too: that of Universal Messaging is not published."""
    written = []
    for page in COMING_FROM:
        for block in programs(page.stem):
            file = tmp_path / page.stem / block.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
            written.append(file)

    assert len(written) > 5
    assert parse_java(written) == []


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.spec("D18", "T10", "T11", "R2")
def test_the_programs_of_jms_do_what_their_page_says(
    realm: ServerProcess, amqp: str, tmp_path: Path
) -> None:
    texts = {program.file: program.text.replace(URL, amqp) for program in programs("jms")}
    classes = compile_java("qpid", texts, tmp_path)
    with penstock.connect(realm.url) as session, ThreadPoolExecutor(1) as elsewhere:
        failed = session.queues.create("failed", type="persistent")
        orders = session.queues.create(
            "orders", type="persistent", dead_event_store="failed", max_deliveries=3
        )

        run_program("qpid", classes, "Orders")
        (dead,) = failed.peek(9)
        assert (dead.properties["price"], *causes(failed)) == (-1.0, "redelivery_limit")
        assert orders.info().events == 0

        run_program("qpid", classes, "TryLater")
        assert orders.info().events == 0, "it is not there before its time"
        assert len(orders.scheduled.list()) == 1

        run_program("qpid", classes, "GiveUp")
        assert causes(failed) == ["redelivery_limit", "rejected"]

        rates = session.queues.create("rates")
        replying = elsewhere.submit(_reply, rates)
        assert run_program("qpid", classes, "Ask") == "1.25\n"
        replying.result(SAID_S)


def _reply(rates: penstock.Queue) -> None:
    """As the page's replier does, in the form that JMS takes for a text."""
    request = rates.pop(timeout=SAID_S)
    assert request is not None
    request.reply(b"1.25", headers={"amqp": '{"body":"text"}'})
