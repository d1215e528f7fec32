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


class KeyState(Struct, frozen=True):
    """The properties of a key at some event."""

    event_id: int
    """The id of the event on the merge channel that made them so."""
    published: datetime
    properties: dict[str, Any]
    found_in: str
    """Name of the channel, or of the archive; the path or URI of a table."""


class StateQuestion(Struct, frozen=True):
    """Which state is asked for."""

    channel: ChannelOpened
    key_name: str
    key: Any
    as_of: int | None
    archive: str | None


async def state_of(connection: RealmConnection, asked: StateQuestion) -> KeyState:
    """The state from the channel if that still has it, otherwise from the archive.

    Raises ``InvalidArgument``, which names what is gone, and ``NameDoesNotExist`` for the archive.
    """
    name, as_of = asked.channel.name, asked.as_of
    if as_of is not None and (type(as_of) is not int or as_of < 0):
        raise InvalidArgument(f"as_of {as_of!r}: give the id of an event of {name}")
    newest = await _newest(_stored(connection, asked.channel.channel, _selector(asked)), asked)
    if newest is not None and (as_of is None or newest.event_id <= as_of):
        return newest
    wanted = f"{asked.key_name} = {asked.key!r}"
    there = "nothing" if newest is None else f"its state as of event {newest.event_id}"
    where = asked.archive
    if where is None:
        where = (await _info(connection, asked)).definition.archive or None
    if where is None:
        earlier = "" if as_of is None else f" as of event {as_of}"
        raise InvalidArgument(
            f"the state of {wanted}{earlier} is gone: {name} has {there} of it; name an archive, "
            f"a table or a channel or queue that a join from {name} feeds"
        )
    if asked.archive is None or _is_table(where):
        found = await asyncio.to_thread(_in_table, where, _epoch(connection, asked), asked=asked)
    else:
        found = await _newest(await _archived(connection, asked), asked)
    if found is None:
        before = "" if as_of is None else f" from event {as_of} or before"
        raise InvalidArgument(
            f"the state of {wanted} is gone: {name} has {there} of it, and {where} has "
            f"nothing{before}: its state is newer, or was removed there"
        )
    return found


def _is_table(where: str) -> bool:
    """Whether a table is meant, not a channel or queue."""
    path = Path(where)
    return "://" in where or any((path / log).is_dir() for log in ("_delta_log", "_penstock"))


async def _info(connection: RealmConnection, asked: StateQuestion) -> ChannelInfo:
    return await connection.ask(DescribeChannel(asked.channel.name), ChannelInfo)


def _epoch(connection: RealmConnection, asked: StateQuestion) -> str:
    """The channel that the archive must belong to; any, if the user named the table."""
    return "" if asked.archive else asked.channel.epoch(connection.realm_id)


def _in_table(where: str, epoch: str, asked: StateQuestion) -> KeyState | None:
    from penstock.client.reading.archive import Archive, Wanted

    below = _SHOWN_MAX if asked.as_of is None else asked.as_of + 1
    archive = Archive.open(where, asked.channel.name, epoch)
    for batch in archive.newest(below, Wanted(_selector(asked))):
        for row in reversed(range(len(batch))):
            event = batch[row]
            if event.event_id is None or event.published is None or not _is_of_key(event, asked):
                continue
            return KeyState(event.event_id, event.published, event.properties, found_in=where)
    return None


async def _newest(events: AsyncIterator[Event], asked: StateQuestion) -> KeyState | None:
    newest: KeyState | None = None
    as_of = _SHOWN_MAX if asked.as_of is None else asked.as_of
    async for event in events:
        found = _as_state(event, asked)
        if found is None or (found.found_in != asked.channel.name and found.event_id > as_of):
            continue
        if newest is None or found.event_id > newest.event_id:
            newest = found
    return newest


def _as_state(event: Event, asked: StateQuestion) -> KeyState | None:
    """The state an event tells; None when it is of another key, or of another channel."""
    if not _is_of_key(event, asked):
        return None
    origin, name = event.origin, asked.channel.name
    if origin is not None and origin.store == name and asked.archive is not None:
        return KeyState(origin.event_id, origin.published, event.properties, found_in=asked.archive)
    if event.event_id is None or event.published is None:
        return None
    return KeyState(event.event_id, event.published, event.properties, found_in=name)


def _is_of_key(event: Event, asked: StateQuestion) -> bool:
    value = event.properties.get(asked.key_name)
    return bool(value == asked.key and isinstance(value, bool) == isinstance(asked.key, bool))


async def _stored(
    connection: RealmConnection, number: ChannelId, selector: str
) -> AsyncIterator[Event]:
    browse = Subscription(connection, number, FromEarliest(), selector=selector, browse=True)
    async with browse:
        async for event in browse:
            yield event


async def _archived(connection: RealmConnection, asked: StateQuestion) -> AsyncIterator[Event]:
    """The events of the archive that a join has brought."""
    assert asked.archive is not None, "it was asked for"
    selector = _selector(asked)
    try:
        message = OpenChannel(asked.archive)
        opened = await connection.ask(message, ChannelOpened)
    except NameDoesNotExist:
        opened = await connection.ask(OpenChannel(asked.archive, "queue"), ChannelOpened)
        return _joined(_queued(connection, opened.channel, selector), asked)
    return _joined(_stored(connection, opened.channel, selector), asked)


async def _queued(
    connection: RealmConnection, number: ChannelId, selector: str
) -> AsyncIterator[Event]:
    browse = DurableBrowse(connection, number, READERS, selector=selector)
    async with browse:
        while (batch := await browse.next_batch()) is not None:
            for event in batch:
                yield event


async def _joined(events: AsyncIterator[Event], asked: StateQuestion) -> AsyncIterator[Event]:
    async for event in events:
        if event.origin is not None and event.origin.store == asked.channel.name:
            yield event


def _selector(asked: StateQuestion) -> str:
    """A selector for what the realm can find; the rest is filtered here. Empty if a selector cannot
    express it."""
    if asked.key_name in HEADERS or not asked.key_name.isidentifier():
        return ""
    if not isinstance(asked.key, str):
        return ""
    selector = f"{asked.key_name} = {quoted(asked.key)}"
    try:
        parse(selector)
    except InvalidSelector:  # a key named like a keyword of selectors
        return ""
    return selector
