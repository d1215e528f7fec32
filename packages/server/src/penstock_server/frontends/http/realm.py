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
from penstock_core.columns.schema.moments import moment_of
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_server.frontends.http.binding import bound
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
    Pause,
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
    RealmAnswer,
    ScheduledAnswer,
    answer_from,
)


async def show(call: Call[NoQuery, None]) -> RealmAnswer:
    """Show the realm: its contents and its limits."""
    return _answer(call, await call.ask(DescribeRealm()))


def _answer(call: Call[Any, Any], info: RealmInfo) -> RealmAnswer:
    """Return the description of the realm, with the facts that only this API shows."""
    realm = call.realm
    return RealmAnswer(
        **msgspec.structs.asdict(info),
        identity=realm.identity,
        mode=call.guard.access.mode,
        now=moment_of(realm.clock.now_us()),
        started=moment_of(call.service.started_us),
        event_bytes_max=realm.limits.event_bytes_max,
        damage=[str(damage) for damage in realm.recovered.damage[:100]],
    )


async def pause(call: Call[NoQuery, Pause]) -> RealmAnswer:
    """Pause publishing, so that publishes of clients are refused, or resume it (SEM X5)."""
    await call.ask(PausePublishing(call.body.paused))
    return _answer(call, await call.answer(DescribeRealm()))


# --- joins --------------------------------------------------------------------------------


def _join(_: Call[Any, Any], info: JoinInfo) -> Any:
    return answer_from(info, JoinAnswer, id=join_id(info.source, info.destination))


async def delete_join(call: Call[NoQuery, None]) -> Done:
    """Delete a join; the copies it made stay."""
    text = call.params["id"]
    pair = join_of(text)
    if pair is None:
        raise NameDoesNotExist(f"no join has the id {text[:80]!r}; GET joins lists them")
    await call.ask(DeleteJoin(*pair))
    return Done()


# --- schedule -----------------------------------------------------------------------------


async def schedule(call: Call[ScheduleQuery, None]) -> Page[ScheduledAnswer]:
    """List scheduled events (SEM X4), by destination and number."""
    query = call.query
    number, name = _parse_cursor(query.after)
    listing = await call.ask(ListScheduled(query.limit, query.channel, number, first_name=name))
    items = [item for group in listing.waiting for item in _scheduled_answers(group)]
    return Page(items=items, next=listing.next and f"{listing.next[0]} {listing.next[1]}")


def _parse_cursor(after: str) -> tuple[int, str]:
    """Return the number and the store of the cursor ``after``. Raises ``InvalidArgument``."""
    number, _, name = after.partition(" ")
    return cursor_of(number) or 0, name


def _scheduled_answers(group: WaitingEvents) -> list[ScheduledAnswer]:
    """Return the scheduled events of one channel or queue."""
    messages = messages_of(store_of(group.store, group.kind))
    return [
        ScheduledAnswer(
            destination=group.store.name,
            kind=group.kind,
            number=event.event_id or 0,
            deliver_at=event.deliver_at or moment_of(0),
            event=document_of(event, messages),
        )
        for event in group.events
    ]


# --- connections and pipelines ------------------------------------------------------------


async def connections(call: Call[After, None]) -> Page[ConnectionAnswer]:
    """List the native connections, oldest first."""
    after_id = cursor_of(call.query.after) or 0
    infos = [info for info in await call.ask(ListConnections()) if int(info.id) > after_id]
    has_more = len(infos) > call.query.limit
    return Page(
        items=[answer_from(info, ConnectionAnswer) for info in infos[: call.query.limit]],
        next=infos[call.query.limit - 1].id if has_more else None,
    )


async def watch_rates(call: Call[RatesQuery, None]) -> Events:
    """Watch the counters of channels, queues and durables, once per second (server-sent events)."""
    request = ReadRates(call.query.channel)
    current = await call.ask(request)
    if request.channel is not None and not current.channels:
        raise NameDoesNotExist(f"no channel or queue {request.channel} exists")
    return rates(call, request)


def _dead(kind: str, path: str) -> Route:
    """Return the route that counts the dead events in a store of one kind."""
    return bound(
        f"summarize{kind}DeadEvents",
        "GET",
        f"{path}/dead",
        asks=SummarizeDead,
        text="Count the dead events in a store by origin and cause (SEM T6).",
        query=DeadQuery,
        answer=DeadSummary,
    )


def _cancel(kind: str, path: str) -> Route:
    """Return the route that cancels a scheduled event of a store of one kind."""
    return bound(
        f"cancel{kind}ScheduledEvent",
        "DELETE",
        f"{path}/schedule/{{number}}",
        asks=CancelScheduled,
        text="Cancel a scheduled event of a channel or queue.",
    )


ROUTES = (
    Route("getRealm", "GET", "realm", asks=DescribeRealm, endpoint=show),
    Route("editRealm", "PATCH", "realm", asks=PausePublishing, endpoint=pause),
    bound(
        "listJoins",
        "GET",
        "joins",
        asks=ListJoins,
        text="List joins, sorted by source and destination.",
        query=After,
        answer=Page[JoinAnswer],
        paged_by="place",
        show=_join,
    ),
    bound(
        "createJoin",
        "POST",
        "joins",
        asks=CreateJoin,
        text="Create a join, which copies events published on one store from now on to another "
        "(SEM L1).",
        body=NewJoin,
        answer=JoinAnswer,
        show=_join,
        status=201,
    ),
    Route("deleteJoin", "DELETE", "joins/{id}", asks=DeleteJoin, endpoint=delete_join),
    _dead("Channel", "channels/{channel}"),
    _dead("Queue", "queues/{queue}"),
    bound(
        "redriveDeadEvents",
        "POST",
        "redrive",
        asks=RedriveDead,
        text="Publish dead events again, each exactly once, and remove them from their store "
        "(SEM T10).",
        body=Redrive,
        answer=Redriven,
        audited=("dry_run",),
    ),
    Route("listScheduledEvents", "GET", "schedule", asks=ListScheduled, endpoint=schedule),
    _cancel("Channel", "channels/{channel}"),
    _cancel("Queue", "queues/{queue}"),
    Route("listConnections", "GET", "connections", asks=ListConnections, endpoint=connections),
    bound(
        "endConnection",
        "DELETE",
        "connections/{id}",
        asks=EndConnection,
        text="Close a native connection; its client may connect again.",
    ),
    bound(
        "getCluster",
        "GET",
        "cluster",
        asks=DescribeCluster,
        text="Show the realm's cluster: its nodes, and the node that owns the realm. Without a "
        "cluster, the list of nodes is empty.",
        answer=ClusterInfo,
    ),
    bound(
        "listPipelines",
        "GET",
        "pipelines",
        asks=ListPipelines,
        text="List the pipelines in the folders of the realm's settings, with the progress of "
        "their steps.",
        query=After,
        answer=Page[PipelineInfo],
    ),
    bound(
        "getPipeline",
        "GET",
        "pipelines/{pipeline}",
        asks=DescribePipeline,
        text="Show a pipeline: for each step, the status of its last run, its position and its "
        "lag.",
        answer=PipelineInfo,
    ),
    Route("watchRates", "GET", "rates", asks=ReadRates, endpoint=watch_rates),
    bound(
        "getHistory",
        "GET",
        "history",
        asks=ReadHistory,
        text="Read the throughput, the lag of readers and the duration of deliveries of the last "
        "24 hours, with one sample per two minutes.",
        query=HistoryQuery,
        answer=HistoryAnswer,
    ),
)
