"""The embedded realm for asyncio."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.client.connection.threads import fast_loop
from penstock_server.frontends.native import listener
from tests.loops import on_a_loop


@on_a_loop
async def test_async_with_opens_a_realm_and_its_sessions(tmp_path: Path) -> None:
    async with aio.Realm(tmp_path / "data") as realm, realm.connect() as session:
        orders = await session.channels.create("orders", type="persistent")
        await orders.publish(b"kept")
    async with aio.Realm(tmp_path / "data") as realm:
        session = await realm.connect()
        orders = await session.channels.get("orders")
        browsed = [event.data async for event in orders.browse()]
    assert not session.is_connected  # the realm has closed it
    assert browsed == [b"kept"]


@on_a_loop
async def test_it_serves_others_and_the_loop_may_be_blocked() -> None:
    async with aio.Realm() as realm:
        url = await realm.listen()
        with penstock.connect(url) as blocking:  # on this very loop
            assert blocking.channels.create("orders").publish(b"0") == 0


@pytest.mark.slow
@on_a_loop
async def test_settings_and_users_are_as_of_the_blocking_realm() -> None:
    async with aio.Realm(limits__max_event_bytes=1_024, access__mode="mandatory") as realm:
        async with realm.connect() as session:
            orders = await session.channels.create("orders")
            with pytest.raises(penstock.EventTooLarge):
                await orders.publish(b"x" * 10_000)
        async with realm.connect("guest") as guest:
            with pytest.raises(penstock.AccessDenied):
                await guest.channels.create("more")


def test_a_connection_that_is_refused_at_once_closes_its_socket_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file descriptor that is closed twice may belong to other code by then, and uvloop ends the
    process."""

    class Refused(asyncio.Protocol):
        def __init__(self, *_: object) -> None:
            pass

        def connection_made(self, transport: Any) -> None:
            transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)

    nobody: Any = None
    monkeypatch.setattr(listener, "Connection", Refused)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003 - positional-only
    loop = fast_loop()
    with theirs, closing(loop):
        loop.create_task(listener.NativeListener.adopt(nobody, ours))
        loop.run_forever()

        assert ours.fileno() == -1, "the loop has closed it, and nobody else does"


@on_a_loop
async def test_one_that_is_not_open_says_so() -> None:
    realm = aio.Realm()
    with pytest.raises(penstock.IllegalState, match="not open"):
        await realm.connect()
    await realm.open()
    await realm.close()
    await realm.close()
    with pytest.raises(penstock.IllegalState, match="not open"):
        await realm.listen()


@pytest.mark.slow
def test_a_client_does_not_load_the_server() -> None:
    code = (
        "import sys, penstock.aio; assert 'Realm' in dir(penstock.aio); "
        "print([name for name in sys.modules if name.startswith('penstock_server')])"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"
