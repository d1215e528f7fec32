"""Conversion of a durable to the form that a snapshot keeps, and recovery (SEM D4)."""

from __future__ import annotations

from msgspec.structs import asdict

from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import DurableKind
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.durable_attributes import DurableState, durable_attributes
from penstock_core.vocabulary.stored_ids import id_set, stored_form


def state_of(durable: Durable, next_id: int, lost: IdSet | None = None) -> DurableState:
    """Return the state of ``durable`` for a snapshot, without ``lost`` events, which do not survive
    a restart. ``next_id`` is that of its channel."""
    outstanding, rolled_back = durable.outstanding, durable.rolled_back
    levels = sorted(durable.levels.items())
    if lost:
        outstanding, rolled_back = outstanding.copy(), rolled_back.copy()
        levels = [(count, level.copy()) for count, level in levels]
        for ids in (outstanding, rolled_back, *(level for _, level in levels)):
            ids.discard_all(lost)
    return DurableState(
        durable.name,
        durable.kind.name,
        durable.selector,
        persistent=durable.persistent,
        head=durable.position(next_id),
        outstanding=stored_form(outstanding),
        redelivered=tuple((count, stored_form(level)) for count, level in levels if level),
        rolled_back=stored_form(rolled_back),
        waiting=durable.waiting.state(lost) if durable.waiting else (),
        last_seek=durable.last_seek if durable.last_seek.key or durable.last_seek.earlier else None,
        **asdict(durable.attributes),
    )


def durable_of(state: DurableState, kind: DurableKind) -> Durable:
    """Return the durable that ``state`` describes. All its outstanding events are ready or
    delayed, because no client is attached after a restart."""
    durable = Durable(
        state.name,
        kind,
        state.head,
        selector=state.selector,
        persistent=state.persistent,
        attributes=durable_attributes(state),
    )
    durable.outstanding = id_set(state.outstanding)
    durable.ready = durable.outstanding.copy()
    durable.rolled_back = id_set(state.rolled_back)
    durable.last_seek = state.last_seek or durable.last_seek
    for count, spans in state.redelivered:
        durable.levels[count] = id_set(spans)
    for until_us, ids in state.waiting:
        durable.postpone(id_set(ids), until_us)
    return durable


def recover_passed(durable: Durable, ids: IdSet) -> None:
    """Record at recovery that ``ids`` are stored, although earlier facts state that they only
    passed through memory (SEM J7). Those that were rolled back become outstanding, and so do
    earlier ones that were in flight at that time."""
    returned = durable.rolled_back.overlap(ids)
    returned.add_all(durable.unrecorded.overlap(ids))
    durable.unrecorded.discard_all(returned)
    durable.outstanding.add_all(returned)
    durable.ready.add_all(returned)
