"""Work that waits for the shard."""

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
from penstock_core.messages.settlements import Ack, AckPrevious
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
"""Called once, after what the work led to is stored: with an answer, or with an error."""


class ShardRequest(Protocol):
    """One thing to do in a group."""

    reply: Reply | None

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        """The events it brings, by the channel they are for."""
        ...

    def run(self, group: Group) -> Any:
        """Decide and apply; the answer. Raises ``PenstockError`` and changes nothing."""
        ...


@runtime_checkable
class Repeatable(Protocol):
    """A publish that a client sends again when it got no answer (SEM X3)."""

    def is_decided(self, state: RealmState) -> bool:
        """Whether its answer is known, because it was stored or is too old: it writes nothing."""
        ...


class RunCommand(Struct):
    """Any command that carries no events."""

    number: int
    command: Command
    reply: Reply | None = None

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return ()

    def run(self, group: Group) -> Any:
        group.channel(self.number)
        if isinstance(self.command, Ack | AckPrevious):
            return group.acknowledge(self.number, self.command)
        group.settle()
        group.sweep(self.number)
        return group.do(self.number, self.command).answer


class SeatHolder(Protocol):
    """A client at a queue or durable that says how much it has room for when the writer asks."""

    def ready_seat(self) -> int | None:
        """The subscription of the seat; None: the client has left."""
        ...

    def room_now(self) -> tuple[int, bool]:
        """How many events it may be handed, and whether it waits to hear that there are no more."""
        ...

    def finished(self) -> None:
        """There is nothing more for it now."""
        ...


class GrantRoom(Struct):
    """Hand a seat as many events as its client has room for when the writer comes to it."""

    number: int
    holder: SeatHolder
    reply: Reply | None = None

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return ()

    def run(self, group: Group) -> None:
        subscription = self.holder.ready_seat()
        channel = group.state.channels.get(self.number)
        if subscription is None or channel is None or subscription not in channel.state.seats:
            return
        group.settle()
        room, is_draining = self.holder.room_now()
        group.do(self.number, SetDemand(subscription, room, at_once=True))
        if is_draining:
            if room:
                group.do(self.number, SetDemand(subscription, 0))
            else:
                self.holder.finished()


class PublishBatches(Struct):
    """Events of one publish, in one or more batches."""

    number: int
    digest: Digest
    bodies: Sequence[Body]
    producer: str = ""
    sequence: int = 0
    overshoot: bool = False
    reply: Reply | None = None
    publisher: str = ""
    """The publisher, ``user@host`` (SEM E3)."""

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return ((self.number, self.bodies),)

    def run(self, group: Group) -> Any:
        number, digest = self.number, self.digest
        if group.settled:
            group.settle()
        later = False
        for body in self.bodies:  # each publish passes here, so without a generator
            if DELIVERY_TIME in body.names:
                later = waits(self.bodies)
                break
        if later or group.state.directory.publishing_paused or group.state.unsealable:
            if (known := self._stored_as(group, later=later)) is not None:
                return known  # SEM X3: also while publishing is paused
            refuse_stopped(group, (number,))
        if later:
            own = group.channel(number).state
            merging.refuse(own, group.state.stores[number], self.bodies, digest=digest)
            number, digest = scheduled(group, number, self.bodies, digest=digest)
        return group.publish(
            number,
            self.bodies,
            digest,
            producer=self.producer,
            sequence=self.sequence,
            overshoot=self.overshoot,
            publisher=self.publisher,
        )

    def is_decided(self, state: RealmState) -> bool:
        """See :class:`Repeatable`."""
        number: int | None = self.number
        if waits(self.bodies):
            number = state.directory.schedule_of(self.number)
        return is_remembered(state, number, self.producer, sequence=self.sequence)

    def _stored_as(self, group: Group, *, later: bool) -> Span | None:
        """The answer to a repeated publish; None: it is new."""
        where: int | None = self.number
        group.channel(self.number)  # raises if it was deleted
        if later:
            where = group.state.directory.schedule_of(self.number)
        if where is None or not self.producer:
            return None
        channel = group.channel(where)
        return channel.state.producers.stored_as(self.producer, self.sequence)


def is_remembered(state: RealmState, number: int | None, producer: str, sequence: int) -> bool:
    """Whether a channel knows the outcome of a publish: it is stored, or too old to tell."""
    channel = None if number is None else state.channels.get(number)
    if channel is None or not producer:
        return False
    try:
        return channel.state.producers.stored_as(producer, sequence) is not None
    except PenstockError:
        return True


class RunAction(Struct):
    """Something the runtime wants done at its place in the order: creation, look-ups, sealing."""

    action: Callable[[Group], Any]
    reply: Reply | None = None
    room: int = 0
    """Bytes that it may write; it is refused if the disk has no room for them."""
    sweeps: Sequence[int] | None = None
    """Channels whose due events may leave in it; None: any. Room is made for what moves, and to
    look at every channel of thousands costs more than most actions do."""

    @property
    def offered(self) -> Sequence[tuple[int, Sequence[Body]]]:
        return ()

    def run(self, group: Group) -> Any:
        group.settle()
        return self.action(group)


def size_of(work: ShardRequest) -> int:
    """Bytes of events a request brings, or the room it may need."""
    if isinstance(work, RunAction):
        return work.room
    return sum(len(body.buffer) for _, bodies in work.offered for body in bodies)


def sizes_of(waiting: Sequence[ShardRequest]) -> int:
    """Bytes of events that requests bring, or the room they may need, together."""
    size = 0
    for work in waiting:
        if isinstance(work, PublishBatches):  # the usual case, and few of these write much besides
            for body in work.bodies:
                size += len(body.buffer)
        else:
            size += size_of(work)
    return size


def split_at(
    waiting: list[ShardRequest], limit: int
) -> tuple[list[ShardRequest], list[ShardRequest]]:
    """The first requests, of at most ``limit`` bytes together or one alone, and those after."""
    size = 0
    for i, work in enumerate(waiting):
        size += size_of(work)
        if size > limit:
            return waiting[: max(i, 1)], waiting[max(i, 1) :]
    return waiting, []


def expect_answer(work: ShardRequest) -> asyncio.Future[Any]:
    """A future for the answer of ``work``. The work lets go of it with the answer: an error refers
    to the frame that waits, and this to the work, which may have a group of events."""
    expected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer: asyncio.Future[Any] | None = expected

    def reply(result: Any, error: BaseException | None) -> None:
        nonlocal answer
        waiting, answer = answer, None
        if waiting is None or waiting.done():  # nobody waits any more
            return
        if error is None:
            waiting.set_result(result)
        else:
            waiting.set_exception(error)

    work.reply = reply
    return expected


def outcome_of(work: ShardRequest, group: Group) -> tuple[Any, BaseException | None]:
    """The answer, or the error that it was refused with. An unexpected failure affects this work
    alone if nothing was applied yet. Otherwise it is raised, and the realm has to be recovered from
    disk."""
    group.begin_work()
    try:
        return work.run(group), None
    except PenstockError as refusal:
        group.publish_keys.drop_refused()
        # Its traceback leads to the writer's frames, and these to the refusal: a cycle, with all
        # that the group has.
        return None, refusal.with_traceback(None)
    except Exception as failure:
        if group.is_half_done:
            raise
        group.publish_keys.drop_refused()
        if isinstance(failure, NeedsEvaluation):
            raise
        if work.reply is None:  # otherwise the callee logs it
            _log.exception("work.failed", work=type(work).__name__)
        return None, failure


def send_answer(reply: Reply | None, result: Any, error: BaseException | None) -> None:
    """Send an answer. One that cannot be sent affects its client alone: the work is done, or
    refused."""
    if reply is None:
        return
    try:
        reply(result, error)
    except Exception as failure:  # noqa: BLE001
        try:
            reply(None, failure)
        except Exception:  # noqa: BLE001
            _log.exception("answer.failed")
