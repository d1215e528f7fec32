"""Fetches and settlements over HTTP."""

from __future__ import annotations

from typing import Any

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
JSON = "application/json"
TEAM = "channels/orders/durables/team"
LONG_MS = 600_000


def publish(channel: penstock.Channel | penstock.Queue, many: int) -> None:
    events = [penstock.Event(f"e{n}".encode(), properties={"n": n}) for n in range(many)]
    if isinstance(channel, penstock.Queue):
        channel.push_many(events)
    else:
        channel.publish_many(events)


def fetch(web: Web, where: str = TEAM, **body: Any) -> Any:
    body.setdefault("lease_ms", LONG_MS)
    return web.send("POST", f"{where}/fetch", body)


def settle(web: Web, lease: str, how: str, where: str = TEAM, **body: Any) -> Reply:
    return web.ask("POST", f"{where}/leases/{lease}/{how}", body)
