"""The overview of a realm in which events have died, on a laptop and on a phone."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

import penstock
from penstock_testing.process import ServerProcess
from tests.console.conftest import LAPTOP, PATIENCE_MS, PHONE, Api, Opened

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
    expect(page.get_by_text("No dead events")).to_have_count(0)


def test_the_first_points_of_the_graph_fill_it(opened: Opened) -> None:
    page = opened("#/")

    plot = page.locator("figure", has_text="Published")
    expect(plot.locator("text", has_text=re.compile(r"(10|30) s$"))).to_be_visible()
    expect(plot.locator("path.curve").first).to_have_attribute("d", re.compile("L"))


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


@pytest.mark.parametrize("size", [LAPTOP, PHONE])
def test_a_node_that_could_not_take_over_is_shown_with_the_reason(
    opened: Opened, api: Api, size: tuple[int, int]
) -> None:
    reason = f"the settings differ: cluster.blobs is /mnt/{'deep/' * 40}blobs at n2"
    node = {"version": "1", "url": "penstock://n:9000", "renewed_us": 0, "local_url": ""}
    cluster = {
        **api.ask("GET", "/cluster"),
        "node": "n1",
        "epoch": 1,
        "nodes": [
            {**node, "node": "n1", "state": "owner", "unfit": ""},
            {**node, "node": "n2", "state": "stands by", "unfit": reason},
        ],
    }
    page = opened("", size, is_mobile=size == PHONE)
    page.route("**/api/v1/cluster", lambda route: route.fulfill(json=cluster))
    page.goto(f"{api.url}/#/cluster")

    expect(page.get_by_text("n2 cannot take over the realm.")).to_be_visible()
    expect(page.get_by_text(reason)).to_be_visible()
    rows = page.get_by_role("table", name="Nodes").locator("tbody tr")
    expect(rows.filter(has_text="n2")).to_contain_text("unfit")
    expect(rows.filter(has_text="n1")).not_to_contain_text("unfit")
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.evaluate("innerWidth") == size[0]


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


def test_figures_of_a_realm_that_is_gone_are_called_out_of_date(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened("")
    with ServerProcess(tmp_path / "realm", "--http", "--http-port", "0") as server:
        page.goto(f"{server.http_url}/#/")
        expect(page.locator(".link-state")).to_have_text("Live")
        expect(page.locator(".stale")).to_have_count(0)
        server.kill()

        expect(page.locator(".stale")).to_contain_text("Not connected.")
        expect(page.locator(".stale")).to_contain_text("The figures on this page are from 2")


def test_a_new_channel_has_the_type_that_the_realm_gives_by_default(
    opened: Opened, api: Api
) -> None:
    page = opened("#/new")
    kind, engine = (page.get_by_label(name, exact=True) for name in ("Type", "Engine"))
    usual = api.ask("POST", "/channels", {"name": "usual"})["definition"]

    expect(kind).to_have_value(usual["type"])
    expect(engine).to_have_value(usual["engine"])
    for select in (kind, engine):
        assert select.evaluate(
            """(select) => {
              const context = document.createElement("canvas").getContext("2d");
              context.font = getComputedStyle(select).font;
              const texts = [...select.options].map((each) => each.text);
              const widths = texts.map((text) => context.measureText(text).width);
              return Math.max(...widths) + 48 <= select.clientWidth;
            }"""
        ), "the longest choice is cut"
