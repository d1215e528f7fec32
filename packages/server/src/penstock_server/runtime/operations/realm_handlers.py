"""Handlers of requests about the realm: connections, pipelines, counters."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_core.api import realm as realms
from penstock_core.vocabulary.errors import ConnectionLost, InvalidArgument, NameDoesNotExist
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.reading.pipelines import pipelines_in
from penstock_server.runtime.subscriptions.realm_view import StoreView

CHANNELS_MAX: Final = 1_000
"""Most channels and queues whose counters are in one answer."""


async def list_connections(by: Caller, _: realms.ListConnections) -> list[realms.ConnectionInfo]:
    now_s, now_us = asyncio.get_running_loop().time(), by.realm.clock.now_us()
    return [
        realms.ConnectionInfo(
            id=str(each.number),
            session=each.session,
            user=each.user,
            client=each.client,
            protocol=each.protocol,
            opened_us=now_us - int(1_000_000 * (now_s - each.opened_s)),
            idle_ms=int(1_000 * (now_s - each.heard_s)),
            subscriptions=each.subscriptions,
            requests=each.requests,
            unsent_bytes=each.unsent_bytes,
            is_stalled=each.is_stalled,
        )
        for each in by.realm.connections.states()
    ]


async def describe_cluster(by: Caller, _: realms.DescribeCluster) -> realms.ClusterInfo:
    return by.realm.cluster()


async def end_connection(by: Caller, asked: realms.EndConnection) -> None:
    is_number = asked.id.isdecimal() and len(asked.id) < 19
    found = by.realm.connections.find(int(asked.id)) if is_number else None
    if found is None or str(int(asked.id)) != asked.id:
        raise NameDoesNotExist(f"no connection has the id {asked.id[:40]!r}")
    found.end(ConnectionLost("an administrator has ended the connection"))


async def list_pipelines(by: Caller, _: realms.ListPipelines) -> list[realms.PipelineInfo]:
    def lag(name: str, next_id: int) -> int | None:
        store = by.realm.view.named(name)
        return None if store is None else max(0, store.next_id - next_id)

    return await pipelines_in(by.realm.pipeline_folders, lag)


async def describe_pipeline(by: Caller, asked: realms.DescribePipeline) -> realms.PipelineInfo:
    for each in await list_pipelines(by, realms.ListPipelines()):
        if each.name == asked.name:
            return each
    raise NameDoesNotExist(f"there is no pipeline {asked.name[:80]!r}")


async def read_rates(by: Caller, asked: realms.ReadRates) -> realms.RatesNow:
    realm, name = by.realm, asked.channel
    now_us = realm.clock.now_us()
    found: list[realms.ChannelRates] = []
    durables: list[realms.DurableRates] = []
    left_out = 0
    for store in realm.view.stores():
        if name is not None and store.name != name:
            continue
        if len(found) >= CHANNELS_MAX:
            left_out += 1
            continue
        found.append(_channel(store))
        durables += _durables(store, now_us)
    return realms.RatesNow(
        at_us=now_us,
        channels=tuple(found),
        durables=tuple(durables),
        connections=len(realm.connections),
        journal_bytes=realm.journal_info.size,
        memory_bytes=realm.view.memory_bytes,
        left_out=left_out,
    )


async def read_history(by: Caller, asked: realms.ReadHistory) -> realms.HistoryInfo:
    if asked.durable is not None and asked.channel is None:
        raise InvalidArgument("a durable is one of a channel, and channel is missing")
    await by.realm.history.take_in_turns()
    return by.realm.history.told(asked.channel, asked.durable)


def _channel(store: StoreView) -> realms.ChannelRates:
    delivered, acknowledged = store.flow
    return realms.ChannelRates(
        name=store.name,
        kind=store.definition.kind,
        events=store.events,
        bytes=store.bytes,
        last_event_id=store.next_id - 1,
        counters=store.counters,
        delivered=delivered,
        acknowledged=acknowledged,
        died=max(store.counters.dead, sum(store.died.values())),
    )


def _durables(store: StoreView, now_us: int) -> list[realms.DurableRates]:
    found = []
    for _, durable in store.durables:
        info, (delivered, acknowledged) = durable.info(now_us), durable.flow
        found.append(
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
    return found
