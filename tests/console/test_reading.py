"""The console can be read and worked: phone and laptop, light and dark, keyboard alone."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.conftest import LAPTOP, PATIENCE_MS, PHONE, Api, Opened
from tests.console.measures import FAINT, NARROW, SHIFTS, UNNAMED, WIDE

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)

ORDERS = "#/channel/eu%2Forders"
PAGES = {
    "#/": "Overview",
    "#/new": "New channel",
    "#/dead": "Dead events",
    "#/joins": "Joins",
    "#/patterns": "Patterns",
    "#/scheduled": "Scheduled",
    "#/patterns?view=live&pattern=eu/*": "Patterns",
    f"{ORDERS}/missing": "eu/orders",
    "#/pipelines": "Pipelines",
    "#/connections": "Connections",
    "#/cluster": "Cluster",
    "#/topics": "Topics",
    ORDERS: "eu/orders",
    f"{ORDERS}/durables/billing": "billing",
    f"{ORDERS}/events": "eu/orders",
    "#/dead/eu%2Forders": "eu/orders",
    f"{ORDERS}/publish": "eu/orders",
    "#/channel/nowhere": "nowhere",
    f"{ORDERS}/durables": "eu/orders",
    f"{ORDERS}/durables/gone": "gone",
    f"{ORDERS}/settings": "eu/orders",
}
"""Each with its heading, which differs from that of the page before."""


@pytest.fixture
def orders(api: Api) -> None:
    if any(item["name"] == "eu/orders" for item in api.ask("GET", "/channels")["items"]):
        return
    path = api.create("eu/orders", dead_event_store="")
    api.publish(
        path,
        *(
            {"data": "x" * 300, "tag": "a-long-tag-" * 4, "properties": {"price": n}}
            for n in range(5)
        ),
    )
    api.ask("POST", f"{path}/durables", {"name": "billing", "start": "earliest"})


def settled(page: Page, heading: str = "") -> None:
    """The page has what it asked for."""
    expect(page.get_by_text("Live", exact=True).first).to_be_attached()
    expect(page.locator("main h1")).to_contain_text(heading)
    expect(page.locator("main").get_by_text("Loading…")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_has_contrast_and_names(opened: Opened, orders: None, scheme: str) -> None:
    for size in (LAPTOP, PHONE, NARROW):
        page = opened("", size, scheme)
        for place, heading in PAGES.items():
            page.evaluate("place => { location.hash = place; }", place)
            settled(page, heading)
            wide = page.evaluate(WIDE)
            assert (place, wide) == (place, 0)
            assert (place, page.evaluate(FAINT)) == (place, [])
            assert (place, page.evaluate(UNNAMED)) == (place, [])


THINNEST = """
selector => Math.min(...[...document.querySelectorAll(selector)].map((node) => node.clientWidth))
"""
SQUEEZED = """
() => [...document.querySelectorAll(".tree-row .name")]
  .filter((node) => node.scrollWidth > node.clientWidth && node.clientWidth < 96)
  .map((node) => node.textContent)
"""
CUT = "selector => { const node = document.querySelector(selector);"
CUT += " return node.scrollWidth - node.clientWidth; }"


@pytest.mark.parametrize("size", [LAPTOP, PHONE, NARROW])
def test_long_properties_and_hex_can_be_read(
    opened: Opened, api: Api, size: tuple[int, int]
) -> None:
    path = "/channels/long"
    if not any(item["name"] == "long" for item in api.ask("GET", "/channels")["items"]):
        api.create("long")
        named = {"a_name_that_is_as_long_as_names_may_become_where_nobody_minds_it": "x" * 400}
        nested = {"deep": {"er": [{"c": 1, "d": "text " * 40}] * 3}, "short": "one\ntwo"}
        data = base64.b64encode(bytes(range(256))).decode()
        api.publish(path, {"data_base64": data, "properties": {**named, **nested}})
    page = opened("#/channel/long/events?event=0", size)
    detail = page.locator(".detail")
    expect(detail.get_by_role("row", name="short")).to_contain_text("one")

    detail.get_by_role("button", name="Hex").click()
    expect(detail.locator("pre")).to_contain_text("00 01 02 03")
    assert page.evaluate(WIDE) == 0
    assert page.evaluate(CUT, ".detail pre") == 0
    assert page.evaluate(THINNEST, ".detail .props td") > 60
    assert page.evaluate(THINNEST, ".detail .props .value") > 200


@pytest.mark.parametrize("size", [LAPTOP, PHONE, NARROW])
def test_a_deep_tree_leaves_room_for_names(opened: Opened, api: Api, size: tuple[int, int]) -> None:
    parts = [f"level-{number:02}" for number in range(12)]
    deepest = "/".join([*parts, "channel"])
    if not any(item["name"] == deepest for item in api.ask("GET", "/channels")["items"]):
        api.create(deepest)
        api.create("chain/of/folders/with/nothing/beside/it")
        for depth in range(1, len(parts)):
            api.create("/".join([*parts[:depth], "beside"]))
    page = opened(f"#/channel/{quote(deepest, safe='')}", size)
    if size != LAPTOP:
        page.get_by_role("button", name="Channels and pages").click()

    tree = page.get_by_role("tree")
    expect(tree.get_by_role("treeitem", name="channel channel")).to_be_visible()
    expect(tree.get_by_role("treeitem", name="folder level-11")).to_be_visible()
    assert page.evaluate(CUT, '.tree-row[aria-label="folder level-11"] .name') == 0
    tree.focus()
    page.keyboard.press("Home")
    joined = tree.get_by_role("treeitem", name="folder chain/of/folders/with/nothing/beside")
    expect(joined).to_have_attribute("aria-level", "1")
    page.keyboard.press("End")
    expect(tree.get_by_role("treeitem", name="channel", exact=False).last).to_be_visible()
    assert page.evaluate(SQUEEZED) == []


def test_nothing_is_said_to_be_empty_before_the_realm_has_answered(opened: Opened) -> None:
    page = opened("#/joins")
    settled(page)
    for request in ("rates", "names?*", "channels/*", "joins?*"):
        page.route(f"**/api/v1/{request}", lambda route: None)
    page.reload()

    expect(page.locator("main").get_by_text("Loading…")).to_be_visible()
    expect(page.locator(".side").get_by_text("Loading…")).to_be_visible()
    page.evaluate("location.hash = '#/'")
    expect(page.get_by_text("Waiting for the first figures…")).to_have_count(3)
    for false in ("No durables yet", "No dead events", "No traffic", "No channels yet"):
        expect(page.get_by_text(false)).to_have_count(0)


def test_in_flight_is_what_clients_have(opened: Opened, orders: None) -> None:
    page = opened(f"{ORDERS}/durables/billing")
    stats = page.locator(".stat")

    expect(stats.filter(has_text="Outstanding")).to_contain_text("5")
    expect(stats.filter(has_text="In flight")).to_contain_text("0of these: with a client")
    expect(stats.filter(has_text="Ready")).to_contain_text("5of these: with no client")
    expect(page.get_by_text("Pending")).to_have_count(0)


def test_the_keyboard_alone_is_enough(opened: Opened, orders: None, api: Api) -> None:
    page = opened()
    settled(page)
    page.keyboard.press("/")
    expect(page.get_by_label("Filter channels, queues and durables")).to_be_focused()
    page.keyboard.type("bill")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("tree")).to_be_focused()
    expect(page.get_by_role("treeitem", name="durable billing")).to_be_visible()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="billing")).to_be_visible()

    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", name="Joins", exact=True)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="eu/orders")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("navigation", name="About this channel").get_by_role(
        "link", name="Overview"
    ).focus()
    page.keyboard.press("]")
    row = page.locator("button.event-row").first
    row.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Event 3")).to_be_visible()


SLASH = """() => {
    const key = new KeyboardEvent("keydown", { key: "/", bubbles: true, cancelable: true });
    document.body.dispatchEvent(key);
    const { value, selectionStart, selectionEnd } = document.activeElement;
    return [value, selectionStart, selectionEnd];
}"""


def test_what_is_typed_right_after_the_slash_is_the_filter(opened: Opened, orders: None) -> None:
    # Within the turn of the key: a hand is faster than the next frame of a busy machine.
    page = opened()
    settled(page)
    page.keyboard.press("/")
    page.keyboard.type("bill")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(SLASH) == ["bill", 0, 4]


def test_the_phone_has_the_tree_behind_a_button(opened: Opened, orders: None) -> None:
    page = opened("", PHONE)
    settled(page)
    expect(page.get_by_role("tree")).to_be_hidden()
    page.get_by_role("button", name="Channels and pages").click()
    page.get_by_role("treeitem", name="channel orders").click()

    expect(page.get_by_role("heading", name="eu/orders")).to_be_visible()
    expect(page.get_by_role("tree")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.get_by_label("Filter channels, queues and durables")).to_be_focused()


def test_the_theme_is_the_systems_until_one_is_chosen(opened: Opened) -> None:
    page = opened(scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Theme: as the system").click()
    light = page.evaluate(ground)
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()

    assert dark != light
    assert page.evaluate(ground) == light


def test_live_updates_move_nothing(opened: Opened, api: Api) -> None:
    path = api.create("steady")
    page = opened("#/channel/steady")
    settled(page)
    expect(page.get_by_text("No properties yet")).to_be_visible()
    expect(page.get_by_text("Nothing is sealed yet")).to_be_visible()
    expect(page.locator(".stat").first).to_contain_text("/s")
    page.evaluate(SHIFTS)
    for number in range(3):
        api.publish(path, *({"data": f"{number}"} for _ in range(10 ** (number + 1))))
        expect(page.locator(".stat").first).to_contain_text(
            f"{(10, 110, '1,110')[number]} in total"
        )

    assert page.evaluate("window.shifts") < 0.01


def test_ten_thousand_channels_stay_usable(opened: Opened) -> None:
    names = [f"area-{number // 100:03}/channel-{number:05}" for number in range(10_000)]

    page = opened("#/joins")
    names_answer = {"items": [{"name": name, "kind": "channel"} for name in names], "next": None}
    page.route(
        "**/api/v1/names?*",
        lambda route: route.fulfill(body=json.dumps(names_answer), content_type="application/json"),
    )
    page.route("**/api/v1/rates", lambda route: route.abort())
    page.reload()

    expect(page.get_by_role("treeitem", name="folder area-000")).to_be_visible()
    page.get_by_label("Filter channels, queues and durables").fill("09876")
    expect(page.get_by_role("treeitem", name="channel channel-09876")).to_be_visible()
    page.get_by_label("Filter channels, queues and durables").fill("channel-0")
    expect(page.get_by_role("treeitem").nth(5)).to_be_visible()
    assert page.get_by_role("treeitem").count() < 100
    tree = page.get_by_role("tree")
    tree.focus()
    page.keyboard.press("End")
    expect(page.get_by_role("treeitem", name="channel channel-09999")).to_be_visible()
    assert page.get_by_role("treeitem").count() < 100


DAY = {
    "begun": "2026-11-02T10:00:00Z",
    "first": "2026-11-03T09:56:00Z",
    "step_ms": 120_000,
    "is_kept": True,
    "published": [None, 0, 7, 3.5],
    "delivered": [None, 0, 14, 3.5],
    "acknowledged": [None, 0, 7, 7],
    "outstanding": [None, 0, 4_200, 0],
    "delivery_ms": [None, None, 250.5, 31],
    "sync_ms": [None, 2, 4, 3],
}
"""The answer of a realm about 24 hours of which only the last minutes are known."""


def test_the_last_day_is_there_from_before_the_page_was_opened(opened: Opened, api: Api) -> None:
    api.create("yesterday")
    api.ask("POST", "/channels/yesterday/durables", {"name": "audit"})
    page = opened("#/joins")
    requests: list[str] = []

    def fulfil(route: Route) -> None:
        requests.append(route.request.url.partition("/api/v1/")[2])
        series = DAY | ({"published": []} if "durable" in requests[-1] else {})
        series |= {"sync_ms": []} if "channel" in requests[-1] else {}
        route.fulfill(body=json.dumps(series), content_type="application/json")

    page.route("**/api/v1/history*", fulfil)
    page.evaluate("location.hash = '#/'")
    curves = page.get_by_role("img", name="in 24 hours")
    expect(curves).to_have_count(3)
    for place, name in (
        ("rates", "Events per second of the realm in 24 hours: Published 3.5/s, Delivered 3.5/s"),
        ("lag", "Lag of the realm in 24 hours: Outstanding 0"),
        ("latency", "Delivery 31 ms, Sync of the journal 3 ms"),
    ):
        expect(page.get_by_role("img", name=name), place).to_be_visible()
    assert curves.first.locator("path.curve").count() == 3
    drawn = curves.first.locator("path.curve").first.get_attribute("d")
    assert drawn is not None
    assert len(drawn.split("L")) == 3, "what is not known is not drawn"
    expect(curves.first).to_contain_text("1 d")
    expect(curves.first).to_contain_text("12 h")
    expect(page.get_by_text("since 2026-11-02")).to_be_visible()

    page.evaluate("location.hash = '#/channel/yesterday'")
    expect(page.get_by_role("img", name="Lag of yesterday in 24 hours")).to_be_visible()
    page.evaluate("location.hash = '#/channel/yesterday/durables/audit'")
    expect(page.get_by_role("img", name="Latency of audit in 24 hours")).to_be_visible()
    expect(page.get_by_role("img", name="Events per second of audit")).not_to_contain_text("Publ")
    assert [*dict.fromkeys(requests)] == [
        "history",
        "history?channel=yesterday",
        "history?channel=yesterday&durable=audit",
    ]


def test_a_realm_says_what_it_does_not_remember(opened: Opened) -> None:
    page = opened("#/joins")
    answer = DAY | {"is_kept": False}
    page.route(
        "**/api/v1/history*",
        lambda route: route.fulfill(body=json.dumps(answer), content_type="application/json"),
    )

    page.evaluate("location.hash = '#/'")
    expect(page.get_by_role("heading", name="No history")).to_be_visible()
    none: dict[str, object] = {key: [] for key, value in DAY.items() if isinstance(value, list)}
    answer = DAY | none
    page.reload()
    expect(page.get_by_text("begins at the start of the realm")).to_be_visible()
