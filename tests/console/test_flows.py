"""The use of the console, from an empty realm to a redriven event."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

import penstock
from penstock.client.sync.sync import Session
from penstock.client.sync.sync_delivered import DeliveredEvent
from penstock_spark.pipelines.standing import Status
from penstock_spark.pipelines.step import Progress
from penstock_testing.process import ServerProcess
from tests.console.conftest import PATIENCE_MS, Api, Opened, place, tab

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)


def row(page: Page, text: str) -> None:
    """An event whose line has the text is in the list."""
    expect(page.locator("button.event-row", has_text=text).first).to_be_visible()


def test_a_channel_is_created_published_to_and_read(opened: Opened) -> None:
    page = opened("#/new")
    page.get_by_label("Name", exact=True).fill("shop/orders")
    page.get_by_role("button", name="Create channel").click()
    expect(page.get_by_role("heading", name="shop/orders")).to_be_visible()
    expect(page.get_by_role("treeitem", name="channel orders")).to_be_visible()

    tab(page, "Publish")
    page.get_by_role("textbox", name="Data", exact=True).fill('{"lines": [1, 2]}')
    page.get_by_label("Property 1: name").fill("price")
    page.get_by_label("Property 1: type").select_option("decimal")
    page.get_by_label("Property 1: value").fill("9")
    page.get_by_label("Property 2: name").fill("count")
    page.get_by_label("Property 2: type").select_option("integer")
    page.get_by_label("Property 2: value").fill("9007199254740993")
    page.get_by_label("Tag").fill("new")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_text("Last published: event 0")).to_be_visible()

    tab(page, "Events")
    page.locator("button.event-row").first.click()
    detail = page.locator(".detail")
    expect(detail.get_by_role("row", name="count")).to_contain_text("9007199254740993")
    expect(detail.get_by_role("row", name="price")).to_have_text("price9.0double")
    expect(detail.locator("pre")).to_contain_text('"lines": [')
    detail.get_by_role("button", name="Hex").click()
    expect(detail.locator("pre")).to_contain_text("7b 22 6c 69 6e 65 73 22")

    detail.get_by_role("button", name="Edit a copy").click()
    expect(page.get_by_text("copied from event 0")).to_be_visible()
    page.get_by_label("Tag").fill("again")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_text("Last published: event 1")).to_be_visible()
    tab(page, "Events")
    page.locator("button.event-row", has_text="again").click()
    expect(page.locator(".detail").get_by_role("row", name="price")).to_have_text("price9.0double")
    expect(page.locator(".detail").get_by_role("row", name="count")).to_contain_text(
        "9007199254740993"
    )


def test_what_was_typed_survives_a_refusal(opened: Opened, api: Api) -> None:
    api.create("kept", capacity=1, storage={"honour_capacity": True})
    api.publish("/channels/kept", {"data": "full"})
    page = opened(place("kept", "publish"))

    page.get_by_role("textbox", name="Data", exact=True).fill("one too many")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("capacity-reached")
    tab(page, "Events")
    page.get_by_label("Selector").fill("price >")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("alert")).to_contain_text("invalid-selector")
    expect(page.get_by_label("Selector")).to_have_value("price >")
    row(page, "full")
    tab(page, "Publish")

    expect(page.get_by_role("textbox", name="Data", exact=True)).to_have_value("one too many")


def test_the_live_tail_shows_what_matches_and_can_be_paused(opened: Opened, api: Api) -> None:
    path = api.create("tail")
    page = opened(place("tail", "events?view=live&selector=price > 5"))
    expect(page.get_by_text("Watching")).to_be_visible()

    api.publish(
        path, *({"data": f"at {price}", "properties": {"price": price}} for price in (4, 6))
    )
    row(page, "at 6")
    expect(page.locator("button.event-row", has_text="at 4")).to_have_count(0)
    page.get_by_role("button", name="Pause").click()
    api.publish(path, {"data": "at 7", "properties": {"price": 7}})
    expect(page.get_by_text("1 event waiting")).to_be_visible()
    expect(page.locator("button.event-row", has_text="at 7")).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    row(page, "at 7")


def paused(page: Page) -> None:
    expect(page.get_by_text("Paused")).to_be_visible()


def test_space_pauses_wherever_one_is_but_where_one_types(opened: Opened, api: Api) -> None:
    path = api.create("spaced")
    page = opened(place("spaced", "events?view=live"))
    watching = page.get_by_text("Watching")
    expect(watching).to_be_visible()
    api.publish(path, {"data": "here"})
    row(page, "here")

    page.keyboard.press("Space")
    paused(page)
    page.keyboard.press("Space")
    expect(watching).to_be_visible()
    page.locator("button.event-row").focus()
    page.keyboard.press("Space")
    paused(page)
    page.get_by_role("button", name="Resume").press("Space")
    expect(watching).to_be_visible()
    page.get_by_label("Selector").fill("price")
    page.get_by_label("Selector").press("Space")
    expect(page.get_by_label("Selector")).to_have_value("price ")
    expect(watching).to_be_visible()


def named(page: Page, channel: str, data: str) -> None:
    """There is a row of a channel's event."""
    expect(row_of(page, data)).to_contain_text(channel)


def row_of(page: Page, data: str) -> Locator:
    return page.locator("button.event-row", has_text=data)


@pytest.mark.spec("D21")
def test_the_live_tail_of_a_pattern_shows_each_event_with_its_channel(
    opened: Opened, api: Api
) -> None:
    """Also of a channel that is made while one watches, and of none that does not match."""
    north, else_ = api.create("shops/north"), api.create("other/north")
    page = opened("#/patterns")
    page.get_by_role("button", name="Live", exact=True).click()
    page.get_by_label("Pattern of channels").fill("shops/*")
    page.get_by_label("Selector").fill("price > 5")
    page.get_by_role("button", name="Watch").click()
    expect(page.get_by_text("Watching")).to_be_visible()

    api.publish(else_, {"data": "not of these", "properties": {"price": 9}})
    api.publish(north, *({"data": f"n{price}", "properties": {"price": price}} for price in (4, 6)))
    api.publish(api.create("shops/south"), {"data": "s7", "properties": {"price": 7}})
    named(page, "shops/north", "n6")
    named(page, "shops/south", "s7")
    expect(page.locator("button.event-row")).to_have_count(2)

    page.locator("main h1").click()
    page.keyboard.press("Space")
    paused(page)
    api.publish(north, {"data": "n8", "properties": {"price": 8}})
    expect(page.get_by_text("1 event waiting")).to_be_visible()
    expect(row_of(page, "n8")).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    named(page, "shops/north", "n8")


@pytest.mark.spec("D21")
def test_an_event_of_a_patterns_tail_is_shown_in_full_and_has_an_address(
    opened: Opened, api: Api
) -> None:
    one, second = api.create("twins/one"), api.create("twins/other")
    page = opened("#/patterns?view=live&pattern=twins/**")
    expect(page.get_by_text("Watching")).to_be_visible()
    api.publish(one, {"data": "first of one"})
    api.publish(second, {"data": "first of the other"})

    row_of(page, "first of the other").click()
    expect(page.locator(".detail pre")).to_have_text("first of the other")
    expect(page.get_by_role("heading", name="Event")).to_have_text("Event 0 of twins/other")
    expect(page.locator("button.event-row[aria-current]")).to_have_count(1)
    page.locator("button.event-row[aria-current]").press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".detail pre")).to_have_text("first of one")
    query = "view=live&pattern=twins%2F**&event=0%40twins%2Fone"
    expect(page).to_have_url(f"{api.url}/#/patterns?{query}")
    link = page.locator(".detail").get_by_role("link", name="Link")
    expect(link).to_have_attribute("href", f"{api.url}/#/channel/twins%2Fone/events?event=0")
    page.reload()
    expect(page.locator(".detail pre")).to_have_text("first of one")


def test_a_pattern_or_selector_that_cannot_be_read_is_refused_in_the_tail(
    opened: Opened, api: Api
) -> None:
    page = opened("#/patterns?view=live&pattern=" + "a" * 300)
    expect(page.locator("main").get_by_role("alert")).to_contain_text("255")
    page.get_by_label("Pattern of channels").fill("odd/*")
    page.get_by_label("Selector").fill("price >")
    page.get_by_role("button", name="Watch").click()
    expect(page.get_by_label("Selector")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Selector").fill("")
    page.get_by_role("button", name="Watch").click()
    expect(page.get_by_text("Watching")).to_be_visible()
    expect(page.get_by_text("penstock subscribe 'odd/*'")).to_be_visible()


def test_older_pages_skip_no_event_that_matches(opened: Opened, api: Api) -> None:
    path = api.create("sparse")
    wanted = [*range(2_000), *range(2_400, 2_450)]
    api.publish(
        path, *({"properties": {"n": n, "wanted": n in wanted}} for n in range(wanted[-1] + 1))
    )
    page = opened(place("sparse", "events?selector=wanted = TRUE"))
    first = page.locator("button.event-row .id").first
    expect(first).to_have_text("2,449")

    page.get_by_role("button", name="Older").click()
    expect(first).to_have_text("1,999")
    expect(page.locator("button.event-row .id").last).to_have_text("1,950")
    page.get_by_role("button", name="Older").click()
    expect(first).to_have_text("1,949")
    page.get_by_role("button", name="Newer").click()
    expect(first).to_have_text("1,999")


def test_a_page_that_found_nothing_yet_says_how_far_it_looked(opened: Opened, api: Api) -> None:
    path = api.create("far")
    api.publish(path, *({"properties": {"n": n}} for n in range(10)))
    page_of_events = {"items": [], "next": "5", "looked_at": {"first_id": 5, "last_id": 9}}
    page = opened()
    page.route(
        "**/channels/far/events?*limit=50",
        lambda route: route.fulfill(
            body=json.dumps(page_of_events), content_type="application/json"
        ),
    )
    page.evaluate("location.hash = '#/channel/far/events?selector=n = 2'")

    expect(page.get_by_role("heading", name="No matches yet")).to_be_visible()
    expect(page.get_by_text("among the ids 5 to 9")).to_be_visible()
    page.get_by_role("button", name="Continue").click()
    row(page, "n=2")


def test_purge_counts_first_and_wants_the_name_typed(opened: Opened, api: Api) -> None:
    path = api.create("purged/here")
    api.publish(path, *({"properties": {"n": number}} for number in range(10)))
    page = opened(place("purged/here", "settings"))
    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")

    expect(dialog.get_by_text("10 events would be removed")).to_be_visible()
    dialog.get_by_label("Selector").fill("n < 3")
    expect(dialog.get_by_text("3 events would be removed")).to_be_visible()
    assert api.ask("GET", path)["events"] == 10
    act = dialog.get_by_role("button", name="Purge 3 events")
    expect(act).to_be_disabled()
    dialog.get_by_label("Type purged/here").fill("purged/here")
    act.click()

    expect(page.get_by_text("3 events purged")).to_be_visible()
    tab(page, "Overview")
    expect(
        page.get_by_role("group", name="10 published equals 7 live plus 3 purged")
    ).to_be_visible()


def test_a_durable_shows_its_lag_its_client_is_unbound_and_it_is_deleted(
    opened: Opened, api: Api, server: ServerProcess, elsewhere: ThreadPoolExecutor
) -> None:
    path = api.create("lagging")
    page = opened(place("lagging", "durables"))
    expect(page.get_by_text("No durables yet")).to_be_visible()
    page.get_by_role("button", name="New durable").click()
    page.get_by_role("dialog").get_by_label("Name").fill("billing")
    page.get_by_role("button", name="Create durable").click()
    page.get_by_role("main").get_by_role("link", name="billing").click()
    api.publish(path, *({"data": f"event {number}"} for number in range(20)))

    def hold() -> tuple[Session, Generator[DeliveredEvent, None, None]]:
        session = penstock.connect(server.url)
        durable = session.channels.get("lagging").durables.get("billing")
        held = (event for event in durable.subscribe(window=5))
        next(held)
        return session, held

    session, held = elsewhere.submit(hold).result()
    stat = page.locator(".stat")
    expect(stat.filter(has_text="Outstanding").locator("dd")).to_have_text("20")
    expect(stat.filter(has_text="In flight").locator("dd")).to_have_text("5")
    expect(stat.filter(has_text="Ready").locator("dd")).to_have_text("15")
    row(page, "event 0")
    page.get_by_role("button", name="Unbind clients…").click()
    page.get_by_role("dialog").get_by_label("Type billing").fill("billing")
    page.get_by_role("dialog").get_by_role("button", name="Unbind").click()
    expect(page.get_by_text("1 client unbound")).to_be_visible()
    expect(stat.filter(has_text="In flight").locator("dd")).to_have_text("0")
    elsewhere.submit(held.close).result()
    elsewhere.submit(session.close).result()

    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_label("Type billing").fill("billing")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Durable billing is deleted")).to_be_visible()
    assert api.ask("GET", f"{path}/durables")["items"] == []


@pytest.mark.spec("D20")
def test_a_durable_is_moved_after_a_preview_and_wants_the_name_typed(
    opened: Opened, api: Api
) -> None:
    path = api.create("moved")
    api.ask("POST", f"{path}/durables", {"name": "billing", "start": "earliest"})
    api.publish(path, *({"data": f"event {number}"} for number in range(5)))
    page = opened(place("moved", "durables"))
    page.get_by_role("main").get_by_role("link", name="billing").click()
    page.get_by_role("button", name="Move…").click()
    dialog = page.get_by_role("dialog")

    expect(
        dialog.get_by_text("It would continue from 0, with 5 events outstanding")
    ).to_be_visible()
    dialog.get_by_label("To", exact=True).select_option("id")
    dialog.get_by_label("Event id").fill("77")
    expect(dialog.get_by_text("event 77 of moved does not exist yet")).to_be_visible()
    dialog.get_by_label("Event id").fill("3")
    expect(dialog.get_by_text("3 would be skipped")).to_be_visible()
    assert api.ask("GET", f"{path}/durables/billing")["outstanding"] == 5
    act = dialog.get_by_role("button", name="Move")
    expect(act).to_be_disabled()
    dialog.get_by_label("Type billing").fill("billing")
    act.click()

    expect(page.get_by_text("billing continues from 3, with 2 events outstanding.")).to_be_visible()
    assert api.ask("GET", f"{path}/durables/billing")["outstanding"] == 2


def test_dead_events_are_shown_by_cause_and_redriven_after_a_dry_run(
    opened: Opened, api: Api
) -> None:
    graves = api.create("dead/tickets")
    tickets = api.create("tickets", capacity=1, dead_event_store="dead/tickets")
    api.publish(tickets, *({"data": f"ticket {number}", "tag": str(number)} for number in range(4)))
    api.create("second/chance")
    page = opened("#/dead")

    page.get_by_role("main").get_by_role("link", name="dead/tickets").click()
    expect(page.get_by_role("row", name="evicted")).to_contain_text("3")
    page.get_by_role("button", name="Redrive…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill("second/chance")
    dialog.get_by_label("Selector").fill("tag <> '1'")
    expect(dialog.get_by_text("2 events would move, 1 would stay.")).to_be_visible()
    assert api.ask("GET", graves)["events"] == 3
    dialog.get_by_role("button", name="Redrive 2 events").click()

    expect(page.get_by_text("2 events redriven, 1 left")).to_be_visible()
    assert api.ask("GET", "/channels/second%2Fchance")["events"] == 2


def test_missing_ids_say_why_they_are_gone(opened: Opened, api: Api) -> None:
    gaps = api.create("gaps", capacity=8)
    api.publish(gaps, *({"data": str(number)} for number in range(10)))
    api.ask("POST", f"{gaps}/purge", {"start": 4, "end": 4})
    page = opened(place("gaps"))

    tab(page, "Missing ids")
    table = page.get_by_role("table", name="Missing ids")
    expect(page.get_by_text("3 ids without an event")).to_be_visible()
    expect(table.get_by_role("row", name="evicted")).to_contain_text("0 to 1")
    expect(table.get_by_role("row", name="purged")).to_contain_text("4")

    page.get_by_label("From id").fill("4")
    page.get_by_label("To id").fill("6")
    expect(page.get_by_text("1 id without an event")).to_be_visible()
    expect(table.get_by_role("row", name="evicted")).to_have_count(0)
    page.reload()
    expect(page.get_by_label("To id")).to_have_value("6")
    page.get_by_label("From id").fill("5")
    expect(page.get_by_text("Every id between 5 and 6 has its event.")).to_be_visible()
    page.get_by_label("From id").fill("9")
    expect(page.get_by_text("must not be below the first id")).to_be_visible()
    page.get_by_label("From id").fill("x")
    expect(page.get_by_text('"x" is not an event id')).to_be_visible()


def test_a_pipeline_shows_how_far_its_steps_are(opened: Opened, server: ServerProcess) -> None:
    page = opened("#/pipelines")
    expect(page.get_by_text("No pipelines")).to_be_visible()
    folder = server.directory.parent / "pipelines/flights"
    folder.mkdir()
    later = {"flights": ["gate", "crew.size"]}
    progress = Progress(
        step="delays", rows=750, total=1_000, rows_late=3, lag_events=250, later=later
    )
    status = Status(state="runs", progress=progress, error="<b>once</b>")
    (folder / "delays.json").write_bytes(msgspec.json.encode(status))

    step = page.get_by_role("region", name="delays")
    expect(step.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "75")
    expect(step).to_contain_text("250 events")
    expect(step).to_contain_text("gate of flights, crew.size of flights")
    expect(step).to_contain_text("<b>once</b>")
    expect(step).to_contain_text("broken off")  # it said that it runs, and nobody runs it
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        expect(step).to_contain_text("runs")


def test_a_join_is_made_and_ended(opened: Opened, api: Api) -> None:
    api.create("from/here")
    api.create("to/there")
    page = opened("#/joins")
    page.get_by_role("button", name="New join").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From channel").fill("from/here")
    dialog.get_by_label("To channel or queue").fill("to/there")
    dialog.get_by_role("button", name="Create join").click()

    page.get_by_role("button", name="End the join from from/here to to/there").click()
    dialog.get_by_label("Type from/here").fill("from/here")
    dialog.get_by_role("button", name="End join").click()
    expect(page.get_by_text("No joins yet")).to_be_visible()
    assert api.ask("GET", "/joins")["items"] == []


@pytest.mark.spec("D22")
def test_a_durable_over_a_pattern_is_made_and_ended(opened: Opened, api: Api) -> None:
    api.create("branch/north")
    page = opened("#/patterns")
    page.get_by_role("button", name="New durable over a pattern").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Pattern of channels").fill("branch/*")
    dialog.get_by_label("Name", exact=True).fill("audit")
    dialog.get_by_role("button", name="Create durable").click()
    expect(page.get_by_text("Durable audit was created on 1 channel.")).to_be_visible()
    assert api.ask("GET", "/channels/branch%2Fnorth/durables/audit")["type"] == "shared"

    page.get_by_role("button", name="End the durable audit over branch/*").click()
    dialog.get_by_label("Type audit").fill("audit")
    dialog.get_by_role("button", name="End durable").click()
    expect(page.get_by_text("No durables over patterns yet")).to_be_visible()
    assert api.ask("GET", "/channels/branch%2Fnorth/durables")["items"] == []


def test_a_scheduled_event_is_cancelled_and_a_connection_closed(
    opened: Opened, api: Api, server: ServerProcess, elsewhere: ThreadPoolExecutor
) -> None:
    path = api.create("later")
    api.publish(path, {"data": "some day", "deliver_at": "2099-01-01T00:00:00Z"})
    page = opened("#/scheduled")
    page.get_by_role("button", name="Cancel number").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type later").fill("later")
    dialog.get_by_role("button", name="Cancel event").click()
    expect(page.get_by_text("No scheduled events")).to_be_visible()

    session = elsewhere.submit(penstock.connect, server.url).result()
    page.get_by_role("link", name="Connections").click()
    page.get_by_role("button", name="Close the connection of").first.click()
    name = dialog.locator("label code").inner_text()
    dialog.get_by_label("Type").fill(name)
    dialog.get_by_role("button", name="Close connection").click()
    expect(page.get_by_text(f"The connection of {name} is closed")).to_be_visible()
    elsewhere.submit(session.close).result()


def test_publishing_is_paused_and_goes_on(opened: Opened, api: Api) -> None:
    page = opened()
    page.get_by_role("button", name="Pause publishing…").click()
    page.get_by_role("dialog").get_by_label("Type penstock").fill("penstock")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Publishing is paused.").first).to_be_visible()
    assert api.ask("GET", "/realm")["publishing_paused"] is True

    page.get_by_role("button", name="Resume publishing").click()
    expect(page.get_by_role("button", name="Pause publishing…")).to_be_visible()
    assert api.ask("GET", "/realm")["publishing_paused"] is False


@pytest.mark.spec("D1")
def test_a_durable_of_a_deprecated_type_has_a_tag_that_says_so(opened: Opened, api: Api) -> None:
    path = api.create("prioritised")
    for name, kind in (("legacy", "priority"), ("modern", "shared")):
        api.ask("POST", f"{path}/durables", {"name": name, "type": kind})
    page = opened(place("prioritised", "durables"))
    expect(page.get_by_role("row", name="legacy")).to_contain_text("deprecated")
    expect(page.get_by_role("row", name="modern")).not_to_contain_text("deprecated")

    page.get_by_role("link", name="legacy", exact=True).click()
    expect(page.get_by_text("deprecated", exact=True)).to_be_visible()
