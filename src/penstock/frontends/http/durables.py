"""Durables: list, make, show, remove, look into, purge, unbind."""

from __future__ import annotations

import msgspec

from penstock.api.durables import DurableInfo
from penstock.frontends.http import events
from penstock.frontends.http.finding import found, may_read, start_of
from penstock.frontends.http.routing import Call, Route
from penstock.frontends.http.shapes import (
    After,
    Counted,
    Done,
    DurableAnswer,
    EventAnswer,
    NewDurable,
    NoQuery,
    OutstandingQuery,
    Page,
    Purge,
    Purged,
)


def answer_of(info: DurableInfo) -> DurableAnswer:
    return msgspec.convert(msgspec.structs.asdict(info), DurableAnswer)


async def list_durables(call: Call[After, None]) -> Page[DurableAnswer]:
    """List the durables of a channel, by name."""
    store, query = await found(call), call.query
    infos = [
        info
        for info in await call.realm.subscriptions.durables(store.number)
        if info.name > query.after
    ]
    more = len(infos) > query.limit
    return Page(
        items=[answer_of(info) for info in infos[: query.limit]],
        next=infos[query.limit - 1].name if more else None,
    )


async def create(call: Call[NoQuery, NewDurable]) -> DurableAnswer:
    """Make a durable: for it the channel keeps what its clients have not acknowledged (SEM D)."""
    store, wanted = await found(call), call.body
    if wanted.selector:
        may_read(call, store)
    info = await call.realm.subscriptions.create_durable(
        store.number,
        wanted.name,
        wanted.type,
        start_of(wanted.start),
        wanted.selector,
        persistent=wanted.persistent,
        max_deliveries=wanted.max_deliveries,
        cluster_wide=wanted.cluster_wide,
        strict_order=wanted.strict_order,
        order_by=wanted.order_by,
    )
    return answer_of(info)


async def show(call: Call[NoQuery, None]) -> DurableAnswer:
    """Show a durable: position, what is outstanding, clients (SEM D17)."""
    store = await found(call)
    return answer_of(await call.realm.subscriptions.durable(store.number, call.params["durable"]))


async def delete(call: Call[NoQuery, None]) -> Done:
    """Remove a durable; nothing is kept for it any more."""
    store = await found(call)
    await call.realm.subscriptions.delete_durable(store.number, call.params["durable"])
    return Done()


async def browse(call: Call[OutstandingQuery, None]) -> Page[EventAnswer]:
    """Look at what is outstanding, in order; changes nothing (SEM D16)."""
    return await events.outstanding(call, call.params["durable"])


async def purge(call: Call[NoQuery, Purge]) -> Purged:
    """Take events off what is outstanding, or only count them; other durables keep them."""
    store, wanted = await found(call), call.body
    if wanted.selector or wanted.dry_run:
        may_read(call, store)
    count = await call.realm.subscriptions.purge_durable(
        store.number,
        call.params["durable"],
        wanted.start,
        wanted.end,
        wanted.selector,
        dry_run=wanted.dry_run,
    )
    return Purged(count=count, dry_run=wanted.dry_run)


async def unbind(call: Call[NoQuery, None]) -> Counted:
    """End all subscriptions of a durable; what they held goes back (SEM D14)."""
    store = await found(call)
    ended = await call.realm.subscriptions.unbind(store.number, call.params["durable"])
    return Counted(count=ended)


_DURABLE = "channels/{channel}/durables/{durable}"

ROUTES = (
    Route("listDurables", "GET", "channels/{channel}/durables", "durable.list", list_durables),
    Route("createDurable", "POST", "channels/{channel}/durables", "durable.create", create, 201),
    Route("getDurable", "GET", _DURABLE, "durable.describe", show),
    Route("deleteDurable", "DELETE", _DURABLE, "durable.delete", delete),
    Route("browseDurable", "GET", f"{_DURABLE}/events", "durable.browse", browse),
    Route("purgeDurable", "POST", f"{_DURABLE}/purge", "durable.purge", purge),
    Route("unbindDurable", "POST", f"{_DURABLE}/unbind", "durable.unbind", unbind),
)
