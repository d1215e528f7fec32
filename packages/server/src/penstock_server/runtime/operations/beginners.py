"""Handlers of requests that begin in the order of their arrival, without waiting."""

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
"""The events of each part of a request."""
Beginner = Callable[[Caller, Any, Reply, Batches], None]
"""Begins a request without waiting. ``Reply`` is called with the answer or the error."""


def _publish(
    caller: Caller, request: publishing.PublishEvents, reply: Reply, batches: Batches
) -> None:
    def on_reply(span: Any, error: BaseException | None) -> None:
        answer = None if error else publishing.Published(span[0], span[1] - span[0])
        reply(answer, error)

    [bodies] = batches
    caller.realm.publish(
        request.channel,
        bodies,
        # An empty name stays empty, because it means that the publish has no producer.
        request.producer and caller.owned(request.producer),
        sequence=request.sequence,
        reply=on_reply,
        publisher=caller.publisher,
    )


def _stage(caller: Caller, request: publishing.StageEvents, reply: Reply, batches: Batches) -> None:
    [bodies] = batches
    # Computed for the refusal of too large events now, instead of at the commit.
    caller.realm.digest(bodies)
    caller.realm.stages.put(caller.owned(request.stage), request.channel, bodies)
    reply(None, None)


def _commit_stages(
    caller: Caller, request: publishing.CommitStages, reply: Reply, _: Batches
) -> None:
    realm, stages = caller.realm, [caller.owned(name) for name in request.stages]

    def on_reply(span: Any, error: BaseException | None) -> None:
        if error is not None:
            reply(None, error)
            return
        realm.stages.drop_published(stages)
        reply(publishing.Published(span[0], span[1] - span[0]), None)

    producer = caller.owned(request.producer)
    realm.commit(
        request.channel,
        stages,
        producer,
        sequence=request.sequence,
        reply=on_reply,
        publisher=caller.publisher,
    )


def _commit_parts(
    caller: Caller, request: publishing.CommitStagedParts, reply: Reply, _: Batches
) -> None:
    realm = caller.realm
    parts = [
        (channel, [caller.owned(name) for name in stages]) for channel, stages in request.parts
    ]

    def on_reply(spans: Any, error: BaseException | None) -> None:
        if error is not None:
            reply(None, error)
            return
        for _, stages in parts:
            realm.stages.drop_published(stages)
        if (permits := caller.permits) is not None:
            # A producer that sends its batch again gets the remembered spans of that batch.
            channels = {channel for channel, _ in parts}
            spans = tuple(span for span in spans if permits.may_hear_of(span[0], channels))
        reply(transactions.TransactionInfo("committed", spans), None)

    producer = caller.owned(request.producer)
    realm.transactions.commit_staged(
        parts, producer, request.sequence, reply=on_reply, publisher=caller.publisher
    )


def _drop_stages(caller: Caller, request: publishing.DropStages, reply: Reply, _: Batches) -> None:
    caller.realm.stages.drop([caller.owned(name) for name in request.stages])
    reply(None, None)


def _commit_transaction(
    caller: Caller,
    request: transactions.CommitTransaction,
    reply: Reply,
    batches: Batches,
) -> None:
    realm = caller.realm
    parts = [
        StorePart(part.channel, [*bodies], [caller.owned(name) for name in part.stages])
        for part, bodies in zip(request.parts, batches, strict=True)
    ]

    def on_reply(spans: Any, error: BaseException | None) -> None:
        if error is not None:
            reply(None, error)
            return
        for part in parts:
            realm.stages.drop(part.stages)
        reply(transactions.TransactionInfo("committed", spans), None)

    leaving = [
        Removal(part.channel, checked(part.redriven), checked(part.purged))
        for part in request.leaving
    ]
    realm.transactions.commit(
        caller.owned(request.transaction), parts, on_reply, caller.publisher, leaving=leaving
    )


def _settle(caller: Caller, request: subscriptions.Settle, reply: Reply, _: Batches) -> None:
    caller.realm.subscriptions.settle(
        caller.seat(request.subscription),
        checked(request.spans),
        lambda _, error: reply(None, error),
        roll_back=request.roll_back,
        previous=request.previous,
        delay_ms=request.delay_ms,
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
