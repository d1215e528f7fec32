"""Creates the internal stores of a realm (SEM A6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.writer.group import Group

if TYPE_CHECKING:
    from penstock_server.runtime.realm import RunningRealm


async def make_internal(realm: RunningRealm, name: str, definition: Definition) -> ChannelId:
    """Create an internal store, unless it exists, and return its id. Raises ``NameAlreadyBound`` if
    a store of a user, or a store of another node, has the name."""
    directory = realm.directory

    def make(group: Group) -> ChannelId:
        # Checked by the writer, so that two calls at the same time create one store.
        if (existing := directory.internal.ids_by_name.get(name)) is not None:
            return existing
        fact = directory.decide_internal(name, definition)
        group.realm_fact(0, fact)
        return ChannelId(fact.number)

    async with realm.names.making(name, definition):
        channel_id: ChannelId = await realm.shard.act(make, sweeps=())
    return channel_id


def serve_mqtt(realm: RunningRealm, channel: str) -> None:
    """Protect ``channel``, the channel of all topics, from deletion while MQTT is served, and
    reserve the names of its internal stores."""
    realm.directory.serve_mqtt(channel)
