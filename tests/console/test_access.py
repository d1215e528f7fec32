"""Logging in where the realm wants to know who one is, and what one may then do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import penstock
from packages.server.tests.frontends.http.known import Known
from tests.console.conftest import LAPTOP, PATIENCE_MS, PHONE

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def asking(tmp_path: Path, elsewhere: ThreadPoolExecutor) -> Iterator[tuple[str, str]]:
    """A realm that wants to know who asks: its URL, and the first administrator's password."""

    def start() -> tuple[penstock.Realm, str, str]:
        realm = penstock.Realm(
            tmp_path,
            access__mode="mandatory",
            access__password_rounds=4_096,
            access__password_length_min=1,
            access__failure_delay_s=0.0,
        )
        return realm, realm.listen_http(), realm.access.first_password

    realm, url, password = elsewhere.submit(start).result()
    yield url, password
    elsewhere.submit(realm.close).result()


@pytest.fixture
def door(browser: Browser, asking: tuple[str, str]) -> Iterator[Page]:
    with browser.new_context() as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(asking[0])
        yield page


@pytest.fixture
def admin(asking: tuple[str, str]) -> Known:
    return Known(asking[0], "admin", asking[1])


def enter(page: Page, user: str, password: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_one_logs_in_and_out(door: Page, asking: tuple[str, str]) -> None:
    enter(door, "admin", "wrong")
    expect(door.get_by_role("alert")).to_contain_text("authentication-failed")
    expect(door.get_by_label("User")).to_have_value("admin")
    door.get_by_label("Password").fill(asking[1])
    door.get_by_role("button", name="Log in").click()
    expect(door.get_by_role("heading", name="Overview")).to_be_visible()

    door.reload()
    door.get_by_role("link", name="admin").click()
    expect(door.locator("main")).to_contain_text("full")
    door.get_by_role("button", name="Log out").click()
    expect(door.get_by_role("button", name="Log in")).to_be_visible()
    door.reload()
    expect(door.get_by_role("button", name="Log in")).to_be_visible()


def test_users_rights_and_the_audit_log(door: Page, asking: tuple[str, str]) -> None:
    enter(door, "admin", asking[1])
    door.get_by_role("link", name="Access").click()
    door.locator(".tabs").get_by_role("link", name="Users").click()
    door.get_by_role("button", name="New user").click()
    door.get_by_role("dialog").get_by_label("Name").fill("alice")
    door.get_by_role("button", name="Create user").click()
    expect(door.get_by_text("It is shown only once.")).to_be_visible()
    password = door.get_by_role("dialog").locator(".line code").inner_text()
    door.get_by_role("button", name="I have saved it").click()
    door.locator(".tabs").get_by_role("link", name="Rights").click()
    door.get_by_role("button", name="Grant").click()
    door.get_by_label("Subject").fill("alice@*")
    door.get_by_role("dialog").get_by_label("access", exact=True).check()
    door.get_by_role("button", name="Save").click()
    expect(door.get_by_role("row", name="alice@*")).to_contain_text("access")
    door.locator(".tabs").get_by_role("link", name="Audit").click()
    expect(door.get_by_role("row", name="user.change").first).to_contain_text("alice")
    granted = door.get_by_role("row", name="acl.").first.locator(".facts")
    expect(granted).to_contain_text("access")
    expect(granted).not_to_contain_text("{")
    assert door.locator("td.words .mono").evaluate_all(
        "spans => spans.length > 0 && spans.every((span) => span.getClientRects().length === 1)"
    ), "a name is broken in the middle"
    door.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert door.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    door.set_viewport_size({"width": LAPTOP[0], "height": LAPTOP[1]})
    door.get_by_role("button", name="Log out").click()

    enter(door, "alice", password)
    expect(door.get_by_role("heading", name="Audit needs the right monitor")).to_be_visible()
    expect(door.get_by_role("link", name="Users")).to_have_count(0)
    expect(door.get_by_role("link", name="New channel or queue")).to_have_count(0)
    door.evaluate("location.hash = '#/new'")
    door.get_by_label("Name", exact=True).fill("not/mine")
    door.get_by_role("button", name="Create channel").click()
    expect(door.get_by_role("alert").last).to_contain_text("access-denied")
    expect(door.get_by_label("Name", exact=True)).to_have_value("not/mine")


def test_who_has_no_admin_sees_what_is_theirs_and_no_alarm(door: Page, admin: Known) -> None:
    for name in ("eu/orders", "secret"):
        admin.send("POST", "channels", {"name": name})
    events = {"events": [{"data": "x"}] * 7}
    admin.send("POST", "channels/eu%2Forders/events", events)
    for durable in ("billing", "shipping"):
        durable_fields = {"name": durable, "start": "earliest"}
        admin.send("POST", "channels/eu%2Forders/durables", durable_fields)
    admin.send("POST", "users", {"name": "ann", "password": "secret of ann"})
    admin.send("POST", "acl/grant", {"kind": "realm", "subject": "ann@*", "rights": ["access"]})
    grant = {"kind": "channel", "name": "eu/orders", "subject": "ann@*", "rights": ["subscribe"]}
    admin.send("POST", "acl/grant", grant)
    refused: list[str] = []

    enter(door, "ann", "secret of ann")
    expect(door.get_by_role("heading", name="Channels and queues you may see")).to_be_visible()
    door.on(
        "response",
        lambda response: refused.append(response.url) if response.status >= 400 else None,
    )
    expect(door.get_by_role("row", name="eu/orders")).to_contain_text("7")
    expect(door.get_by_text("Figures need the right monitor")).to_be_visible()
    expect(door.locator(".link-state")).to_have_text("Connected")
    for false in ("No durables yet", "No dead events", "Not connected", "secret"):
        expect(door.get_by_text(false)).to_have_count(0)
    expect(door.locator(".dot.bad")).to_have_count(0)
    expect(door.get_by_role("button", name="Pause publishing")).to_have_count(0)
    expect(door.get_by_role("link", name="New channel or queue")).to_have_count(0)
    pages = door.get_by_role("navigation", name="Pages").get_by_role("link")
    expect(pages).to_have_text(["Overview", "Dead events", "Patterns", "Scheduled", "Access"])

    door.get_by_role("main").get_by_role("link", name="eu/orders").click()
    expect(door.locator(".stat", has_text="Outstanding")).to_contain_text("14")
    expect(door.get_by_text("Figures need the right monitor")).to_be_visible()
    door.locator(".tabs").get_by_role("link", name="Durables").click()
    door.get_by_role("main").get_by_role("link", name="billing").click()
    expect(door.locator(".stat", has_text="Ready")).to_contain_text("7")
    expect(door.locator(".stat", has_text="Last read")).to_contain_text("never")
    for address, what in (("#/connections", "Connections"), ("#/access/users", "Users")):
        door.evaluate("place => { location.hash = place; }", address)
        expect(door.get_by_role("heading", name=f"{what} need the right")).to_be_visible()
    assert refused == []

    admin.send("POST", "acl/grant", {"kind": "realm", "subject": "ann@*", "rights": ["monitor"]})
    door.reload()
    expect(door.locator(".link-state")).to_have_text("Live")
    expect(door.get_by_role("link", name="Connections")).to_be_visible()


def test_who_has_no_right_on_anything_is_told_so(door: Page, admin: Known) -> None:
    admin.send("POST", "channels", {"name": "secret"})
    admin.send("POST", "users", {"name": "bob", "password": "secret of bob"})
    admin.send("POST", "acl/grant", {"kind": "realm", "subject": "bob@*", "rights": ["access"]})

    enter(door, "bob", "secret of bob")

    expect(door.get_by_role("heading", name="No channel or queue that you may see")).to_be_visible()
    expect(door.locator(".side")).to_contain_text("No channel or queue that you may see")
    expect(door.get_by_text("Create a channel")).to_have_count(0)
