"""Makes the internal stores of a realm (SEM A6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.writer.group import Group

if TYPE_CHECKING:
    from penstock_server.runtime.realm import RunningRealm


async def make_internal(realm: RunningRealm, name: str, definition: Definition) -> ChannelId:
    """Make an internal store, unless it is there; gives its number. Raises ``NameAlreadyBound``
    where a user's store or one of another node has the name."""
    directory = realm.directory

    def make(group: Group) -> ChannelId:
        if (there := directory.internal.ids_by_name.get(name)) is not None:
            return there
        fact = directory.decide_internal(name, definition)
        group.realm_fact(0, fact)
        return ChannelId(fact.number)

    async with realm.names.making(name, definition):
        channel_id: ChannelId = await realm.shard.act(make, sweeps=())
    return channel_id


def serve_mqtt(realm: RunningRealm, channel: str) -> None:
    """Keep the names of the internal stores beside ``channel``, the channel of all topics, and the
    channel itself from being deleted while MQTT is served."""
    realm.directory.serve_mqtt(channel)
