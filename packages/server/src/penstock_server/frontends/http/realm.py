"""Routes for the realm as a whole: description, joins, dead events, schedule, connections,
pipelines."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_core.api.joins import CreateJoin, DeleteJoin, JoinInfo, ListJoins, Redriven
from penstock_core.api.joins import Redrive as RedriveDead
from penstock_core.api.reading import (
    CancelScheduled,
    DeadSummary,
    ListScheduled,
    SummarizeDead,
    WaitingEvents,
)
from penstock_core.api.realm import (
    ClusterInfo,
    ConnectionInfo,
    DescribeCluster,
    DescribePipeline,
    DescribeRealm,
    EndConnection,
    ListConnections,
    ListPipelines,
    PausePublishing,
    PipelineInfo,
    ReadHistory,
    ReadRates,
    RealmInfo,
)
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_server.frontends.http.event_documents import document_of, messages_of
from penstock_server.frontends.http.finding import cursor_of, store_of
from penstock_server.frontends.http.joining import join_id, join_of
from penstock_server.frontends.http.live import rates
from penstock_server.frontends.http.realm_shapes import (
    ConnectionAnswer,
    DeadQuery,
    HistoryAnswer,
    HistoryQuery,
    JoinAnswer,
    NewJoin,
    RatesQuery,
    Redrive,
    ScheduleQuery,
)
from penstock_server.frontends.http.routing import Call, Events, Route
from penstock_server.frontends.http.shapes import (
    After,
    Done,
    NoQuery,
    Page,
    Pause,
    RealmAnswer,
    ScheduledAnswer,
    moment,
)


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
        started=moment(call.service.started_us),
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


async def dead(call: Call[DeadQuery, None]) -> DeadSummary:
    """Count the dead events in a store by where they came from and why they died (SEM T6)."""
    limit = call.query.limit
    return await call.ask_here(SummarizeDead, lambda now: SummarizeDead(now.channel, limit))


async def redrive(call: Call[NoQuery, Redrive]) -> Redriven:
    """Publish dead events again, each once, and remove them from their store (SEM T10)."""
    wanted = RedriveDead(**msgspec.structs.asdict(call.body))
    return await call.ask(wanted, dry_run=wanted.dry_run)


# --- schedule -----------------------------------------------------------------------------


async def schedule(call: Call[ScheduleQuery, None]) -> Page[ScheduledAnswer]:
    """List events that wait to be published (SEM X4), by destination and number."""
    query = call.query
    number, name = _scheduled_place(query.after)
    told = await call.ask(ListScheduled(query.limit, query.channel, number, first_name=name))
    items = [item for each in told.waiting for item in _waiting(each)]
    return Page(items=items, next=told.next and f"{told.next[0]} {told.next[1]}")


def _scheduled_place(after: str) -> tuple[int, str]:
    """Number and store in ``after``. Raises ``InvalidArgument``."""
    number, _, name = after.partition(" ")
    return cursor_of(number) or 0, name


def _waiting(found: WaitingEvents) -> list[ScheduledAnswer]:
    messages = messages_of(store_of(found.store, found.kind))
    return [
        ScheduledAnswer(
            destination=found.store.name,
            kind=found.kind,
            number=event.event_id or 0,
            deliver_at=event.deliver_at or moment(0),
            event=document_of(event, messages),
        )
        for event in found.events
    ]


async def cancel(call: Call[NoQuery, None]) -> Done:
    """Cancel a scheduled event of a channel or queue."""
    text = call.params["number"]
    await call.ask_here(
        CancelScheduled, lambda now: CancelScheduled(now.channel, cursor_of(text) or 0)
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


async def cluster(call: Call[NoQuery, None]) -> ClusterInfo:
    """Show the cluster that the realm is in: its nodes, and which of them owns the realm. On a
    realm without a cluster there is no node."""
    return await call.ask(DescribeCluster())


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


async def history(call: Call[HistoryQuery, None]) -> HistoryAnswer:
    """Read what flowed in the last 24 hours, how far readers were behind and how long deliveries
    took, a sample every two minutes."""
    told = msgspec.structs.asdict(
        await call.ask(ReadHistory(call.query.channel, call.query.durable))
    )
    return HistoryAnswer(
        begun=moment(told.pop("begun_us")), first=moment(told.pop("first_us")), **told
    )


ROUTES = (
    Route("getRealm", "GET", "realm", asks=DescribeRealm, endpoint=show),
    Route("editRealm", "PATCH", "realm", asks=PausePublishing, endpoint=pause),
    Route("listJoins", "GET", "joins", asks=ListJoins, endpoint=list_joins),
    Route("createJoin", "POST", "joins", asks=CreateJoin, endpoint=create_join, status=201),
    Route("deleteJoin", "DELETE", "joins/{id}", asks=DeleteJoin, endpoint=delete_join),
    Route(
        "summarizeChannelDeadEvents",
        "GET",
        "channels/{channel}/dead",
        asks=SummarizeDead,
        endpoint=dead,
    ),
    Route(
        "summarizeQueueDeadEvents", "GET", "queues/{queue}/dead", asks=SummarizeDead, endpoint=dead
    ),
    Route("redriveDeadEvents", "POST", "redrive", asks=RedriveDead, endpoint=redrive),
    Route("listScheduledEvents", "GET", "schedule", asks=ListScheduled, endpoint=schedule),
    Route(
        "cancelChannelScheduledEvent",
        "DELETE",
        "channels/{channel}/schedule/{number}",
        asks=CancelScheduled,
        endpoint=cancel,
    ),
    Route(
        "cancelQueueScheduledEvent",
        "DELETE",
        "queues/{queue}/schedule/{number}",
        asks=CancelScheduled,
        endpoint=cancel,
    ),
    Route("listConnections", "GET", "connections", asks=ListConnections, endpoint=connections),
    Route(
        "endConnection", "DELETE", "connections/{id}", asks=EndConnection, endpoint=end_connection
    ),
    Route("getCluster", "GET", "cluster", asks=DescribeCluster, endpoint=cluster),
    Route("listPipelines", "GET", "pipelines", asks=ListPipelines, endpoint=list_pipelines),
    Route(
        "getPipeline", "GET", "pipelines/{pipeline}", asks=DescribePipeline, endpoint=show_pipeline
    ),
    Route("watchRates", "GET", "rates", asks=ReadRates, endpoint=watch_rates),
    Route("getHistory", "GET", "history", asks=ReadHistory, endpoint=history),
)
