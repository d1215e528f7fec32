"""The overview of a realm in which events have died, on a laptop and on a phone."""

from __future__ import annotations

from contextlib import closing

import pytest
from playwright.sync_api import expect

import penstock
from penstock.testing.process import ServerProcess
from tests.console.conftest import PATIENCE_MS, PHONE, Opened

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def rejected(server: ServerProcess) -> None:
    """One of two durables gives up three events; the other one still wants them."""
    with penstock.connect(server.url) as session:
        session.channels.create("dd")
        channel = session.channels.create("orders", type="persistent", dead_event_store="dd")
        first, _ = channel.durables.create("first"), channel.durables.create("second")
        channel.publish_many([penstock.Event(b"x")] * 10)
        with closing(first):
            for event in first.fetch(3, timeout=30.0):
                event.reject("cannot be read")


@pytest.mark.usefixtures("rejected")
def test_events_that_one_durable_gave_up_have_died(opened: Opened) -> None:
    page = opened("#/")

    row = page.get_by_role("table", name="Channels with dead events").get_by_role("row").nth(1)
    expect(row).to_contain_text("orders")
    expect(row).to_contain_text("3")
    expect(page.get_by_text("No event has died")).to_have_count(0)


@pytest.mark.usefixtures("rejected")
@pytest.mark.parametrize(
    "at", ["#/", "#/channel/orders/durables", "#/connections", "#/dead", "#/joins"]
)
def test_pages_with_tables_are_as_wide_as_a_phone(opened: Opened, at: str) -> None:
    page = opened(at, PHONE, is_mobile=True)
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)

    assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    assert page.evaluate("innerWidth") == PHONE[0]


@pytest.mark.usefixtures("rejected")
def test_after_opening_a_store_from_the_filter_keys_are_commands_again(opened: Opened) -> None:
    page = opened("#/")
    expect(page.get_by_role("treeitem", name="orders")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("orders")

    page.keyboard.press("?")

    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value("orders")
