"""The single entry of a realm: each request of :mod:`penstock_core.api` is executed here for its
caller.

:func:`execute` finds the target of a request, checks the right, calls the handler, and writes acts
of administration to the audit log. Front ends only turn bytes into requests and answers into bytes.

Requests whose order matters begin with :func:`begin` instead, which does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.consuming import FetchEvents
from penstock_core.api.joins import CopyIn
from penstock_core.api.operations import READ, REQUESTS, TAKE, operation_on
from penstock_core.api.patterns import ChannelsWatched, WatchChannels
from penstock_core.api.publishing import Published, PublishEvents
from penstock_core.api.reading import PopEvents, WatchEvents
from penstock_core.api.requests import AnswerT, Kind, Request
from penstock_core.api.subscriptions import Attach, BrowseDurable, Subscribe
from penstock_core.api.transfers import ImportTar, PutImport
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.names import destination_name
from penstock_server.runtime.access.permits import Opening
from penstock_server.runtime.delivery.byte_credit import Room
from penstock_server.runtime.delivery.delivery import Outlet
from penstock_server.runtime.operations.beginners import BEGINNERS, Batches
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.handlers import (
    HANDLERS,
    copy_in,
    put_import,
    registered_handler,
)
from penstock_server.runtime.operations.tar_handlers import import_tar
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.subscriptions.subscriptions import OpenedSubscription
from penstock_server.runtime.subscriptions.watches import ChannelWatch, Tell
from penstock_server.runtime.writer.requests import Reply

Content = memoryview | AsyncGenerator[bytes, None] | None
"""Bytes sent with a request: complete, or as a stream."""


async def execute(
    caller: Caller,
    request: Request[AnswerT],
    content: Content = None,
    *,
    target: str | None = None,
    **detail: Any,
) -> AnswerT:
    """Execute ``request`` if ``caller`` has the right.

    ``content`` has the bytes sent with the request; ``target`` and ``detail`` are for the audit
    record. Raises ``AccessDenied``, which names the missing right, and the errors of the operation.
    """
    answer: AnswerT
    # Open requests need no right. A sign-in, for example, has no principal yet.
    if caller.permits is None or REQUESTS[type(request)].is_open:
        caller.check_internal(request)
        answer = await answer_to(caller, request, content)
    else:
        answer = await caller.permits.permitted(
            request, lambda: answer_to(caller, request, content), target, detail=detail
        )
    return answer


async def execute_on(
    caller: Caller,
    kind: Kind,
    name: str,
    request_type: type[Request[AnswerT]],
    request_of: Callable[[ChannelOpened], Request[AnswerT]],
    *,
    target: str = "",
) -> AnswerT:
    """Execute a request about the channel or queue ``name``, as :func:`execute` does.

    ``request_type`` is the type of the request, and ``request_of`` returns the request for the
    store. The right is checked before the store is looked up, so that a refusal does not reveal
    whether the store exists. Also raises ``NameDoesNotExist``.
    """

    async def work() -> AnswerT:
        request = request_of(await caller.realm.open_channel(name, kind))
        if caller.permits is not None:
            caller.permits.check_rest(request)
        answer: AnswerT = await answer_to(caller, request)
        return answer

    operation = operation_on(request_type, kind)
    async with caller.realm.access.act(
        caller.principal, operation, destination_name(name), target=target
    ):
        return await work()


def answer_to(caller: Caller, request: Request[Any], content: Content = None) -> Awaitable[Any]:
    """Run the handler of ``request``. The caller has checked the right to it. Raises
    ``DurableInUse`` for events of another session's temporary queue."""
    if isinstance(request, PopEvents | FetchEvents):
        caller.check_consumer(request.channel)
    # The handlers in the table take no content, so requests with content are handled here.
    if isinstance(request, PutImport):
        assert content is None or isinstance(content, memoryview), "an import has one frame's bytes"
        return put_import(caller, request, content)
    if isinstance(request, CopyIn):
        assert content is None or isinstance(content, memoryview), "copies have one frame's bytes"
        return copy_in(caller, request, content)
    if isinstance(request, ImportTar):
        assert isinstance(content, AsyncGenerator), "the body of a tar is a stream"
        return import_tar(caller, request, content)
    kind = type(request)
    handler = HANDLERS.get(kind) or registered_handler(kind)
    answer = handler(caller, request)
    trace = caller.realm.trace_request
    return answer if trace is None else trace(request, answer)


def check(caller: Caller, request: Request[Any]) -> None:
    """Raise ``AccessDenied``, which names the missing right, or ``NameDoesNotExist`` if ``caller``
    may not make a request."""
    caller.check(request)


async def find(
    caller: Caller, kind: Kind, name: str, request_type: type[Request[Any]]
) -> ChannelOpened:
    """Return the channel or queue ``name`` if ``caller`` may make requests of this type on it.
    Front ends call this function before they publish or subscribe.

    Raises ``AccessDenied``, ``NameDoesNotExist``, ``InvalidName``.
    """
    check_on(caller, kind, name, request_type=request_type)
    return await caller.realm.open_channel(name, kind)


def check_on(caller: Caller, kind: Kind, name: str, request_type: type[Request[Any]]) -> None:
    """Check a request of this type on the channel or queue ``name``, as :func:`check` does.

    Raises ``AccessDenied``, ``InvalidName``.
    """
    operation = operation_on(request_type, kind)
    caller.realm.access.require(caller.principal, operation, destination_name(name))


def begin(caller: Caller, request: Request[Any], reply: Reply, batches: Batches = ()) -> None:
    """Begin ``request``; ``reply`` is called with the answer or the error. The caller has checked
    the right with :func:`check`.

    ``batches`` has the events of each part of the request. Raises an error if the request is
    invalid.
    """
    BEGINNERS[type(request)](caller, request, reply, batches)


def publish(
    caller: Caller,
    channel: ChannelId,
    bodies: Sequence[Body],
    *,
    producer: str = "",
    sequence: int = 0,
    on_reply: Callable[[], None] | None = None,
) -> Awaitable[Published]:
    """Begin to publish events. The caller has checked the right with :func:`check`. The returned
    awaitable is done when the events are stored or refused. ``on_reply`` is called at that time,
    also if the awaitable was cancelled.

    Raises an error if the request is invalid.
    """
    stored: asyncio.Future[Published] = asyncio.get_running_loop().create_future()

    def reply(answer: Any, error: BaseException | None) -> None:
        if on_reply is not None:
            on_reply()
        if stored.done():  # the caller was cancelled
            return
        if error is None:
            stored.set_result(answer)
        else:
            stored.set_exception(error)

    request = PublishEvents(channel, producer, sequence, schema=0, sizes=())
    begin(caller, request, reply, batches=[bodies])
    return stored


def open_subscription(
    caller: Caller,
    request: Opening | WatchEvents,
    outlet: Outlet,
    place: str = "",
    room: Room | None = None,
) -> Awaitable[OpenedSubscription]:
    """Open a subscription; ``outlet`` gets the events. The caller has checked the right with
    :func:`check`.

    ``place`` identifies the subscription on the next connection of its session (SEM J5). ``room``
    limits the bytes in flight; without it, the limit of the request applies. Raises
    ``DurableInUse``.
    """
    if isinstance(request, Subscribe | Attach):
        caller.check_consumer(request.channel)
    subscriptions = caller.realm.subscriptions
    match request:
        case Subscribe():
            return subscriptions.subscribe(
                request.channel,
                request.start,
                outlet,
                credit=request.credit,
                browse=request.browse,
                last_id=request.last_id,
                place=place,
                confirms=request.confirms,
                deltas=request.deltas,
                room=room or _room(request.bytes_max, request.bytes_held),
            )
        case Attach():
            return subscriptions.attach(
                request.channel,
                request.durable,
                outlet,
                window=request.window,
                pull=request.pull,
                auto_ack=request.auto_ack,
                sole=request.sole,
                ack_timeout_ms=request.ack_timeout_ms,
                place=place,
                # A pulling client requests a number of events, so its bytes are not limited.
                room=room or (None if request.pull else _room(request.bytes_max)),
            )
        case WatchEvents():
            return subscriptions.subscribe(
                request.channel,
                request.start,
                outlet,
                credit=request.credit,
                browse=True,
                endless=True,
            )
        case BrowseDurable():
            return subscriptions.browse_durable(
                request.channel,
                request.durable,
                outlet,
                credit=request.credit,
                room=room or _room(request.bytes_max),
            )


def watch_channels(
    caller: Caller, request: WatchChannels, tell: Tell
) -> tuple[ChannelWatch, ChannelsWatched]:
    """Watch the channels of a pattern that ``caller`` may read; ``tell`` is called with new ones.
    The caller has checked the right to watch channels with :func:`check`.

    Raises ``InvalidName``, ``InvalidArgument``, ``NameDoesNotExist``.
    """
    operation, _ = TAKE if request.durable else READ
    return caller.realm.watches.begin(request, lambda name: caller.allows(operation, name), tell)


def _room(bytes_max: int, held: int = 0) -> Room | None:
    return Room(bytes_max, held) if bytes_max else None
