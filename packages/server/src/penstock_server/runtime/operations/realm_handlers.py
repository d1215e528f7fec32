"""Handlers of requests about the realm: connections, pipelines, counters."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_core.api import realm as realms
from penstock_core.vocabulary.errors import ConnectionLost, InvalidArgument, NameDoesNotExist
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.reading.pipelines import pipelines_in
from penstock_server.runtime.subscriptions.realm_view import RealmView, StoreView

CHANNELS_MAX: Final = 1_000
"""Maximum number of channels and queues in one answer with counters."""


async def list_connections(
    caller: Caller, _: realms.ListConnections
) -> list[realms.ConnectionInfo]:
    now_s, now_us = asyncio.get_running_loop().time(), caller.realm.clock.now_us()
    return [
        realms.ConnectionInfo(
            id=str(state.number),
            session=state.session,
            user=state.user,
            client=state.client,
            protocol=state.protocol,
            opened_us=now_us - int(1_000_000 * (now_s - state.opened_s)),
            idle_ms=int(1_000 * (now_s - state.heard_s)),
            subscriptions=state.subscriptions,
            requests=state.requests,
            unsent_bytes=state.unsent_bytes,
            is_stalled=state.is_stalled,
        )
        for state in caller.realm.connections.states()
    ]


async def describe_cluster(caller: Caller, _: realms.DescribeCluster) -> realms.ClusterInfo:
    return caller.realm.cluster()


async def end_connection(caller: Caller, request: realms.EndConnection) -> None:
    # Only the canonical form of a number is an id. Forms such as "007" and digits of other scripts
    # are refused.
    is_number = request.id.isdecimal() and len(request.id) < 19
    connection = caller.realm.connections.find(int(request.id)) if is_number else None
    if connection is None or str(int(request.id)) != request.id:
        raise NameDoesNotExist(
            f"connection {request.id[:40]!r} does not exist; list the connections for their ids"
        )
    connection.end(ConnectionLost("an administrator has ended the connection"))


async def list_pipelines(caller: Caller, _: realms.ListPipelines) -> list[realms.PipelineInfo]:
    def lag(name: str, next_id: int) -> int | None:
        store = caller.realm.view.named(name)
        return None if store is None else max(0, store.next_id - next_id)

    return await pipelines_in(caller.realm.pipeline_folders, lag)


async def describe_pipeline(
    caller: Caller, request: realms.DescribePipeline
) -> realms.PipelineInfo:
    for pipeline in await list_pipelines(caller, realms.ListPipelines()):
        if pipeline.name == request.name:
            return pipeline
    raise NameDoesNotExist(
        f"pipeline {request.name[:80]!r} does not exist; list the pipelines for their names"
    )


async def read_rates(caller: Caller, request: realms.ReadRates) -> realms.RatesNow:
    realm = caller.realm
    return rates_of(
        realm.view,
        realm.clock.now_us(),
        name=request.channel,
        connections=len(realm.connections),
        journal_bytes=realm.journal_info.size,
    )


def rates_of(
    view: RealmView, now_us: int, *, name: str | None, connections: int, journal_bytes: int
) -> realms.RatesNow:
    """Return the counters of a realm, or only of the channel or queue with this name."""
    channels: list[realms.ChannelRates] = []
    durables: list[realms.DurableRates] = []
    left_out = 0
    for store in view.stores():
        if name is not None and store.name != name:
            continue
        if len(channels) >= CHANNELS_MAX:  # the answer says how many channels it lacks
            left_out += 1
            continue
        channels.append(_channel(store))
        durables += _durables(store, now_us)
    return realms.RatesNow(
        at_us=now_us,
        channels=tuple(channels),
        durables=tuple(durables),
        connections=connections,
        journal_bytes=journal_bytes,
        memory_bytes=view.memory_bytes,
        left_out=left_out,
    )


async def read_history(caller: Caller, request: realms.ReadHistory) -> realms.HistoryInfo:
    if request.durable is not None and request.channel is None:
        raise InvalidArgument(
            f"durable {request.durable[:80]!r} was given without a channel; name its channel, too"
        )
    await caller.realm.history.take_in_turns()
    return caller.realm.history.read(request.channel, request.durable)


def _channel(store: StoreView) -> realms.ChannelRates:
    """Return the present counters of a channel or queue."""
    delivered, acknowledged = store.delivered_and_acknowledged
    return realms.ChannelRates(
        name=store.name,
        kind=store.definition.kind,
        events=store.events,
        bytes=store.bytes,
        last_event_id=store.next_id - 1,
        counters=store.counters,
        delivered=delivered,
        acknowledged=acknowledged,
        died=max(store.counters.dead, sum(store.dead_copies.values())),
    )


def _durables(store: StoreView, now_us: int) -> list[realms.DurableRates]:
    """Return the present counters of each durable of a store."""
    rates = []
    for _, durable in store.durables:
        info, (delivered, acknowledged) = durable.info(now_us), durable.delivered_and_acknowledged
        rates.append(
            realms.DurableRates(
                channel=info.channel,
                name=info.name,
                position=info.position,
                outstanding=info.outstanding,
                in_flight=info.in_flight,
                pending=info.pending,
                redelivered=info.redelivered,
                clients=len(info.clients),
                oldest_outstanding_ms=info.oldest_outstanding_ms,
                delivered=delivered,
                acknowledged=acknowledged,
            )
        )
    return rates
