"""Routes for the realm as a whole: description, joins, dead events, schedule, connections,
pipelines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.api.channels import ListChannels, OpenSchedule, PurgeChannel
from penstock.api.joins import CreateJoin, DeleteJoin, JoinInfo, ListJoins
from penstock.api.joins import Redrive as RedriveDead
from penstock.api.operations import READING
from penstock.api.realm import (
    ConnectionInfo,
    DescribePipeline,
    DescribeRealm,
    EndConnection,
    ListConnections,
    ListPipelines,
    PausePublishing,
    PipelineInfo,
    ReadRates,
    RealmInfo,
)
from penstock.api.requests import Kind
from penstock.core.vocabulary.errors import IllegalState, NameDoesNotExist
from penstock.core.vocabulary.names import destination_name
from penstock.core.vocabulary.start_positions import FromId
from penstock.frontends.http.collecting import Collected, collect
from penstock.frontends.http.dead import DeadEvents
from penstock.frontends.http.event_documents import document_of, messages_of
from penstock.frontends.http.finding import (
    cursor_of,
    found,
    may_read_at,
    store_of,
)
from penstock.frontends.http.joining import join_id, join_of
from penstock.frontends.http.live import rates
from penstock.frontends.http.realm_shapes import (
    ConnectionAnswer,
    DeadAnswer,
    DeadQuery,
    JoinAnswer,
    NewJoin,
    RatesQuery,
    Redrive,
    RedrivenAnswer,
    ScheduledAnswer,
    ScheduleQuery,
)
from penstock.frontends.http.routing import Call, Events, Route
from penstock.frontends.http.shapes import After, Done, NoQuery, Page, Pause, RealmAnswer, moment

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def show(call: Call[NoQuery, None]) -> RealmAnswer:
    """Show the realm: what it holds, and its limits."""
    return _told(call, await call.ask(DescribeRealm()))


def _told(call: Call[Any, Any], info: RealmInfo) -> RealmAnswer:
    realm = call.realm
    return RealmAnswer(
        **msgspec.structs.asdict(info),
        identity=realm.identity,
        mode=call.guard.access.mode,
        now=moment(realm.clock.now_us()),
        started=moment(call.server.started_us),
        event_bytes_max=realm.limits.event_bytes_max,
        damage=[str(each) for each in realm.recovered.damage[:100]],
    )


async def pause(call: Call[NoQuery, Pause]) -> RealmAnswer:
    """Pause publishing, so that publishes of clients are refused, or resume it (SEM X5)."""
    await call.ask(PausePublishing(call.body.paused))
    return _told(call, await call.answer(DescribeRealm()))


# --- joins --------------------------------------------------------------------------------


def _join(info: JoinInfo) -> JoinAnswer:
    name = join_id(info.source, info.destination)
    return JoinAnswer(id=name, **msgspec.structs.asdict(info))


async def list_joins(call: Call[After, None]) -> Page[JoinAnswer]:
    """List joins, by source and destination."""
    place = cursor_of(call.query.after) or 0
    infos = await call.ask(ListJoins())
    end = place + call.query.limit
    return Page(
        items=[_join(info) for info in infos[place:end]],
        next=str(end) if end < len(infos) else None,
    )


async def create_join(call: Call[NoQuery, NewJoin]) -> JoinAnswer:
    """Create a join: from now on, events published on one store are copied to another (SEM L1)."""
    return _join(await call.ask(CreateJoin(**msgspec.structs.asdict(call.body))))


async def delete_join(call: Call[NoQuery, None]) -> Done:
    """Delete a join; copies that were made stay."""
    text = call.params["id"]
    pair = join_of(text)
    if pair is None:
        raise NameDoesNotExist(f"no join has the id {text[:80]!r}; GET joins lists them")
    await call.ask(DeleteJoin(*pair))
    return Done()


# --- dead events --------------------------------------------------------------------------


async def dead(call: Call[DeadQuery, None]) -> DeadAnswer:
    """Count the dead events in a store by where they came from and why they died (SEM T6)."""
    store, realm = await found(call), call.realm
    outlet = DeadEvents(call.query.limit)
    next_id = await collect(
        realm,
        store.number,
        outlet,
        lambda: realm.subscriptions.subscribe(
            store.number, FromId(0), outlet, credit=outlet.count_max, browse=True
        ),
    )
    return outlet.summary(is_complete=next_id is None)


async def redrive(call: Call[NoQuery, Redrive]) -> RedrivenAnswer:
    """Publish dead events again, each once, and remove them from their store (SEM T10)."""
    wanted = RedriveDead(**msgspec.structs.asdict(call.body))
    done = await call.ask(wanted, dry_run=wanted.dry_run)
    return msgspec.convert(msgspec.structs.asdict(done), RedrivenAnswer)


# --- schedule -----------------------------------------------------------------------------


async def schedule(call: Call[ScheduleQuery, None]) -> Page[ScheduledAnswer]:
    """List events that wait to be published (SEM X4), by destination and number."""
    query = call.query
    wanted = None if query.channel is None else destination_name(query.channel)
    if wanted is not None:
        may_read_at(call, wanted)
        call.kind_of(wanted)
    first_number, first_name = _scheduled_place(query.after)
    kinds: tuple[Kind, ...] = ("channel", "queue")
    names = [(name, kind) for kind in kinds for name in await call.answer(ListChannels(kind))]
    items: list[ScheduledAnswer] = []
    for name, kind in sorted(names):
        is_meant = wanted in (None, name) and name >= first_name
        if not is_meant or not call.allows(READING[kind], name):
            continue
        if len(items) >= query.limit:
            return Page(items=items, next=f"0 {name}")
        first = first_number if name == first_name else 0
        more, next_number = await _waiting(call, name, kind, first, query.limit - len(items))
        items += more
        if next_number is not None:
            return Page(items=items, next=f"{next_number} {name}")
    return Page(items=items)


def _scheduled_place(after: str) -> tuple[int, str]:
    """Number and store in ``after``. Raises ``InvalidArgument``."""
    number, _, name = after.partition(" ")
    return cursor_of(number) or 0, name


async def _waiting(
    call: Call[ScheduleQuery, None], name: str, kind: Kind, first: int, limit: int
) -> tuple[list[ScheduledAnswer], int | None]:
    """Events that wait for one store, from number ``first`` on, and the number of the next page."""
    realm = call.realm
    store = await store_of(realm, name, kind)
    hidden = await call.answer(OpenSchedule(store.number))
    if hidden is None:
        return [], None
    outlet = Collected("", limit)
    next_number = await collect(
        realm,
        hidden.channel,
        outlet,
        lambda: realm.subscriptions.subscribe(
            hidden.channel, FromId(first), outlet, credit=limit, browse=True
        ),
    )
    messages = messages_of(store)
    waiting = [
        ScheduledAnswer(
            destination=name,
            kind=kind,
            number=event.event_id or 0,
            deliver_at=event.deliver_at or _EPOCH,
            event=document_of(event, messages),
        )
        for event in outlet.events()
    ]
    return waiting, next_number


async def cancel(call: Call[NoQuery, None]) -> Done:
    """Cancel a scheduled event of a channel or queue."""
    store = await found(call)
    number = cursor_of(call.params["number"]) or 0
    hidden = await call.answer(OpenSchedule(store.number))
    gone = 0
    if hidden is not None:
        gone = await call.answer(PurgeChannel(hidden.channel, number, number))
    if not gone:
        raise IllegalState(
            f"number {number} does not wait on {store.name}: it was published or cancelled before"
        )
    return Done()


# --- connections and pipelines ------------------------------------------------------------


async def connections(call: Call[After, None]) -> Page[ConnectionAnswer]:
    """List the native connections, oldest first."""
    place = cursor_of(call.query.after) or 0
    infos = [info for info in await call.ask(ListConnections()) if int(info.id) > place]
    more = len(infos) > call.query.limit
    return Page(
        items=[_connection(info) for info in infos[: call.query.limit]],
        next=infos[call.query.limit - 1].id if more else None,
    )


def _connection(info: ConnectionInfo) -> ConnectionAnswer:
    fields = msgspec.structs.asdict(info)
    return ConnectionAnswer(opened=moment(fields.pop("opened_us")), **fields)


async def end_connection(call: Call[NoQuery, None]) -> Done:
    """End a native connection; its client may connect again."""
    await call.ask(EndConnection(call.params["id"]))
    return Done()


async def list_pipelines(call: Call[After, None]) -> Page[PipelineInfo]:
    """List the pipelines in the folders that the realm was given, with the progress of their
    steps."""
    return Page(items=await call.ask(ListPipelines()))


async def show_pipeline(call: Call[NoQuery, None]) -> PipelineInfo:
    """Show a pipeline: for each step the status of its last run, its position, and how far it is
    behind."""
    return await call.ask(DescribePipeline(call.params["pipeline"]))


async def watch_rates(call: Call[RatesQuery, None]) -> Events:
    """Watch the counters of channels, queues and durables, each second (server-sent events)."""
    asked = ReadRates(call.query.channel)
    now = await call.ask(asked)
    if asked.channel is not None and not now.channels:
        raise NameDoesNotExist(f"there is no channel or queue {asked.channel}")
    return rates(call, asked)


ROUTES = (
    Route("getRealm", "GET", "realm", DescribeRealm, show),
    Route("editRealm", "PATCH", "realm", PausePublishing, pause),
    Route("listJoins", "GET", "joins", ListJoins, list_joins),
    Route("createJoin", "POST", "joins", CreateJoin, create_join, 201),
    Route("deleteJoin", "DELETE", "joins/{id}", DeleteJoin, delete_join),
    Route(
        "summarizeChannelDeadEvents", "GET", "channels/{channel}/dead", "channel.subscribe", dead
    ),
    Route("summarizeQueueDeadEvents", "GET", "queues/{queue}/dead", "queue.peek", dead),
    Route("redriveDeadEvents", "POST", "redrive", RedriveDead, redrive),
    Route("listScheduledEvents", "GET", "schedule", "realm.describe", schedule),
    Route(
        "cancelChannelScheduledEvent",
        "DELETE",
        "channels/{channel}/schedule/{number}",
        "channel.purge",
        cancel,
    ),
    Route(
        "cancelQueueScheduledEvent",
        "DELETE",
        "queues/{queue}/schedule/{number}",
        "queue.purge",
        cancel,
    ),
    Route("listConnections", "GET", "connections", ListConnections, connections),
    Route("endConnection", "DELETE", "connections/{id}", EndConnection, end_connection),
    Route("listPipelines", "GET", "pipelines", ListPipelines, list_pipelines),
    Route("getPipeline", "GET", "pipelines/{pipeline}", DescribePipeline, show_pipeline),
    Route("watchRates", "GET", "rates", ReadRates, watch_rates),
)
