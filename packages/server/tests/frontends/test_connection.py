"""Single connections, whose bytes come and go when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from packages.server.tests.frontends.wires import Peer
from packages.server.tests.runtime.living import body, living, publish
from penstock_core.api.durables import DescribeDurable
from penstock_core.api.subscriptions import Attach, Bury, Hold, Settle, Unsubscribe
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_core.wire.native import messages as wire
from penstock_server.frontends.native.connection import REQUESTS_MAX
from penstock_server.frontends.native.listener import (
    INCOMPLETE_SMALL_BYTES,
    NativeLimits,
    NativeListener,
)
from penstock_server.frontends.shared.buffers import Buffers
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated


@simulated
async def with_peers(story: Callable[[Peer, Peer, asyncio.TaskGroup], Awaitable[None]]) -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm, asyncio.TaskGroup() as group:
        listener = NativeListener(realm, "test", NativeLimits())
        ready = asyncio.Event()
        listening = group.create_task(listener.run(ready))
        await ready.wait()
        await realm.create_channel("orders", Definition())
        await realm.subscriptions.create_durable(
            ChannelId(1), "d", "shared", start=FromEarliest(), selector="", persistent=None
        )
        await publish(realm, ChannelId(1), body([b"x"] * 3))
        await story(Peer(listener, "a"), Peer(listener, "b"), group)
        listening.cancel()


def settle(request: int, event_id: int) -> wire.Asked:
    return wire.Asked(request, Settle(1, (Span(event_id, event_id + 1),)))


@pytest.mark.spec("D11")
def test_messages_before_a_seat_is_taken_are_processed_before_later_ones() -> None:
    async def story(peer: Peer, _: Peer, group: asyncio.TaskGroup) -> None:
        peer.say(wire.Asked(1, Attach(ChannelId(1), 1, "d", window=3)))
        opened = peer.connection.openings[1]

        async def follow() -> None:
            await opened.wait()
            peer.say(settle(4, 2))

        group.create_task(follow())
        await asyncio.sleep(0)
        peer.say(settle(2, 0), settle(3, 1))

        assert await peer.answered(4) == [1, 2, 3, 4]

    with_peers(story)


@pytest.mark.spec("D13")
def test_bye_is_answered_after_all_events_have_gone_back() -> None:
    async def story(peer: Peer, other: Peer, _: asyncio.TaskGroup) -> None:
        peer.say(wire.Asked(1, Attach(ChannelId(1), 1, "d", window=3)))
        await peer.answered(1)
        peer.say(settle(2, 0), wire.Bye(), settle(3, 1))
        assert not peer.wire.is_closed
        assert peer.connection.eof_received()  # the connection is still notified of settled events

        assert await peer.answered(1) == [2]
        await peer.wire.ended.wait()
        other.say(wire.Asked(1, DescribeDurable(ChannelId(1), "d")))
        (info,) = await other.next_answers(1)
        assert isinstance(info, wire.Done)
        assert (info.answer["outstanding"], info.answer["clients"]) == (2, [])

    with_peers(story)


@pytest.mark.spec("D13")
def test_bye_followed_by_a_disconnect_closes_the_session() -> None:
    """Clients of before wait for nothing, and may end the connection at once."""

    async def story(peer: Peer, other: Peer, _: asyncio.TaskGroup) -> None:
        peer.say(wire.Asked(1, Attach(ChannelId(1), 1, "d", window=3)))
        await peer.answered(1)
        peer.say(settle(2, 0), wire.Bye())
        peer.connection.connection_lost(ConnectionResetError())

        other.say(
            wire.Asked(1, Attach(ChannelId(1), 1, "d", window=3)),
            wire.Asked(2, DescribeDurable(ChannelId(1), "d")),
        )
        answers_by_request = {message.request: message for message in await other.next_answers(2)}
        assert isinstance(answers_by_request[2], wire.Done)
        assert (
            answers_by_request[2].answer["outstanding"],
            len(answers_by_request[2].answer["clients"]),
        ) == (2, 1)

    with_peers(story)


@pytest.mark.spec("D14")
def test_a_hold_that_is_still_being_opened_is_waited_for() -> None:
    async def story(peer: Peer, _: Peer, group: asyncio.TaskGroup) -> None:
        peer.say(wire.Asked(1, Attach(ChannelId(1), 1, "d", sole=True)))
        assert peer.connection.subscriptions[1] == 0, "it is not open yet"
        peer.say(wire.Asked(2, Hold(1, 0, 2)), wire.Asked(3, Bury(1, (Span(0, 1),), "no good")))

        by_request = {message.request: message for message in await peer.next_answers(3)}

        held, buried = by_request[2], by_request[3]
        assert isinstance(held, wire.Done)
        assert held.answer["ids"] == [[0, 2]]
        assert isinstance(buried, wire.Failed)
        assert "no dead event store" in buried.text, "the seat is there; the channel has none"

    with_peers(story)


@pytest.mark.spec("D9")
def test_settling_on_a_refused_seat_is_refused() -> None:
    async def story(peer: Peer, _: Peer, group: asyncio.TaskGroup) -> None:
        peer.say(
            wire.Asked(1, Attach(ChannelId(1), 1, "unknown", sole=True)),
            wire.Asked(2, Hold(1, 0, 2)),
        )

        messages = await peer.next_answers(2)

        assert [(type(message), message.request) for message in messages] == [
            (wire.Failed, 1),
            (wire.Failed, 2),
        ]
        [unknown, not_open] = messages
        assert isinstance(unknown, wire.Failed)
        assert isinstance(not_open, wire.Failed)
        assert (unknown.code, not_open.code) == ("name-does-not-exist", "illegal-state")

    with_peers(story)


@pytest.mark.spec("D13")
def test_a_seat_that_was_still_being_taken_is_free_when_its_end_is_answered() -> None:
    async def story(peer: Peer, other: Peer, group: asyncio.TaskGroup) -> None:
        peer.say(
            wire.Asked(1, Attach(ChannelId(1), 1, "d", sole=True)), wire.Asked(2, Unsubscribe(1))
        )
        assert peer.connection.openings, "it is not open yet"
        messages = await peer.next_answers(2)
        assert sorted(message.request for message in messages) == [1, 2]
        durable = peer.connection.realm.directory.channels[1].state.durable("d")
        assert not durable.seats

        other.say(wire.Asked(1, Attach(ChannelId(1), 1, "d", sole=True)))
        [attached] = await other.next_answers(1)

        assert isinstance(attached, wire.Done)

    with_peers(story)


@pytest.mark.spec("D9")
def test_a_peer_with_many_early_messages_is_not_read() -> None:
    async def story(peer: Peer, _: Peer, group: asyncio.TaskGroup) -> None:
        peer.say(
            wire.Asked(1, Attach(ChannelId(1), 1, "d", window=3)),
            *[wire.Credit(1, 1)] * REQUESTS_MAX,
        )
        assert not peer.wire.is_read
        await peer.answered(1)
        await pass_time(1.0)
        assert peer.wire.is_read
        assert peer.connection.describe().requests == 0

    with_peers(story)


def test_a_connection_that_cannot_be_written_to_ends_alone() -> None:
    """Answers leave in the turn of the one task that serves all: it must not be the end of it."""

    async def story(hurt: Peer, other: Peer, group: asyncio.TaskGroup) -> None:
        for number, peer in enumerate((hurt, other), start=1):
            peer.say(wire.Asked(1, Attach(ChannelId(1), number, "d", window=1)))
            assert await peer.answered(1) == [1]
        hurt.wire.error = RuntimeError("the handle is closed")
        for event_id, peer in enumerate((hurt, other)):
            first = settle(2, event_id)
            peer.say(
                first
                if peer is hurt
                else replace(first, request=replace(first.request, subscription=2))
            )

        assert await other.answered(1) == [2]
        assert hurt.wire.is_aborted
        assert not other.wire.is_aborted

    with_peers(story)


def test_frames_without_their_end_share_the_room_of_their_user() -> None:
    async def story(first: Peer, _: Peer, group: asyncio.TaskGroup) -> None:
        listener = first.connection.listener
        listener.incomplete = Buffers(8 << 20, INCOMPLETE_SMALL_BYTES)
        peers = [Peer(listener, f"s{number}") for number in range(4)]
        await pass_time(1)
        for peer in peers:
            peer.begin_frame(2 << 20)
        assert [peer.wire.is_read for peer in peers] == [True, True, False, False]

        peers[0].connection.connection_lost(None)
        await pass_time(1)
        assert [peer.wire.is_read for peer in peers[1:]] == [True, True, False]
        peers[1].end_frame()
        await pass_time(1)
        assert peers[3].wire.is_read
        for peer in peers[1:]:
            peer.connection.connection_lost(None)
        assert not listener.incomplete.held

    with_peers(story)


def test_requests_with_large_headers_count_until_they_are_answered() -> None:
    async def story(first: Peer, _: Peer, group: asyncio.TaskGroup) -> None:
        listener = first.connection.listener
        listener.incomplete = Buffers(8 << 20, INCOMPLETE_SMALL_BYTES)
        peers = [Peer(listener, f"s{number}") for number in range(3)]
        await pass_time(1)
        scattered = tuple(Span(event_id, event_id + 1) for event_id in range(0, 80_000, 2))
        for peer in peers:
            peer.say(wire.Asked(1, Attach(ChannelId(1), 1, "d", window=1)))
            peer.say(wire.Asked(2, Settle(1, scattered)))
        assert [peer.wire.is_read for peer in peers] == [True, False, False]

        for peer in peers:
            assert sorted(await peer.answered(2)) == [1, 2]
        await pass_time(1)
        assert all(peer.wire.is_read for peer in peers)
        for peer in peers:
            peer.connection.connection_lost(None)
        assert not listener.incomplete.held

    with_peers(story)
