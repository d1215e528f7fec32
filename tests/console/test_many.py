"""A realm with more channels than its counters tell of each second."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from penstock_server.runtime.operations.realm_handlers import CHANNELS_MAX
from tests.console.conftest import PATIENCE_MS, Api, Opened

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def last(api: Api) -> str:
    """The name of the last of many channels, which has a durable."""
    for number in range(CHANNELS_MAX + 20):
        api.create(f"many/{number:04}", type="transient")
    path = api.create("many/z-last")
    api.ask("POST", f"{path}/durables", {"name": "late-billing"})
    return "many/z-last"


def test_durables_of_all_of_them_are_in_the_tree_and_found(opened: Opened, last: str) -> None:
    page = opened()
    page.get_by_label("Filter channels, queues and durables").fill("late-bill")

    durable = page.get_by_role("treeitem", name="durable late-billing")
    expect(durable).to_be_visible()
    durable.click()
    expect(page.get_by_role("heading", name="late-billing")).to_be_visible()

    page.get_by_label("Filter channels, queues and durables").fill("z-last")
    channel = page.get_by_role("treeitem", name="channel z-last")
    expect(channel).to_be_visible()
    channel.click()
    expect(page.get_by_role("heading", name=last)).to_be_visible()
