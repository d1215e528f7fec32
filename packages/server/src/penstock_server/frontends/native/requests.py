"""Executes the requests of a native connection as operations of the realm, and sends answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.patterns import WatchChannels
from penstock_core.api.publishing import PublishEvents, StageEvents
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import (
    Attach,
    BrowseDurable,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from penstock_core.api.transactions import CommitTransaction
from penstock_core.api.transfers import BeginImport
from penstock_core.vocabulary.errors import (
    InvalidArgument,
    InvalidEvent,
    LimitReached,
    RemoteProtocolViolation,
)
from penstock_core.wire.native import messages as wire
from penstock_server.frontends.native.deliveries import SubscriptionOutlet
from penstock_server.frontends.native.peer import NativePeer
from penstock_server.runtime.access.permits import Opening
from penstock_server.runtime.operations.beginners import BEGINNERS
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import (
    begin,
    check,
    execute,
    open_subscription,
    watch_channels,
)
from penstock_server.runtime.store.bodies import Body

LARGE_HEADER_BYTES: Final = 8 << 10
"""Headers of at most this many bytes are not counted while their request is in progress."""
HEADER_FACTOR: Final = 8
"""Estimated bytes of memory for each byte of a header, whose ranges of ids become objects."""


class LargeHeaders:
    """Memory that the large headers of the requests in progress on one connection take."""

    __slots__ = ("_sizes", "bytes")

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        """Counted bytes by request number."""
        self.bytes = 0

    def add(self, request: int, size: int) -> None:
        """Count a header of ``size`` bytes until its request is answered."""
        self._sizes[request] = self._sizes.get(request, 0) + HEADER_FACTOR * size
        self.bytes += HEADER_FACTOR * size

    def answered(self, request: int) -> None:
        """Stop counting the header of a request, if it was large."""
        self.bytes -= self._sizes.pop(request, 0)


class Requests:
    """The requests of one caller on one connection."""

    def __init__(self, connection: NativePeer, caller: Caller) -> None:
        self._connection = connection
        self._caller = caller
        self._permits = caller.permits
        self._realm = connection.realm
        self._internal = connection.realm.view.internal_stores
        self._announced = connection.announced

    def take(self, number: int, request: Request[Any], body: memoryview) -> None:
        """Execute a request: immediately if its order matters, in a task if it may have to wait."""
        try:
            if type(request) in BEGINNERS:
                if self._permits is not None:
                    self._permits.check(request)
                elif self._internal:  # saves a call on this hot path for realms without such stores
                    self._caller.check_internal(request)
                self._begin(number, request, body)
                return
            match request:
                case Subscribe() | Attach() | BrowseDurable():
                    check(self._caller, request)
                    self._open_soon(number, request)
                case Unsubscribe(subscription):
                    self._unsubscribe(number, subscription)
                case WatchChannels():
                    check(self._caller, request)
                    self._watch(number, request)
                case BeginImport() if len(body):
                    self._execute(number, replace(request, manifest=bytes(body)), body)
                case _:
                    self._execute(number, request, body)
        except RemoteProtocolViolation:  # the connection's error handler ends it
            raise
        except Exception as error:  # noqa: BLE001  a defect must fail only this request
            self._connection.fail(number, error)

    def _execute(self, number: int, request: Request[Any], body: memoryview) -> None:
        self._connection.spawn(number, lambda: execute(self._caller, request, body))

    def _begin(self, number: int, request: Request[Any], body: memoryview) -> None:
        """Begin a request whose order matters, such as a publish; the answer is sent when the
        request is done."""
        connection, listener, size = self._connection, self._connection.listener, 0

        def reply(answer: Any, error: BaseException | None) -> None:
            listener.pending_bytes -= size
            if error is None:
                connection.send(wire.Done(number, answer))
            else:
                connection.fail(number, error)

        try:
            batches = self._batches(request, body)
            for bodies in batches:
                for events in bodies:
                    size += events.weight
            listener.pending_bytes += size
            begin(self._caller, request, reply, batches=batches)
        except RemoteProtocolViolation:
            listener.pending_bytes -= size
            raise
        except Exception as error:  # noqa: BLE001  a defect must fail only this request
            reply(None, error)

    def _batches(self, request: Request[Any], body: memoryview) -> Sequence[Sequence[Body]]:
        """Return the checked events of a request. Raises ``InvalidEvent``, ``EventTooLarge``."""
        match request:
            case PublishEvents() | StageEvents():
                return (self._announced.bodies(request.schema, request.sizes, body),)
            case CommitTransaction():
                return self._parts(request, body)
            case _:
                return ()

    def _parts(self, request: CommitTransaction, body: memoryview) -> list[list[Body]]:
        """Return the checked events of each part of a transaction. Raises ``InvalidEvent``."""
        parts: list[list[Body]] = []
        offset = 0
        for part in request.parts:
            bodies: list[Body] = []
            if part.sizes:
                end = offset + sum(part.sizes)
                bodies = self._announced.bodies(part.schema, part.sizes, body[offset:end])
                offset = end
            parts.append(bodies)
        if offset != len(body):
            raise InvalidEvent(
                f"the request declares batches of {offset} bytes, but its body has {len(body)}"
            )
        return parts

    # --- subscriptions -------------------------------------------------------------------

    def _open_soon(self, request_number: int, message: Opening) -> None:
        """Register a subscription immediately and open it in a task, so that the client can end it
        by its number before it is open."""
        connection, number = self._connection, message.subscription
        if number in connection.subscriptions:
            refusal = InvalidArgument(f"subscription {number} is already open")
            connection.fail(request_number, refusal)
            return
        if number in connection.openings:
            refusal = InvalidArgument(
                f"subscription {number} is already being opened; choose another number"
            )
            connection.fail(request_number, refusal)
            return
        try:
            limits = connection.limits
            limits.check_subscriptions(len(connection.subscriptions))
        except LimitReached as refused:
            connection.fail(request_number, refused)
            return
        connection.subscriptions[number] = 0
        connection.openings[number] = asyncio.Event()
        if self._caller.permits is not None:
            self._caller.permits.remember(message)
        connection.spawn(request_number, lambda: self._open(message))

    async def _open(self, message: Opening) -> Subscribed:
        """Open a subscription; if the client has left in the meantime, give the seat back."""
        connection = self._connection
        number, text = message.subscription, message.selector
        try:
            await self._seats_given_back(number)
            selector = await self._realm.dispatch.choosing.parse(text) if text else None
            outlet = SubscriptionOutlet(connection, number, selector)
            opened = await open_subscription(
                self._caller, message, outlet, place=self.place_of(number)
            )
            if number in connection.subscriptions:
                connection.subscriptions[number] = opened.number
                connection.check_rights()
            elif number in connection.interrupted and isinstance(message, Subscribe):
                self._realm.subscriptions.lose(opened.number)  # its position is kept (SEM J5)
            else:  # the connection was lost, or the subscription ended, while it was being opened
                await self._give_back(opened.number)
        except BaseException:
            connection.forget(number)
            raise
        finally:
            finished = connection.openings.pop(number)
            finished.set()
            connection.listener.opening_ended(connection.session, finished)
            connection.process_early_messages(number)
        return Subscribed(
            opened.first_id,
            opened.stop_id,
            opened.recalls,
            confirm=opened.confirms,
            cumulative=opened.cumulative,
            ack_timeout_ms=opened.ack_timeout_ms,
        )

    def _watch(self, request_number: int, message: WatchChannels) -> None:
        """Watch the channels of a pattern (SEM D21); counts as a subscription of the connection."""
        connection, number = self._connection, message.subscription
        if number in connection.subscriptions or number in connection.openings:
            raise InvalidArgument(f"subscription {number} is already open; choose another number")
        open_count = len(connection.subscriptions) + len(connection.watches)
        connection.limits.check_subscriptions(open_count)

        def notify(channels: tuple[ChannelOpened, ...]) -> None:
            connection.send(wire.ChannelsFound(number, channels))

        connection.end_watch(number)
        watch, channels = watch_channels(self._caller, message, notify)
        connection.watches[number] = watch
        connection.send(wire.Done(request_number, channels))

    async def _give_back(self, subscription: int) -> None:
        """Give back a seat and wait until it is free."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reply(_: object, error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(None)  # an error means that the realm or the channel has ended

        self._realm.subscriptions.detach(subscription, reply)
        await ended

    async def _seats_given_back(self, number: int) -> None:
        """Wait until the seats that this client has given up are free, before it takes another."""
        connection = self._connection  # a weak reference, which may expire while this waits
        current = frozenset(connection.openings.values())
        await connection.listener.seats_given_back(connection.session, current)
        for earlier, opened in list(self._connection.openings.items()):
            if earlier == number:
                return  # later openings wait for this one
            if earlier not in self._connection.subscriptions:  # the client has ended it
                await opened.wait()

    def place_of(self, number: int) -> str:
        """Return the key of a subscription's place, which the session's next connection uses to
        resume it (SEM J5). The key contains the user, because session ids are not secret."""
        return f"{self._caller.principal.user}/{self._connection.session}/{number}"

    def _unsubscribe(self, request: int, number: int) -> None:
        """End a subscription, even one that is being opened; the answer is sent when its seat is
        free."""
        self._connection.end_watch(number)
        opening = self._connection.openings.get(number)
        subscription = self._connection.forget(number)
        if opening is not None:
            self._connection.spawn(request, lambda: _wait_for(opening))
            return
        if subscription is None:
            self._connection.send(wire.Done(request))
            return
        self._realm.subscriptions.detach(
            subscription, lambda _, error: self._connection.answer(request, None, error)
        )


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()
