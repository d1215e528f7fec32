"""An address of the console is a place: links, steps back and on, notes of what is shown."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.console.conftest import PATIENCE_MS, Api, Opened, place

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)


def test_an_event_has_an_address_of_its_own(opened: Opened, api: Api) -> None:
    path = api.create("linked")
    api.publish(path, *({"data": f"event {number}"} for number in range(120)))
    page = opened(place("linked", "events?event=3"))
    shown = page.get_by_role("heading", name="Event")
    expect(shown).to_have_text("Event 3")
    expect(page.locator(".detail pre")).to_have_text("event 3")

    page.locator("button.event-row", has_text="event 119").click()
    expect(shown).to_have_text("Event 119")
    address = f"{api.url}/#/channel/linked/events?event=119"
    expect(page).to_have_url(address)
    link = page.locator(".detail").get_by_role("link", name="Link")
    expect(link).to_have_attribute("href", address)
    page.reload()
    expect(shown).to_have_text("Event 119")
    page.evaluate("location.hash = '#/channel/linked/events?event=7'")
    expect(shown).to_have_text("Event 7")
    page.evaluate("history.back()")
    expect(shown).to_have_text("Event 119")
    page.get_by_role("button", name="Close the event").click()
    expect(shown).to_have_count(0)
    expect(page).to_have_url(f"{api.url}/#/channel/linked/events")
    page.evaluate("location.hash = '#/channel/linked/events?event=500'")
    expect(page.locator(".detail").get_by_role("alert")).to_contain_text("has no event 500")


def test_a_step_back_right_after_a_step_on_is_kept(opened: Opened, api: Api) -> None:
    """The page notes what it shows in the address; a reader who has gone on by then wins."""
    path = api.create("hurried")
    api.publish(path, *({"data": f"event {number}"} for number in range(20)))
    page = opened(place("hurried", "events?event=3"))
    shown = page.get_by_role("heading", name="Event")
    expect(shown).to_have_text("Event 3")
    page.evaluate(
        """async () => {
          const said = () => document.querySelector(".detail h2")?.textContent;
          const until = (wanted) => new Promise((done) => {
            const seen = new MutationObserver(() => {
              if (said() === wanted) { seen.disconnect(); done(); }
            });
            seen.observe(document.body, { subtree: true, childList: true, characterData: true });
          });
          // A busy browser: what the page does after a drawing waits for the step, and comes
          // before the event of the step.
          const waiting = new Set(), { setTimeout } = window;
          let busy = false;
          window.setTimeout = (work, ms) => {
            waiting.add(work);
            return setTimeout(() => { if (!busy && waiting.delete(work)) work(); }, ms);
          };
          window.requestAnimationFrame = (work) => window.setTimeout(work, 16);
          const drawn = until("Event 7");
          location.hash = "#/channel/hurried/events?event=7";
          await drawn;
          busy = true;
          addEventListener("popstate", () => {
            while (waiting.size) for (const work of waiting) { waiting.delete(work); work(); }
            busy = false;
          }, { once: true });
          history.back();
        }"""
    )
    expect(shown).to_have_text("Event 3")
    expect(page).to_have_url(f"{api.url}/#/channel/hurried/events?event=3")


def test_an_address_that_changes_while_the_page_is_first_drawn_is_followed(opened: Opened) -> None:
    page = opened()
    page.add_init_script(
        """
        const seen = new MutationObserver(() => {
          if (!document.querySelector("h1")) return;
          seen.disconnect();
          location.hash = "#/scheduled";
        });
        seen.observe(document, { childList: true, subtree: true });
        """
    )
    page.reload()

    expect(page.get_by_role("heading", name="Scheduled", level=1)).to_be_visible()
