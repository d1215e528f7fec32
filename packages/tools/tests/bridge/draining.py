"""Bridges in the process of a test."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag

import penstock
from penstock_tools.bridge.amqp_source import AmqpSource
from penstock_tools.bridge.ledger import BridgeLedger
from penstock_tools.bridge.running import Bridge, Forwarded
from penstock_tools.bridge.sources import SourceBounds, parse_source


def source_link(url: str, *, window: int = 100, is_subscription: bool = False) -> AmqpSource:
    """A link for the bridge ``old``, which is not connected."""
    bounds = SourceBounds(window, window_bytes=1 << 20, message_bytes_max=1 << 20)
    return AmqpSource(parse_source(url), "old", bounds, is_subscription=is_subscription)


def bridged(
    session: penstock.Session,
    url: str,
    *,
    window: int = 100,
    is_subscription: bool = False,
    on_retry: Callable[[str], None] = lambda reason: None,
) -> list[Forwarded]:
    """What the steps of a bridge have done until the source was empty."""
    steps: list[Forwarded] = []
    ledger = BridgeLedger(session, "old", session.channels.get("new"), url)
    link = source_link(url, window=window, is_subscription=is_subscription)
    Bridge(link, ledger, on_step=steps.append, on_retry=on_retry).run(Flag(), idle_s=0.4)
    return steps
