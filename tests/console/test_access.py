"""Logging in where the realm wants to know who one is, and what one may then do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import penstock
from tests.console.conftest import PATIENCE_MS

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
    expect(door.get_by_text("It is shown this once.")).to_be_visible()
    password = door.get_by_role("dialog").locator(".line code").inner_text()
    door.get_by_role("button", name="I have it").click()
    door.locator(".tabs").get_by_role("link", name="Rights").click()
    door.get_by_role("button", name="Grant").click()
    door.get_by_label("Who").fill("alice@*")
    door.get_by_role("dialog").get_by_label("access", exact=True).check()
    door.get_by_role("button", name="Save").click()
    expect(door.get_by_role("row", name="alice@*")).to_contain_text("access")
    door.locator(".tabs").get_by_role("link", name="Audit").click()
    expect(door.get_by_role("row", name="user.change").first).to_contain_text("alice")
    door.get_by_role("button", name="Log out").click()

    enter(door, "alice", password)
    door.get_by_role("link", name="New channel or queue").click()
    door.get_by_label("Name", exact=True).fill("not/mine")
    door.get_by_role("button", name="Create channel").click()
    expect(door.get_by_role("alert").last).to_contain_text("access-denied")
    expect(door.get_by_label("Name", exact=True)).to_have_value("not/mine")
