"""The console of a cluster whose owner is killed: the page says so, and goes on."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from packages.cluster.tests import processes
from penstock_testing.nats_servers import NatsServers
from penstock_testing.ports import free_ports
from tests.console.conftest import PATIENCE_MS, Api

pytestmark = [pytest.mark.slow, pytest.mark.process]
expect.set_options(timeout=PATIENCE_MS)


@pytest.mark.spec("N4")
def test_a_node_is_killed_the_page_says_so_and_the_numbers_go_on(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "engine").mkdir()
    ports = dict(zip(("n1", "n2", "n3"), free_ports(3), strict=True))
    with ExitStack() as stack:
        servers = stack.enter_context(NatsServers(tmp_path / "engine"))
        nodes = {
            name: stack.enter_context(
                processes.node(
                    servers.engine,
                    tmp_path / name,
                    "--http",
                    "--http-port",
                    f"{port}",
                    monitors=servers.monitors,
                )
            )
            for name, port in ports.items()
        }
        node_url = f"http://127.0.0.1:{ports['n2']}"
        Api(node_url).publish(Api(node_url).create("orders"), {"data": "before"})
        page = stack.enter_context(browser.new_context()).new_page()
        page.goto(f"{node_url}/#/channel/orders")
        storage = page.get_by_role("region", name="Storage")
        expect(storage.get_by_text("Owner")).to_be_visible()
        expect(storage.get_by_role("link", name="n1", exact=True)).to_be_visible()
        page.goto(f"{node_url}/#/cluster")
        table = page.get_by_role("table", name="Nodes")
        expect(page.get_by_text("3 of 3 nodes up; n1 owns the realm.")).to_be_visible()
        expect(table.get_by_text("stands by")).to_have_count(2)

        nodes["n1"].kill()

        expect(page.get_by_text("n1 is down.")).to_be_visible()
        expect(page.get_by_text("2 of 3 nodes up; n")).to_be_visible()
        expect(table.get_by_text("down")).to_be_visible()
        Api(node_url).publish("/channels/orders", {"data": "after"})
        page.goto(f"{node_url}/#/channel/orders")
        next_owner = storage.get_by_role("link", name=re.compile("^n[23]$"))
        expect(next_owner).to_be_visible()
        next_owner.click()
        expect(page.get_by_text(" of 3 nodes up; ")).to_be_visible()
        page.goto(f"{node_url}/#/channel/orders/events")
        expect(page.get_by_text("before")).to_be_visible()
        expect(page.get_by_text("after")).to_be_visible()
