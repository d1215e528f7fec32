"""Finds channels and queues by the names in a path, and checks rights on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import AnswerT, Kind, Request
from penstock_core.columns.schema.moments import parse_moment
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import (
    AnyStart,
    FromEarliest,
    FromId,
    FromLatest,
    FromTime,
)
from penstock_server.frontends.http.routing import Call, named
from penstock_server.runtime.operations.door import find

_MICROSECONDS = 1_000_000


class Store(Struct, frozen=True):
    """A channel or queue, with its definition at the time of the lookup."""

    number: ChannelId
    name: str
    kind: Kind
    definition: Definition


async def find_store(call: Call[Any, Any], request_type: type[Request[Any]]) -> Store:
    """Return the channel or queue that the path names, if the caller may make a request of this
    type. Raises ``AccessDenied``, ``NameDoesNotExist``, ``InvalidName``."""
    name, kind = named(call)
    return store_of(await find(call.caller, kind, name, request_type=request_type), kind)


async def ask_store(
    call: Call[Any, Any],
    request_type: type[Request[AnswerT]],
    request_of: Callable[[ChannelOpened], Request[AnswerT]],
) -> tuple[Store, AnswerT]:
    """Execute the request that ``request_of`` returns for the channel or queue in the path. Return
    the store and the answer."""
    opened: list[ChannelOpened] = []

    def request(now: ChannelOpened) -> Request[AnswerT]:
        opened.append(now)
        return request_of(now)

    answer = await call.ask_here(request_type, request)
    return store_of(opened[0], named(call)[1]), answer


def store_of(opened: ChannelOpened, kind: Kind) -> Store:
    return Store(opened.channel, opened.name, kind, definition=opened.definition)


def start_of(text: str) -> AnyStart:
    """Parse a start position (SEM E6). Raises ``InvalidArgument``."""
    if text == "earliest":
        return FromEarliest()
    if text == "latest":
        return FromLatest()
    # The id has at most 18 digits, so that it fits into 64 bits.
    if text.isdecimal() and len(text) < 19:
        return FromId(int(text))
    try:
        return FromTime(int(parse_moment(text).timestamp() * _MICROSECONDS))
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{text!r} is not a start position; give earliest, latest, an event id such as 42, or "
            f"a time such as 2026-05-04T12:00:00"
        ) from None


def cursor_of(text: str) -> int | None:
    """Return the number in the query parameter ``after``; None if it is empty. Raises
    ``InvalidArgument``."""
    if not text:
        return None
    if text.isdecimal() and len(text) < 19:
        return int(text)
    raise InvalidArgument(
        f"after={text!r} is not valid; pass the value of 'next' of the previous page"
    )
