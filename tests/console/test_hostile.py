"""Names and data are text, whatever they say."""

from __future__ import annotations

import hashlib
import re
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect

from penstock_server.frontends.http.console import ROOT as CONSOLE
from penstock_testing.process import ServerProcess
from tests.console.conftest import PATIENCE_MS, Api, Opened, tab

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)

NASTY = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}${7*7}'


def test_hostile_data_is_shown_as_text(opened: Opened, api: Api) -> None:
    path = api.create("hostile")
    api.publish(
        path,
        {
            "data": NASTY,
            "tag": NASTY,
            "properties": {NASTY: NASTY, "nested": {"__proto__": NASTY, "constructor": None}},
            "headers": {"correlation_id": NASTY, "type": "javascript:alert(1)"},
        },
        {"data": '{"type": "script", "props": {"dangerouslySetInnerHTML": {"__html": "<b>"}}}'},
    )
    page = opened("#/channel/hostile/events")

    page.locator("button.event-row", has_text="onerror").click()
    detail = page.locator(".detail")
    expect(detail.locator("pre")).to_have_text(NASTY)
    expect(detail.get_by_role("row", name="onerror").first).to_be_visible()
    detail.get_by_role("button", name="Edit a copy").click()
    expect(page.get_by_role("textbox", name="Data", exact=True)).to_have_value(NASTY)
    tab(page, "Events")
    page.locator("button.event-row", has_text="dangerously").click()
    expect(detail.locator("pre")).to_contain_text("dangerouslySetInnerHTML")

    assert page.evaluate("window.hacked") is None
    assert page.locator("#console img, #console script, #console b.bold").count() == 0


def test_hostile_names_in_the_address_are_text(opened: Opened) -> None:
    page = opened(f"#/channel/{NASTY.replace('/', '%2F')}")
    expect(page.get_by_role("alert")).to_be_visible()

    assert page.evaluate("window.hacked") is None
    assert page.locator("#console img, #console script").count() == 0


def test_a_durable_with_a_hostile_selector_is_text(opened: Opened, api: Api) -> None:
    path = api.create("selected")
    selector = "sku = '<img src=x onerror=window.hacked=1>'"
    api.ask("POST", f"{path}/durables", {"name": "odd:@.name", "selector": selector})
    page = opened("#/channel/selected/durables")
    page.get_by_role("main").get_by_role("link", name="odd:@.name").click()

    expect(page.locator("dd code", has_text=selector)).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_the_policy_allows_no_inline_script_or_style(server: ServerProcess) -> None:
    with urlopen(f"{server.http_url}/", timeout=30) as answer:
        policy = answer.headers["content-security-policy"]

    assert "unsafe" not in policy
    assert "default-src 'self'" in policy or "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    text = (CONSOLE / "index.html").read_text()

    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?://", text) == []


def test_no_module_makes_markup_of_text() -> None:
    scripts = [path for path in CONSOLE.rglob("*.js") if path.parent.name != "vendor"]
    unsafe = [
        path.name
        for path in scripts
        if re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function",
            path.read_text(),
        )
    ]

    assert scripts
    assert unsafe == []


def test_vendored_files_are_those_the_readme_names() -> None:
    readme = (CONSOLE / "vendor/README.md").read_text()
    named = dict(re.findall(r"\| (\w[\w-]*\.js) \|.*\| `([0-9a-f]{16})` \|", readme))
    digests = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in (CONSOLE / "vendor").glob("*.js")
    }

    assert named == digests
