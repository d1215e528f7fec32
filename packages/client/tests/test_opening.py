"""Opening sessions: with await, with async with, and as a separate task."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock import aio
from penstock_testing.relay import Relay
from tests.loops import on_a_loop


@on_a_loop
async def test_async_with_opens_a_session_and_closes_it(realm: penstock.Realm) -> None:
    url = realm.listen()

    async with aio.connect(url) as session:
        assert (await session.info()).connections == 1

    assert not session.is_connected


@on_a_loop
async def test_it_may_be_awaited_and_closed_by_its_caller(realm: penstock.Realm) -> None:
    url = realm.listen()

    session = await aio.connect(url)
    assert (await session.info()).connections == 1
    await session.close()
    async with await aio.connect(url) as session:
        assert session.is_connected


@on_a_loop
async def test_it_may_become_a_task(realm: penstock.Realm) -> None:
    url = realm.listen()

    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(aio.connect(url))
    assert opening.result().is_connected
    await opening.result().close()


@on_a_loop
async def test_what_cannot_be_opened_says_so_when_it_is_waited_for() -> None:
    with pytest.raises(penstock.InvalidArgument, match="kafka"):
        async with aio.connect("kafka://localhost"):
            raise AssertionError("it was opened")
    with pytest.raises(penstock.CannotConnect):
        await aio.connect("penstock://127.0.0.1:1", reconnect_timeout=0)


@on_a_loop
async def test_what_is_closed_without_a_word_is_tried_again_for_a_moment(relay: Relay) -> None:
    """A node of a cluster behaves like this when it begins or ends to serve."""
    relay.close_door()
    with pytest.raises(penstock.CannotConnect, match=r"it was closed|the connection was lost"):
        await aio.connect(relay.url, reconnect_timeout=0)
    dropped = relay.dropped

    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(aio.connect(relay.url))
        await asyncio.to_thread(eventually, lambda: relay.dropped > dropped)
        relay.open_door()

    async with opening.result() as session:
        assert session.is_connected
