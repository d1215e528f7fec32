"""The one door of a realm: every request of :mod:`penstock.api`, asked by somebody.

:func:`execute` finds what a request is about, checks the right, does it, and writes it to the
audit log if it is an act of administration. What front ends do besides is to turn bytes into
requests, and answers into bytes.

Requests that are worked through in the order in which they come are begun with :func:`begin`
instead, which does not wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from penstock.api.channels import ChannelOpened
from penstock.api.operations import REQUESTS, operation_on
from penstock.api.reading import WatchEvents
from penstock.api.requests import AnswerT, Kind, Request
from penstock.api.subscriptions import Attach, BrowseDurable, Subscribe
from penstock.api.transfers import ImportTar, PutImport
from penstock.core.vocabulary.names import destination_name
from penstock.runtime.access.permits import Opening
from penstock.runtime.delivery.byte_credit import Room
from penstock.runtime.delivery.delivery import Outlet
from penstock.runtime.operations.beginners import BEGINNERS, Batches
from penstock.runtime.operations.callers import Caller
from penstock.runtime.operations.handlers import HANDLERS, put_import
from penstock.runtime.operations.tar_handlers import import_tar
from penstock.runtime.subscriptions.subscriptions import Opened
from penstock.runtime.writer.requests import Reply

Content = memoryview | AsyncGenerator[bytes, None] | None
"""Bytes beside a request: those there are, or those that come."""


async def execute(
    caller: Caller,
    request: Request[AnswerT],
    content: Content = None,
    *,
    target: str | None = None,
    **detail: Any,
) -> AnswerT:
    """Do what ``request`` asks, if ``caller`` may. ``content``: bytes that come beside it;
    ``target`` and ``detail``: what an audit record says of it.

    Raises ``AccessDenied`` naming the missing right, and what the operation raises.
    """
    answer: AnswerT
    if caller.permits is None or REQUESTS[type(request)].is_open:
        answer = await answer_to(caller, request, content)
    else:
        answer = await caller.permits.permitted(
            request, lambda: answer_to(caller, request, content), target, detail
        )
    return answer


async def execute_on(
    caller: Caller,
    kind: Kind,
    name: str,
    asked: type[Request[AnswerT]],
    request_of: Callable[[ChannelOpened], Request[AnswerT]],
    *,
    target: str = "",
) -> AnswerT:
    """As :func:`execute`, of a request about the channel or queue ``name``, which is looked for
    once it is known that ``caller`` may: ``request_of`` makes it of what was found.

    Raises ``NameDoesNotExist`` besides.
    """

    async def work() -> AnswerT:
        request = request_of(await caller.realm.open_channel(name, kind))
        if caller.permits is not None:
            caller.permits.check_rest(request)
        answer: AnswerT = await answer_to(caller, request)
        return answer

    operation = operation_on(asked, kind)
    async with caller.realm.access.act(caller.principal, operation, destination_name(name), target):
        return await work()


def answer_to(caller: Caller, request: Request[Any], content: Content = None) -> Awaitable[Any]:
    """Do what ``request`` asks; whether ``caller`` may was asked before."""
    if isinstance(request, PutImport):
        assert content is None or isinstance(content, memoryview), "bytes of one frame"
        return put_import(caller, request, content)
    if isinstance(request, ImportTar):
        assert isinstance(content, AsyncGenerator), "a body that comes part by part"
        return import_tar(caller, request, content)
    return HANDLERS[type(request)](caller, request)


def check(caller: Caller, request: Request[Any]) -> None:
    """Raises ``AccessDenied`` naming the missing right, ``NameDoesNotExist``."""
    caller.check(request)


async def find(caller: Caller, kind: Kind, name: str, asked: type[Request[Any]]) -> ChannelOpened:
    """The channel or queue ``name``, for a ``caller`` that may ask ``asked`` of it: what is done
    where its events come or go is begun with what was found here.

    Raises ``AccessDenied``, ``NameDoesNotExist``, ``InvalidName``.
    """
    operation = operation_on(asked, kind)
    caller.realm.access.require(caller.principal, operation, destination_name(name))
    return await caller.realm.open_channel(name, kind)


def begin(caller: Caller, request: Request[Any], reply: Reply, batches: Batches = ()) -> None:
    """Begin what ``request`` asks, whose right :func:`check` was asked for; ``reply`` gets the
    answer, or the error that comes of it. ``batches``: the events beside it, part by part.

    Raises what is wrong with the request itself.
    """
    BEGINNERS[type(request)](caller, request, reply, batches)


def open_subscription(
    caller: Caller, request: Opening | WatchEvents, outlet: Outlet, place: str = ""
) -> Awaitable[Opened]:
    """Open a subscription, whose right :func:`check` was asked for; ``outlet`` gets the events.
    ``place``: what it is known by to the next connection of its session (SEM J5)."""
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
                room=_room(request.bytes_max, request.bytes_held),
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
                room=_room(request.bytes_max),
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
                request.credit,
                room=_room(request.bytes_max),
            )


def _room(bytes_max: int, held: int = 0) -> Room | None:
    return Room(bytes_max, held) if bytes_max else None
