"""The work for a client that hangs up is stopped; a change happens completely or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.disconnecting import TIMEOUT_S, ask, hang_up
from penstock_core.vocabulary.errors import LimitReached
from penstock_server.runtime.access.askers import asker
from penstock_server.runtime.delivery.selection import SelectorLimits
from penstock_server.runtime.reading.collecting import Collected
from penstock_server.runtime.transfer.exports import Exports


class Endless:
    """Replaces a slow operation, and ends when its task is cancelled; with ``looks`` it ends when
    it notices that no client waits."""

    def __init__(self, *, looks: bool = False) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        self._looks = looks

    async def __call__(self, *_: Any, **__: Any) -> Any:
        asks, ended = asker.get(), asyncio.Event()
        if self._looks:
            asks.on_gone(ended.set)
        self.began.set()
        try:
            await ended.wait()
            asks.check()
        finally:
            self.ended.set()


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    channel = session.channels.create("orders")
    channel.publish_many([penstock.Event(b"", properties={"n": n, "s": "ab"}) for n in range(9)])
    return channel


@pytest.mark.parametrize(
    ("owner", "name", "method", "path", "body"),
    [
        (Collected, "wait", "GET", "channels/orders/events?selector=n%3E3", None),
        (Collected, "wait", "GET", "channels/orders/events?newest=true&selector=n%3E3", None),
        (
            Collected,
            "wait",
            "POST",
            "selectors/check",
            {"selector": "n > 3", "channel": "orders"},
        ),
        (Exports, "read", "GET", "channels/orders/export", None),
    ],
    ids=["browse", "newest", "selector", "export"],
)
def test_a_request_that_only_reads_ends_with_its_client(
    owner: type[Any],
    name: str,
    method: str,
    path: str,
    body: Any,
    web: Web,
    realm: penstock.Realm,
    orders: penstock.Channel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = Endless()
    monkeypatch.setattr(owner, name, endless.__call__)
    peer = ask(web, method, path, body=body)
    assert endless.began.wait(TIMEOUT_S), "it works for its client"
    assert not endless.ended.is_set()
    hang_up(peer)
    assert endless.ended.wait(TIMEOUT_S), "and for nobody"
    monkeypatch.undo()
    assert len(web.get("channels/orders/events")["items"]) == 9, "others are served as ever"
    assert orders.info().subscribers == 0


def test_a_live_view_ends_with_its_client(
    web: Web, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    began, ended = threading.Event(), threading.Event()

    async def again(call: Callable[[], Any], /) -> Any:
        began.set()
        try:
            while True:  # it stands for a selector that takes long
                call()
                await asyncio.sleep(0)
        except LimitReached:
            ended.set()
            raise

    choosing = realm.running.dispatch.choosing
    choosing.limits, choosing.offload = SelectorLimits(turn_cost=-1), again
    peer = ask(web, "GET", "channels/orders/live?start=earliest&selector=n%3E3+AND+n%3E4")
    assert began.wait(TIMEOUT_S)
    hang_up(peer)
    assert ended.wait(TIMEOUT_S), "its selector is asked no more"


def test_a_purge_whose_client_has_disconnected_is_not_executed(
    web: Web, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    endless = Endless(looks=True)
    choosing = realm.running.dispatch.choosing
    limits, offload = choosing.limits, choosing.offload
    choosing.limits, choosing.offload = SelectorLimits(thread_above=0), endless
    peer = ask(web, "POST", "channels/orders/purge", body={"selector": "s LIKE '%a%b%'"})
    assert endless.began.wait(TIMEOUT_S)
    hang_up(peer)
    assert endless.ended.wait(TIMEOUT_S)
    choosing.limits, choosing.offload = limits, offload
    assert orders.info().events == 9
    assert orders.purge(selector="s LIKE '%a%b%'") == 9


def test_a_client_that_waits_is_answered(web: Web, orders: penstock.Channel) -> None:
    with ask(web, "GET", "channels/orders/events?selector=n%3E3") as peer:
        answer_bytes = peer.recv(65_536)
        assert answer_bytes.startswith(b"HTTP/1.1 200")
        peer.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"200" in peer.recv(65_536), "and the connection goes on"
