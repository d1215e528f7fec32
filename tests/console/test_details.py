"""Small parts of pages of the console: texts of refusals, fields of forms, rows of tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import expect

import penstock
from penstock_testing.process import ServerProcess
from tests.console.conftest import PATIENCE_MS, Api, Opened, place

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)


def test_the_caret_of_a_selectors_mistake_stands_below_it(opened: Opened, api: Api) -> None:
    api.create("careted")
    page = opened("#/patterns?view=live&pattern=careted")
    page.get_by_label("Selector").fill("price >")
    page.get_by_role("button", name="Watch").click()

    shown = page.get_by_role("alert").locator(".lines")
    expect(shown).to_contain_text("^")
    style = "node => [getComputedStyle(node).whiteSpace, getComputedStyle(node).fontFamily]"
    space, font = shown.evaluate(style)
    assert space == "pre-wrap"
    assert "monospace" in font


@pytest.mark.parametrize(("typed", "ttl"), [("1.5s", 1_500), ("2d", 172_800_000), ("250", 250)])
def test_a_time_to_live_is_typed_with_its_unit(
    opened: Opened, api: Api, typed: str, ttl: int
) -> None:
    path = api.create(f"lives-{ttl}")
    page = opened(place(f"lives-{ttl}", "publish"))
    page.get_by_role("textbox", name="Data", exact=True).fill("short")
    page.get_by_label("Time to live").fill("soon")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text(
        '"soon" is not a duration in whole milliseconds'
    )
    page.get_by_label("Time to live").fill(typed)
    page.get_by_role("button", name="Publish", exact=True).click()

    expect(page.get_by_text("Last published: event 0")).to_be_visible()
    if ttl > 60_000:
        assert api.ask("GET", f"{path}/events")["items"][0]["ttl"] == ttl


def test_reasons_of_dead_events_that_differ_in_numbers_are_one_row(
    opened: Opened, api: Api, server: ServerProcess
) -> None:
    api.create("dead/parcels")
    path = api.create("parcels", dead_event_store="dead/parcels")
    api.ask("POST", f"{path}/durables", {"name": "sorting", "start": "earliest"})
    api.publish(path, *({"data": f"{number}"} for number in range(5)))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_reject_all, server.url, 5).result()
    page = opened("#/dead/dead%2Fparcels")

    row = page.get_by_role("row", name="rejected")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("parcel … of order … is lost")
    expect(row).to_contain_text("5 similar reasons")


@pytest.mark.parametrize(
    ("attributes", "values_by_label"),
    [
        ({}, {"Backoff": "none", "Acknowledgement timeout": "no limit"}),
        (
            {"backoff": {"first": 1_000, "most": 60_000}, "ack_timeout": 30_000, "order_by": "sku"},
            {"Backoff": "1 s, then", "Acknowledgement timeout": "30 s", "Order by": "sku"},
        ),
    ],
)
def test_attributes_of_a_durable_are_shown_whether_they_are_set_or_not(
    opened: Opened, api: Api, attributes: dict[str, Any], values_by_label: dict[str, str]
) -> None:
    name = f"attributes-{len(attributes)}"
    path = api.create(name)
    api.ask("POST", f"{path}/durables", {"name": "billing", "type": "serial", **attributes})
    page = opened(place(name, "durables", "billing"))

    facts = page.locator(".facts")
    for label, value in values_by_label.items():
        row = facts.locator("dt", has_text=label).locator("+ dd")
        expect(row).to_contain_text(value)


def _reject_all(url: str, count: int) -> None:
    with penstock.connect(url) as session:
        durable = session.channels.get("parcels").durables.get("sorting")
        for number, event in enumerate(durable.fetch(count, timeout=30)):
            event.reject(f"parcel {number} of order {7 * number} is lost")
        durable.flush()
