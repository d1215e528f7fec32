"""A server whose disk fails reports this to waiting clients, and ends."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.client.connection.transport import Link
from penstock.client.connection.urls import parse_url
from penstock.client.handles.session import Session, open_session
from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import inline
from penstock_server.bootstrap import native_listener, rules
from penstock_server.frontends.front_end import FrontEnd, ListenAddress
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.front_end_service import FrontEndService
from penstock_server.runtime.realm import RunningRealm
from penstock_server.serving import lifecycle
from penstock_server.serving.lifecycle import run
from penstock_server.settings import Settings
from penstock_server.settings.loading import load
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import StillClock, open_store
from tests.loops import on_a_loop

SETTINGS = load(overrides={"listen.port": 0})


async def opened(disk: FaultyDisk) -> RunningRealm:
    store = open_store("/realm", disk)
    return await RunningRealm.open(
        store.journal, store.blobs, store.pages, rules(), StillClock(), inline, identity="test"
    )


async def connected(listener: NativeListener) -> Session:
    async def connect(make: Callable[[], Link]) -> Link:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - positional-only
        theirs.setblocking(False)  # noqa: FBT003 - positional-only
        await listener.adopt(ours)
        _, link = await asyncio.get_running_loop().create_connection(make, sock=theirs)
        return link

    return await open_session(parse_url("penstock://test"), connector=connect)


async def failure_of(work: Coroutine[Any, Any, None]) -> StorageFailed:
    with pytest.raises(StorageFailed) as failed:
        await work
    return failed.value


@on_a_loop
async def test_a_journal_that_cannot_be_synced_ends_the_server() -> None:
    disk = FaultyDisk()
    realm = await opened(disk)
    listener = native_listener(realm, SETTINGS, "test")
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(
            failure_of(run(realm, listener, SETTINGS, stopping=asyncio.Event()))
        )
        session = await connected(listener)
        channel = await session.channels.create("orders", type="persistent")
        disk.fail_syncs()
        with pytest.raises(StorageFailed) as refused:
            await channel.publish(b"x")
        await session.close()
    await realm.release()

    assert "sync" in str(serving.result())
    assert str(serving.result()) in str(refused.value)


def test_stopping_ends_it_without_an_error_and_a_successor_finds_everything() -> None:
    async def life(disk: FaultyDisk, *, publish: bool) -> int:
        realm = await opened(disk)
        listener = native_listener(realm, SETTINGS, "test")
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run(realm, listener, SETTINGS, stopping=stopping))
            session = await connected(listener)
            if publish:
                channel = await session.channels.create("orders", type="persistent")
                await channel.publish(b"x")
            else:
                channel = await session.channels.get("orders")
            events = (await channel.info()).events
            await session.close()
            stopping.set()
        await realm.release()
        return events

    disk = FaultyDisk()

    assert asyncio.run(life(disk, publish=True)) == 1
    disk.power_cut()
    assert asyncio.run(life(disk, publish=False)) == 1


@on_a_loop
async def test_modules_of_the_first_segment_file_are_imported_in_a_thread_after_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, loaded = asyncio.get_running_loop(), asyncio.Event()
    imported: list[tuple[str, bool]] = []

    def load(name: str) -> None:
        imported.append((name, threading.current_thread() is threading.main_thread()))
        loop.call_soon_threadsafe(loaded.set)

    monkeypatch.setattr(importlib, "import_module", load)
    lifecycle.load_later(after_s=0)
    await loaded.wait()

    assert imported == [("pyarrow.compute", False)]


class SlowService(FrontEndService):
    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    async def listen(self, host: str, port: int) -> int:
        self.is_open.set()
        return 1


class SlowFrontEnd(FrontEnd):
    name = "slow"
    schemes = ("slow://", "slows://")
    modules = ("a_large_module",)

    def place(self, settings: Settings) -> ListenAddress:
        return ListenAddress("127.0.0.1", 0)

    def service(self, listener: NativeListener, settings: Settings) -> SlowService:
        return SlowService()


@pytest.mark.parametrize("is_installed", [True, False])
@on_a_loop
async def test_native_clients_are_served_while_another_front_end_loads(
    monkeypatch: pytest.MonkeyPatch, *, is_installed: bool
) -> None:
    may_load = threading.Event()
    threads: list[threading.Thread] = []

    import_module = importlib.import_module

    def load(name: str) -> ModuleType:
        if name != "a_large_module":
            return import_module(name)
        threads.append(threading.current_thread())
        if threads[0] is not threading.main_thread():
            may_load.wait()
        if not is_installed:
            raise ModuleNotFoundError(name)
        return ModuleType(name)

    monkeypatch.setattr(importlib, "import_module", load)
    realm = await opened(FaultyDisk())
    listener = native_listener(realm, SETTINGS, "test")
    front_end = SlowFrontEnd()
    service = listener.services["slow"] = front_end.service(listener, SETTINGS)
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run(realm, listener, SETTINGS, stopping=stopping, front_ends=[front_end]))
        session = await connected(listener)
        channel = await session.channels.create("orders", type="persistent")
        await channel.publish(b"x")
        was_open = service.is_open.is_set()
        may_load.set()
        await service.is_open.wait()
        await session.close()
        stopping.set()
    await realm.release()

    assert not was_open
    assert threading.main_thread() not in threads


@pytest.mark.process
def test_a_server_does_without_pandas_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("__version__ = '9.9'")
    life = (
        "import sys; from penstock_server.serving import leave_pandas_out; leave_pandas_out(); "
        "import numpy, pyarrow; pyarrow.array([1]).to_numpy(); pyarrow.array(numpy.arange(3)); "
        "print('pandas' in sys.modules); import pandas; print(pandas.__version__)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])

    done = subprocess.run(
        [sys.executable, "-c", life],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["False", "9.9"]
