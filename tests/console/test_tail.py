"""The live tail, with a stream whose events come when the test says."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import PATIENCE_MS, Api, Opened, place

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)

STREAM = """() => {
  const real = window.fetch, encoder = new TextEncoder();
  let source;
  const body = new ReadableStream({ start(controller) { source = controller; } });
  window.fetch = (at, asked) =>
    (at.includes("/live") ? Promise.resolve(new Response(body)) : real(at, asked));
  window.arrive = (event_id) => {
    const event = { event_id, published: "2026-01-01T00:00:00Z", data: `event ${event_id}` };
    source.enqueue(encoder.encode(`event: event\\ndata: ${JSON.stringify(event)}\\n\\n`));
  };
}"""


def tail(opened: Opened, api: Api, name: str) -> Page:
    """The live view of a new channel, with one event in it."""
    api.create(name)
    page = opened(place(name, "events"))
    page.evaluate(STREAM)
    page.get_by_role("button", name="Live", exact=True).click()
    expect(page.get_by_text("Watching")).to_be_visible()
    page.evaluate("arrive(0)")
    expect(page.get_by_text("event 0")).to_be_visible()
    return page


def press(page: Page, name: str, then: str) -> None:
    """Press a button, and do something before the browser draws again."""
    buttons = '[...document.querySelectorAll("button")]'
    button = f'{buttons}.find((each) => each.textContent === "{name}")'
    page.evaluate(f"() => {{ {button}.click(); {then}; }}")


def test_an_event_that_comes_while_the_page_pauses_is_counted(opened: Opened, api: Api) -> None:
    page = tail(opened, api, "pausing")
    press(page, "Pause", "arrive(1)")

    expect(page.get_by_text("Paused, 1 event waiting")).to_be_visible()
    expect(page.locator("button.event-row")).to_have_count(1)
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("event 1")).to_be_visible()


def test_events_that_were_cleared_wait_no_longer(opened: Opened, api: Api) -> None:
    page = tail(opened, api, "clearing")
    page.get_by_role("button", name="Pause").click()
    page.evaluate("arrive(1)")
    expect(page.get_by_text("Paused, 1 event waiting")).to_be_visible()

    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_text("Paused", exact=True)).to_be_visible()
    page.evaluate("arrive(2)")
    expect(page.get_by_text("Paused, 1 event waiting")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("event 2")).to_be_visible()
    expect(page.locator("button.event-row")).to_have_count(1)


AGAIN = """() => {
  const real = window.fetch, encoder = new TextEncoder();
  let source;
  window.asked = [];
  window.fetch = (at, asked) => {
    if (!at.includes("/live")) return real(at, asked);
    window.asked.push(at);
    const body = new ReadableStream({ start(controller) { source = controller; } });
    return Promise.resolve(new Response(body));
  };
  window.arrive = (event_id) => {
    const event = { event_id, published: "2026-01-01T00:00:00Z", data: `event ${event_id}` };
    source.enqueue(encoder.encode(`event: event\\ndata: ${JSON.stringify(event)}\\n\\n`));
  };
  window.lose = () => source.error(new TypeError("network error"));
  window.end = (code) => {
    source.enqueue(encoder.encode(`event: end\\ndata: {"code": "${code}", "message": "m"}\\n\\n`));
    source.close();
  };
}"""


@pytest.mark.parametrize("how", ["lose()", "end('realm-stopping')"])
def test_a_view_that_is_lost_goes_on_behind_the_last_event(
    opened: Opened, api: Api, how: str
) -> None:
    name = f"lost {how[:3]}"
    api.create(name)
    page = opened(place(name, "events"))
    page.evaluate(AGAIN)
    page.get_by_role("button", name="Live", exact=True).click()
    expect(page.get_by_text("Watching")).to_be_visible()
    page.evaluate("arrive(41)")
    expect(page.get_by_text("event 41")).to_be_visible()

    page.evaluate(how)

    expect(page.get_by_text("Connection lost, reconnecting")).to_be_visible()
    expect(page.get_by_text("Watching")).to_be_visible()
    page.evaluate("arrive(42)")
    expect(page.get_by_text("event 42")).to_be_visible()
    expect(page.get_by_text("event 41")).to_be_visible()
    assert "start=42" in page.evaluate("asked.at(-1)")


def test_a_view_of_a_store_that_is_gone_ends(opened: Opened, api: Api) -> None:
    api.create("ending")
    page = opened(place("ending", "events"))
    page.evaluate(AGAIN)
    page.get_by_role("button", name="Live", exact=True).click()
    expect(page.get_by_text("Watching")).to_be_visible()

    page.evaluate("end('name-does-not-exist')")

    expect(page.get_by_text("Ended", exact=True)).to_be_visible()
