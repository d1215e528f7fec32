"""Requests that the single writer serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from penstock_core.columns.schema.layout import DELIVERY_TIME
from penstock_core.ids.ids import Span
from penstock_core.loggers import logger
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.kinds import Command
from penstock_core.messages.settlements import Ack, AckPrevious, RollBack
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.runtime.store import merging
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.match_cache import NeedsEvaluation
from penstock_server.runtime.writer.publish_stops import refuse_stopped
from penstock_server.runtime.writer.schedules import scheduled, waits

_log = logger("penstock.shard")

Reply = Callable[[Any, BaseException | None], None]
"""Called once, after all consequences of the request are stored: with an answer or an error."""


class ShardRequest(Struct, kw_only=True):
    """One request, decided in a group."""

    reply: Reply | None = None
    order: int = 0
    """Position in the order in which the shard received the requests."""

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        """The events to publish, by channel."""
        return ()

    @property
    def settlements(self) -> Sequence[tuple[int, Command]]:
        """The commands by which clients settle events, by channel."""
        return ()

    def run(self, group: Group) -> Any:
        """Decide and apply the request, and return its answer. Raises ``PenstockError`` before
        anything is changed."""
        raise NotImplementedError


@runtime_checkable
class Repeatable(Protocol):
    """A publish that a client repeats when it got no answer (SEM X3)."""

    def is_decided(self, state: RealmState) -> bool:
        """Whether the answer is known, because the publish was stored earlier or its sequence is
        too old. Serving the request then writes nothing."""
        ...


class RunCommand(ShardRequest):
    """A command without events."""

    channel_id: int
    command: Command

    @property
    def settlements(self) -> Sequence[tuple[int, Command]]:
        is_settlement = isinstance(self.command, Ack | AckPrevious | RollBack)
        return ((self.channel_id, self.command),) if is_settlement else ()

    def run(self, group: Group) -> Any:
        group.channel(self.channel_id)
        if isinstance(self.command, Ack | AckPrevious):
            return group.acknowledge(self.channel_id, self.command)
        group.settle()
        group.sweep(self.channel_id)
        return group.do(self.channel_id, self.command).answer


class SeatHolder(Protocol):
    """A client at a queue or durable. The writer asks for its room only when it is about to
    deliver, so that the answer is up to date."""

    def ready_seat(self) -> int | None:
        """Return the subscription id of the seat; None if the client has left."""
        ...

    def room_now(self) -> tuple[int, bool]:
        """Return the number of events that the client has room for, and whether the client waits
        for a call of :meth:`finished`."""
        ...

    def finished(self) -> None:
        """Called when no more events are available."""
        ...


class GrantRoom(ShardRequest):
    """Grant a seat as many events as its client has room for when the request is decided."""

    channel_id: int
    holder: SeatHolder

    def run(self, group: Group) -> None:
        subscription = self.holder.ready_seat()
        channel = group.state.channels.get(self.channel_id)
        if subscription is None or channel is None or subscription not in channel.state.seats:
            return
        group.settle()
        room, is_draining = self.holder.room_now()
        group.do(self.channel_id, SetDemand(subscription, room, at_once=True))
        # After a demand of 0 the core reports the end once the available events are delivered.
        if is_draining:
            if room:
                group.do(self.channel_id, SetDemand(subscription, 0))
            else:
                self.holder.finished()


class PublishBatches(ShardRequest):
    """Events of one publish, in one or more batches."""

    channel_id: int
    digest: Digest
    bodies: Sequence[Body]
    producer: str = ""
    sequence: int = 0
    overshoot: bool = False
    publisher: str = ""
    """The publisher, ``user@host`` (SEM E3)."""

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return ((self.channel_id, self.bodies),)

    def run(self, group: Group) -> Any:
        channel_id, digest = self.channel_id, self.digest
        if group.settled:
            group.settle()
        is_scheduled = False
        for body in self.bodies:  # runs for each publish: a generator would cost more
            if DELIVERY_TIME in body.names:
                is_scheduled = waits(self.bodies)
                break
        if is_scheduled or group.state.directory.publishing_paused or group.state.unsealable:
            # A repeated publish gets its answer also while publishing is paused (SEM X3).
            stored_span = self._stored_as(group, is_scheduled=is_scheduled)
            if stored_span is not None:
                return stored_span
            refuse_stopped(group, (channel_id,))
        if is_scheduled:
            state = group.channel(channel_id).state
            merging.refuse(state, group.state.stores[channel_id], self.bodies, digest=digest)
            channel_id, digest = scheduled(group, channel_id, self.bodies, digest=digest)
        return group.publish(
            channel_id,
            self.bodies,
            digest,
            producer=self.producer,
            sequence=self.sequence,
            overshoot=self.overshoot,
            publisher=self.publisher,
        )

    def is_decided(self, state: RealmState) -> bool:
        """Whether the answer is known from an earlier attempt at this publish (SEM X3)."""
        channel_id: int | None = self.channel_id
        if waits(self.bodies):
            channel_id = state.directory.schedule_of(self.channel_id)
        return is_remembered(state, channel_id, self.producer, sequence=self.sequence)

    def _stored_as(self, group: Group, *, is_scheduled: bool) -> Span | None:
        """Return the ids that an earlier attempt at this publish has got; None if the publish is
        new."""
        store_id: int | None = self.channel_id
        group.channel(self.channel_id)  # raises NameDoesNotExist if the channel was deleted
        if is_scheduled:
            store_id = group.state.directory.schedule_of(self.channel_id)
        if store_id is None or not self.producer:
            return None
        channel = group.channel(store_id)
        return channel.state.producers.stored_as(self.producer, self.sequence)


def is_remembered(state: RealmState, channel_id: int | None, producer: str, sequence: int) -> bool:
    """Whether a channel knows the answer to a repeated publish: the publish was stored earlier, or
    its sequence is too old, so that the answer is an error."""
    channel = None if channel_id is None else state.channels.get(channel_id)
    if channel is None or not producer:
        return False
    try:
        return channel.state.producers.stored_as(producer, sequence) is not None
    except PenstockError:
        return True


class RunAction(ShardRequest):
    """An action of the runtime at its place in the order: a creation, a query, a sealing."""

    action: Callable[[Group], Any]
    room: int = 0
    """Bytes that the action may write. The action is refused if the disk has no room for them."""
    sweeps: Sequence[int] | None = None
    """Channels that the action may sweep; None means any channel. The shard reserves disk space for
    the events that these sweeps move, and a forecast for thousands of channels would cost more than
    most actions."""
    settles: tuple[int, Command] | None = None
    """The channel, and the command by which the action settles events of a client; None if it
    settles none."""

    @property
    def settlements(self) -> Sequence[tuple[int, Command]]:
        return () if self.settles is None else (self.settles,)

    def run(self, group: Group) -> Any:
        group.settle()
        return self.action(group)


def size_of(work: ShardRequest) -> int:
    """Return the bytes of a request's events; for an action, the bytes that it may write."""
    if isinstance(work, RunAction):
        return work.room
    return sum(len(body.buffer) for _, bodies in work.offered for body in bodies)


def sizes_of(waiting: Sequence[ShardRequest]) -> int:
    """Return the sum of :func:`size_of` over all requests."""
    size = 0
    for work in waiting:
        if isinstance(work, PublishBatches):  # the usual case, without the cost of a call
            for body in work.bodies:
                size += len(body.buffer)
        else:
            size += size_of(work)
    return size


def split_at(
    waiting: list[ShardRequest], limit: int
) -> tuple[list[ShardRequest], list[ShardRequest]]:
    """Split requests into the first ones, which have at most ``limit`` bytes together, and the
    others. The first part always has one request, even if it has more bytes than ``limit``."""
    size = 0
    for i, work in enumerate(waiting):
        size += size_of(work)
        if size > limit:
            return waiting[: max(i, 1)], waiting[max(i, 1) :]
    return waiting, []


def expect_answer(work: ShardRequest) -> asyncio.Future[Any]:
    """Return a future for the answer of ``work``.

    The reply of ``work`` drops its reference to the future when it is called. Otherwise an error in
    the future would refer to the waiting frame, the frame to the work, and the work to the future:
    this cycle would keep all events of the work alive.
    """
    expected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer: asyncio.Future[Any] | None = expected

    def reply(result: Any, error: BaseException | None) -> None:
        nonlocal answer
        waiting, answer = answer, None
        if waiting is None or waiting.done():  # answered already, or the caller was cancelled
            return
        if error is None:
            waiting.set_result(result)
        else:
            waiting.set_exception(error)

    work.reply = reply
    return expected


def outcome_of(work: ShardRequest, group: Group) -> tuple[Any, BaseException | None]:
    """Run ``work`` and return its answer, or the error that refuses it. The error
    ``NeedsEvaluation`` means that the work has to be held until its evaluation is done.

    An unexpected failure is also returned if the work has changed nothing. Otherwise it is raised
    and ends the shard: the state is inconsistent and must be recovered from disk.
    """
    group.begin_work()
    try:
        return work.run(group), None
    except PenstockError as refusal:
        group.publish_keys.drop_refused()
        # The traceback refers to the writer's frames, and these to the error: the cycle would keep
        # the whole group alive.
        return None, refusal.with_traceback(None)
    except Exception as failure:
        if group.is_half_done:
            raise
        group.publish_keys.drop_refused()
        if isinstance(failure, NeedsEvaluation):
            return None, failure.with_traceback(None)
        if work.reply is None:  # otherwise the receiver of the reply logs the failure
            _log.exception("work.failed", work=type(work).__name__)
        return None, failure


def send_answer(reply: Reply | None, result: Any, error: BaseException | None) -> None:
    """Send an answer. A reply that fails affects its client alone, because the work is stored or
    refused already."""
    if reply is None:
        return
    try:
        reply(result, error)
    except Exception as failure:  # noqa: BLE001
        try:
            reply(None, failure)
        except Exception:  # noqa: BLE001
            _log.exception("answer.failed")
