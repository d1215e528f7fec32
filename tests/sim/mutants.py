"""Ways to break a realm, or a client, on purpose: each is a mistake somebody could make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from penstock.client import merging
from penstock.client.conversation import Conversation
from penstock.client.pending import Pending
from penstock.client.subscription import Subscription
from penstock.core import decide
from penstock.core.durable import Durable
from penstock.core.ids import IdSet, Span
from penstock.core.lanes import Lanes
from penstock.core.messages import Spans
from penstock.core.ports import Buffer
from penstock.core.retention import Ages
from penstock.core.seat import Seat
from penstock.core.starts import FromId
from penstock.frontends.connection import Connection
from penstock.frontends.native import NativeListener
from penstock.runtime.clock import SystemClock
from penstock.runtime.delivery import Dispatch
from penstock.runtime.group import Group
from penstock.runtime.places import Places
from penstock.runtime.shard import Shard
from penstock.runtime.subscriptions import Subscriptions
from penstock.storage.disk import Disk
from penstock.storage.embedded import blobs, frames, journal
from penstock.testing.loop import pass_time
from penstock.wire.native import messages as wire

Spoil = Callable[[pytest.MonkeyPatch], None]


def ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "must_sync", property(lambda _: False, lambda _, __: None), raising=False)


def delivery_before_append(patch: pytest.MonkeyPatch) -> None:
    whole = Shard._append

    async def late(shard: Shard, group: Group) -> None:
        await shard._offer(list(group.touched))
        await pass_time(0.05)
        await whole(shard, group)

    patch.setattr(Shard, "_append", late)


def blind_retry(patch: pytest.MonkeyPatch) -> None:
    """A publish is sent again as if it were another one."""
    whole = Conversation._send

    def blind(conversation: Conversation, pending: Pending) -> None:
        if pending.sent and isinstance(pending.message, wire.PublishEvents):
            pending.message = msgspec.structs.replace(pending.message, producer="", sequence=0)
        whole(conversation, pending)

    patch.setattr(Conversation, "_send", blind)


def forgotten_gap(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement moves the floor over what others hold, and have not acknowledged."""
    whole = Durable.settled_by

    def floor(durable: Durable, seat: Seat, spans: Spans, stored: IdSet) -> IdSet:
        mine = whole(durable, seat, spans, stored).copy()
        if mine:
            mine.add_all(durable.outstanding.within(Span(0, max(span.end for span in mine.spans))))
        return mine

    patch.setattr(Durable, "settled_by", floor)


def lost_rollback(patch: pytest.MonkeyPatch) -> None:
    """What a client that is gone has held stays in its hands."""

    def lose(subscriptions: Subscriptions, subscription: int) -> None:
        subscriptions._dispatch.close(subscription)

    patch.setattr(Subscriptions, "lose", lose)


def unsynced_files(patch: pytest.MonkeyPatch) -> None:
    """Snapshots and segments get their names before their bytes are on disk."""

    def write_all(disk: Disk, path: str, chunks: Sequence[Buffer]) -> None:
        file = disk.open(path, create=True)
        disk.pwrite(file, chunks, 0)
        disk.close(file)

    patch.setattr(blobs, "write_all", write_all)


def torn_tail(patch: pytest.MonkeyPatch) -> None:
    """The last block is taken for whole, however much of it a power cut has left."""
    for module in (frames, journal):
        patch.setattr(module, "is_whole", lambda *_: True)


def stale_session(patch: pytest.MonkeyPatch) -> None:
    """A session's older connection lives on beside the one it has come back with."""

    def greeted(listener: NativeListener, connection: Connection, session: str) -> None:
        listener._sessions[session] = connection

    patch.setattr(NativeListener, "greeted", greeted)


def taken_seat(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the seat that an ended connection is about to take."""

    async def at_once(*_: object) -> None:
        return None

    patch.setattr(NativeListener, "seats_given_back", at_once)


def late_resume(patch: pytest.MonkeyPatch) -> None:
    """A reader goes on one event too late after a reconnect."""

    async def reopen(subscription: Subscription) -> None:
        if subscription._is_open:
            await subscription._ask(FromId(subscription._next_id + 1))

    patch.setattr(Subscription, "reopen", reopen)


def delta_for_whole(patch: pytest.MonkeyPatch) -> None:
    """A client that is to merge takes what has changed for all there is (SEM K3)."""
    patch.setattr(merging, "deltas_of", lambda batch: np.zeros(batch.num_rows, dtype=np.bool_))


def lost_recall(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told of what the realm takes back, and who settles it anyway is believed."""
    patch.setattr(Dispatch, "recall", lambda *_: None)
    patch.setattr(decide, "refuse_recalled", lambda *_: None)


def open_lanes(patch: pytest.MonkeyPatch) -> None:
    """What follows a rolled-back event in its lane stays in hands."""
    patch.setattr(Lanes, "after", lambda *_: IdSet())


def time_goes_back(patch: pytest.MonkeyPatch) -> None:
    """The realm's time is the machine's, also where that is set back."""
    patch.setattr(SystemClock, "now_us", lambda clock: clock._now_ns() // 1_000)


def expired_is_seen(patch: pytest.MonkeyPatch) -> None:
    """What has expired is there until something else makes it leave (SEM T1)."""
    patch.setattr(Ages, "_expired_through", lambda *_: -1)


def lost_place(patch: pytest.MonkeyPatch) -> None:
    """A listener that comes back is taken for a new one (SEM J5)."""
    patch.setattr(Places, "take", lambda *_: None)


MUTANTS: dict[str, tuple[Spoil, tuple[str, ...], int]] = {
    "ack before sync": (ack_before_sync, ("wired",), 25),
    "delivery before append": (delivery_before_append, ("wired",), 25),
    "blind retry": (blind_retry, ("wired",), 25),
    "forgotten gap": (forgotten_gap, ("wired",), 25),
    "lost rollback": (lost_rollback, ("wired",), 25),
    "unsynced files": (unsynced_files, ("durables",), 25),
    "torn tail": (torn_tail, ("queues", "durables"), 25),
    "stale session": (stale_session, ("wired",), 25),
    "late resume": (late_resume, ("wired",), 25),
    "delta for whole": (delta_for_whole, ("followed",), 25),
    "time goes back": (time_goes_back, ("timed",), 25),
    "expired is seen": (expired_is_seen, ("timed",), 25),
    "lost recall": (lost_recall, ("ordered",), 25),
    "open lanes": (open_lanes, ("ordered",), 25),
    "lost place": (lost_place, ("jms",), 25),
}
"""By name: how it is made, the scenes that are to notice, and within how many seeds."""
