"""Users and rights of a cluster are the same at every node and over takeovers."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from packages.cluster.tests.machines import LEASE_S, NodeMachine, end, owner_and_others, until
from packages.cluster.tests.relaying import SECRET, connect
from packages.cluster.tests.serving import HOST
from penstock import aio
from penstock_core.vocabulary.errors import AccessDenied, AuthenticationFailed
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop

pytestmark = pytest.mark.slow

PASSWORD = "a-long-password"


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread takes real time, of which a simulated loop knows nothing."""

    async def here(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return call(*arguments, **options)

    monkeypatch.setattr(asyncio, "to_thread", here)


async def guarded(count: int = 3) -> tuple[NodeMachine, list[NodeMachine], aio.Session]:
    """The owner, the others, and a session of the administrator."""
    owner, others = await owner_and_others(EngineServers(), count, secret=SECRET, asks_who=True)
    for machine in (owner, *others):
        the_loop().network.hosts[machine.machine] = f"10.0.0.{machine.native - 9_000}"
    await until(lambda: len(owner.node.present()) == count)
    assert owner.realm is not None
    return owner, others, await signed_in(owner, "admin", owner.realm.access.first_password)


async def signed_in(node: NodeMachine, user: str, password: str = PASSWORD) -> aio.Session:
    return await aio.connect(node.url.replace("somebody", f"{user}:{password}"))


async def statuses(nodes: Sequence[NodeMachine], user: str, path: str) -> list[int]:
    """Return the HTTP status of the answer that a user gets through each node."""
    proof = b64encode(f"{user}:{PASSWORD}".encode()).decode()
    http_statuses = []
    for node in nodes:
        peer = await connect(
            node.http,
            f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n"
            f"authorization: Basic {proof}\r\n\r\n".encode(),
        )
        await until(lambda: peer.has_ended)  # noqa: B023  waited for at once
        http_statuses.append(int(peer.heard.split()[1]))
    return http_statuses


async def until_all_take_requests(nodes: Sequence[NodeMachine]) -> None:
    """A node may have heard of the owner before that one has opened its port for HTTP."""
    for _ in range(100):
        if 503 not in await statuses(nodes, "nobody", "/api/v1/me"):
            return
        await pass_time(0.1)
    raise AssertionError("not every node takes requests")


EVENTS = "/api/v1/channels/orders/events"


@pytest.mark.spec("N4")
@simulated
async def test_what_a_user_may_is_the_same_at_every_node_at_once_and_at_the_next_owner() -> None:
    owner, others, admin = await guarded()
    nodes = [owner, *others]
    await admin.channels.create("orders", type="persistent")
    for user in ("ann", "bob", "eve"):
        await admin.access.create_user(user, PASSWORD)
        await admin.access.grant(f"{user}@*", "access")
        await admin.access.grant(f"{user}@*", "subscribe", channel="orders")
    assert await statuses(nodes, "ann", EVENTS) == [200] * 3
    assert await statuses(nodes, "bob", EVENTS) == [200] * 3

    await admin.access.revoke("bob@*", "subscribe", channel="orders")
    await admin.access.delete_user("eve")
    assert await statuses(nodes, "ann", EVENTS) == [200] * 3
    assert await statuses(nodes, "bob", EVENTS) == [403] * 3
    assert await statuses(nodes, "eve", EVENTS) == [401] * 3

    owner.kill()
    await until(lambda: any(standby.serves for standby in others))
    (served,) = [standby for standby in others if standby.serves]
    assert owner.realm is not None
    await until_all_take_requests(others)
    assert await statuses(others, "ann", EVENTS) == [200] * 2
    assert await statuses(others, "bob", EVENTS) == [403] * 2
    assert await statuses(others, "eve", EVENTS) == [401] * 2
    again = await signed_in(served, "admin", owner.realm.access.first_password)
    await again.access.grant("bob@*", "subscribe", channel="orders")
    assert await statuses(others, "bob", EVENTS) == [200] * 2
    await again.close()
    await end(*others)


@pytest.mark.spec("A3", "N4")
@simulated
async def test_a_right_that_was_taken_away_ends_what_goes_on_at_once() -> None:
    owner, others, admin = await guarded()
    channel = await admin.channels.create("orders", type="persistent")
    await admin.access.create_user("ann", PASSWORD)
    await admin.access.grant("ann@*", "access")
    await admin.access.grant("ann@*", "subscribe", channel="orders")
    session = await signed_in(others[0], "ann")
    events = aiter(await (await session.channels.get("orders")).subscribe().open())
    await channel.publish(b"a")
    async with asyncio.timeout(LEASE_S):
        assert (await anext(events)).data == b"a"

    await admin.access.revoke("ann@*", "subscribe", channel="orders")
    await channel.publish(b"b")

    with pytest.raises(AccessDenied):
        async with asyncio.timeout(LEASE_S):
            await anext(events)
    await session.close()
    await end(owner, *others)


@simulated
async def test_a_session_whose_user_is_gone_is_not_taken_by_the_next_owner() -> None:
    owner, others, admin = await guarded()
    await admin.access.create_user("ann", PASSWORD)
    await admin.access.grant("ann@*", "access")
    session = await signed_in(owner, "ann")
    await admin.access.delete_user("ann")

    owner.kill()
    await until(lambda: any(standby.serves for standby in others))

    with pytest.raises(AuthenticationFailed):
        await signed_in(others[0], "ann")
    await session.close()
    await end(*others)


class Browser:
    """A browser that has signed in at one node, and shows its cookie to any."""

    def __init__(self, cookie: str, csrf: str) -> None:
        self._lines = f"cookie: {cookie}\r\nx-csrf-token: {csrf}\r\n"

    @classmethod
    async def signed_in(cls, node: NodeMachine, user: str) -> Browser:
        head, body = (
            await answer_to(node, "POST", "login", document={"user": user, "password": PASSWORD})
        ).split("\r\n\r\n", 1)
        cookie = head.split("set-cookie: ", 1)[1]
        assert "HttpOnly; SameSite=Strict" in cookie
        return cls(cookie.partition(";")[0], json.loads(body)["csrf"])

    async def asks(self, node: NodeMachine, method: str = "GET", path: str = "me") -> int:
        """The status of the answer."""
        return int((await answer_to(node, method, path, document={}, lines=self._lines)).split()[1])

    async def asks_all(self, nodes: Sequence[NodeMachine]) -> list[int]:
        return [await self.asks(node) for node in nodes]


async def answer_to(
    node: NodeMachine, method: str, path: str, document: Mapping[str, str], lines: str = ""
) -> str:
    body = json.dumps(document) if method == "POST" and document else ""
    peer = await connect(
        node.http,
        f"{method} /api/v1/{path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n{lines}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode(),
    )
    await until(lambda: peer.has_ended)
    return bytes(peer.heard).decode()


@pytest.mark.spec("N4")
@simulated
async def test_who_has_signed_in_to_the_console_stays_so_over_a_takeover_and_nobody_else_does() -> (
    None
):
    owner, others, admin = await guarded()
    for user in ("ann", "bob", "eve"):
        await admin.access.create_user(user, PASSWORD)
        await admin.access.grant(f"{user}@*", "access")
    ann, out, bob, eve = [
        await Browser.signed_in(node, user)
        for user, node in zip(("ann", "ann", "bob", "eve"), [*others, *others], strict=True)
    ]
    for client in (ann, out, bob, eve):
        assert await client.asks_all([owner, *others]) == [200] * 3
    assert await out.asks(others[1], "POST", "logout") == 200
    await admin.access.set_password("bob", PASSWORD)
    await admin.access.delete_user("eve")
    for client in (out, bob, eve):
        assert await client.asks_all([owner, *others]) == [401] * 3

    owner.kill()
    await until(lambda: any(standby.serves for standby in others))
    await until_all_take_requests(others)

    assert await ann.asks_all(others) == [200] * 2
    assert await ann.asks(others[0], "POST", "logout") == 200  # its token is right there, too
    for client in (ann, out, bob, eve):
        assert await client.asks_all(others) == [401] * 2
    await end(*others)
