"""Routes that list, create, show, edit, delete, maintain, purge, export and import channels and
queues."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from penstock_core.api.channels import (
    ChannelInfo,
    CountPurge,
    CreateChannel,
    DeleteChannel,
    DescribeChannel,
    DescribeColumns,
    DescribeMissing,
    EditChannel,
    ListChannels,
    Locate,
    MaintainChannel,
    Maintained,
    PurgeChannel,
)
from penstock_core.api.durables import ListDurables
from penstock_core.api.operations import operation_on
from penstock_core.api.requests import Kind
from penstock_core.api.transfers import ExportTar, ImportTar
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.vocabulary.argument_errors import explain
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.frontends.http.binding import bound
from penstock_server.frontends.http.finding import find_store
from penstock_server.frontends.http.realm_shapes import ImportQuery, NameAnswer, NamesQuery
from penstock_server.frontends.http.routing import Call, Download, Endpoint, Route, Upload, named
from penstock_server.frontends.http.shapes import (
    After,
    ChannelAnswer,
    ChannelAttributes,
    ColumnAnswer,
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
    answer_from,
)
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.subscriptions.documents import channel_document

SEGMENTS_MAX = 1_000
"""Maximum number of segment files in one answer."""


def channel_answer(realm: RunningRealm, info: ChannelInfo) -> ChannelAnswer:
    """Return the document of a channel or queue, with the age of its oldest stored event."""
    store = realm.view.named(info.name)
    oldest = None if store is None else store.oldest_ms(realm.clock.now_us())
    return msgspec.convert({**channel_document(info), "oldest_event_ms": oldest}, ChannelAnswer)


async def list_channels(call: Call[After, None]) -> Page[ChannelAnswer]:
    """List the channels that the user may see, by name."""
    return await _page(call, "channel")


async def list_queues(call: Call[After, None]) -> Page[ChannelAnswer]:
    """List the queues that the user may see, by name."""
    return await _page(call, "queue")


async def _page(call: Call[After, None], kind: Kind) -> Page[ChannelAnswer]:
    """Return a page of descriptions of channels or queues, sorted by name."""
    limit, after = call.query.limit, call.query.after
    names = [name for name in await call.ask(ListChannels(kind)) if name > after]
    # A channel may have been deleted since the names were listed.
    shown = [name for name in names[:limit] if call.realm.view.named(name) is not None]
    items = [
        channel_answer(call.realm, await call.answer(DescribeChannel(name, kind))) for name in shown
    ]
    return Page(items=items, next=names[limit - 1] if len(names) > limit else None)


async def list_names(call: Call[NamesQuery, None]) -> Page[NameAnswer]:
    """List the names of channels and queues that the user may see; with ``durables`` also the names
    of their durables."""
    limit, after = call.query.limit, call.query.after
    kinds: tuple[Kind, ...] = ("channel", "queue")
    names: list[tuple[str, Kind]] = []
    for kind in kinds:
        names += [(name, kind) for name in await call.ask(ListChannels(kind)) if name > after]
    names.sort()
    items = [
        NameAnswer(name=name, kind=kind, durables=_durables(call, name, kind))
        for name, kind in names[:limit]
    ]
    return Page(items=items, next=names[limit - 1][0] if len(names) > limit else None)


def _durables(call: Call[NamesQuery, None], name: str, kind: Kind) -> tuple[str, ...]:
    """Return the names of a channel's durables, if the query asks for them and the user may list
    them."""
    store = call.realm.view.named(name)
    if not call.query.durables or kind == "queue" or store is None:
        return ()
    if not call.caller.allows(operation_on(ListDurables, kind), name):
        return ()
    return tuple(sorted(durable for durable, _ in store.durables))


async def create_channel(call: Call[NoQuery, NewChannel]) -> ChannelAnswer:
    """Create a channel (SEM C3)."""
    return await _create(call, call.body.name, "channel", attributes=call.body.attributes)


async def create_queue(call: Call[NoQuery, NewQueue]) -> ChannelAnswer:
    """Create a queue (SEM Q)."""
    return await _create(call, call.body.name, "queue", attributes=call.body.attributes)


async def _create(call: Call[Any, Any], name: str, kind: Kind, attributes: Struct) -> ChannelAnswer:
    definition = _definition(attributes, Definition(kind=kind))
    opened = await call.ask(CreateChannel(name, definition))
    return channel_answer(call.realm, await call.answer(DescribeChannel(opened.name, kind)))


async def edit_channel(call: Call[NoQuery, ChannelAttributes]) -> ChannelAnswer:
    """Edit attributes of a channel; the changes apply immediately (SEM C3)."""
    return await _edit(call, call.body)


async def edit_queue(call: Call[NoQuery, QueueAttributes]) -> ChannelAnswer:
    """Edit attributes of a queue; the changes apply immediately (SEM C3)."""
    return await _edit(call, call.body)


async def _edit(call: Call[Any, Any], attributes: Struct) -> ChannelAnswer:
    """Edit a channel or queue, and return its new description."""
    await call.ask_here(
        EditChannel, lambda now: EditChannel(now.name, _definition(attributes, now.definition))
    )
    return channel_answer(call.realm, await call.answer(DescribeChannel(*named(call))))


def _definition(attributes: Struct, current: Definition) -> Definition:
    """Return ``current`` with the attributes that are set. Raises ``InvalidArgument``."""
    tree = msgspec.to_builtins(current)
    # A request may set single fields of `storage`; the others keep their values.
    storage = getattr(attributes, "storage", UNSET)
    for field in attributes.__struct_fields__:
        value = getattr(attributes, field)
        if value is not UNSET and value is not storage:
            tree[field] = value
    if storage is not UNSET:
        changes = {
            name: value
            for name in storage.__struct_fields__
            if (value := getattr(storage, name)) is not UNSET
        }
        tree["storage"] = {**tree.get("storage", {}), **changes}
    try:
        return msgspec.convert(tree, Definition)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidArgument(explain(error, tree, kind=Definition, whole="the body")) from error


async def columns(call: Call[NoQuery, None]) -> Page[ColumnAnswer]:
    """List the columns of stored events, with their types (SEM E2)."""
    stored = await call.ask_here(DescribeColumns, lambda now: DescribeColumns(now.channel))
    schema = schema_from(stored)
    return Page(items=[ColumnAnswer(name=field.name, type=str(field.type)) for field in schema])


async def storage(call: Call[NoQuery, None]) -> StoragePlace:
    """Show the segment files with stored events, and how many events are not sealed yet."""
    info = await call.ask(DescribeChannel(*named(call)))
    first = 0 if info.first_event_id is None else info.first_event_id
    end = max(first, info.last_event_id + 1)
    location = await call.ask_here(Locate, lambda now: Locate(now.channel, first, end))
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
    """List the ids whose events are no longer stored, by cause (SEM T8)."""
    await find_store(call, DescribeMissing)
    query, last = call.query, call.query.end
    if last is None:
        last = (await call.ask(DescribeChannel(*named(call)))).last_event_id
    elif last < query.start:
        raise InvalidArgument(f"the range from {query.start} to {last} contains no ids")
    # The range begins after the newest id.
    if last < query.start:
        return Page(items=[])
    span = query.start, last + 1
    groups = await call.ask_here(DescribeMissing, lambda now: DescribeMissing(now.channel, *span))
    return Page(items=[answer_from(group, MissingAnswer) for group in groups])


async def purge(call: Call[NoQuery, Purge]) -> Purged:
    """Remove all events, a range of ids, or the events that match a selector; or only count them
    (SEM T9)."""
    body = call.body
    request_type = CountPurge if body.dry_run else PurgeChannel
    count = await call.ask_here(
        request_type, lambda now: request_type(now.channel, body.start, body.end, body.selector)
    )
    return Purged(count=count, dry_run=body.dry_run)


async def export(call: Call[NoQuery, None]) -> Download:
    """Export the current content of a channel or queue as a tar file (SEM C7).

    The tar file has the folder that ``penstock channel export`` writes: Arrow files with the
    events, and a manifest with checksums. The answer begins after all files have been read once.
    """
    tar = await call.ask(ExportTar(*named(call)))
    return Download(tar.parts, name=tar.name, size=tar.size, close=tar.close)


async def import_(call: Call[ImportQuery, Upload]) -> ChannelAnswer:
    """Create a channel or queue from an export; an invalid export creates nothing (SEM C7).

    The body is the tar file of an export; ``name`` overrides the exported name.
    """
    opened = await call.ask_with(ImportTar(call.query.name), call.body.parts)
    kind: Kind = "queue" if opened.definition.kind == "queue" else "channel"
    return channel_answer(call.realm, await call.answer(DescribeChannel(opened.name, kind)))


def _routes(kind: Kind, edit: Endpoint) -> tuple[Route, ...]:
    """Return the routes of a channel or queue."""
    title, path = kind.capitalize(), f"{kind}s/{{{kind}}}"
    return (
        bound(
            f"get{title}",
            "GET",
            path,
            asks=DescribeChannel,
            text="Show a channel or queue: its attributes, its content, and the counts of all "
            "events by outcome.",
            answer=ChannelAnswer,
            show=lambda call, info: channel_answer(call.realm, info),
        ),
        Route(f"edit{title}", "PATCH", path, asks=EditChannel, endpoint=edit),
        bound(
            f"delete{title}",
            "DELETE",
            path,
            asks=DeleteChannel,
            text="Delete a channel or queue with its events and durables.",
        ),
        bound(
            f"maintain{title}",
            "POST",
            f"{path}/maintain",
            asks=MaintainChannel,
            text="Rewrite the file of a single-file store to free the space of removed events (SEM "
            "S).",
            answer=Maintained,
        ),
        Route(
            f"list{title}Columns", "GET", f"{path}/columns", asks=DescribeColumns, endpoint=columns
        ),
        Route(f"get{title}Storage", "GET", f"{path}/storage", asks=Locate, endpoint=storage),
        Route(
            f"list{title}MissingIds",
            "GET",
            f"{path}/missing",
            asks=DescribeMissing,
            endpoint=missing,
        ),
        Route(f"purge{title}", "POST", f"{path}/purge", asks=PurgeChannel, endpoint=purge),
        Route(f"export{title}", "GET", f"{path}/export", asks=ExportTar, endpoint=export),
    )


ROUTES = (
    Route("listNames", "GET", "names", asks=ListChannels, endpoint=list_names),
    Route("listChannels", "GET", "channels", asks=ListChannels, endpoint=list_channels),
    Route(
        "createChannel", "POST", "channels", asks=CreateChannel, endpoint=create_channel, status=201
    ),
    *_routes("channel", edit_channel),
    Route("listQueues", "GET", "queues", asks=ListChannels, endpoint=list_queues),
    Route("createQueue", "POST", "queues", asks=CreateChannel, endpoint=create_queue, status=201),
    *_routes("queue", edit_queue),
    Route("importStore", "POST", "imports", asks=ImportTar, endpoint=import_, status=201),
)
