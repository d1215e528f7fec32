"""The state of one key of a merge channel, found by its value (SEM K5)."""

from __future__ import annotations

from typing import Any

from penstock.columns.events.batch import EventBatch
from penstock.columns.events.event import Event
from penstock.core.ids.ids import Span
from penstock.core.vocabulary.errors import IllegalState
from penstock.core.vocabulary.identities import ChannelId
from penstock.runtime.store.merge_store import MergeStore
from penstock.runtime.store.sealed_file import Damage
from penstock.runtime.writer.group import Group
from penstock.runtime.writer.shard import Shard


async def state_of(shard: Shard, channel_id: ChannelId, value: Any) -> Event | None:
    """The merged event of a value of the publish key; None: nothing of it is stored.

    Raises ``IllegalState`` for a channel that does not merge, ``NameDoesNotExist``.
    """

    def look(group: Group) -> Event | None:
        state = group.channel(channel_id).state
        group.sweep(channel_id)
        store = group.state.stores[channel_id]
        if not isinstance(store, MergeStore):
            raise IllegalState(
                f"{state.name} has engine {state.definition.engine}; only channels with engine "
                f"merge keep a state for each key"
            )
        store.settle()
        newest = store.states.newest_of(value)
        if newest is None or newest not in state.stored:
            return None
        [rows] = store.read((Span(newest, newest + 1),), Damage())
        return EventBatch(rows.batch, publishers=rows.publishers)[0]

    found: Event | None = await shard.act(look, sweeps=(channel_id,))
    return found
