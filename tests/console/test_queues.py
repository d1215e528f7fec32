"""Queues in the console: events pushed, peeked at and taken, and requests with their replies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import expect

import penstock
from penstock_testing.process import ServerProcess
from tests.console.conftest import PATIENCE_MS, Api, Opened, place, tab

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)


def test_a_queue_is_pushed_to_and_peeked_at(opened: Opened, api: Api) -> None:
    api.create("work", kind="queue")
    page = opened(place("work", "publish", kind="queue"))
    page.get_by_role("textbox", name="Data", exact=True).fill("a job")
    page.get_by_role("button", name="Push", exact=True).click()
    expect(page.get_by_text("Last published: event 0")).to_be_visible()

    tab(page, "Events")
    expect(page.locator("button.event-row", has_text="a job").first).to_be_visible()
    assert api.ask("GET", "/queues/work")["events"] == 1


@pytest.mark.spec("R1")
def test_a_request_shows_its_reply_or_that_none_has_come(
    opened: Opened, api: Api, server: ServerProcess, elsewhere: ThreadPoolExecutor
) -> None:
    api.create("rates", kind="queue")
    page = opened(place("rates", "publish", kind="queue"))
    page.get_by_role("textbox", name="Data", exact=True).fill("EUR")
    replying = elsewhere.submit(_reply_once, server.url)

    page.get_by_label("Timeout, s").fill("30")
    page.get_by_role("button", name="Request", exact=True).click()
    reply = page.get_by_role("status").filter(has_text="1.25")
    expect(reply).to_contain_text('"from": "ECB"')
    assert replying.result(PATIENCE_MS / 1_000) == b"EUR"

    page.get_by_label("Timeout, s").fill("soon")
    page.get_by_role("button", name="Request", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text('"soon" is not a number of seconds above 0')
    expect(reply).to_have_count(0)
    page.get_by_label("Timeout, s").fill("0.2")
    page.get_by_role("button", name="Request", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("no-reply")


def _reply_once(url: str) -> bytes:
    with penstock.connect(url) as session:
        request = session.queues.get("rates").pop(timeout=PATIENCE_MS / 1_000)
        assert request is not None
        request.reply(b"1.25", properties={"from": "ECB"})
        return request.data


def test_a_queue_is_exported_imported_and_an_event_taken(opened: Opened, api: Api) -> None:
    api.create("jobs", kind="queue")
    api.ask("POST", "/queues/jobs/events", {"data": "first"})
    page = opened(place("jobs", "settings", kind="queue"))
    with page.expect_download() as started:
        page.get_by_role("link", name="Export", exact=True).click()
    assert started.value.suggested_filename == "jobs.tar"

    page.get_by_role("button", name="Pop", exact=True).click()
    expect(page.get_by_text("Event 0 was popped")).to_be_visible()
    expect(page.locator(".acts-list")).to_contain_text("first")
    page.get_by_role("button", name="Pop", exact=True).click()
    expect(page.get_by_text("The queue has no event to pop.")).to_be_visible()

    page.get_by_role("link", name="Import", exact=True).click()
    page.get_by_label("Export file (.tar)").set_input_files(started.value.path())
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_text("name-already-bound")).to_be_visible()
    page.get_by_label("New name").fill("again")
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_role("heading", name="again")).to_be_visible()
    assert api.ask("GET", "/queues/again")["events"] == 1
