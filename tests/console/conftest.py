"""A browser, a realm with its console, and pages whose errors fail the test."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from penstock_testing.process import ServerProcess

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LAPTOP, PHONE = (1280, 800), (390, 844)
PATIENCE_MS = 60_000
"""Time within which a page must react; long, because machines may be busy."""

Opened = Callable[..., Page]


def place(name: str, *more: str, kind: str = "channel") -> str:
    """Return the address of the page of a store."""
    return "/".join(["#", kind, quote(name, safe=""), *more])


def program(own: str) -> str | None:
    """Return the path of a Chromium of this machine, or else Playwright's ``own``; None if there is
    none."""
    installed = (shutil.which(name) for name in PROGRAMS)
    return next(filter(None, installed), own if Path(own).exists() else None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = program(playwright.chromium.executable_path)
        if path is None:
            pytest.skip("no browser for the console's tests: apt-get install chromium")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(
            executable_path=path, args=arguments, timeout=2 * PATIENCE_MS
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("console")
    (folder / "pipelines").mkdir()
    settings = {"PENSTOCK_HTTP_PIPELINES": str(folder / "pipelines")}
    arguments = ("--http", "--http-port", "0")
    with ServerProcess(folder / "realm", *arguments, environment=settings) as running:
        yield running


class Api:
    """The realm's HTTP API, with which tests prepare what pages show."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        with urlopen(request, timeout=PATIENCE_MS / 1_000) as answer:
            return json.load(answer)

    def create(self, name: str, kind: str = "channel", **attributes: object) -> str:
        definition = {"type": "persistent", **attributes}
        self.ask("POST", f"/{kind}s", {"name": name, "attributes": definition})
        return f"/{kind}s/{quote(name, safe='')}"

    def publish(self, path: str, *events: Mapping[str, object]) -> None:
        self.ask("POST", f"{path}/events", {"events": list(events)})


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api(server.http_url)


@pytest.fixture
def opened(browser: Browser, server: ServerProcess) -> Iterator[Opened]:
    """A function that opens a page of the console. Errors of the page, and breaches of its content
    security policy, fail the test."""
    wrong: list[str] = []
    contexts = []

    def note(message: ConsoleMessage) -> None:
        # A refusal of the realm is a line of the browser's, too, and no error of the page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            wrong.append(message.text)

    def open_(
        place: str = "", size: tuple[int, int] = LAPTOP, scheme: str = "light", **more: Any
    ) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if scheme == "dark" else "light",
            **more,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{server.http_url}/{place}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []


def tab(page: Page, name: str) -> None:
    """Open a tab of a channel or queue."""
    page.locator(".tabs").get_by_role("link", name=name).click()


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """A thread for a client, because Playwright's event loop occupies the main thread."""
    with ThreadPoolExecutor(1) as thread:
        yield thread
