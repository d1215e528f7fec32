"""The page of topics: by level, live, what is retained, and sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from packages.mqtt.tests.clients import connected
from penstock_mqtt.wire.properties import PacketProperties
from penstock_testing.process import ServerProcess
from tests.console.conftest import LAPTOP, PATIENCE_MS, Api, Opened
from tests.console.measures import FAINT, NARROW, UNNAMED, WIDE

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)

TOPICS = "#/topics"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("topics")
    with ServerProcess(folder / "realm", "--http", "--http-port", "0", "--mqtt-port", "0") as it:
        yield it


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    """Where it speaks MQTT, with some messages retained and a session whose client is away."""
    url = server.mqtt_url
    with connected(url, "plant") as client:
        for topic in ("plant/1/temp", "plant/1/state", "plant/2/temp", "office"):
            client.publish(topic, topic.encode(), retain=True)
    hour = PacketProperties(session_expiry_s=3_600)
    with connected(url, "meter", properties=hour, clean_start=False) as client:
        client.subscribe("plant/#", qos=1, retain_handling=2)
    with connected(url, "plant") as client:
        client.publish("plant/1/temp", b"22", retain=True)
    return url


@pytest.mark.spec("M5")
@pytest.mark.usefixtures("url")
def test_topics_are_unfolded_level_by_level_with_the_keyboard(opened: Opened, api: Api) -> None:
    page = opened(TOPICS)
    tree = page.get_by_role("tree", name="Retained topics by level")
    rows = tree.get_by_role("treeitem")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_have_accessible_name("plant, 3 retained")

    tree.focus()
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    expect(rows).to_have_count(4)
    for key in ("ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(tree.get_by_role("treeitem", name="state, 1 retained")).to_be_visible()
    expect(page).to_have_url(f"{api.url}/#/topics?at=plant%2F1")
    page.reload()
    expect(rows).to_have_count(6)

    tree.get_by_role("treeitem", name="state, 1 retained").click()
    expect(page).to_have_url(f"{api.url}/#/topics/retained?filter=plant%2F1%2Fstate")
    page.evaluate("history.back()")
    expect(rows).to_have_count(6)


@pytest.mark.spec("M5")
@pytest.mark.usefixtures("url")
def test_what_is_retained_is_found_shown_and_removed(opened: Opened, api: Api) -> None:
    page = opened(f"{TOPICS}/retained")
    table = page.get_by_role("table", name="Retained messages")
    expect(table.locator("tbody tr")).to_have_count(4)

    page.get_by_label("Topic filter").fill("plant/+/temp")
    page.keyboard.press("Enter")
    expect(table.locator("tbody tr")).to_have_count(2)
    table.get_by_role("link", name="plant/1/temp", exact=True).click()
    expect(page.locator(".detail pre")).to_have_text("22")
    table.get_by_role("button", name="Remove the retained message of plant/2/temp").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("plant/2/temp")
    dialog.get_by_role("button", name="Remove", exact=True).click()

    expect(page.get_by_text("The retained message of plant/2/temp was removed.")).to_be_visible()
    expect(table.locator("tbody tr")).to_have_count(1)
    remaining = api.ask("GET", "/channels/mqtt/retained?filter=plant/%23")["items"]
    assert "plant/2/temp" not in {item["properties"]["topic"] for item in remaining}
    page.get_by_label("Topic filter").fill("plant/#/temp")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("the wildcard # must be the last level")


@pytest.mark.spec("M12")
def test_a_filter_is_tailed_in_each_channel_that_has_its_topics(
    opened: Opened, api: Api, url: str
) -> None:
    page = opened(f"{TOPICS}/live?filter=shop/%23")
    expect(page.get_by_text("Watching", exact=True)).to_be_visible()
    with connected(url, "shop") as client:
        client.publish("shop/1/till", b"first")
        client.publish("elsewhere", b"other")
    row = page.locator("button.event-row")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("first")

    api.create("tills", topics=["shop/{number}/till"])
    page.reload()
    page.get_by_label("Channel", exact=True).select_option("tills")
    expect(page).to_have_url(f"{api.url}/#/topics/live?filter=shop%2F%23&channel=tills")
    expect(page.get_by_text("Watching", exact=True)).to_be_visible()
    api.publish("/channels/tills", {"data": "second", "properties": {"number": "2"}})
    expect(row).to_contain_text("second")


@pytest.mark.spec("M6")
def test_sessions_are_shown_with_what_waits_for_them(opened: Opened, api: Api, url: str) -> None:
    with connected(url, "here"):
        page = opened(f"{TOPICS}/sessions?client=meter")
        rows = page.get_by_role("table", name="Sessions").locator("tbody tr")
        expect(rows.filter(has_text="here")).to_contain_text("connected")
        expect(rows.filter(has_text="meter")).to_contain_text("away")
    subscriptions = page.get_by_role("table", name="Subscriptions of meter")
    expect(subscriptions.locator("tbody tr")).to_contain_text("plant/#")
    expect(subscriptions.get_by_role("link", name="1", exact=True)).to_be_visible()
    page.get_by_role("button", name="Close the session").click()
    expect(page).to_have_url(f"{api.url}/#/topics/sessions")
    expect(rows.filter(has_text="here")).to_have_count(0)


@pytest.mark.usefixtures("url")
def test_every_part_fits_has_contrast_and_names(opened: Opened) -> None:
    parts = {
        f"{TOPICS}?at=plant%2F1": '[role="treeitem"][title="plant/1/temp"]',
        f"{TOPICS}/live": "button:has-text('Pause')",
        f"{TOPICS}/retained?filter=plant/1/%23": "table:has-text('plant/1/temp')",
        f"{TOPICS}/sessions?client=meter": ".detail table:has-text('plant/#')",
    }
    for size, scheme in ((LAPTOP, "dark"), (NARROW, "light")):
        page = opened("", size, scheme)
        for place, shown in parts.items():
            page.evaluate("place => { location.hash = place; }", place)
            expect(page.locator(shown).first).to_be_visible()
            assert (place, page.evaluate(WIDE)) == (place, 0)
            assert (place, page.evaluate(FAINT)) == (place, [])
            assert (place, page.evaluate(UNNAMED)) == (place, [])


@pytest.mark.spec("M6")
def test_a_session_is_ended_with_what_waits_for_its_client(
    opened: Opened, api: Api, url: str
) -> None:
    hour = PacketProperties(session_expiry_s=3_600)
    with connected(url, "pump-7", properties=hour, clean_start=False) as client:
        client.subscribe("pumps/#", qos=1, retain_handling=2)
    narrow = opened(f"{TOPICS}/sessions?client=pump-7", NARROW)
    expect(narrow.get_by_role("button", name="End the session of pump-7")).to_be_visible()
    assert narrow.evaluate(WIDE) == 0
    page = opened(f"{TOPICS}/sessions?client=pump-7")
    table = page.get_by_role("table", name="Sessions")
    table.get_by_role("button", name="End the session of pump-7").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("pump-7")
    dialog.get_by_role("button", name="End session").click()

    expect(page.get_by_text("The session of pump-7 has ended.")).to_be_visible()
    expect(table.get_by_text("pump-7")).to_have_count(0)
    remaining = api.ask("GET", "/mqtt/sessions")["items"]
    assert "pump-7" not in {item["client_id"] for item in remaining}


def test_a_realm_without_topics_says_how_to_begin(opened: Opened, api: Api) -> None:
    without = {**api.ask("GET", "/mqtt"), "channel": None, "retained": None, "channels": []}
    page = opened()
    pages = page.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link", name="Topics")).to_be_visible()
    page.route("**/api/v1/mqtt", lambda route: route.fulfill(json=without))
    page.reload()
    expect(pages.get_by_role("link", name="Cluster")).to_be_visible()
    expect(pages.get_by_role("link", name="Topics")).to_have_count(0)
    for part in ("", "/live", "/retained", "/sessions"):
        page.evaluate("place => { location.hash = place; }", TOPICS + part)
        expect(page.get_by_text("This realm does not serve MQTT")).to_be_visible()
