"""The route that takes events off queues."""

from __future__ import annotations

import asyncio

from penstock.core.durable.queue import READERS
from penstock.core.ids.ids import IdSet
from penstock.frontends.http.collecting import Collected
from penstock.frontends.http.event_documents import document_of, messages_of
from penstock.frontends.http.finding import found
from penstock.frontends.http.routing import Call, Route
from penstock.frontends.http.shapes import NoQuery, Pop, Popped
from penstock.runtime.realm import RunningRealm

GRACE_S = 0.25
"""Seconds to wait for events that are stored already."""


async def pop(call: Call[NoQuery, Pop]) -> Popped:
    """Take events off a queue for good (SEM Q1): they are committed before the answer is sent.

    If the connection is lost, so are they; use a transactional reader to be sure.
    """
    store, wanted, realm = await found(call), call.body, call.realm
    outlet = Collected(wanted.selector, wanted.count)
    opened = await realm.subscriptions.attach(
        store.number, READERS, outlet, window=wanted.count, pull=True
    )
    try:
        realm.subscriptions.demand(opened.number, wanted.count)
        await outlet.wait(max(wanted.timeout, GRACE_S))
        call.may("queue.pop", store.name)  # the right may have been revoked while waiting
        events = outlet.events()
        await _settle(realm, opened.number, outlet)
    finally:
        realm.subscriptions.detach(opened.number)
    messages = messages_of(store)
    return Popped(items=[document_of(event, messages) for event in events])


async def _settle(realm: RunningRealm, subscription: int, outlet: Collected) -> None:
    ids = IdSet.of(event.event_id for event in outlet.events() if event.event_id is not None)
    if not ids:
        return
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(_: object, error: BaseException | None) -> None:
        if settled.done():
            return
        if error is None:
            settled.set_result(None)
        else:
            settled.set_exception(error)

    realm.subscriptions.settle(
        subscription, tuple(ids.spans), reply, roll_back=False, previous=False
    )
    await settled


ROUTES = (Route("popEvents", "POST", "queues/{queue}/pop", "queue.pop", pop),)
