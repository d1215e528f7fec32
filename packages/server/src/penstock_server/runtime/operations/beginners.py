"""Handlers of requests that are begun in the order in which they come, without waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from penstock_core.api import (
    publishing,
    subscriptions,
    transactions,
)
from penstock_core.api import realm as realms
from penstock_core.api.requests import Request
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.handlers import checked
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.writer.removals import Removal
from penstock_server.runtime.writer.requests import Reply
from penstock_server.runtime.writer.transactions import StorePart

Batches = Sequence[Sequence[Body]]
Beginner = Callable[[Caller, Any, Reply, Batches], None]


def _publish(by: Caller, asked: publishing.PublishEvents, reply: Reply, batches: Batches) -> None:
    def replied(span: Any, error: BaseException | None) -> None:
        answer = None if error else publishing.Published(span[0], span[1] - span[0])
        reply(answer, error)

    [bodies] = batches
    by.realm.publish(
        asked.channel,
        bodies,
        asked.producer and by.owned(asked.producer),
        sequence=asked.sequence,
        reply=replied,
        publisher=by.publisher,
    )


def _stage(by: Caller, asked: publishing.StageEvents, reply: Reply, batches: Batches) -> None:
    [bodies] = batches
    by.realm.digest(bodies)
    by.realm.stages.put(by.owned(asked.stage), asked.channel, bodies)
    reply(None, None)


def _commit_stages(by: Caller, asked: publishing.CommitStages, reply: Reply, _: Batches) -> None:
    realm, stages = by.realm, [by.owned(name) for name in asked.stages]

    def replied(span: Any, error: BaseException | None) -> None:
        if error is not None:
            reply(None, error)
            return
        realm.stages.committed(stages)
        reply(publishing.Published(span[0], span[1] - span[0]), None)

    producer = by.owned(asked.producer)
    realm.commit(
        asked.channel,
        stages,
        producer,
        sequence=asked.sequence,
        reply=replied,
        publisher=by.publisher,
    )


def _commit_parts(
    by: Caller, asked: publishing.CommitStagedParts, reply: Reply, _: Batches
) -> None:
    realm = by.realm
    parts = [(channel, [by.owned(name) for name in stages]) for channel, stages in asked.parts]

    def replied(spans: Any, error: BaseException | None) -> None:
        if error is not None:
            reply(None, error)
            return
        for _, stages in parts:
            realm.stages.committed(stages)
        if (permits := by.permits) is not None:
            among = {channel for channel, _ in parts}
            spans = tuple(each for each in spans if permits.may_hear_of(each[0], among))
        reply(transactions.TransactionInfo("committed", spans), None)

    producer = by.owned(asked.producer)
    realm.transactions.commit_staged(
        parts, producer, asked.sequence, reply=replied, publisher=by.publisher
    )


def _drop_stages(by: Caller, asked: publishing.DropStages, reply: Reply, _: Batches) -> None:
    by.realm.stages.drop([by.owned(name) for name in asked.stages])
    reply(None, None)


def _commit_transaction(
    by: Caller,
    asked: transactions.CommitTransaction,
    reply: Reply,
    batches: Batches,
) -> None:
    realm = by.realm
    parts = [
        StorePart(part.channel, [*bodies], [by.owned(name) for name in part.stages])
        for part, bodies in zip(asked.parts, batches, strict=True)
    ]

    def replied(spans: Any, error: BaseException | None) -> None:
        if error is not None:
            reply(None, error)
            return
        for part in parts:
            realm.stages.drop(part.stages)
        reply(transactions.TransactionInfo("committed", spans), None)

    leaving = [
        Removal(each.channel, checked(each.redriven), checked(each.purged))
        for each in asked.leaving
    ]
    realm.transactions.commit(
        by.owned(asked.transaction), parts, replied, by.publisher, leaving=leaving
    )


def _settle(by: Caller, asked: subscriptions.Settle, reply: Reply, _: Batches) -> None:
    by.realm.subscriptions.settle(
        by.seat(asked.subscription),
        checked(asked.spans),
        lambda _, error: reply(None, error),
        roll_back=asked.roll_back,
        previous=asked.previous,
        delay_ms=asked.delay_ms,
    )


def _ping(_: Caller, __: realms.Ping, reply: Reply, ___: Batches) -> None:
    reply(None, None)


BEGINNERS: Final[Mapping[type[Request[Any]], Beginner]] = MappingProxyType(
    {
        publishing.PublishEvents: _publish,
        publishing.StageEvents: _stage,
        publishing.CommitStages: _commit_stages,
        publishing.CommitStagedParts: _commit_parts,
        publishing.DropStages: _drop_stages,
        transactions.CommitTransaction: _commit_transaction,
        subscriptions.Settle: _settle,
        realms.Ping: _ping,
    }
)
