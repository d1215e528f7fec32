"""Channels and queues themselves: list, make, show, change, remove, maintain."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from penstock.api.requests import Kind
from penstock.columns.schema.ipc import schema_from
from penstock.core.ids.ids import Span
from penstock.core.vocabulary.errors import InvalidArgument
from penstock.core.vocabulary.messages import Definition
from penstock.core.vocabulary.names import destination_name
from penstock.frontends.http.documents import channel_answer
from penstock.frontends.http.finding import found, may_read, may_write_at, named
from penstock.frontends.http.realm_shapes import NameAnswer, NamesQuery
from penstock.frontends.http.routing import Call, Route
from penstock.frontends.http.shapes import (
    After,
    ChannelAnswer,
    ChannelAttributes,
    ColumnAnswer,
    Done,
    MaintainedAnswer,
    MissingAnswer,
    MissingQuery,
    NewChannel,
    NewQueue,
    NoQuery,
    Page,
    Purge,
    Purged,
    QueueAttributes,
    SegmentAnswer,
    StoragePlace,
)
from penstock.runtime.subscriptions.missing_ids import missing as missing_ids

SEGMENTS_MAX = 1_000


async def list_channels(call: Call[After, None]) -> Page[ChannelAnswer]:
    """List channels, by name: those that may be seen."""
    return await _page(call, "channel")


async def list_queues(call: Call[After, None]) -> Page[ChannelAnswer]:
    """List queues, by name: those that may be seen."""
    return await _page(call, "queue")


async def _page(call: Call[After, None], kind: Kind) -> Page[ChannelAnswer]:
    limit, after = call.query.limit, call.query.after
    names = [
        name
        for name in call.guard.access.visible(
            call.principal, kind, await call.realm.list_channels(kind)
        )
        if name > after
    ]
    shown = [name for name in names[:limit] if call.realm.directory.find(name) is not None]
    items = [
        channel_answer(call.realm, await call.realm.describe_channel(name, kind)) for name in shown
    ]
    return Page(items=items, next=names[limit - 1] if len(names) > limit else None)


async def list_names(call: Call[NamesQuery, None]) -> Page[NameAnswer]:
    """List channels and queues that may be seen, by name, and nothing of them but their names;
    with ``durables`` also those of their durables."""
    limit, after = call.query.limit, call.query.after
    kinds: tuple[Kind, ...] = ("channel", "queue")
    found: list[tuple[str, Kind]] = []
    for kind in kinds:
        names = await call.realm.list_channels(kind)
        seen = call.guard.access.visible(call.principal, kind, names)
        found += [(name, kind) for name in seen if name > after]
    found.sort()
    items = [
        NameAnswer(name=name, kind=kind, durables=_durables(call, name, kind))
        for name, kind in found[:limit]
    ]
    return Page(items=items, next=found[limit - 1][0] if len(found) > limit else None)


def _durables(call: Call[NamesQuery, None], name: str, kind: Kind) -> tuple[str, ...]:
    directory = call.realm.directory
    number = directory.find(name)
    if not call.query.durables or kind == "queue" or number is None:
        return ()
    if not call.allows("durable.list", name):
        return ()
    return tuple(sorted(directory.channels[number].state.durables))


async def create_channel(call: Call[NoQuery, NewChannel]) -> ChannelAnswer:
    """Make a channel (SEM C3)."""
    return await _create(call, call.body.name, "channel", call.body.attributes)


async def create_queue(call: Call[NoQuery, NewQueue]) -> ChannelAnswer:
    """Make a queue (SEM Q)."""
    return await _create(call, call.body.name, "queue", call.body.attributes)


async def _create(call: Call[Any, Any], name: str, kind: Kind, given: Struct) -> ChannelAnswer:
    definition = _definition(given, Definition(kind=kind))
    may_bury(call, definition.dead_event_store)
    access, wanted = call.guard.access, destination_name(name)
    async with access.naming(wanted):
        await call.realm.create_channel(wanted, definition)
        await access.created(call.principal, kind, wanted)
    return channel_answer(call.realm, await call.realm.describe_channel(wanted, kind))


async def show(call: Call[NoQuery, None]) -> ChannelAnswer:
    """Show a channel or queue: attributes, content, what became of every event."""
    return channel_answer(call.realm, await call.realm.describe_channel(*named(call)))


async def edit_channel(call: Call[NoQuery, ChannelAttributes]) -> ChannelAnswer:
    """Change attributes of a channel; they apply at once (SEM C3)."""
    return await _edit(call, call.body)


async def edit_queue(call: Call[NoQuery, QueueAttributes]) -> ChannelAnswer:
    """Change attributes of a queue; they apply at once (SEM C3)."""
    return await _edit(call, call.body)


async def _edit(call: Call[Any, Any], given: Struct) -> ChannelAnswer:
    store = await found(call)
    definition = _definition(given, store.definition)
    dead = definition.dead_event_store
    if dead and destination_name(dead) != store.definition.dead_event_store:
        may_read(call, store)  # who reads there reads these
        may_bury(call, dead)
    await call.realm.edit_channel(store.name, definition)
    return await show(call)


def may_bury(call: Call[Any, Any], dead: str) -> None:
    """Whose events go to a dead event store publishes there, in the end."""
    if dead:
        may_write_at(call, dead)


def _definition(given: Struct, current: Definition) -> Definition:
    """``current`` with what was given. Raises ``InvalidArgument``."""
    tree = msgspec.to_builtins(current)
    storage = getattr(given, "storage", UNSET)
    for field in given.__struct_fields__:
        value = getattr(given, field)
        if value is not UNSET and value is not storage:
            tree[field] = value
    if storage is not UNSET:
        own = {
            name: value
            for name in storage.__struct_fields__
            if (value := getattr(storage, name)) is not UNSET
        }
        tree["storage"] = {**tree.get("storage", {}), **own}
    try:
        return msgspec.convert(tree, Definition)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"attributes: {error}") from error


async def delete(call: Call[NoQuery, None]) -> Done:
    """Remove a channel or queue with its events and durables."""
    (name, kind), access = named(call), call.guard.access
    async with access.naming(destination_name(name)):
        await call.realm.delete_channel(name, kind)
        await access.deleted(kind, destination_name(name))
    return Done()


async def maintain(call: Call[NoQuery, None]) -> MaintainedAnswer:
    """Rewrite a single-file store without what is dead in it (SEM S)."""
    done = await call.realm.maintain(*named(call))
    return msgspec.convert(msgspec.structs.asdict(done), MaintainedAnswer)


async def columns(call: Call[NoQuery, None]) -> Page[ColumnAnswer]:
    """The columns that all stored events fit, as they are stored (SEM E2)."""
    store = await found(call)
    schema = schema_from(await call.realm.subscriptions.columns(store.number))
    return Page(items=[ColumnAnswer(name=field.name, type=str(field.type)) for field in schema])


async def storage(call: Call[NoQuery, None]) -> StoragePlace:
    """Where the stored events are: segment files, and what is in none yet."""
    store = await found(call)
    info = await call.realm.describe_channel(store.name, store.kind)
    first = 0 if info.first_event_id is None else info.first_event_id
    location = await call.realm.subscriptions.locate(
        store.number, Span(first, max(first, info.last_event_id + 1))
    )
    segments = [
        SegmentAnswer(
            path=part.path,
            size=part.size,
            first_id=part.spans[0][0],
            last_id=part.spans[-1][1] - 1,
            events=sum(end - begin for begin, end in part.spans),
        )
        for part in location.sealed[:SEGMENTS_MAX]
    ]
    return StoragePlace(
        storage=channel_answer(call.realm, info).storage,
        segments=segments,
        segments_left_out=max(0, len(location.sealed) - SEGMENTS_MAX),
        unsealed_events=sum(end - begin for begin, end in location.tail),
    )


async def missing(call: Call[MissingQuery, None]) -> Page[MissingAnswer]:
    """Which event ids have no event any more, by cause (SEM T8)."""
    store, query = await found(call), call.query
    last = query.end
    if last is None:
        last = (await call.realm.describe_channel(store.name, store.kind)).last_event_id
    elif last < query.start:
        raise InvalidArgument(f"a range from {query.start} to {last} has no ids")
    if last < query.start:
        return Page(items=[])
    told = await missing_ids(call.realm.shard, store.number, Span(query.start, last + 1))
    return Page(
        items=[
            MissingAnswer(
                cause=each.cause,
                events=each.events,
                spans=[(span[0], span[1]) for span in each.spans],
            )
            for each in told
        ]
    )


async def purge(call: Call[NoQuery, Purge]) -> Purged:
    """Remove events: all, a range, those a selector matches; or only count them (SEM T9)."""
    store, wanted = await found(call), call.body
    if wanted.selector or wanted.dry_run:
        may_read(call, store)
    count = await call.realm.subscriptions.purge(
        store.number, wanted.start, wanted.end, wanted.selector, dry_run=wanted.dry_run
    )
    return Purged(count=count, dry_run=wanted.dry_run)


ROUTES = (
    Route("listNames", "GET", "names", "channel.list", list_names),
    Route("listChannels", "GET", "channels", "channel.list", list_channels),
    Route("createChannel", "POST", "channels", "channel.create", create_channel, 201),
    Route("getChannel", "GET", "channels/{channel}", "channel.describe", show),
    Route("editChannel", "PATCH", "channels/{channel}", "channel.edit", edit_channel),
    Route("deleteChannel", "DELETE", "channels/{channel}", "channel.delete", delete),
    Route("maintainChannel", "POST", "channels/{channel}/maintain", "channel.maintain", maintain),
    Route("listChannelColumns", "GET", "channels/{channel}/columns", "channel.subscribe", columns),
    Route("getChannelStorage", "GET", "channels/{channel}/storage", "channel.subscribe", storage),
    Route(
        "listChannelMissingIds", "GET", "channels/{channel}/missing", "channel.subscribe", missing
    ),
    Route("purgeChannel", "POST", "channels/{channel}/purge", "channel.purge", purge),
    Route("listQueues", "GET", "queues", "queue.list", list_queues),
    Route("createQueue", "POST", "queues", "queue.create", create_queue, 201),
    Route("getQueue", "GET", "queues/{queue}", "queue.describe", show),
    Route("editQueue", "PATCH", "queues/{queue}", "queue.edit", edit_queue),
    Route("deleteQueue", "DELETE", "queues/{queue}", "queue.delete", delete),
    Route("maintainQueue", "POST", "queues/{queue}/maintain", "queue.maintain", maintain),
    Route("listQueueColumns", "GET", "queues/{queue}/columns", "queue.peek", columns),
    Route("getQueueStorage", "GET", "queues/{queue}/storage", "queue.peek", storage),
    Route("listQueueMissingIds", "GET", "queues/{queue}/missing", "queue.peek", missing),
    Route("purgeQueue", "POST", "queues/{queue}/purge", "queue.purge", purge),
)
