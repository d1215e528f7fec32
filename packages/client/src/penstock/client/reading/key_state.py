"""The state of one key of a merge channel, now or as of an earlier event (SEM K5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.browsing import DurableBrowse
from penstock.client.reading.subscription import Subscription
from penstock_core.api.channels import ChannelInfo, ChannelOpened, DescribeChannel, OpenChannel
from penstock_core.columns.events.event import Event
from penstock_core.columns.selectors import InvalidSelector, parse
from penstock_core.columns.selectors.headers import HEADERS
from penstock_core.columns.selectors.wording import quoted
from penstock_core.durable.queue import READERS
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest

_SHOWN_MAX: Final = 1 << 62
"""A number above all event ids; stands for no limit."""


class KeyState(Struct, frozen=True):
    """The state of a key of a merge channel after an event."""

    event_id: int
    """Id of the event on the merge channel that produced this state."""
    published: datetime
    """Time of that event's publication."""
    properties: dict[str, Any]
    found_in: str
    """Origin of the state: the name of the channel or archive, or the path or URI of a table."""


class StateQuestion(Struct, frozen=True):
    """A request for the state of a key."""

    channel: ChannelOpened
    key_name: str
    key: Any
    as_of: int | None
    archive: str | None


async def state_of(connection: RealmConnection, question: StateQuestion) -> KeyState:
    """Return the state from the channel if the channel still has it, otherwise from the archive.

    Raises ``InvalidArgument`` if the state no longer exists, and ``NameDoesNotExist`` if the
    archive does not exist.
    """
    name, as_of = question.channel.name, question.as_of
    if as_of is not None and (type(as_of) is not int or as_of < 0):
        raise InvalidArgument(f"as_of {as_of!r}: give the id of an event of {name}")
    newest = await _newest(
        _stored(connection, question.channel.channel, _selector(question)), question
    )
    # The channel has only the newest state of the key. It is also the state as of any later event.
    if newest is not None and (as_of is None or newest.event_id <= as_of):
        return newest
    wanted = f"{question.key_name} = {question.key!r}"
    on_channel = "nothing" if newest is None else f"its state as of event {newest.event_id}"
    where = question.archive
    if where is None:
        where = (await _info(connection, question)).definition.archive or None
    if where is None:
        earlier = "" if as_of is None else f" as of event {as_of}"
        raise InvalidArgument(
            f"the state of {wanted}{earlier} is no longer on {name}, which has {on_channel}; name "
            f"an archive: a table, or a channel or queue that a join from {name} fills"
        )
    if question.archive is None or _is_table(where):
        epoch = _epoch(connection, question)
        state = await asyncio.to_thread(_in_table, where, epoch, question=question)
    else:
        state = await _newest(await _archived(connection, question), question)
    if state is None:
        before = "" if as_of is None else f" from event {as_of} or before"
        raise InvalidArgument(
            f"the state of {wanted} no longer exists: {name} has {on_channel}, and {where} has no "
            f"state{before}: its states are newer, or were removed"
        )
    return state


def _is_table(where: str) -> bool:
    """Return whether ``where`` names a table, not a channel or queue."""
    path = Path(where)
    return "://" in where or any((path / log).is_dir() for log in ("_delta_log", "_penstock"))


async def _info(connection: RealmConnection, question: StateQuestion) -> ChannelInfo:
    return await connection.ask(DescribeChannel(question.channel.name), ChannelInfo)


def _epoch(connection: RealmConnection, question: StateQuestion) -> str:
    """Return the epoch that the archive must belong to; empty, for any, if the user has named the
    table."""
    return "" if question.archive else question.channel.epoch(connection.realm_id)


def _in_table(where: str, epoch: str, question: StateQuestion) -> KeyState | None:
    """Return the newest state in an archive table, up to the requested event; None if it has
    none."""
    from penstock.client.reading.archive import Archive, Wanted

    below = _SHOWN_MAX if question.as_of is None else question.as_of + 1
    archive = Archive.open(where, question.channel.name, epoch)
    for batch in archive.newest(below, Wanted(_selector(question))):
        for row in reversed(range(len(batch))):
            event = batch[row]
            if event.event_id is None or event.published is None or not _is_of_key(event, question):
                continue
            return KeyState(event.event_id, event.published, event.properties, found_in=where)
    return None


async def _newest(events: AsyncIterator[Event], question: StateQuestion) -> KeyState | None:
    """Return the newest state in ``events``, up to the requested event; None if they have none."""
    newest: KeyState | None = None
    as_of = _SHOWN_MAX if question.as_of is None else question.as_of
    async for event in events:
        state = _as_state(event, question)
        if state is None or (state.found_in != question.channel.name and state.event_id > as_of):
            continue
        if newest is None or state.event_id > newest.event_id:
            newest = state
    return newest


def _as_state(event: Event, question: StateQuestion) -> KeyState | None:
    """Return the state in an event; None if the event has another key or comes from another
    channel."""
    if not _is_of_key(event, question):
        return None
    origin, name = event.origin, question.channel.name
    if origin is not None and origin.store == name and question.archive is not None:
        return KeyState(
            origin.event_id, origin.published, event.properties, found_in=question.archive
        )
    if event.event_id is None or event.published is None:
        return None
    return KeyState(event.event_id, event.published, event.properties, found_in=name)


def _is_of_key(event: Event, question: StateQuestion) -> bool:
    value = event.properties.get(question.key_name)
    # In Python True equals 1, but they are different keys.
    return bool(value == question.key and isinstance(value, bool) == isinstance(question.key, bool))


async def _stored(
    connection: RealmConnection, number: ChannelId, selector: str
) -> AsyncIterator[Event]:
    """Yield the stored events of a channel that the selector matches."""
    browse = Subscription(connection, number, FromEarliest(), selector=selector, browse=True)
    async with browse:
        async for event in browse:
            yield event


async def _archived(connection: RealmConnection, question: StateQuestion) -> AsyncIterator[Event]:
    """Return the events that a join has copied to the archive."""
    assert question.archive is not None, "the caller has named it"
    selector = _selector(question)
    try:
        message = OpenChannel(question.archive)
        opened = await connection.ask(message, ChannelOpened)
    except NameDoesNotExist:
        opened = await connection.ask(OpenChannel(question.archive, "queue"), ChannelOpened)
        return _joined(_queued(connection, opened.channel, selector), question)
    return _joined(_stored(connection, opened.channel, selector), question)


async def _queued(
    connection: RealmConnection, number: ChannelId, selector: str
) -> AsyncIterator[Event]:
    """Yield the events of a queue that the selector matches, without consuming them."""
    browse = DurableBrowse(connection, number, READERS, selector=selector)
    async with browse:
        while (batch := await browse.next_batch()) is not None:
            for event in batch:
                yield event


async def _joined(events: AsyncIterator[Event], question: StateQuestion) -> AsyncIterator[Event]:
    """Yield those of ``events`` that a join has copied from the channel of the question."""
    async for event in events:
        if event.origin is not None and event.origin.store == question.channel.name:
            yield event


def _selector(question: StateQuestion) -> str:
    """Return a selector for the events of the key, empty if no selector can express it. The client
    filters the events again."""
    if question.key_name in HEADERS or not question.key_name.isidentifier():
        return ""
    if not isinstance(question.key, str):
        return ""
    selector = f"{question.key_name} = {quoted(question.key)}"
    try:
        parse(selector)
    except InvalidSelector:  # the publish key is a keyword of selectors
        return ""
    return selector
